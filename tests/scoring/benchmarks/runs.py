"""Datasets and runs for the tests, small and full of quirks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np

from mie.datasets.dataset import Dataset
from mie.datasets.write import write_dataset
from mie.editors.runs import Run
from mie.images.overlay import paint
from mie.images.png import encode_png
from mie.records import Sample
from tests.conftest import crop, ellipse

BASE = Sample(
    id="",
    perspective="perception",
    task="structure",
    target="optic disc",
    modality="fundus",
    anatomy="retina",
    prompt="Paint the optic disc red.",
    prompt_template="",
    description="",
    input=np.zeros((1, 1, 3), np.uint8),
    target_image=np.zeros((1, 1, 3), np.uint8),
    mask=None,
    colour="red",
    split="test",
    bin=None,
    source="eyes",
    case_id="",
    patient_id=None,
    recipe="test",
    recipe_version=1,
    params={},
    seed=0,
    license="CC0-1.0",
)


def structure(
    name: str, number: int, height: int = 40, width: int = 48, colour: str = "red", **changes
) -> Sample:
    """A region painted on a real crop."""
    image, region = crop(number, height, width), ellipse(number, height, width)
    body = {"patient_id": f"p{number % 3}", "case_id": f"case {number}", **changes}
    target = paint(image, region, colour)
    mask = region.astype(np.uint8) * 255
    return replace(BASE, id=name, input=image, target_image=target, mask=mask, colour=colour, **body)


def holistic(name: str, number: int, height: int = 40, width: int = 48) -> Sample:
    """Two classes."""
    image = crop(number, height, width)
    first = ellipse(number, height, width)
    second = np.roll(ellipse(number + 1, height, width), width // 3, 1) & ~first
    target = paint(paint(image, first, "green"), second, "blue")
    mask = np.where(first, 128, np.where(second, 255, 0)).astype(np.uint8)
    body = {"task": "holistic", "target": "disc, cup", "colour": "green,blue", "case_id": f"case {number}"}
    return replace(BASE, id=name, input=image, target_image=target, mask=mask, **body)


def transformation(name: str, number: int, height: int = 40, width: int = 48, **changes) -> Sample:
    target = crop(number, height, width)
    noise = np.random.default_rng(number).normal(0, 12, target.shape)
    image = np.clip(target + noise, 0, 255).astype(np.uint8)
    body = {"perspective": "transformation", "task": "denoising", "target": "image", "colour": None}
    return replace(BASE, id=name, input=image, target_image=target, **{"case_id": name, **body, **changes})


def modification(name: str, number: int) -> Sample:
    return transformation(name, number, perspective="modification", task="removal")


def write_samples(samples: Sequence[Sample], folder: Path) -> Dataset:
    terms = {"name": "CC0-1.0", "use": "open", "basis": "stated"}
    write_dataset(
        samples,
        folder,
        name="quirks",
        description="",
        recipe={},
        licenses={sample.source: terms for sample in samples},
        deidentified=True,
    )
    return Dataset(folder)


# What an attempt left behind: pixels (a PNG of ours), a file's bytes, a reason why it failed, or nothing.
Left = np.ndarray | bytes | str | None


def write_run(
    folder: Path, dataset: Dataset, outputs: Mapping[str, Sequence[Left]], *, limit=None, split=None
) -> Path:
    """A run folder as `mie run` leaves it."""
    (folder / "outputs").mkdir(parents=True)
    info = {
        "schema_version": 1,
        "status": "complete",
        "dataset": {
            "path": str(dataset.folder.absolute()),
            "relative_path": "../dataset",
            "name": dataset.name,
            "digest": dataset.digest,
            "samples": len(dataset),
        },
        "editor": {"spec": "test", "name": "test", "meta": {}},
        "config": {
            "attempts": max(len(attempts) for attempts in outputs.values()),
            "split": split,
            "limit": limit,
        },
        "counts": {},
        "timings": {},
    }
    (folder / "run.json").write_text(json.dumps(info))
    run = Run.open(folder)
    edits = []
    for name, attempts in outputs.items():
        for k, left in enumerate(attempts):
            if left is None:
                continue
            edit = {"sample_id": name, "attempt": k, "seed": k, "seconds": 0.0, "meta": {}}
            if isinstance(left, str):
                edit |= {"state": "failed", "reason": left}
            else:
                path = run.output_path(name, k)
                edit |= {"state": "done", "path": path.relative_to(folder).as_posix()}
                path.write_bytes(left if isinstance(left, bytes) else encode_png(left))
            edits.append(edit)
    (folder / "edits.jsonl").write_text("".join(json.dumps(edit) + "\n" for edit in edits))
    return folder


def lines_of(run: Path, variant: str = "paper", protocol: str = "miedb") -> dict[str, dict]:
    """The lines of a run's scores by sample id."""
    text = (run / f"scores/{protocol}.{variant}.jsonl").read_text().splitlines()
    return {line["id"]: line for line in map(json.loads, text[1:])}


def cv2_png(pixels: np.ndarray) -> bytes:
    """Another encoder's file; channels in OpenCV's order."""
    return cv2.imencode(".png", pixels)[1].tobytes()


def attempt_at(sample: Sample, seed: int) -> np.ndarray:
    """What a middling model does: the region a little off, and some noise everywhere."""
    draw = np.random.default_rng(seed)
    image = sample.input
    if sample.mask is not None and sample.colour is not None:
        for colour in sample.colour.split(","):
            image = paint(image, np.roll(sample.mask > 0, int(draw.integers(-4, 5)), 1), colour)
    return np.clip(image + draw.normal(0, 3, image.shape), 0, 255).astype(np.uint8)
