"""Scored runs made by hand, as the run and score verbs write them; numbers by scikit-image."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

from mie.datasets.dataset import Dataset
from mie.datasets.write import write_dataset
from mie.images.overlay import deblend, deblend_any, dice, paint
from mie.images.png import encode_png
from mie.perspectives.perception.samples import Perception
from mie.records import Sample
from mie.report.page import write_report
from tests.conftest import crop, make_case

HOSTILE = '<script>alert("p")</script> & </p> paint it $x^2$ %'
NAMES = ("perspective", "task", "modality", "anatomy", "target", "source")
MODALITIES = ("fundus", "microscopy", "CT", "endoscopy")


def samples(count: int) -> Iterable[Sample]:
    """Perception samples of four modalities and, every fifth, a denoising one."""
    for number in range(count):
        case = make_case(
            number, 1 + number % 2, modality=MODALITIES[number % 4], patient_id=f"p{number // 2}"
        )
        found = list(Perception().samples(case, "test", 5))
        if number == 0:
            found[0] = replace(found[0], prompt=HOSTILE)
        yield from found
        if number % 5 == 0:
            clean = crop(number + 500)
            noise = np.random.default_rng(number).normal(0, 18, clean.shape)
            yield replace(
                found[0],
                id=hashlib.sha256(b"%d" % number).hexdigest()[:16],
                perspective="transformation",
                task="denoising",
                target="whole image",
                prompt="Remove the noise from this picture and keep everything else as it is.",
                input=np.clip(clean + noise, 0, 255).astype(np.uint8),
                target_image=clean,
                mask=None,
                colour=None,
            )


def make_dataset(folder: Path, count: int) -> Dataset:
    terms = {"name": "CC0-1.0", "use": "open", "basis": "stated"}
    write_dataset(
        samples(count),
        folder,
        name="discs & dots",
        description="Made for a test.",
        recipe={"name": "discs"},
        licenses={"test": terms},
        deidentified=True,
    )
    return Dataset(folder)


def worse(sample: Sample, skill: float, seed: int) -> np.ndarray:
    """An output that is right for `skill` 1 and worse below: a moved region, a noisy background."""
    draw = np.random.default_rng([seed, int(sample.id[:8], 16)])
    grime = draw.normal(0, 14 * (1 - skill) + 0.01, sample.input.shape)
    if sample.mask is None:
        mixed = skill * sample.target_image + (1 - skill) * sample.input
        return np.clip(mixed + grime, 0, 255).astype(np.uint8)
    image = np.clip(sample.input + grime, 0, 255).astype(np.uint8)
    shift = np.round(draw.normal(0, 22 * (1 - skill), 2)).astype(int)
    colours = sample.colour.split(",")
    for value, colour in zip(sorted(set(np.unique(sample.mask)) - {0}), colours, strict=True):
        image = paint(image, np.roll(sample.mask == value, shift, (0, 1)), colour)
    return image


def metrics(sample: Sample, output: np.ndarray) -> dict[str, float | str]:
    """The paper's measures, plainly."""
    if sample.mask is None:
        return {
            "psnr": float(peak_signal_noise_ratio(sample.target_image, output)),
            "ssim": float(structural_similarity(sample.target_image, output, channel_axis=2)),
        }
    single = "," not in sample.colour
    read = (
        (lambda image: deblend(sample.input, image, sample.colour))
        if single
        else (lambda image: deblend_any(sample.input, image))
    )
    overlap = dice(read(output), read(sample.target_image))
    region = sample.mask > 0
    error = ((sample.target_image.astype(float) - output)[~region] ** 2).mean()
    _, full = structural_similarity(sample.target_image, output, channel_axis=2, full=True)
    clear = cv2.dilate(region.astype(np.uint8), np.ones((7, 7), np.uint8)) == 0
    clear[:3] = clear[-3:] = clear[:, :3] = clear[:, -3:] = False
    return {
        "dice": overlap,
        "p_acc": float(overlap > 0.8),
        "dice_guarded": max(0.0, overlap - 0.02),
        "b_psnr": "inf" if error == 0 else float(10 * np.log10(255**2 / error)),
        "b_ssim": float(full[clear].mean()),
    }


def make_run(
    dataset: Dataset,
    folder: Path,
    name: str,
    skill: float,
    *,
    attempts: int = 2,
    trouble: bool = False,
    variant="paper",
) -> Path:
    """A finished, scored run. With `trouble`: a failure, an odd size, drift and an unscored measure."""
    (folder / "outputs").mkdir(parents=True)
    edits, lines = [], []
    for at, sample in enumerate(dataset.samples()):
        tried = []
        for k in range(attempts):
            edit = {"sample_id": sample.id, "attempt": k, "seed": k, "seconds": 0.1, "meta": {}}
            if trouble and at % 9 == 4 and k == 0:
                edits.append({**edit, "state": "failed", "reason": "time limit of 60 s <b>reached</b>"})
                tried.append({"k": k, "metrics": {}, "unscored": {"*": "no output"}})
                continue
            output = worse(sample, skill, 17 * k + len(name))
            found = metrics(sample, output)
            attempt = {"k": k, "metrics": found, "unscored": {}, "drift": drift(trouble and at % 7 == 3)}
            if trouble and at % 11 == 5 and "b_ssim" in found:
                del found["b_ssim"]
                attempt["unscored"]["b_ssim"] = "no 7x7 window lies outside the region"
            if trouble and at % 6 == 1:
                output = cv2.resize(output, (200, 120))
            path = f"outputs/{sample.id}_{k}.png"
            (folder / path).write_bytes(encode_png(output))
            edits.append({**edit, "state": "done", "path": path, "size": list(output.shape[:2])})
            tried.append(attempt)
        lines.append(
            {
                "id": sample.id,
                "group": {key: getattr(sample, key) for key in NAMES},
                "patient": sample.patient_id,
                "case": sample.case_id,
                "applies": sorted(metrics(sample, sample.input)),
                "attempts": tried,
            }
        )
    write_run(dataset, folder, name, edits, lines, attempts, variant)
    return folder


def drift(moved: bool) -> dict[str, object]:
    shift = (3.5, -2.25) if moved else (0.02, 0.0)
    return {"dx": shift[0], "dy": shift[1], "scale": 1.0, "response": 0.9, "flag": moved}


def write_run(dataset, folder, name, edits, lines, attempts, variant="paper") -> None:
    (folder / "scores").mkdir()
    (folder / "summary").mkdir()
    (folder / "edits.jsonl").write_text("".join(json.dumps(edit) + "\n" for edit in edits))
    failed = sum(edit["state"] == "failed" for edit in edits)
    info = {
        "schema_version": 1,
        "status": "complete",
        "dataset": {
            "path": str(dataset.folder.resolve()),
            "name": dataset.name,
            "digest": dataset.digest,
            "samples": len(dataset),
        },
        "editor": {"spec": f"folder:{name}", "name": name, "meta": {}},
        "config": {"attempts": attempts, "split": "test", "limit": None},
        "versions": {"mie": "0.1.0", "python": "3.11"},
        "counts": {"edits": len(edits), "done": len(edits) - failed, "failed": failed},
        "timings": {"seconds": 1.5, "edits_per_second": 40.0},
        "environment": {"cores": 2},
    }
    (folder / "run.json").write_text(json.dumps(info))
    header = {
        "protocol": "miedb",
        "variant": variant,
        "dataset_digest": dataset.digest,
        "edits_sha256": hashlib.sha256((folder / "edits.jsonl").read_bytes()).hexdigest(),
        "mie": "0.1.0",
    }
    header |= {"attempts": attempts, "metrics": sorted({m for line in lines for m in line["applies"]})}
    body = "".join(json.dumps(line) + "\n" for line in [header, *lines])
    (folder / "scores" / f"miedb.{variant}.jsonl").write_text(body)
    document = {"protocol": "miedb", "variant": variant, "run": name, "n_samples": len(lines)}
    document["groups"] = summary_groups(lines, attempts)
    (folder / "summary" / f"miedb.{variant}.json").write_text(json.dumps(document))


def summary_groups(lines: list[dict], attempts: int) -> list[dict]:
    cuts: list[dict[str, str]] = [{}]
    for key in NAMES:
        cuts += [{key: value} for value in sorted({line["group"][key] for line in lines})]
    found = []
    for cut in cuts:
        inside = [line for line in lines if cut.items() <= line["group"].items()]
        cells = {}
        for name in sorted({metric for line in inside for metric in line["applies"]}):
            for k in (1, attempts):
                cells[f"{name}@{k}"] = cell([line for line in inside if name in line["applies"]], name, k)
        found.append({"group": cut, "metrics": cells})
    return found


def cell(lines: list[dict], name: str, k: int) -> dict:
    values = []
    for line in lines:
        tried = [a["metrics"][name] for a in line["attempts"][:k] if name in a["metrics"]]
        if tried:
            values.append(min(100.0, max(float(value) for value in tried)))
    if not values:
        return {"mean": "nan", "n": 0, "unscored": len(lines), "ci95": ["nan", "nan"]}
    draws = np.random.default_rng(0).choice(values, (400, len(values))).mean(axis=1)
    low, high = np.quantile(draws, [0.025, 0.975])
    return {
        "mean": float(np.mean(values)),
        "n": len(values),
        "unscored": len(lines) - len(values),
        "ci95": [low, high],
    }


@pytest.fixture(scope="session")
def scored_dataset(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    return make_dataset(tmp_path_factory.mktemp("report-data") / "dataset", 12)


@pytest.fixture(scope="session")
def scored_runs(scored_dataset: Dataset, tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """A poor run with troubles and a hostile name, and a good one."""
    root = tmp_path_factory.mktemp("report-runs")
    return [
        make_run(scored_dataset, root / "poor", "<script>alert('n')</script>_5%", 0.5, trouble=True),
        make_run(scored_dataset, root / "good", "careful editor", 0.95),
    ]


@pytest.fixture(scope="session")
def report(scored_runs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a finished report."""
    return write_report(scored_runs, tmp_path_factory.mktemp("report") / "out").parent
