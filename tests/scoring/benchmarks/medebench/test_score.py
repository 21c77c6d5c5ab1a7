"""MedEBench from a run's folder to its tables: pixels against scikit-image, judges against a transcript."""

from __future__ import annotations

import contextlib
import json

import cv2
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from skimage.metrics import structural_similarity
from typer.testing import CliRunner

from mie.cli import app
from mie.editors.runs import Run
from mie.judges import JudgeOptions, ParseError
from mie.scoring.benchmarks.medebench.judge import PARSERS, as_released
from mie.scoring.benchmarks.medebench.score import MEDEBENCH
from mie.scoring.reference import read_output
from tests.judges.server import JudgeServer, images_of, texts_of
from tests.scoring.benchmarks.medebench.made import GRADES, SAMPLES, WRITTEN, answer, make_run
from tests.scoring.benchmarks.recorded import transcript
from tests.scoring.benchmarks.runs import lines_of, transformation, write_run, write_samples
from tests.scoring.benchmarks.scoring import medebench as score_run


@pytest.fixture
def run(tmp_path):
    return make_run(tmp_path)


def whole(document):
    return document["groups"][0]["metrics"]


def groups(document, key):
    return {g["group"][key]: g["metrics"] for g in document["groups"] if list(g["group"]) == [key]}


def output_of(run, sample):
    """The output at its input's size, by the released way."""
    pixels = read_output(Run.open(run).output_path(sample.id, 0), "paper")
    height, width = sample.input.shape[:2]
    return np.asarray(Image.fromarray(pixels).resize((width, height), Image.BICUBIC))


def test_context_preservation(run):
    paper, released = score_run(run), score_run(run, variant="as_released")
    for variant, document in (("paper", paper), ("as_released", released)):
        assert (whole(document)["cp@1"]["n"], whole(document)["cp@1"]["unscored"]) == (4, 1)
        lines = lines_of(run, variant, "medebench")
        assert lines["t5"]["attempts"][0]["unscored"] == {"cp": "the sample has no region mask"}
        for sample in SAMPLES[:4]:
            mask = sample.mask if "medebench" in sample.params else (sample.mask > 0).astype(np.uint8) * 255
            made = output_of(run, sample)
            if variant == "paper":
                _, full = structural_similarity(sample.input, made, channel_axis=2, full=True)
                near = cv2.dilate((mask >= 127.5).astype(np.uint8), np.ones((7, 7))) > 0
                keep = np.zeros(mask.shape, bool)
                keep[3:-3, 3:-3] = ~near[3:-3, 3:-3]
                expected = full[keep].mean()
            else:
                inverse = np.float32(1) - mask.astype(np.float32) / 255
                kept = [
                    ((i.astype(np.float32) / 255 * inverse[..., None]) * 255).astype(np.uint8)
                    for i in (sample.input, made)
                ]
                expected = structural_similarity(*kept, channel_axis=2)
            assert lines[sample.id]["attempts"][0]["metrics"]["cp"] == pytest.approx(expected, abs=1e-9)
    assert set(groups(paper, "organ")) == {"Teeth", "Skin", "retina"}
    assert {"fill the gap", "structure: optic disc"} < set(groups(paper, "task"))
    assert "ea@1" not in whole(paper)
    assert lines_of(run, "paper", "medebench")["r3"]["attempts"][0]["resized_from"] == [80, 96]


def test_the_transcript(run):
    document = score_run(run, judge=transcript("medebench"))
    found = whole(document)
    given = {name: g for name, g in GRADES.items() if not isinstance(g[0], str)}
    assert found["ea@1"]["mean"] == pytest.approx(np.mean([g[0][0] for g in given.values()]) / 10)
    assert found["vq@1"]["mean"] == pytest.approx(np.mean([g[0][1] for g in given.values()]) / 10)
    assert (found["ea@1"]["n"], found["ea@1"]["unscored"]) == (4, 1)
    assert found["ea_plain@1"]["mean"] == pytest.approx(np.mean([7, 3, 9, 0, 4]) / 10)
    assert found["vq_plain@1"]["n"] == 5
    teeth = groups(document, "organ")["Teeth"]
    assert teeth["ea@1"]["mean"] == pytest.approx((0.8 + 0.55) / 2)
    lines = lines_of(run, protocol="medebench")
    assert "unparseable" in lines["r3"]["attempts"][0]["unscored"]["ea"]
    told = lines["r2"]["description"]
    assert (told["text"], told["judge"]["prompt"]) == (WRITTEN, "medebench_describe@2")
    assert "description" not in lines["r1"]
    assert lines["r1"]["attempts"][0]["judge"]["ea"]["prompt"] == "medebench_edit@2"
    judge = document["judge"]
    assert set(judge["prompts"]) == {"medebench_describe@2", "medebench_edit@2"}
    assert judge["preparing"]["states"] == {"done": 1}
    assert judge["states"] == {"done": 9, "unparseable": 1}
    again = score_run(run, judge=transcript("medebench"))
    assert again == document


def test_the_transcript_is_what_the_loopback_judge_says(run, tmp_path):
    expected = whole(score_run(run, judge=transcript("medebench")))
    with JudgeServer(answer) as server:
        options = JudgeOptions(f"openai:tiny,base_url={server.url}")
        dry = score_run(run, judge=JudgeOptions(options.spec, dry_run=True))
        assert dry["dry_run"]["calls"] == 11
        assert server.requests == []
        assert whole(score_run(run, judge=options)) == expected
        assert len(server.requests) == 12  # one repair
        asked = [body for body in server.requests if WRITTEN in texts_of(body)[1]]
        released = score_run(run, variant="as_released", judge=options)
    # Bold type is nothing to the released parser: it has no number, and says why.
    assert whole(released)["ea@1"]["n"] == 0
    (shown,) = [images_of(body) for body in asked]
    np.testing.assert_array_equal(shown[0], SAMPLES[1].input)
    np.testing.assert_array_equal(shown[1], SAMPLES[1].target_image)
    np.testing.assert_array_equal(shown[2], read_output(Run.open(run).output_path("r2", 0), "paper"))
    # Asked once for the dataset: another run on it finds the description there.
    assert (run.parent / "dataset/judge").is_dir()


def test_the_command(run):
    options = transcript("medebench")
    done = CliRunner().invoke(app, ["score", str(run), "--protocol", "medebench", "--judge", options.spec])
    assert done.exit_code == 3, done.output
    for words in ("by organ", "Teeth", "0.68 (2/2)", "gemini-2-flash", "EA (instruction)", "radar chart"):
        assert words in done.output
    chart = cv2.imread(str(run / "summary/medebench.paper.radar.png"))
    assert chart.shape[1] > 900
    assert len(np.unique(chart.reshape(-1, 3), axis=0)) > 20
    command = ["score", str(run), "--protocol", "medebench", "--json"]
    document = json.loads(CliRunner().invoke(app, command).stdout)
    assert {"cp@1", "psnr@1", "ssim@1"} == set(document["groups"][0]["metrics"])


def test_a_transformation_has_no_context(tmp_path):
    sample = transformation("t", 5)
    dataset = write_samples([sample], tmp_path / "dataset")
    run = write_run(tmp_path / "run", dataset, {"t": [sample.target_image]})
    assert set(whole(score_run(run))) == {"psnr@1", "ssim@1"}
    assert lines_of(run, protocol="medebench")["t"]["attempts"][0]["unscored"] == {}


def test_published():
    assert {row.model: row.ea for row in MEDEBENCH}["gemini-2-flash"] == 0.68
    assert len(MEDEBENCH) == 7


def released_parser(text):
    """The public script's way, written down once more."""
    scores = {"Editing Accuracy": -1.0, "Visual Quality": -1.0}
    for line in text.split("\n"):
        for label in scores:
            if label in line:
                with contextlib.suppress(IndexError, ValueError):
                    scores[label] = float(line.split(":")[1].split("/")[0].strip())
                break
    return tuple(scores.values())


PIECES = st.sampled_from(
    [
        "Editing Accuracy",
        "Visual Quality",
        ": ",
        ":",
        "7",
        "10",
        "8.5",
        "/10",
        "/",
        " ",
        "\n",
        "**",
        "- ",
        "x",
    ]
)


@given(st.lists(PIECES, max_size=24).map("".join))
def test_released_replies_are_read_as_released(text):
    expected = released_parser(text)
    try:
        found = tuple(as_released(text).values())
    except ParseError:
        assert -1.0 in expected
    else:
        assert found == expected


@given(ea=st.integers(0, 10), vq=st.integers(0, 10), bold=st.booleans())
def test_both_parsers_agree_where_the_released_one_reads(ea, vq, bold):
    mark = "**" if bold else ""
    text = f"Differences: none.\n- {mark}Editing Accuracy{mark}: {ea}/10\n- Visual Quality: {vq}/10"
    assert PARSERS["paper"](text) == PARSERS["as_released"](text) == {"ea": ea, "vq": vq}
