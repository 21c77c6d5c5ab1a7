"""A tiny OmniGen2 to be trained on a small dataset of two perspectives. Also run by subprocesses."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from mie.records import Sample
from mie.training.config import TrainConfig, parse_config
from mie.training.omnigen2 import OmniGen2
from tests.conftest import crop
from tests.training.conftest import painted, write_samples

SIZES = ((32, 32), (32, 24), (48, 48))


def small(sample: Sample, number: int) -> Sample:
    """A sample with images of one of three sizes in two bins."""
    height, width = SIZES[number % len(SIZES)]
    resized = lambda image: cv2.resize(image, (width, height), interpolation=cv2.INTER_NEAREST)
    mask = None if sample.mask is None else resized(sample.mask)
    return replace(
        sample,
        input=resized(sample.input),
        target_image=resized(sample.target_image),
        mask=mask,
        bin=max(height, width),
    )


def restored(number: int, split: str) -> Sample:
    """A sample of transformation: a noisy image to be cleaned."""
    (like,) = painted(range(number, number + 1), 1, split)
    clean, draw = crop(number), np.random.default_rng(number)
    return replace(
        like,
        id=f"t{like.id}",
        perspective="transformation",
        task="denoising",
        target="noise",
        prompt="Remove the noise.",
        prompt_template="Remove the noise.",
        input=np.clip(clean + draw.normal(0, 30, clean.shape), 0, 255).astype(np.uint8),
        target_image=clean,
        mask=None,
        colour=None,
    )


def write_edits(folder: Path, more: int = 0) -> Path:
    """12 samples to train on, 4 for validation and 6 for testing, half of them perception.

    `more`: images more to train on, which makes it another dataset.
    """
    samples: list[Sample] = []
    train = (*range(6), *range(11, 11 + more))
    for split, numbers in (("train", train), ("val", range(6, 8)), ("test", range(8, 11))):
        for number in numbers:
            samples += [small(one, number) for one in painted(range(number, number + 1), 1, split)]
            samples.append(small(restored(number + 20, split), number))
    return write_samples(samples, folder)


def lesions(numbers: range, split: str) -> list[Sample]:
    """Two lesions of each image marked, and each removed: their pixels were drawn into the image."""
    samples: list[Sample] = []
    for number in numbers:
        for at, target in enumerate(("optic disc", "hard exudates")):
            (marked,) = [s for s in painted(range(number, number + 1), 2, split) if s.target == target]
            samples.append(small(marked, number))
            mask = marked.mask > 0
            clean = crop(number + 50 * at, *mask.shape)
            ill = np.where(mask[..., None], 255 - clean, clean)
            removal = replace(
                marked,
                id=f"m{marked.id}",
                perspective="modification",
                task="removal",
                prompt=f"Remove the {target}.",
                prompt_template="Remove the {lesion}.",
                input=ill,
                target_image=clean,
                mask=np.where(mask, 255, 0).astype(np.uint8),
                colour=None,
            )
            samples.append(small(removal, number))
    return samples


def write_lesions(folder: Path) -> Path:
    return write_samples([*lesions(range(4), "train"), *lesions(range(4, 7), "test")], folder)


def omnigen2_config(base: Path, dataset: Path, cache: Path, **changes: Any) -> TrainConfig:
    model = {"base": str(base), "micro_batch": 2, "grid_steps": 2, **changes.pop("model", {})}
    data = {
        "datasets": [str(dataset)],
        "bins": [32, 48],
        "cache": str(cache),
        "caption_drop": 0.2,
        "validate_samples": 4,
        **changes.pop("data", {}),
    }
    body: dict[str, Any] = {
        "name": "tiny",
        "trainee": "omnigen2",
        "seed": 5,
        "steps": 8,
        "batch": 4,
        "optimizer": {"lr": 3e-3, "warmup": 1, "schedule": "constant", "betas": [0.9, 0.95]},
        "ema": 0,
        "precision": "fp32",
        "channels_last": False,
        "checkpoint": {"every": 3},
        "validate": {"every": 8},
        "log_every": 1,
        "data": data,
        "model": model,
    }
    return parse_config({**body, **changes})


class Mortal(OmniGen2):
    """The trainee; the process of rank R kills itself at step S where the variable `MIE_TEST_DIE` is R:S."""

    def loss(self, model: Any, batch: Any, step: int) -> Any:
        if os.environ.get("MIE_TEST_DIE") == f"{os.environ.get('RANK', '0')}:{step}":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().loss(model, batch, step)
