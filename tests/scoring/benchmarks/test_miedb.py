"""A run with every quirk, against slow scripts that share no code with ours."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from mie.datasets.dataset import Dataset
from mie.datasets.exports import export
from mie.editors.runs import Run
from mie.errors import ConfigError, MieError
from mie.images.overlay import paint
from mie.images.png import encode_png
from mie.scoring.score import score
from mie.scoring.statistics import mean_interval
from tests.conftest import ellipse
from tests.scoring.benchmarks import slow
from tests.scoring.benchmarks.runs import (
    attempt_at,
    cv2_png,
    holistic,
    lines_of,
    modification,
    structure,
    transformation,
    write_run,
    write_samples,
)
from tests.scoring.benchmarks.scoring import miedb as score_run

SAMPLES = [
    structure("plain", 0),
    structure("greenish", 1, colour="green", modality="OCT"),
    structure("odd", 2, 41, 33, colour="blue"),
    structure("resized", 4),
    structure("late", 5),
    structure("nothing", 6),
    structure("files", 7),
    structure("copied", 8),
    holistic("several", 9),
    holistic("bright", 13),
    transformation("noisy", 10),
    transformation("exact", 11),
    transformation("shrunk", 12),
    transformation("gone", 14),
    modification("removed", 15),
]
BY_ID = {sample.id: sample for sample in SAMPLES}


def outputs():
    """Three attempts each, some of which are not what one hopes for."""
    made = {s.id: [attempt_at(s, 10 * n + k) for k in range(3)] for n, s in enumerate(SAMPLES)}
    large = cv2.resize(attempt_at(BY_ID["resized"], 1), (97, 64), interpolation=cv2.INTER_CUBIC)
    small = cv2.resize(attempt_at(BY_ID["resized"], 2), (31, 20), interpolation=cv2.INTER_AREA)
    made["resized"] = [large, small, attempt_at(BY_ID["resized"], 3)]
    made["late"] = [None, "out of memory", made["late"][2]]
    made["nothing"] = [None, b"this is no picture", b""]
    grey = cv2.cvtColor(made["files"][0], cv2.COLOR_RGB2GRAY)
    opaque = np.dstack([made["files"][1][..., ::-1], np.full((40, 48), 255, np.uint8)])
    made["files"] = [cv2_png(grey), cv2_png(opaque), cv2_png(made["files"][2][..., ::-1])]
    made["copied"] = [BY_ID["copied"].input, BY_ID["copied"].target_image, None]
    made["bright"] = [np.clip(BY_ID["bright"].input.astype(int) + 170, 0, 255).astype(np.uint8)] * 3
    made["exact"] = [BY_ID["exact"].target_image, made["exact"][1], None]
    made["shrunk"][0] = cv2.resize(made["shrunk"][0], (20, 20))
    made["gone"] = [None, None, None]
    return made


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return write_samples(SAMPLES, tmp_path_factory.mktemp("quirks") / "dataset")


@pytest.fixture(scope="module")
def run(dataset):
    return write_run(dataset.folder.parent / "run", dataset, outputs())


def best(line, name, k):
    """Value of a sample at k, by `paper`: attempt 0, or the best there is."""
    values = [a["metrics"].get(name) for a in line["attempts"]][: 1 if k == 1 else None]
    return max((float(v) for v in values if v is not None), default=None)


def test_as_released_agrees_with_the_released_scripts(dataset, run, tmp_path):
    export(dataset, tmp_path / "miedb", "miedb", split="test")
    results = tmp_path / "results"
    results.mkdir()
    stems = {}
    records = json.loads((tmp_path / "miedb/metadata.json").read_text())
    for record, sample in zip(records, SAMPLES, strict=True):
        stems[Path(record["output_image"]).stem] = sample.id
    for stem, name in stems.items():
        for k in range(3):
            if (path := Run.open(run).output_path(name, k)).exists():
                shutil.copy(path, results / f"{stem}_{k}.png")
    expected = slow.released(tmp_path / "miedb", results, 3)
    assert len(expected) == len(SAMPLES) - 1

    document = score_run(run, variant="as_released")
    lines = lines_of(run, "as_released")
    for stem, numbers in expected.items():
        existing = [a["metrics"] for a in lines[stems[stem]]["attempts"] if "*" not in a["unscored"]]
        for key, value in numbers.items():
            name, k = key.split("@")
            values = [float(m[name]) for m in existing] or [0.0]
            found = values[0] if k == "1" else max(values)
            tolerance = 1e-9 if name in ("dice", "p_acc") else 1e-6
            assert found == pytest.approx(value, abs=tolerance, rel=0), (stem, key)
    keys = {key for numbers in expected.values() for key in numbers} - {"psnr@1", "psnr@3", "b_psnr@3"}
    for key in sorted(keys):
        entry = document["groups"][0]["metrics"][key]
        values = [numbers[key] for numbers in expected.values() if key in numbers]
        assert (entry["n"], entry["unscored"]) == (len(values), 0)
        assert entry["missing"] == 1
        assert float(entry["mean"]) == pytest.approx(np.mean(values), abs=1e-6)
    for key in ("psnr@1", "psnr@3", "b_psnr@3"):
        assert document["groups"][0]["metrics"][key]["mean"] == "inf"  # there is an exact match


def test_paper_agrees_with_a_loop_over_pixels(run):
    score_run(run)
    lines = lines_of(run)
    made = outputs()
    for name in (
        "plain",
        "greenish",
        "odd",
        "copied",
        "resized",
        "files",
        "several",
        "bright",
        "noisy",
        "shrunk",
    ):
        sample, output = BY_ID[name], made[name][0]
        if isinstance(output, bytes):
            output = cv2.imdecode(np.frombuffer(output, np.uint8), cv2.IMREAD_COLOR)[..., ::-1]
        if output.shape != sample.input.shape:
            output = cv2.resize(output, sample.input.shape[1::-1], interpolation=cv2.INTER_LINEAR)
        if sample.perspective == "transformation":
            target = sample.target_image
            expected = {"psnr": slow.paper_psnr(target, output), "ssim": slow.paper_ssim(target, output)}
        else:
            colours = slow.RGB if sample.task == "holistic" else {sample.colour: slow.RGB[sample.colour]}
            painted, region = (
                np.max([slow.deblend(sample.input, image, c) for c in colours.values()], axis=0)
                for image in (output, sample.target_image)
            )
            expected = {
                "dice": slow.dice(painted, region),
                "p_acc": float(slow.dice(painted, region) > 0.8),
                "b_psnr": slow.paper_psnr(sample.target_image, output, region),
                "b_ssim": slow.paper_ssim(sample.target_image, output, region),
            }
        found = lines[name]["attempts"][0]["metrics"]
        for metric, value in expected.items():
            assert found[metric] == pytest.approx(value, abs=1e-10, rel=0), (name, metric)


def test_classes_of_holistic_samples(run):
    score_run(run)
    attempt = lines_of(run)["several"]["attempts"][0]
    sample, output = BY_ID["several"], outputs()["several"][0]
    expected = {
        colour: slow.dice(
            *(slow.deblend(sample.input, i, slow.RGB[colour]) for i in (output, sample.target_image))
        )
        for colour in ("green", "blue")
    }
    assert attempt["classes"] == pytest.approx(expected, abs=1e-12, rel=0)
    assert attempt["metrics"]["class_dice"] == pytest.approx(
        np.mean(list(expected.values())), abs=1e-12, rel=0
    )


def test_paper_means_and_coverage(run):
    document = score_run(run)
    lines = lines_of(run)
    whole = document["groups"][0]
    assert whole["group"] == {}
    assert document["n_samples"] == len(SAMPLES)
    assert document["not_covered"] == {"modification": 1}
    for key, entry in whole["metrics"].items():
        name, k = key.split("@")
        applies = [line for line in lines.values() if name in line["applies"]]
        values = [v for line in applies if (v := best(line, name, int(k))) is not None]
        assert entry["n"] == len(values)
        assert entry["n"] + entry["unscored"] == len(applies)
        assert entry["mean"] == pytest.approx(np.mean(values), abs=1e-12, rel=0)
        low, high = entry["ci95"]
        if entry["patients"] + entry["images_without_patient"] < 3:
            assert (low, high) == (None, None)
            assert "needs at least 3" in entry["no_interval"]
        else:
            assert low <= entry["mean"] <= high
    assert whole["metrics"]["dice@1"]["unscored"] == 2  # "late" has no first attempt, "nothing" has none
    assert whole["metrics"]["dice@3"]["unscored"] == 1
    assert whole["metrics"]["psnr@1"]["capped"] == 1
    assert whole["metrics"]["b_psnr@3"]["capped"] == 1
    assert "capped" not in whole["metrics"]["dice@1"]
    assert set(whole["metrics"]) == {
        f"{name}@{k}"
        for name in ("dice", "dice_guarded", "class_dice", "p_acc", "b_psnr", "b_ssim", "psnr", "ssim")
        for k in (1, 3)
    }


def test_groups(run):
    document = score_run(run)
    groups = {tuple(g["group"].items()): g["metrics"] for g in document["groups"]}
    assert list(groups)[:4] == [
        (),
        (("perspective", "perception"),),
        (("perspective", "modification"),),
        (("perspective", "transformation"),),
    ]
    assert {key[0][0] for key in groups if key} == {"perspective", "modality", "task", "target", "source"}
    assert "psnr@1" not in groups[("perspective", "perception"),]
    assert groups[("perspective", "modification"),] == {}
    assert groups[("perspective", "perception"),]["dice@1"] == groups[()]["dice@1"]
    assert groups[("modality", "OCT"),]["dice@1"]["n"] == 1
    assert groups[("modality", "OCT"),]["dice@1"]["ci95"] == [None, None]  # one image shows no spread
    lines = lines_of(run)
    chosen = [line for line in lines.values() if line["group"]["task"] == "structure"]
    kept = [line for line in chosen if best(line, "dice", 1) is not None]
    values, patients = [best(line, "dice", 1) for line in kept], [line["patient"] for line in kept]
    interval = mean_interval(values, patients, bounds=(0, 1))
    entry = groups[("task", "structure"),]["dice@1"]
    assert entry["ci95"] == pytest.approx([interval.low, interval.high], abs=1e-12, rel=0)
    assert entry["patients"] == len(set(patients))


def test_unscored_is_a_reason_never_a_number(run):
    score_run(run)
    lines = lines_of(run)
    reasons = [attempt["unscored"] for attempt in lines["late"]["attempts"]]
    assert reasons[:2] == [{"*": "no output"}, {"*": "edit failed: out of memory"}]
    _, garbage, empty = lines["nothing"]["attempts"]
    assert garbage["metrics"] == empty["metrics"] == {}
    assert "unreadable output" in garbage["unscored"]["*"]
    assert "empty" in empty["unscored"]["*"]
    assert lines["removed"]["attempts"] == []
    assert lines["resized"]["attempts"][0]["resized_from"] == [64, 97]


def test_brightening_does_not_win_the_guarded_dice(run):
    score_run(run)
    metrics = lines_of(run)["bright"]["attempts"][0]["metrics"]
    assert metrics["dice_guarded"] < 0.2


@pytest.mark.parametrize("variant", ["paper", "as_released"])
def test_oracle_and_identity(dataset, tmp_path, variant):
    oracle = write_run(tmp_path / "oracle", dataset, {s.id: [s.target_image] for s in SAMPLES})
    for group in score_run(oracle, variant=variant)["groups"]:
        for key, entry in group["metrics"].items():
            top = 1.0 if "psnr" not in key else 100.0 if variant == "paper" else "inf"
            assert entry["mean"] == top, key
            assert entry["unscored"] == 0
            if "psnr" in key and variant == "paper":
                assert entry["capped"] == entry["n"]
    identity = write_run(tmp_path / "identity", dataset, {s.id: [s.input] for s in SAMPLES})
    whole = score_run(identity, variant=variant)["groups"][0]["metrics"]
    for key in ("dice@1", "dice_guarded@1", "class_dice@1", "p_acc@1"):
        assert whole[key]["mean"] == pytest.approx(0, abs=1e-6)
    if variant == "paper":
        assert (whole["b_psnr@1"]["mean"], whole["b_ssim@1"]["mean"]) == (100.0, 1.0)
        assert whole["b_psnr@1"]["capped"] == whole["b_psnr@1"]["n"]
    else:
        assert 5 < whole["b_psnr@1"]["mean"] < 40


def edge(name, sample, **changes):
    return replace(sample, id=name, case_id=name, **changes)


def test_edges(tmp_path):
    base = structure("x", 0)
    image = base.input
    tiny, dot = crop_of(5), crop_of(1)
    whole = np.ones(image.shape[:2], bool)
    narrow = whole.copy()
    narrow[:4] = False
    samples = [
        edge("empty both", base, target_image=image),
        edge("empty output", base),
        edge("empty reference", base, target_image=image),
        edge("covers everything", base, target_image=paint(image, whole, "red")),
        edge("no window", base, target_image=paint(image, narrow, "red")),
        edge("5 px", base, input=tiny, target_image=tiny, mask=None),
        edge("1 px", base, input=dot, target_image=dot, mask=None),
        edge("5 px whole", transformation("t", 1), input=tiny, target_image=tiny),
        edge("no colour", base, colour=None, mask=None),
    ]
    dataset = write_samples(samples, tmp_path / "dataset")
    made = {
        "empty both": image,
        "empty output": image,
        "empty reference": base.target_image,
        "covers everything": base.target_image,
        "no window": base.target_image,
        "5 px": tiny,
        "1 px": dot,
        "5 px whole": 255 - tiny,
        "no colour": image,
    }
    run = write_run(tmp_path / "run", dataset, {name: [pixels] for name, pixels in made.items()})
    score_run(run)
    found = {name: line["attempts"][0] for name, line in lines_of(run).items()}
    assert found["empty both"]["metrics"]["dice"] == 1.0
    assert found["empty output"]["metrics"]["dice"] < 1e-6
    assert found["empty reference"]["metrics"]["dice"] < 1e-6
    assert found["covers everything"]["unscored"].keys() == {"b_psnr", "b_ssim"}
    assert found["no window"]["unscored"].keys() == {"b_ssim"}
    assert found["no window"]["metrics"]["b_psnr"] == pytest.approx(
        slow.paper_psnr(samples[4].target_image, base.target_image, narrow), abs=1e-10
    )
    for name in ("5 px", "1 px"):
        assert found[name]["metrics"]["dice"] == 1.0
        assert found[name]["metrics"]["b_psnr"] == 100.0
        assert found[name]["unscored"].keys() == {"b_ssim"}
    assert found["5 px whole"]["unscored"].keys() == {"ssim"}
    assert found["5 px whole"]["metrics"]["psnr"] == pytest.approx(
        slow.paper_psnr(tiny, 255 - tiny), abs=1e-10, rel=0
    )
    assert "colour" in found["no colour"]["unscored"]["dice"]
    # As released, a region that covers everything paints row 0 alone, and SSIM of 5 px does not exist.
    score_run(run, variant="as_released")
    found = {name: line["attempts"][0] for name, line in lines_of(run, "as_released").items()}
    assert found["covers everything"]["unscored"] == {}
    assert found["5 px"]["unscored"].keys() == {"b_psnr", "b_ssim"}


def crop_of(side):
    return structure("x", 3).input[:side, :side].copy()


def test_transparent_outputs(tmp_path):
    """On black by `paper`, as every picture; dropped by `as_released`, as `cv2.imread` does."""
    sample = structure("x", 0)
    clear = np.dstack([sample.target_image[..., ::-1], np.zeros(sample.mask.shape, np.uint8)])
    dataset = write_samples([sample], tmp_path / "dataset")
    run = write_run(tmp_path / "run", dataset, {"x": [cv2_png(clear)]})
    released = score_run(run, variant="as_released")["groups"][0]["metrics"]
    paper = score_run(run)["groups"][0]["metrics"]
    assert released["dice@1"]["mean"] == 1.0
    assert paper["dice@1"]["mean"] < 0.5


def test_half_a_file_is_unreadable(tmp_path):
    sample = structure("x", 0)
    dataset = write_samples([sample], tmp_path / "dataset")
    whole = encode_png(sample.target_image)
    run = write_run(tmp_path / "run", dataset, {"x": [whole[: len(whole) // 2], whole[:-200] + b"x" * 200]})
    document = score_run(run)
    assert document["groups"][0]["metrics"]["dice@2"] == {
        "mean": None,
        "n": 0,
        "unscored": 1,
        "ci95": [None, None],
        "patients": 0,
        "images_without_patient": 0,
        "no_interval": "no values",
    }


def test_an_output_that_was_deleted(run, dataset, tmp_path):
    copy = shutil.copytree(run, tmp_path / "run")
    Run.open(copy).output_path("plain", 0).unlink()
    score_run(copy)
    assert lines_of(copy)["plain"]["attempts"][0]["unscored"] == {"*": "output file is gone"}


def test_a_dataset_image_that_cannot_be_read_is_no_ones_failure(run, monkeypatch):
    import mie.scoring.attempts as module
    from mie.errors import ImageError

    def fail(data):
        raise ImageError("damaged")

    monkeypatch.setattr(module, "read_stored", fail)
    copy = score_run(run)
    assert copy["groups"][0]["metrics"]["dice@1"]["n"] == 0


def test_a_limited_run_is_scored_on_what_it_was_made_for(dataset, tmp_path):
    made = {s.id: [s.target_image] for s in SAMPLES[:3]}
    limited = write_run(tmp_path / "run", dataset, made, limit=3)
    document = score_run(limited)
    assert document["n_samples"] == 3
    assert document["groups"][0]["metrics"]["dice@1"]["unscored"] == 0


def test_a_split(tmp_path):
    samples = [replace(structure(f"s{n}", n), split="train" if n < 3 else "test") for n in range(5)]
    dataset = write_samples(samples, tmp_path / "dataset")
    run = write_run(tmp_path / "run", dataset, {"s3": [samples[3].input], "s4": [None]}, split="test")
    assert score_run(run)["n_samples"] == 2


def test_a_run_that_has_no_edit_yet(dataset, tmp_path):
    run = write_run(tmp_path / "run", dataset, {"plain": [None]})
    (run / "edits.jsonl").unlink()
    entry = score_run(run)["groups"][0]["metrics"]["dice@1"]
    assert (entry["n"], entry["unscored"]) == (0, 10)


@pytest.mark.parametrize("variant", ["paper", "as_released"])
def test_modification_from_pixels(tmp_path, variant):
    """Inside and outside the area that changes, against loops over its pixels; other numbers stay."""
    area = ellipse(3, 40, 48)
    small = np.zeros((40, 48), bool)
    small[20:24, 10:14] = True  # pixels, but no whole window
    masks = {"area": area, "small": small, "empty": np.zeros_like(area), "unmasked": None}
    samples = [
        replace(modification(name, n), mask=None if mask is None else mask.astype(np.uint8) * 255)
        for n, (name, mask) in enumerate(masks.items())
    ]
    outputs = {s.id: [attempt_at(s, 1), s.target_image] for s in samples}
    outputs["area"][0] = cv2.resize(outputs["area"][0], (60, 50))
    dataset = write_samples([*samples, structure("painted", 7)], tmp_path / "dataset")
    run = write_run(tmp_path / "run", dataset, {**outputs, "painted": [samples[0].input]})
    document = score_run(run, variant=variant)
    lines = lines_of(run, variant)
    names = {"changed_psnr", "changed_ssim", "unchanged_psnr", "unchanged_ssim"}
    for sample in samples[:2]:
        output = outputs[sample.id][0]
        if output.shape != sample.input.shape:
            output = cv2.resize(output, (48, 40), interpolation=cv2.INTER_LINEAR)
        region, target = sample.mask > 0, sample.target_image
        expected = {
            "changed_psnr": slow.paper_psnr(target, output, ~region),
            "unchanged_psnr": slow.paper_psnr(target, output, region),
            "unchanged_ssim": slow.paper_ssim(target, output, region),
        }
        if sample.id == "area":
            expected["changed_ssim"] = slow.paper_ssim(target, output, ~region)
        attempt = lines[sample.id]["attempts"][0]
        assert attempt["metrics"] == pytest.approx(expected, abs=1e-9, rel=0)
        assert set(lines[sample.id]["applies"]) == names
    assert "inside the area" in lines["small"]["attempts"][0]["unscored"]["changed_ssim"]
    assert lines["empty"]["attempts"][0]["unscored"].keys() == {"changed_psnr", "changed_ssim"}
    exact = lines["area"]["attempts"][1]["metrics"]
    assert exact["changed_psnr"] == exact["unchanged_psnr"] == (100.0 if variant == "paper" else "inf")
    assert lines["unmasked"]["applies"] == []
    assert document["not_covered"] == {"modification": 1}
    whole = document["groups"][0]["metrics"]
    assert whole["b_psnr@1"]["n"] == 1  # the overlay alone
    assert "psnr@1" not in whole


def test_a_run_about_no_samples_is_refused(dataset, tmp_path):
    run = write_run(tmp_path / "run", dataset, {"plain": [None]}, split="train")
    with pytest.raises(MieError, match="no samples") as caught:
        score_run(run)
    assert "split 'train' of quirks is empty" in caught.value.found
    assert {path.name for path in run.iterdir()} == {"run.json", "edits.jsonl", "outputs"}


def test_a_run_that_no_metric_applies_to_is_refused(tmp_path):
    samples = [modification("m0", 0), modification("m1", 1)]
    dataset = write_samples(samples, tmp_path / "dataset")
    run = write_run(tmp_path / "run", dataset, {s.id: [s.input] for s in samples})
    with pytest.raises(MieError, match="no metric of miedb applies") as caught:
        score_run(run)
    assert caught.value.found == "2 modification"
    assert "--judge" in caught.value.fix
    assert {path.name for path in run.iterdir()} == {"run.json", "edits.jsonl", "outputs"}


def test_a_benchmark_of_judged_metrics_without_a_judge_is_refused(run):
    with pytest.raises(ConfigError, match="every metric of imgedit comes from a judge") as caught:
        score(run, "imgedit")
    assert "--judge" in caught.value.fix


def test_wrong_use(run, tmp_path):
    with pytest.raises(ConfigError, match="papr") as caught:
        score_run(run, variant="papr")
    assert "'paper'" in caught.value.fix
    with pytest.raises(MieError, match="no run"):
        score_run(tmp_path)


def test_header(run, dataset):
    score_run(run)
    header = json.loads((run / "scores/miedb.paper.jsonl").open().readline())
    assert header["dataset_digest"] == Dataset(dataset.folder).digest
    assert {"protocol", "variant", "edits_sha256", "mie", "attempts", "metrics"} < set(header)
