"""A small U-Net as a trainee: a lesion detector for a family of images, or a specialist for one target.

It learns from images with one mask each: the union of all rows of an image that are wanted. Validation uses
held-out patients and the detector's own path and measures.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import cv2
import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field, model_validator
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from mie.core.hashing import stable_hash
from mie.core.registry import nearest_name
from mie.datasets.engine import cores
from mie.editors.compact.kinds import EditKind
from mie.errors import ConfigError
from mie.images.families import FAMILIES, family_of
from mie.images.overlay import paint
from mie.networks import weights
from mie.networks.pretrained import read_pth_tensors
from mie.networks.unet import STRIDE, NetConfig, UNet, mask_of, probabilities, score_of
from mie.perspectives.modification.detectors.compact import FORMAT, load_detector
from mie.perspectives.modification.detectors.quality import (
    DEFAULT,
    LEVELS,
    Chosen,
    Measured,
    choose,
    count,
    hits,
    without_false,
    worth,
)
from mie.records import Mask, Pixels, Values
from mie.training.augment import Draw, may_flip, may_turn, recolour, warp
from mie.training.batches import Groups, Pool, letterbox, letterbox_mask, step_seed
from mie.training.config import Strict, TrainConfig, parse_section
from mie.training.losses import overlay_loss
from mie.training.pack import VALIDATION, Pack, Row, as_rgb, read_pack
from mie.training.trainee import Trainee

VIEW: Final = 256  # the most pixels a side that a view has
_SHOWN: Final = 24
_CELL: Final = 160

Width = Annotated[int, Field(gt=0, multiple_of=8)]
Blocks = Annotated[int, Field(ge=0)]


@dataclass(frozen=True, slots=True)
class RowFilter:
    """Which painted rows to learn; an empty filter accepts everything."""

    task: str
    family: str | None = None
    sources: tuple[str, ...] = ()
    targets: tuple[str, ...] = ()

    def accepts_image(self, row: Row) -> bool:
        """Whether the image of this row is of the right family and source."""
        return (
            row.kind is EditKind.OVERLAY
            and (self.family is None or family_of(row.modality) == self.family)
            and (not self.sources or row.source in self.sources)
        )

    def accepts(self, row: Row) -> bool:
        """Whether what this row marks is to be learnt."""
        right = row.task == self.task and (not self.targets or row.target in self.targets)
        return right and self.accepts_image(row)


@dataclass(slots=True)
class MarkedImage:
    """One image `(H, W)` or `(H, W, 3)` and the pixels to find in it, perhaps none."""

    image: Pixels
    mask: Mask
    source: str
    patient: str  # the image's own name where the patient is unknown
    held_out: bool
    flips: bool
    turns: bool
    targets: dict[str, Mask] = field(default_factory=dict)  # what is marked, by name


def marked_images(
    packs: Sequence[Pack], rows: RowFilter, *, pairs: bool = False, part: tuple[int, int] | None = None
) -> list[MarkedImage]:
    """Return every image with an accepted row, once; for a family of lesions also images without any.

    In a data set that marks lesions, an image without such a row has none. A data set that marks only organs
    says nothing of lesions, so its images are never taken for healthy. With `pairs`, training also gets
    the images whose lesion an expert removed, and those into which one was painted. `part` (at, of) holds
    out one of so many parts of the patients instead of the packs' validation fold.
    """
    images: list[MarkedImage] = []
    for number, pack in enumerate(packs):
        here: dict[int, MarkedImage] = {}
        accepted = [row for row in pack.rows if rows.accepts(row) and row.mask is not None]
        for row in accepted:
            mask = pack.masks[row.mask or 0] > 0
            one = here.setdefault(row.input, _marked(pack, row, np.zeros_like(mask), number))
            one.mask = one.mask | mask
            one.targets[row.target] = one.targets.get(row.target, np.zeros_like(mask)) | mask
            one.flips &= may_flip(row.target)
        if rows.family is not None:
            marking = {row.source for row in accepted}
            for row in pack.rows:
                if rows.accepts_image(row) and row.source in marking and row.input not in here:
                    empty = np.zeros(pack.images[row.input].shape[:2], np.bool_)
                    here[row.input] = _marked(pack, row, empty, number)
        images += here.values()
    # Each pack has drawn its own fold: a patient held out in one is held out in all.
    held_out = {one.patient for one in images if one.held_out}
    if part is not None:
        held_out = {one.patient for one in images if stable_hash("part", one.patient) % part[1] == part[0]}
    for one in images:
        one.held_out = one.patient in held_out
    if pairs and rows.family is not None:
        marking = {one.source for one in images if one.mask.any()}  # also of pairs in a pack of their own
        for number, pack in enumerate(packs):
            modified = _modified(pack, rows, marking, number)
            images += (
                one for one in modified if one.patient not in held_out
            )  # real images alone are measured
    return images


def _modified(pack: Pack, rows: RowFilter, marking: set[str], number: int) -> Iterator[MarkedImage]:
    """Yield the healthy image of each removal, and the other one where its lesion was painted.

    In a data set that marks lesions the other one is there already, with all of its lesions.
    """
    for row in pack.rows:
        if row.task != "removal" or row.goal is None or row.mask is None or row.fold == VALIDATION:
            continue
        if family_of(row.modality) != rows.family or (rows.sources and row.source not in rows.sources):
            continue
        mask = pack.masks[row.mask] > 0
        yield _marked(pack, replace(row, input=row.goal), np.zeros_like(mask), number)
        if row.source not in marking:
            yield _marked(pack, row, mask, number)


def _marked(pack: Pack, row: Row, mask: Mask, number: int) -> MarkedImage:
    return MarkedImage(
        image=pack.images[row.input],
        mask=mask,
        source=row.source,
        patient=row.patient_id or f"{row.source}//{number}/{row.input}",
        held_out=row.fold == VALIDATION,
        flips=True,
        turns=may_turn(row.modality),
    )


class SegmenterData:
    """The training images on the device, letterboxed into squares of `side` pixels."""

    def __init__(self, images: Sequence[MarkedImage], side: int, device: torch.device) -> None:
        self.side, self.view, self.device = side, min(side, VIEW), device
        shown = [letterbox(as_rgb(one.image), side) for one in images]
        self.images = Pool([pixels for pixels, _ in shown], device)
        self.masks = Pool([letterbox_mask(one.mask.view(np.uint8), side) for one in images], device)
        self.filled = torch.tensor([size for _, size in shown], dtype=torch.float32, device=device) / side
        self.grey = self._flags(one.image.ndim == 2 for one in images)
        self.flips = self._flags(one.flips for one in images)
        self.turns = self._flags(one.turns for one in images)
        self.groups = Groups.of([one.source for one in images], 0.5)

    def choose(self, rng: np.random.Generator, batch: int) -> NDArray[np.int64]:
        """Places of one batch: a source with n images is drawn by the root of n."""
        return self.groups.draw(rng, batch)

    def views(self, place: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor]:
        """Images `(B, 3, S, S)` in [0, 1], masks and what counts `(B, 1, S, S)`; all random from `seed`."""
        generator = torch.Generator(self.device)
        generator.manual_seed(seed)
        draw = Draw(len(place), generator)
        whole = self.view / self.side
        window = torch.full((len(place),), whole, device=self.device)
        if whole == 1:
            # Half of the views show a part: often one without a lesion, which is healthy tissue to learn.
            window = torch.where(draw.chance(0.5), draw.uniform(0.4, 0.9), window)
        image, mask, counted = warp(
            draw,
            self.images.gather(place).float() / 255,
            self.masks.gather(place).float(),
            self.filled.index_select(0, place),
            side=self.view,
            window=window,
            flips=self.flips.index_select(0, place),
            turns=self.turns.index_select(0, place),
        )
        return recolour(draw, image, self.grey.index_select(0, place)), mask, counted

    def _flags(self, values: Iterable[Any]) -> Tensor:
        return torch.tensor(list(values), dtype=torch.bool, device=self.device)


class SegmenterValidation:
    """Held-out images; `by` is what the threshold is chosen by (`quality.worth`)."""

    def __init__(self, images: Sequence[MarkedImage], side: int, device: torch.device, by: str) -> None:
        self.images, self.side, self.device, self.by = images, side, device, by
        self._threshold = DEFAULT  # the last one chosen, for the grid

    def choose(self, model: nn.Module) -> Chosen:
        """Choose the threshold, and measure the quality by cross-fitting over two halves of the patients."""
        return choose(self.measured(model), by=self.by)

    def measured(self, model: nn.Module) -> list[Measured]:
        """Every image at every threshold."""
        with ThreadPoolExecutor(cores()) as pool:
            return list(pool.map(self._measured, self.images, self._maps(model)))

    def figures(self, model: nn.Module) -> dict[str, float | None]:
        chosen = self.choose(model)
        self._threshold = chosen.threshold
        if chosen.quality is None:
            return {"score": None}
        sources: dict[str, list[float]] = defaultdict(list)
        for one, counts in zip(self.images, chosen.counts, strict=True):
            if counts.dice is not None:
                sources[one.source].append(counts.dice)
        return {
            "score": worth(chosen.quality, self.by),
            **chosen.quality.as_json(),
            "threshold": chosen.threshold,
            **{f"dice/{name}": float(np.mean(values)) for name, values in sorted(sources.items())},
        }

    def grid(self, model: nn.Module) -> Pixels | None:
        """Draw input | prediction | reference of images from all over the fold, four to a line."""
        shown = list(self.images[:: max(1, len(self.images) // _SHOWN)][:_SHOWN])
        if not shown:
            return None
        rows = []
        for one, probability in zip(shown, self._maps(model, shown), strict=True):
            image = as_rgb(one.image)
            painted = [
                paint(image, mask_of(probability, self._threshold, self.side), "red"),
                paint(image, one.mask, "green"),
            ]
            rows.append(np.hstack([_cell(part) for part in (image, *painted)]))
        rows += [np.zeros_like(rows[0])] * (-len(rows) % 4)
        return np.vstack([np.hstack(rows[k : k + 4]) for k in range(0, len(rows), 4)])

    def _maps(self, model: nn.Module, images: Sequence[MarkedImage] | None = None) -> list[Values]:
        some = self.images if images is None else images
        return [probabilities(model, as_rgb(one.image), self.side, self.device) for one in some]

    def _measured(self, one: MarkedImage, probability: Values) -> Measured:
        masks = [mask_of(probability, level, self.side) for level in LEVELS]
        counts = tuple(count(mask, one.mask) for mask in masks)
        true = [without_false(mask, one.mask) for mask in masks]
        targets = {name: tuple(hits(mask, lesion) for mask in true) for name, lesion in one.targets.items()}
        return Measured(one.patient, score_of(probability), counts, targets)


def _cell(image: Pixels) -> Pixels:
    return np.asarray(cv2.resize(image, (_CELL, _CELL), interpolation=cv2.INTER_AREA), np.uint8)


class DataConfig(Strict):
    """Which rows of which packs. The validation fold of the packs is held out, always."""

    packs: list[str] = Field(min_length=1)
    family: str | None = Field(None, description="a detector of lesions in such images")
    sources: list[str] = Field([], description="only these data sets")
    targets: list[str] = Field([], description="only these targets")
    rows: Literal["lesion", "structure"] = "lesion"
    pairs: bool = Field(False, description="learn from removed and painted lesions of modification too")
    part: tuple[int, int] | None = Field(
        None, description="hold out this one of so many parts of the patients, as in [0, 4]"
    )
    side: int = Field(
        256, ge=STRIDE, multiple_of=STRIDE, description="the longer side of an image as it is seen"
    )

    @model_validator(mode="after")
    def _known(self) -> DataConfig:
        if self.family is not None and self.family not in FAMILIES:
            near = nearest_name(self.family, FAMILIES)
            raise ValueError(f"no family {self.family!r}; " + (near or f"one of {', '.join(FAMILIES)}"))
        if self.family is None and not self.sources:
            raise ValueError("give a family (a detector), or sources and targets (a specialist)")
        if self.part is not None and not 0 <= self.part[0] < self.part[1]:
            raise ValueError("part names one of so many, counted from 0, as in [0, 4]")
        return self


class ModelConfig(Strict):
    """The network's shape (`NetConfig`), and the file of the trunk's pretrained weights."""

    encoder: Literal["none", "short", "whole"] = "short"
    trunk: str | None = None
    trunk_lr: float = Field(0.3, gt=0, le=1, description="the trunk's share of the learning rate")
    widths: tuple[Width, Width, Width, Width, Width] = NetConfig().widths
    down: tuple[Blocks, Blocks, Blocks, Blocks, Blocks] = NetConfig().down
    up: tuple[Blocks, Blocks, Blocks, Blocks] = NetConfig().up
    pixel: int = Field(NetConfig().pixel, gt=0)


class Segmenter(Trainee):
    score = "score"

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.data = parse_section(DataConfig, config.data, where="data")
        self.shape = parse_section(ModelConfig, config.model, where="model")
        self.slower = {"trunk.": self.shape.trunk_lr}
        self.net = NetConfig(
            self.shape.widths,
            self.shape.down,
            self.shape.up,
            self.shape.pixel,
            self.shape.encoder,
            self.data.side,
        )

    def check(self) -> Mapping[str, Any]:
        self._trunk()
        packs = [read_pack(self.config.path(path)) for path in self.data.packs]
        rows = RowFilter(self.data.rows, self.data.family, tuple(self.data.sources), tuple(self.data.targets))
        images = marked_images(packs, rows, pairs=self.data.pairs, part=self.data.part)
        self.train = [one for one in images if not one.held_out]
        self.held_out = [one for one in images if one.held_out]
        if not any(one.mask.any() for one in self.train):
            raise self._nothing(packs)
        return {"packs": [pack.facts["digest"] for pack in packs]}

    def prepare(self, device: torch.device) -> None:
        self.pool = SegmenterData(self.train, self.data.side, device)
        # A specialist is the bound for DICE; a detector has to find as well as to outline.
        by = "dice" if self.data.family is None else "lesions"
        self.validation = SegmenterValidation(self.held_out, self.data.side, device, by)

    def model(self) -> nn.Module:
        net = UNet(self.net)
        if (path := self._trunk()) is not None and net.trunk is not None:
            net.trunk.load_pretrained(read_pth_tensors(path))
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            net(torch.zeros(1, 3, self.pool.view, self.pool.view))
        self.flops_per_image = 3.0 * counter.get_total_flops()
        return net

    def batch(self, step: int, rank: int, world: int) -> Any:
        seed = step_seed(self.config.seed, step, rank)
        place = self.pool.choose(np.random.default_rng(seed), self.config.batch // world)
        return {"seed": seed, "place": torch.from_numpy(place)}

    def loss(self, model: nn.Module, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        image, mask, counted = self.pool.views(batch["place"], batch["seed"])
        # Dice counts in views without a lesion too: there it is the cost of a false positive.
        asked = torch.ones(len(image), 1, device=image.device)
        return overlay_loss(model(image).float(), mask, counted, asked).mean(), {}

    def validate(self, model: nn.Module) -> dict[str, float | None]:
        return self.validation.figures(model)

    def grid(self, model: nn.Module) -> Pixels | None:
        return self.validation.grid(model)

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        """Save in eight bits first; the threshold and the quality are then measured on those very weights."""
        state = model.state_dict()
        weights.save(path, state, format=FORMAT, config=self.net.as_json())
        net, _ = load_detector(path)
        chosen = self.validation.choose(net.to(self.validation.device))
        meta = {
            **facts,
            "family": self.data.family,
            "sources": sorted({one.source for one in self.train}),
            "targets": self.data.targets,
            "threshold": chosen.threshold,
            "quality": chosen.as_json(),
            "trained_on": counts(self.train),
        }
        weights.save(path, state, format=FORMAT, config=self.net.as_json(), meta=meta)

    def _trunk(self) -> Path | None:
        if self.shape.trunk is None:
            return None
        if self.shape.encoder == "none":
            raise ConfigError(
                "an encoder without a trunk takes no trunk's weights",
                where="model.trunk",
                fix="use encoder: short or whole, or leave out model.trunk",
            )
        return self.config.trunk_file(self.shape.trunk)

    def _nothing(self, packs: Sequence[Pack]) -> ConfigError:
        """Return the error of a filter that accepts nothing, with the name that was perhaps meant."""
        rows = [row for pack in packs for row in pack.rows if row.kind is EditKind.OVERLAY]
        for key, names, known in (
            ("sources", self.data.sources, {row.source for row in rows}),
            ("targets", self.data.targets, {row.target for row in rows}),
        ):
            for name in names:
                if name not in known:
                    near = nearest_name(name, known)
                    return ConfigError(
                        f"{name!r} is not in the packs",
                        where=f"data.{key}",
                        fix=f"did you mean {near!r}?" if near else None,
                    )
        return ConfigError(
            "nothing to train on",
            where="data",
            expected=f"training rows of the task {self.data.rows}"
            + (f" in {self.data.family} images" if self.data.family else " with these sources and targets"),
            found=f"{len(rows)} perception rows, none of them accepted",
            fix="pack a dataset that has them with `mie pack`",
        )


def counts(images: Sequence[MarkedImage]) -> dict[str, int]:
    """Count images, healthy ones among them, and patients."""
    return {
        "images": len(images),
        "healthy": sum(not one.mask.any() for one in images),
        "patients": len({one.patient for one in images}),
    }
