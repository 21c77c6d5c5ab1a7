"""A forensic detector as a trainee: it tells the outputs of editors from the images that they were given.

Every pair is a real image and what an editor made of it, cut at the same place, so that nothing but the
making tells them apart. Patients are held out for validation. An output that equals its input was not
generated: it is left out, and counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from mie.core.files import digest
from mie.core.hashing import stable_hash
from mie.editors.outputs import read_output
from mie.editors.runs import Run
from mie.errors import ConfigError, MieError
from mie.networks import weights
from mie.networks.forensic import FORMAT, LEAST, ForensicConfig, ForensicNet, fake_probability
from mie.records import Pixels
from mie.training.batches import step_seed
from mie.training.config import Strict, TrainConfig, parse_section
from mie.training.trainee import Trainee

_SHOWN: Final = 8
_CELL: Final = 96


class DataConfig(Strict):
    """Runs whose inputs are real images, and the patients that are held out."""

    runs: list[str] = Field(min_length=1)
    where: dict[str, list[str]] = Field(
        {}, description="only samples with these values: {task: [removal]}, whose inputs are real"
    )
    side: int = Field(96, ge=LEAST, description="pixels of a crop")
    held_out: float = Field(0.2, gt=0, lt=1, description="share of the patients for validation")


class ModelConfig(Strict):
    widths: tuple[int, ...] = ForensicConfig().widths
    sharpness: int = Field(ForensicConfig().sharpness, ge=1)


@dataclass(frozen=True, slots=True)
class Pair:
    """A real image and its edit, `(H, W, 3)` uint8 of one size."""

    real: Pixels
    fake: Pixels
    held_out: bool


class Forensic(Trainee):
    score = "score"

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.data = parse_section(DataConfig, config.data, where="data")
        options = parse_section(ModelConfig, config.model, where="model")
        try:
            self.shape = ForensicConfig(options.widths, options.sharpness)
        except ValueError as error:
            raise ConfigError(str(error), where="model", found=options.widths) from None

    def check(self) -> Mapping[str, Any]:
        self.pairs: list[Pair] = []
        self.unchanged = 0
        facts = []
        for text in self.data.runs:
            run = Run.open(self.config.path(text))
            facts.append({"dataset": run.dataset().digest, "edits": digest(run.folder / "edits.jsonl")})
            self._read(run)
        folds = {held_out: [p for p in self.pairs if p.held_out == held_out] for held_out in (False, True)}
        if not all(folds.values()):
            raise ConfigError(
                "too few pairs to train a detector",
                where="data.runs",
                expected="edits of patients to learn from, and of others to validate on",
                found=f"{len(folds[False])} and {len(folds[True])}; {self.unchanged} outputs are their input",
                fix="give runs with more patients, or change `held_out` or `seed`",
            )
        self.folds = folds
        return {"runs": facts, "unchanged": self.unchanged}

    def _read(self, run: Run) -> None:
        dataset = run.dataset()
        edits = {sample for (sample, k), edit in run.edits().items() if k == 0 and edit.state == "done"}
        for sample in dataset.samples():
            chosen = all(getattr(sample, name) in values for name, values in self.data.where.items())
            if sample.id not in edits or not chosen or min(sample.input.shape[:2]) < LEAST:
                continue
            try:
                output = read_output(run.output_path(sample.id, 0), like=sample.input.shape).image
            except MieError:
                continue  # `mie score` tells why an output cannot be read
            if output.shape != sample.input.shape:
                continue
            if np.array_equal(output, sample.input):
                self.unchanged += 1
                continue
            patient = sample.patient_id or f"{sample.source} {sample.case_id}"
            share = stable_hash("forensic", self.config.seed, patient) / 2**64
            self.pairs.append(Pair(sample.input, output, share < self.data.held_out))

    def model(self) -> nn.Module:
        return ForensicNet(self.shape)

    def batch(self, step: int, rank: int, world: int) -> Any:
        """Crops of pairs, `(B, 2, 3, side, side)`: half of them where the two differ."""
        rng = np.random.default_rng(step_seed(self.config.seed, step, rank))
        pairs = self.folds[False]
        count = max(1, self.config.batch // world // 2)
        chosen = rng.integers(0, len(pairs), count)
        crops = [_crop(pairs[int(at)], self.data.side, rng) for at in chosen]
        return torch.from_numpy(np.stack(crops))

    def loss(self, model: nn.Module, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        images = batch.flatten(0, 1).float() / 255
        logits = model(images).reshape(-1, 2)
        truth = torch.tensor([0.0, 1.0], device=logits.device).expand_as(logits)
        loss = functional.binary_cross_entropy_with_logits(logits, truth)
        right = ((logits > 0) == (truth > 0)).float().mean()
        return loss, {"right": right.detach()}

    @torch.no_grad()
    def validate(self, model: nn.Module) -> dict[str, float | None]:
        """Of held-out patients: recall of edits, false alarms on real images, area under the curve."""
        net = _net(model)
        real, fake = (
            np.array([fake_probability(net, image) for image in images])
            for images in zip(*((p.real, p.fake) for p in self.folds[True]), strict=True)
        )
        above = (fake[:, None] > real[None]).mean() + 0.5 * (fake[:, None] == real[None]).mean()
        return {
            "score": float(above),
            "recall": float((fake >= 0.5).mean()),
            "false_alarms": float((real >= 0.5).mean()),
            "pairs": float(len(real)),
        }

    def grid(self, model: nn.Module) -> Pixels | None:
        """Held-out pairs: real above, edited below."""
        shown = self.folds[True][:_SHOWN]
        rng = np.random.default_rng(self.config.seed)
        crops = [_crop(pair, max(_CELL, self.data.side), rng) for pair in shown]
        return np.hstack([np.vstack(list(crop.transpose(0, 2, 3, 1))) for crop in crops])

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        net = _net(model)
        weights.save(path, net.state_dict(), format=FORMAT, config=net.document(), meta=facts)


def _crop(pair: Pair, side: int, rng: np.random.Generator) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """Both images at one place, `(2, 3, side, side)`, flipped alike; small ones are padded."""
    both = np.stack([pair.real, pair.fake])
    missing = [max(0, side - size) for size in both.shape[1:3]]
    if any(missing):
        both = np.pad(both, [(0, 0), (0, missing[0]), (0, missing[1]), (0, 0)], mode="symmetric")
    height, width = both.shape[1:3]
    if rng.random() < 0.5:  # around a pixel that was changed
        changed = np.argwhere((both[0] != both[1]).any(2))
        y, x = changed[rng.integers(len(changed))] - rng.integers(0, side, 2)
    else:
        y, x = rng.integers(0, height - side + 1), rng.integers(0, width - side + 1)
    y, x = np.clip(y, 0, height - side), np.clip(x, 0, width - side)
    crop = both[:, y : y + side, x : x + side]
    crop = crop[:, :, ::-1] if rng.random() < 0.5 else crop
    return np.ascontiguousarray(crop.transpose(0, 3, 1, 2))


def _net(model: nn.Module) -> ForensicNet:
    net = getattr(model, "module", model)  # as wrapped for several processes
    assert isinstance(net, ForensicNet)  # noqa: S101
    return net
