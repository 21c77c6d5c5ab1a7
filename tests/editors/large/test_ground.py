"""`mie ground` on tiny models, from the command to the page."""

from __future__ import annotations

import json

import numpy as np
import pytest
from typer.testing import CliRunner

pytest.importorskip("diffusers", reason="large editors need the extra `models`")

from mie.cli import app
from mie.datasets.dataset import Dataset
from mie.editors.run import run_editor
from mie.errors import ConfigError, MieError
from mie.images.png import decode_png
from mie.scoring.benchmarks.medebench.attention import measure_map
from mie.scoring.benchmarks.medebench.grounding import failures, ground, summarise

PIX2PIX = "StableDiffusionInstructPix2PixPipeline"


@pytest.fixture(scope="session")
def spec(tmp_path_factory):
    from tests.editors.large.tiny_omnigen2 import write_omnigen2

    return f"omnigen2:{write_omnigen2(tmp_path_factory.mktemp('omnigen2') / 'model')},steps=2,device=cpu"


@pytest.fixture(scope="session")
def run(spec, small, tmp_path_factory):
    return run_editor(small, spec, tmp_path_factory.mktemp("run") / "run").folder


def test_a_run_is_grounded_and_shown(run, small, tmp_path):
    folder = tmp_path / "attention"
    result = CliRunner().invoke(app, ["ground", str(run), "-o", str(folder), "--json"])
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    samples = list(Dataset(small))
    assert document["samples"] == document["scored"] == len(samples)
    lines = [json.loads(line) for line in (folder / "grounding.jsonl").read_text().splitlines()][1:]
    # The maps are those of the run's own edits.
    assert [line["as_in_run"] for line in lines] == [True] * len(samples)
    for line, sample in zip(lines, samples, strict=True):
        assert line["id"] == sample.id
        assert line["concept"].lower().startswith(sample.target)
        assert line["control"] is not None
        assert set(line["layers"]) == {"layer 0", "layer 1"}
        stored = decode_png((folder / line["map"]).read_bytes())
        again = measure_map(stored.astype(np.float32), sample.mask > 0)
        assert again["auc"] == pytest.approx(line["scores"]["auc"], abs=0.01)  # 8 bits
    assert document["means"]["iou"]["mean"] == pytest.approx(
        np.mean([line["scores"]["iou"] for line in lines])
    )
    assert document["from_word"]["n"] == len(samples)
    assert document["failures"]["reason"]
    page = (folder / "index.html").read_text()
    assert page.count("data:image/png") == len(samples)
    assert "optic disc" in page

    # Resumed, nothing is made again: without its model the same command still ends.
    before = (folder / "grounding.jsonl").read_bytes()
    (folder / "grounding.jsonl").write_bytes(before[: before.rindex(b"\n", 0, -1) + 10])  # a torn last line
    assert CliRunner().invoke(app, ["ground", str(run), "-o", str(folder)]).exit_code == 0
    assert (folder / "grounding.jsonl").read_bytes() == before


@pytest.mark.parametrize("name", [PIX2PIX, "FluxKontextPipeline"])
def test_pipelines_are_grounded_as_released(tiny, small, tmp_path, name):
    spec = f"diffusers:{tiny(name)},steps=2,size=64,device=cpu"
    document = ground(small, tmp_path / "out", editor=spec, variant="as_released", limit=2)
    lines = [json.loads(line) for line in (tmp_path / "out/grounding.jsonl").read_text().splitlines()][1:]
    assert len(lines) == document["scored"] == 2
    sample = Dataset(small)[0]
    assert lines[0]["instruction"] == f"{sample.task}: {sample.target}"
    assert lines[0]["concept"] == sample.target
    assert (document["from_word"] is None) == (name == PIX2PIX)


def test_a_table_names_the_concept(spec, small, tmp_path):
    sample = Dataset(small)[0]
    table = {f"{sample.task}: {sample.target}": sample.prompt.split()[-1].rstrip(".")}
    ground(small, tmp_path / "out", editor=spec, limit=1, concepts=table)
    line = json.loads((tmp_path / "out/grounding.jsonl").read_text().splitlines()[1])
    assert line["concept"] == next(iter(table.values()))
    with pytest.raises(MieError, match="grounding of something else"):
        ground(small, tmp_path / "out", editor=spec, limit=1)


def test_an_edit_that_failed_is_tried_again(spec, small, tmp_path, monkeypatch):
    import torch

    from mie.networks import omnigen2_flow

    def fails(*_, **__):
        raise torch.OutOfMemoryError("CUDA out of memory")

    with monkeypatch.context() as patch:
        patch.setattr(omnigen2_flow, "sample", fails)
        document = ground(small, tmp_path / "out", editor=spec, limit=1)
    assert (document["samples"], document["scored"]) == (1, 0)
    assert "out of GPU memory" in next(iter(document["unscored"]))
    document = ground(small, tmp_path / "out", editor=spec, limit=1)
    assert (document["samples"], document["scored"], document["unscored"]) == (1, 1, {})


def test_failures_are_joined_with_what_the_judge_said(spec, tmp_path):
    from tests.scoring.benchmarks.medebench.made import make_run, score
    from tests.scoring.benchmarks.recorded import transcript

    run = make_run(tmp_path)
    score(run, judge=transcript("medebench"))
    document = ground(run, tmp_path / "out", editor=spec)
    lines = [json.loads(line) for line in (tmp_path / "out/grounding.jsonl").read_text().splitlines()][1:]
    by_id = {line["id"]: line for line in lines}
    assert by_id["t5"]["reason"] == "the sample has no region mask"
    assert document["unscored"] == {"the sample has no region mask": 1}
    assert by_id["r1"]["organ"] == "Teeth"
    assert by_id["r3"]["concept"] == "mole"  # "remove the mole": the object of the task, found in the prompt
    assert by_id["r1"]["as_in_run"] is False  # the run's outputs are not those of this editor
    table = document["failures"]
    assert table["without_ea"] == 1  # r3: the judge refused
    executed = table["located_executed"]["n"] + table["executed_elsewhere"]["n"]
    assert executed == 3  # r1 .8, r2 .55, b4 1.0
    assert table["located_not_executed"]["n"] + table["mislocated"]["n"] == 0


def test_what_cannot_be_grounded_is_rejected(run, small, tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        ground(small, tmp_path / "out", editor="identity")
    with pytest.raises(ConfigError, match="which editor"):
        ground(small, tmp_path / "out")
    with pytest.raises(ConfigError, match="which samples"):
        ground(run, tmp_path / "out", limit=1)
    with pytest.raises(ConfigError, match="variant"):
        ground(small, tmp_path / "out", editor="identity", variant="other")


def _line(name, iou, control=None):
    scores = {"iou": iou, "pointing": 1.0, "auc": 0.5}
    other = None if control is None else {**scores, "iou": control}
    about = {"organ": name[0], "task": "t", "patient": name, "case": name, "from_word": None}
    return {"id": name, **about, "scores": scores, "control_scores": other, "layers": {"a": iou, "b": None}}


def test_failures_are_told_apart():
    lines = [
        _line("a1", 0.5),
        _line("a2", 0.4),
        _line("b1", 0.1),
        _line("b2", 0.2),
        _line("b3", 0.3),
        _line("c", 0.9),
    ]
    judged = {
        "a1": (0.9, 0.8),
        "a2": (0.1, 0.9),
        "b1": (0.2, 0.4),
        "b2": (0.5, None),
        "b3": (0.49, 0.5),
        "c": (None, 1.0),
    }
    table = failures(lines, judged)
    assert {name: table[name]["n"] for name in table if name not in ("thresholds", "without_ea")} == {
        "located_executed": 1,
        "located_not_executed": 2,
        "executed_elsewhere": 1,
        "mislocated": 1,
    }
    assert table["without_ea"] == 1
    assert table["located_not_executed"]["preserved"] == 2
    assert table["mislocated"]["preserved"] == 0
    assert table["executed_elsewhere"]["cp"] is None


def test_the_summary_counts_what_has_no_number():
    lines = [_line("a1", 0.5, 0.1), _line("a2", 0.3), {"id": "x", "organ": "o", "reason": "no mask"}]
    document = summarise(lines, "no scores")
    assert (document["samples"], document["scored"], document["unscored"]) == (3, 2, {"no mask": 1})
    assert document["means"]["iou"]["mean"] == pytest.approx(0.4)
    assert document["over_control"]["n"] == 1
    assert document["over_control"]["iou"]["mean"] == pytest.approx(0.4)
    assert document["layers"] == {"a": pytest.approx(0.4)}
    assert document["by_organ"]["a"]["n"] == 2
    assert document["failures"] == {"reason": "no scores"}
