"""A judge from people's grades: the set, a LoRA through the training loop, and its alignment with people."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("peft", reason="judge-lora needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")

import torch
from typer.testing import CliRunner

from mie.cli import app
from mie.errors import ConfigError, MieError
from mie.judges import Draft, JudgeOptions, Prompt, Question, open_judge
from mie.scoring.benchmarks.imgedit import CRITERIA
from mie.scoring.judge_set import form_of, read_judge_set, write_judge_set
from mie.scoring.statistics.people import Rating
from mie.training.config import parse_config
from mie.training.folder import read_log
from mie.training.judge_lora import JudgeLora
from mie.training.loop import train
from tests.judges.tiny_vlm import write_tiny_vlm
from tests.scoring.benchmarks.runs import attempt_at, structure, write_run, write_samples

COUNT = 8


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("judge")
    samples = [replace(structure(f"s{at}", at), patient_id=f"p{at // 2}") for at in range(COUNT)]
    dataset = write_samples(samples, root / "dataset")
    return write_run(root / "mine", dataset, {s.id: [attempt_at(s, 50 + n)] for n, s in enumerate(samples)})


def grades(score: int = 4) -> list[Rating]:
    """Two raters of every criterion, one step apart."""
    return [
        Rating(
            f"s{at}", rater, "mine", None, float(score + (rater == "B") * (criterion == "quality")), criterion
        )
        for at in range(COUNT)
        for rater in "AB"
        for criterion in CRITERIA
    ]


@pytest.fixture(scope="module")
def judge_set(run, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("set") / "out"
    words = tmp_path_factory.mktemp("words") / "imgedit_adjust.txt"
    words.write_text("Grade <instruction>.")  # few tokens: the model reads letter by letter
    write_judge_set([run], out, ratings=grades(), held_out=0.4, seed=3, prompts=str(words))
    return out


def test_the_set_has_questions_with_peoples_replies_and_patients_on_one_side(judge_set):
    document, examples = read_judge_set(judge_set)
    assert (document["examples"], document["sources"]) == (COUNT, {"people": COUNT})
    assert set(document["folds"]) == {"train", "held out"}
    by_patient = {}
    for example in examples:
        assert by_patient.setdefault(example["patient"], example["fold"]) == example["fold"]
        assert example["grades"] == [4.0, 4.5, 4.0]
        assert example["reply"].splitlines() == [
            "Instruction adherence: 4",
            "Editing quality: 4",
            "Detail preservation: 4",
        ]
        assert list(form_of(document, example["prompt"]).read(example["reply"])) == [4, 4, 4]
        images = [p["image"] for m in example["messages"] for p in m["content"] if p["type"] == "image"]
        assert len(images) == 2
        assert all((judge_set / name).is_file() for name in images)
    changed = judge_set.parent / "changed"
    changed.mkdir()
    for name in ("set.json", "examples.jsonl"):
        (changed / name).write_bytes((judge_set / name).read_bytes())
    (changed / "examples.jsonl").write_text("{}\n")
    with pytest.raises(MieError, match="has changed"):
        read_judge_set(changed)


def test_what_cannot_be_a_reply_is_said(run, tmp_path):
    with pytest.raises(ConfigError, match="off the judge's scale"):
        write_judge_set([run], tmp_path / "a", ratings=grades(9))
    with pytest.raises(MieError, match="no question has a reply"):
        write_judge_set([run], tmp_path / "b", ratings=grades()[:2])
    with pytest.raises(ConfigError, match="no grades of people"):
        write_judge_set([run], tmp_path / "c", "omni-iie", ratings=grades())


def test_replies_of_a_judge_fill_in_where_people_said_nothing(run, tmp_path):
    (run / "judge").mkdir()
    path = run / "judge/other.jsonl"
    line = {"key": "s0_0:imgedit", "reply": "It is so.\nA: 2\nB: 2\nC: 1"}
    path.write_text(
        json.dumps(line) + "\n" + json.dumps({**line, "key": "s1_0:imgedit", "reply": "no"}) + "\n"
    )
    document = write_judge_set([run], tmp_path / "set", replies=True)
    assert (document["examples"], document["sources"]) == (1, {"judge": 1})
    assert document["without_reply"] == {"without a reply": COUNT - 1}
    path.unlink()


@pytest.fixture(scope="module")
def trained(judge_set, tmp_path_factory):
    root = tmp_path_factory.mktemp("train")
    _, examples = read_judge_set(judge_set)
    base = write_tiny_vlm(root / "base", *(example["reply"] for example in examples))
    body = {
        "name": "judge",
        "trainee": "judge-lora",
        "steps": 150,
        "batch": 2,
        "optimizer": {"lr": 0.03, "warmup": 2, "weight_decay": 0},
        "ema": 0.0,
        "precision": "fp32",
        "checkpoint": {"every": 150},
        "validate": {"every": 150},
        "log_every": 30,
        "data": {"sets": [str(judge_set)], "validate_rows": 2},
        "model": {
            "base": str(base),
            "rank": 16,
            "alpha": 64,
            "targets": ["q_proj", "v_proj", "o_proj", "down_proj", "up_proj", "lm_head"],
            "max_tokens": 80,
        },
    }
    config = parse_config(body, base=root)
    train(config, root / "out")
    return config, base, root / "out"


def test_the_loop_teaches_the_reply_and_the_tuned_judge_agrees_better_than_the_untuned(trained):
    _, _, out = trained
    lines = list(read_log(out / "log.jsonl"))
    losses = [line["loss"] for line in lines if "loss" in line and line.get("kind", "train") == "train"]
    assert losses[-1] < 0.1 * losses[0], losses
    figures = json.loads((out / "train.json").read_text())["best"]["figures"]
    assert figures["untuned_within_one"] is None or figures["untuned_within_one"] < 1
    assert figures["within_one"] == 1.0
    assert figures["answered"] == 1.0


def test_the_local_judge_takes_the_lora_and_says_so(trained, tmp_path):
    _, base, out = trained
    weights = next(out.glob("*.safetensors"))
    prompt = Prompt("test", 1, "Be a judge.", "Say cheese.")

    def make() -> Question:
        return Question(prompt, ("Say cheese.",), lambda text: text)

    replies = {}
    for name, spec in {"plain": "", "tuned": f",adapter={weights}"}.items():
        options = JudgeOptions(f"local:{base},device=cpu,max_tokens=6{spec}")
        with open_judge(options, tmp_path / name, dataset=None) as judge:
            replies[name] = judge.ask([Draft("a_0:x", make, prompt)])["a_0:x"][0].reply
            record = judge.record(())
        assert ("adapter" in record["parameters"]) == (name == "tuned")
    assert replies["plain"] != replies["tuned"]
    with (
        pytest.raises(ConfigError, match="no LoRA here"),
        open_judge(JudgeOptions(f"local:{base},adapter={tmp_path / 'none'}"), tmp_path, dataset=None),
    ):
        pass


def test_a_set_that_is_not_there_is_named(trained, tmp_path):
    config, _, _ = trained
    wrong = parse_config({**config.document(), "data": {"sets": ["nowhere"]}}, base=tmp_path)
    with pytest.raises(MieError, match="not a set for a judge"):
        JudgeLora(wrong).check()
    assert torch.get_num_threads() > 0


def test_the_verb_writes_the_set(run, tmp_path):
    rows = [{"sample_id": r.sample_id, "rater": r.rater, "run": r.model, "score": r.score} for r in grades()]
    lines = [{**row, "criterion": r.criterion} for row, r in zip(rows, grades(), strict=True)]
    path = tmp_path / "grades.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    result = CliRunner().invoke(
        app, ["judge-set", str(run), "--human", str(path), "-o", str(tmp_path / "out")]
    )
    assert result.exit_code == 0, result.output
    assert "8 examples" in result.output
