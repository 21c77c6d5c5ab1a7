"""Builds of counterfactual pairs: whole, killed, tampered with, judged, and described in the data card."""

import hashlib
import itertools
import json
import shutil
import sys
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
import yaml

from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.plan import make_plan
from mie.datasets.recipe import parse_recipe
from mie.datasets.rejected import read_rejected
from mie.datasets.verify import verify
from mie.errors import ConfigError, MieError
from mie.perspectives.modification import experts
from tests import forked_python
from tests.datasets.test_verify import rewrite
from tests.judges.server import JudgeServer, Say
from tests.perspectives.modification.lesions import DarkFinder, disc, tissue, with_lesions

FIELDS = 40


def write_lesions(root, count=FIELDS):
    """Dark discs on real retina; the last one touches the border, the one before is unmarked."""
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True, exist_ok=True)
    for n in range(count):
        at = (2, 60) if n == count - 1 else (40 + n % 30, 50 + n % 23)
        mask = np.zeros((128, 128), bool) if n == count - 2 else disc(*at, 6 + n % 5)
        image = with_lesions(tissue(n), [mask])
        name = f"p{n % 12:02d}_{n:03d}.png"
        cv2.imwrite(str(root / "images" / name), image[..., ::-1])
        cv2.imwrite(str(root / "masks" / name), mask.astype(np.uint8) * 255)
    return root


def body(root, *, modality="fundus", **recipe):
    return {
        "name": "pairs",
        "seed": 3,
        "split": {"test": 0.3},
        "recipe": {
            "kind": "modification",
            "inpainter": "exemplar",
            "detector": None,
            "candidates": 2,
            **recipe,
        },
        "sources": [
            {
                "name": "dark",
                "root": str(root),
                "title": "Dark discs on retina",
                "modality": modality,
                "anatomy": "retina",
                "license": {"name": "CC0-1.0", "use": "open"},
                "layout": {
                    "kind": "folder",
                    "images": "images/{patient}_{id}.png",
                    "masks": "masks/{patient}_{id}.png",
                },
                "targets": [{"name": "retinal haemorrhage", "kind": "lesion", "value": 255}],
            }
        ],
    }


def config(root, **changes):
    return parse_recipe(body(root, **changes), where="t", base=Path())


def fingerprint(folder):
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    return write_lesions(tmp_path_factory.mktemp("lesions"))


@pytest.fixture(scope="module")
def whole(source, tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole") / "dataset"
    build(config(source), folder, workers=1)
    return folder


def test_pairs_are_whole_and_sound(whole):
    dataset = Dataset(whole)
    assert verify(whole, workers=1).problems == []
    groups = Counter(dataset.table(["group"])["group"])
    assert len(groups) > 20
    assert set(groups.values()) == {4}
    assert len(set(dataset.info["counts"]["by_task"].values())) == 1
    sides = {s: set(dataset.table(["patient_id"], s)["patient_id"]) for s in ("train", "test")}
    assert sides["train"]
    assert sides["test"]
    assert not sides["train"] & sides["test"]
    assert {r.gate for r in read_rejected(whole / "rejected.parquet")} >= {"border", "empty"}


def test_two_workers_and_a_kill_do_not_change_a_byte(source, whole, tmp_path):
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump(body(source)))
    folder = tmp_path / "dataset"
    command = [sys.executable, "-m", "mie", "build", str(recipe), "-o", str(folder), "--workers", "2"]
    command += ["--no-stats"]
    running = forked_python.Started(command)
    deadline = time.monotonic() + 60
    while not list(folder.glob("parts/.*")) and running.poll() is None and time.monotonic() < deadline:
        time.sleep(0.05)
    running.kill()
    forked_python.run(command)
    assert fingerprint(folder) == fingerprint(whole)


@pytest.fixture
def copy(whole, tmp_path):
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def change_pixel(image, where):
    changed = image.copy()
    changed[tuple(np.argwhere(where)[11])] ^= 255
    return changed


@pytest.mark.parametrize(
    ("change", "check"),
    [
        (lambda s: replace(s, target_image=change_pixel(s.target_image, s.mask == 0)), "background"),
        (lambda s: replace(s, prompt="Do something."), "prompt"),
        (lambda s: replace(s, mask=None), "background"),
        (lambda s: replace(s, colour="red"), "overlay"),
        (lambda s: replace(s, group=None), "pair"),
    ],
)
def test_verify_finds_a_sample_that_was_tampered_with(copy, change, check):
    """A forger who mends every digest is found by what the sample must be."""
    rewrite(copy, lambda s: change(s) if s.task == "removal" else s)
    assert check in {p.check for p in verify(copy, workers=1).problems}


def test_verify_finds_a_pair_that_does_not_belong_together(copy):
    def lighter(sample):
        if sample.task != "addition":
            return sample
        inside = sample.mask[..., None] > 0
        return replace(sample, input=np.where(inside, sample.input ^ 1, sample.input))

    rewrite(copy, lighter)
    problems = verify(copy, workers=1).problems
    assert {p.check for p in problems} == {"pair"}
    assert "healthy image" in problems[0].reason


def test_the_card_says_when_nothing_was_checked(whole):
    card = (whole / "README.md").read_text()
    assert "## Counterfactual pairs" in card
    assert "Not checked by a detector" in card
    assert "no detector was asked for" in card
    assert "not measured" in card


@pytest.fixture
def detector(monkeypatch):
    found = DarkFinder()
    monkeypatch.setattr(experts, "make_detector", lambda spec, *, family: found)
    experts.watcher.cache_clear()
    yield found
    experts.watcher.cache_clear()


def test_the_card_tells_what_the_detector_saw_and_how_good_it_is(source, detector, tmp_path):
    both = ["telea", "exemplar"]
    info = build(config(source, detector="compact", inpainter=both), tmp_path / "d", workers=1).info
    facts = info["modification"]["fundus"]
    pairs = info["counts"]["samples"] // 4
    assert facts["pairs"] == pairs == sum(facts["inpainters"].values())
    assert facts["lesion_found"]["yes"] == facts["lesion_found"]["of"] >= pairs
    assert 0 < facts["lesion_found_held_out"]["of"] < facts["lesion_found"]["of"]
    assert facts["lesion_left"]["yes"] == 0
    assert facts["not_checked"] == {}
    assert facts["refused"]["border"] == 1
    card = (tmp_path / "d" / "README.md").read_text()
    assert (
        "| fundus | dark | 0.90 | 0.25 | 10 patients, 12 images with lesions, 3 without, 14 lesions |" in card
    )
    filled_by = ", ".join(f"{name} {n}" for name, n in sorted(facts["inpainters"].items()))
    assert f"| fundus | {pairs} | {filled_by} |" in card
    assert "| `inpainter` | telea, exemplar |" in card
    assert "Not checked" not in card


def test_a_detector_that_is_required_and_poor_leaves_nothing(source, detector, tmp_path):
    detector.sensitivity = 0.1
    with pytest.raises(MieError, match="no sample was kept") as error:
        build(config(source, detector="compact", detector_required=True), tmp_path / "d", workers=1)
    assert "detector: no detector that can be trusted" in error.value.found
    gates = [rejection.gate for rejection in read_rejected(tmp_path / "d/rejected.parquet")]
    assert gates.count("detector") > 20


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"inpainter": "compct"}, "compact"),
        ({"detector": "nnuent:folder"}, "nnunet"),
        ({"kinds": []}, "at least 1"),
        ({"bounds": {"variance_ratio": [2, 3]}}, "lowest ratio"),
        ({"bounds": {"mean_shfit": 1}}, "mean_shift"),
        ({"limits": {"max_fraction": 2}}, "less than 1"),
        ({"blend": "smear"}, "feather"),
        ({"inpainter": ["telea", "exemplr"]}, "exemplar"),
        ({"inpainter": []}, "inpainter"),
    ],
)
def test_a_wrong_recipe_is_explained(source, wrong, says):
    with pytest.raises(ConfigError, match=says) as error:
        config(source, **wrong)
    assert says in str(error.value)


def test_missing_weights_stop_the_build_before_it_begins(source, tmp_path, monkeypatch):
    pytest.importorskip("torch", reason="the compact expert needs torch")
    from mie.networks import shipped

    monkeypatch.setattr(shipped, "SHIPPED", {})
    experts.expert.cache_clear()
    with pytest.raises(ConfigError, match="no weights"):
        build(config(source, inpainter="compact"), tmp_path / "d", workers=1)
    assert not (tmp_path / "d" / "parts").exists()


def judge_body(source, server, **changes):
    made = body(source, modality="endoscopy", judge=f"openai:tiny,base_url={server.url}", **changes)
    made["sources"][0]["limit"] = 12
    return made


def judged(source, server, folder, **changes):
    made = parse_recipe(judge_body(source, server, **changes), where="t", base=Path())
    return build(made, folder, workers=1).info


def test_a_judge_sees_both_images_and_its_no_is_a_refusal(source, tmp_path):
    answers = itertools.cycle(["yes\nyes", "no\nyes", "yes\nno", "perhaps"])
    with JudgeServer(lambda _: next(answers)) as server:
        info = judged(source, server, tmp_path / "d")
        images = [p for p in server.requests[0]["messages"][-1]["content"] if p["type"] == "image_url"]
        assert len(images) == 2
    assert info["counts"]["samples"] > 0
    refused = [r for r in read_rejected(tmp_path / "d" / "rejected.parquet") if r.gate == "judge"]
    kept = [json.loads(p) for p in Dataset(tmp_path / "d").table(["params"])["params"]]
    assert all(p["candidates"][p["kept"]]["judge"]["gone"] for p in kept)
    assert all("judge" in r.numbers["candidates"][r.numbers["kept"]] for r in refused)
    assert verify(tmp_path / "d", workers=1).ok


def test_a_judge_that_cannot_be_reached_stops_the_build_and_nothing_is_asked_twice(source, tmp_path):
    count = itertools.count(1)
    broken = [5]

    def answer(_):
        return Say(status=400) if next(count) in broken else "yes\nyes"

    with JudgeServer(answer) as server:
        with pytest.raises(MieError, match="cannot be asked"):
            judged(source, server, tmp_path / "d")
        assert (tmp_path / "d" / "parts").exists()
        info = judged(source, server, tmp_path / "d")
        asked = len(server.requests) - 1  # one was not answered
    with JudgeServer(lambda _: "yes\nyes") as server:
        again = judged(source, server, tmp_path / "again")
        assert len(server.requests) == asked
    assert again["digest"] == info["digest"]


def test_a_judge_is_not_asked_about_sections(source, tmp_path):
    with JudgeServer(lambda _: "no\nno") as server:
        made = judge_body(source, server)
        made["sources"][0]["modality"] = "fundus"
        info = build(parse_recipe(made, where="t", base=Path()), tmp_path / "d", workers=1).info
        assert server.requests == []
    assert info["counts"]["samples"] > 0


def test_images_do_not_leave_the_machine_unless_somebody_vouches_for_them(source, tmp_path):
    made = body(source, modality="endoscopy", judge="openai:gpt-4o")
    recipe = parse_recipe(made, where="t", base=Path())
    with pytest.raises(MieError, match="sent to another machine"):
        build(recipe, tmp_path / "d", workers=1)
    with pytest.raises(MieError, match="would leave this machine"):
        build(recipe, tmp_path / "d", workers=1, allow_remote=True)
    assert not (tmp_path / "d" / "parts").exists()


def test_a_killed_build_asks_its_judge_nothing_twice(source, tmp_path):
    with JudgeServer(lambda _: Say("yes\nyes", delay=0.1)) as server:
        recipe = tmp_path / "recipe.yaml"
        recipe.write_text(yaml.safe_dump(judge_body(source, server)))
        command = [sys.executable, "-m", "mie", "build", str(recipe), "-o", str(tmp_path / "d")]
        command += ["--workers", "1", "--no-stats"]
        running = forked_python.Started(command)
        while len(server.requests) < 4 and running.poll() is None:
            time.sleep(0.02)
        running.kill()
        forked_python.run(command)
        asked = len(server.requests)
    questions = {json.dumps(body, sort_keys=True) for body in server.requests}
    assert Dataset(tmp_path / "d").info["counts"]["samples"] > 0
    assert asked <= len(questions) + 1  # the one that was under way


def test_the_weights_that_filled_are_named_and_a_build_does_not_go_on_with_others(source, tmp_path):
    torch = pytest.importorskip("torch", reason="the compact expert needs the extra `models`")
    from mie.core.files import digest
    from mie.networks import weights
    from mie.networks.fill import FillConfig, FillNet
    from mie.perspectives.modification.inpainters.compact import FORMAT

    path = tmp_path / "expert.safetensors"
    shape = FillConfig((8, 8, 8, 8), (1,))

    def write(seed):
        torch.manual_seed(seed)
        weights.save(path, FillNet(shape).state_dict(), format=FORMAT, config=shape.as_json())
        experts.expert.cache_clear()

    write(1)
    recipe = config(source, inpainter=[f"compact:{path}", "exemplar"])
    build(recipe, tmp_path / "whole", workers=1, limit=4)
    stated = json.loads((tmp_path / "whole" / "dataset.json").read_text())["weights"]
    assert stated == {"fundus": {"compact": digest(path)}}
    unfinished = tmp_path / "unfinished"
    (unfinished / "parts").mkdir(parents=True)
    plan = make_plan(recipe.limited(4))
    stamp = plan.with_weights(stated).fingerprint
    assert stamp != plan.fingerprint
    (unfinished / "parts" / "plan").write_text(stamp)
    write(2)
    with pytest.raises(MieError, match="unfinished build of something else"):
        build(recipe, unfinished, workers=1, limit=4)
