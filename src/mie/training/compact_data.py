"""The compact editor's training data on the device: pools of images, and batches of views of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mie.records import Pixels
from mie.training.augment import (
    STRENGTHS,
    Draw,
    Strength,
    cropped,
    cut_out,
    histograms_mixed,
    may_flip,
    may_turn,
    moved,
    recoloured,
)
from mie.training.modification_data import (
    Changed,
    FreshHoles,
    Modifications,
    change_views,
    healthy_pictures,
    hole_ask,
    names_a_place,
)
from mie.training.pack import Pack, Row, as_rgb
from mie.training.pools import Groups, Pool, counts, letterbox, letterbox_mask, sent
from mie.training.wordings import MOST_CLASSES, NOTHING, Prompts
from mie.vocabulary import PERSPECTIVES

SIDE: Final = 256
LARGE: Final = 512
_TINY: Final = 50  # rows of a group below which its masks are smoothed


@dataclass(frozen=True, slots=True)
class Choices:
    """How rows are drawn and shown; the defaults are those of the first weights."""

    merge: bool = False  # rows of one target in one modality are one group, whatever their data set
    patients: bool = False  # a group's size is the geometric mean of its rows and its patients
    power: float = 0.5  # a group of n rows is drawn by n to this power
    emphasis: Mapping[str, float] = field(default_factory=dict)  # of transformation targets
    strength: Strength = STRENGTHS["usual"]
    smoothing: float = 0.0  # of the masks of groups below 50 rows
    holes: float = 0.0  # share of the modifications whose hole is made on the way
    healthy: float = 0.0  # share of what is asked in vain that is a lesion which a counterfactual took away


@dataclass(slots=True)
class Views:
    """A batch as the network sees it. `(B, 3, S, S)` in [0, 1].

    P rows of perception come first, then T of transformation, then M of modification.
    """

    image: Tensor
    prompt: Tensor  # (B,) places in the table of prompts
    perspective: Tensor  # (B,)
    overlay: Tensor  # (P, 3, S, S) what to paint
    counted: Tensor  # (P, 1, S, S)
    asked: Tensor  # (P, 3)
    present: Tensor  # (P,)
    smooth: Tensor  # (P,) how much the masks are smoothed
    goal: Tensor  # (T + M, 3, S, S)
    grey: Tensor  # (B,) bool
    area: Tensor  # (M, 1, S, S) what changes
    hole: Tensor  # (B, 1, S, S) the white hole
    there: Tensor  # (M,) whether what is to be removed is there
    removal: Tensor  # (M,) bool: only then is it known


class _Stored(NamedTuple):
    """A row, and where its pixels are."""

    row: Row
    large: int  # which of the two pools: 0 for SIDE, 1 for LARGE
    place: int
    ask: int
    grey: bool


class _Painted(NamedTuple):
    """A perception row as it was drawn."""

    large: int
    place: int
    prompt: int
    colours: NDArray[np.int64]  # of each class, background first
    vain: bool  # what is asked for is not there
    grey: bool
    flips: bool
    turns: bool
    modality: str
    smooth: float


class _Mended(NamedTuple):
    """A transformation row as it was drawn."""

    large: int
    place: int
    prompt: int
    grey: bool
    turns: bool


class CompactData:
    """Everything a training step needs, on `device`."""

    def __init__(
        self, packs: Sequence[Pack], fold: str, device: torch.device, choices: Choices | None = None
    ) -> None:
        self.device = device
        self.choices = choices or Choices()
        self.prompts = Prompts()
        self._painted: list[_Stored] = []
        self._mended: list[_Stored] = []
        images: tuple[list[Any], list[Any]] = ([], [])
        masks: tuple[list[Any], list[Any]] = ([], [])
        filled: tuple[list[Any], list[Any]] = ([], [])
        both: tuple[list[Any], list[Any]] = ([], [])
        self.changes = Modifications(device, (SIDE, LARGE))

        def store(row: Row, image: Pixels, ask: int, mask: Pixels) -> _Stored:
            large = int(max(image.shape[:2]) > SIDE)
            side = (SIDE, LARGE)[large]
            shown, (h, w) = letterbox(as_rgb(image), side)
            images[large].append(shown)
            masks[large].append(letterbox_mask(mask, side))
            filled[large].append((h / side, w / side))
            return _Stored(row, large, len(images[large]) - 1, ask, image.ndim == 2)

        for pack in packs:
            asks = [self.prompts.add(ask) for ask in pack.asks]
            for row in pack.rows:
                if row.fold != fold:
                    continue
                image = pack.images[row.input]
                large = int(max(image.shape[:2]) > SIDE)
                if row.perspective == "modification":
                    self.changes.add(pack, row, asks[row.ask])
                elif row.mask is not None:
                    self._painted.append(store(row, image, asks[row.ask], pack.masks[row.mask]))
                elif row.goal is not None:
                    goal = pack.images[row.goal]
                    self._mended.append(_Stored(row, large, len(both[large]), asks[row.ask], goal.ndim == 2))
                    both[large].append(_side_by_side(image, goal, (SIDE, LARGE)[large]))
        self._healthy = [
            store(row, picture, ask, np.zeros(picture.shape[:2], np.uint8))
            for row, picture, ask in self._without_lesions(packs, fold)
        ]
        sources = [stored.row.source for stored in self._healthy]
        self.healthy = Groups.of(sources, self.choices.power) if sources else None
        self.images = [Pool(some, device) if some else None for some in images]
        self.masks = [Pool(some, device) if some else None for some in masks]
        self.filled = [torch.tensor(some, dtype=torch.float32, device=device) for some in filled]
        self.pairs = [Pool(some, device) if some else None for some in both]
        self.changes.finish()
        rows = [stored.row for stored in self._painted]
        names = [self._group(row) for row in rows]
        patients = [row.patient_id or f"{row.source}//{row.input}" for row in rows]
        by = patients if self.choices.patients else None
        self.painted = Groups.of(names, self.choices.power, patients=by) if names else None
        often = Counter(names)
        self._smooth = [self.choices.smoothing * (often[name] < _TINY) for name in names]
        keys = [stored.row.key or "" for stored in self._mended]
        self.mended = Groups.of(keys, 0.25, self.choices.emphasis) if keys else None
        self.fresh = self._fresh_holes(packs, fold) if self.choices.holes else None
        # What may be asked for in vain: targets of other kinds of picture that this kind is never asked for.
        targets: dict[str, set[str]] = {}
        for row in rows:
            targets.setdefault(row.modality, set()).update(row.target.split(", "))
        self._elsewhere = {
            modality: sorted(
                {other.ask for other in self._painted if not known & set(other.row.target.split(", "))}
            )
            for modality, known in targets.items()
        }

    def _group(self, row: Row) -> tuple[str, ...]:
        # Slices of one volume show many choices of classes: by these, one patient would fill many groups.
        if row.task == "holistic":
            return row.source, row.task
        return (row.modality if self.choices.merge else row.source), row.task, row.target

    def _without_lesions(self, packs: Sequence[Pack], fold: str) -> Iterator[tuple[Row, Pixels, int]]:
        """Removals of lesions that perception is asked for too: the healthy picture, and that request."""
        if not self.choices.healthy:
            return
        asked = {(s.row.source, s.row.target): s.ask for s in self._painted if s.row.task == "lesion"}
        for pack in packs:
            for row in pack.rows:
                ask = asked.get((row.source, row.target))
                if row.fold == fold and row.task == "removal" and row.goal is not None and ask is not None:
                    yield row, pack.images[row.goal], ask

    def _fresh_holes(self, packs: Sequence[Pack], fold: str) -> FreshHoles | None:
        places = [(stored.large, stored.place, stored.grey) for stored in self._painted]
        shown, shapes = healthy_pictures(packs, fold, places, (SIDE, LARGE))
        if not shapes:
            return None
        modalities = sorted({one.modality for one in shown})
        self._hole_asks = {modality: self.prompts.add(hole_ask(modality)) for modality in modalities}
        return FreshHoles(shown, shapes, self.device)

    def choose(
        self, rng: np.random.Generator, batch: int, shares: dict[str, float], absent: float
    ) -> dict[str, list[Any]]:
        """Rows, wordings and places of one batch, as small arrays; those of the small pool first."""
        number = counts(batch, shares)
        painted: list[_Painted] = []
        mended: list[_Mended] = []
        if self.painted is not None:
            for at in self.painted.draw(rng, number.get("perception", 0)):
                row, large, place, ask, grey = self._painted[at]
                elsewhere, smooth = self._elsewhere[row.modality], self._smooth[at]
                vain = bool(rng.random() < absent)
                if vain and self.healthy is not None and rng.random() < self.choices.healthy:
                    row, large, place, ask, grey = self._healthy[self.healthy.draw(rng, 1)[0]]
                elif vain and elsewhere:
                    ask = elsewhere[int(rng.integers(len(elsewhere)))]
                else:
                    vain = False
                prompt, colours = self._wording(rng, ask)
                flips, turns = may_flip(row.target), may_turn(row.modality)
                painted.append(
                    _Painted(large, place, prompt, colours, vain, grey, flips, turns, row.modality, smooth)
                )
        if self.mended is not None:
            for at in self.mended.draw(rng, number.get("transformation", 0)):
                row, large, place, ask, grey = self._mended[at]
                prompt, _ = self._wording(rng, ask)
                mended.append(_Mended(large, place, prompt, grey, may_turn(row.modality)))
        return {
            "painted": sorted(painted, key=lambda item: item.large),
            "mended": sorted(mended, key=lambda item: item.large),
            "changed": sorted(
                self._changed(rng, number.get("modification", 0), absent),
                key=lambda item: (item.large, item.fresh),
            ),
        }

    def _changed(self, rng: np.random.Generator, count: int, absent: float) -> list[Changed]:
        new = 0 if self.fresh is None else round(self.choices.holes * count)
        if self.changes.groups is None:
            new = 0 if self.fresh is None else count
        items = []
        if self.changes.groups is not None:
            for at in self.changes.groups.draw(rng, count - new):
                row, large, place, ask, grey = self.changes.stored[at]
                prompt, _ = self._wording(rng, ask)
                removal = row.task == "removal"
                vain = removal and bool(rng.random() < absent)
                still = row.task == "addition" or names_a_place(self.prompts.texts[prompt])
                turns = may_turn(row.modality) and not still
                items.append(Changed(large, False, place, prompt, grey, not still, turns, removal, vain))
        if self.fresh is not None:
            for at in self.fresh.groups.draw(rng, new):
                one = self.fresh.shown[at]
                prompt, _ = self._wording(rng, self._hole_asks[one.modality])
                turns = may_turn(one.modality)
                items.append(Changed(one.large, True, int(at), prompt, one.grey, True, turns, False, False))
        return items

    def _wording(self, rng: np.random.Generator, ask: int) -> tuple[int, NDArray[np.int64]]:
        ways = self.prompts.wordings[ask]
        return ways[int(rng.integers(len(ways)))]

    def views(self, chosen: Any, seed: int) -> Views:
        """The batch's pixels, augmented. Everything random comes from `seed`."""
        generator = torch.Generator(self.device)
        generator.manual_seed(seed)
        p: list[_Painted] = chosen["painted"]
        t: list[_Mended] = chosen["mended"]
        m: list[Changed] = chosen["changed"]
        image, mask, counted, grey = self._painted_views(p, generator, seed)
        pairs, flat = self._mended_views(t, generator)
        changes = change_views(m, self.changes, self.fresh, self.images, generator, SIDE)
        painted = np.array([item.colours for item in p]).reshape(len(p), MOST_CLASSES + 1)
        colours = self._tensor(painted, torch.long)
        there = self._tensor([not item.vain for item in p], torch.bool)
        asked = torch.stack([(colours == c).any(1) for c in range(NOTHING)], 1)
        lut = F.one_hot(colours, NOTHING + 1)[..., :NOTHING].to(torch.float32)  # (P, classes, 3)
        each = torch.arange(len(p), device=self.device)[:, None, None]
        wanted = lut[each, mask[:, 0].long()].permute(0, 3, 1, 2)
        kinds = ["perception"] * len(p) + ["transformation"] * len(t) + ["modification"] * len(m)
        still = torch.zeros(len(p) + len(t), 1, SIDE, SIDE, device=self.device)
        return Views(
            image=torch.cat([image, pairs[:, :3], changes.image]),
            prompt=self._tensor([item.prompt for items in (p, t, m) for item in items], torch.long),
            perspective=self._tensor([PERSPECTIVES.index(kind) for kind in kinds], torch.long),
            overlay=wanted * there[:, None, None, None],
            counted=counted,
            asked=asked & there[:, None],
            present=there.float(),
            smooth=self._tensor([item.smooth for item in p], torch.float32),
            goal=torch.cat([pairs[:, 3:], changes.goal]),
            grey=torch.cat([grey, flat, self._tensor([item.grey for item in m], torch.bool)]),
            area=changes.area,
            hole=torch.cat([still, changes.hole]),
            there=self._tensor([not item.vain for item in m], torch.float32),
            removal=self._tensor([item.removal for item in m], torch.bool),
        )

    def _painted_views(
        self, items: list[_Painted], generator: torch.Generator, seed: int
    ) -> tuple[Tensor, ...]:
        strength = self.choices.strength
        images, masks, counted = [], [], []
        for large in (0, 1):
            some = [item for item in items if item.large == large]
            pool, regions = self.images[large], self.masks[large]
            if not some or pool is None or regions is None:
                continue
            draw = Draw(len(some), generator)
            place = self._tensor([item.place for item in some], torch.long)
            image = pool.gather(place).float() / 255
            mask = regions.gather(place).float()
            window = torch.ones(len(some), device=self.device)
            if large:
                # Half of the views show the whole image at half its pixels, half a part of it as it is.
                part = draw.chance(0.5)
                window = torch.where(part, draw.uniform(0.5, 0.75), window)
                halved = F.interpolate(F.avg_pool2d(image, 2), scale_factor=2.0, mode="nearest")
                image = torch.where(part[:, None, None, None], image, halved)
            seen = moved(
                draw,
                image,
                mask,
                self.filled[large].index_select(0, place),
                side=SIDE,
                window=window,
                flips=self._tensor([item.flips for item in some], torch.bool),
                turns=self._tensor([item.turns for item in some], torch.bool),
                strength=strength,
            )
            images.append(seen[0])
            masks.append(seen[1])
            counted.append(seen[2])
        shown, inside = _joined(images, 3, self.device), _joined(counted, 1, self.device)
        grey = self._tensor([item.grey for item in items], torch.bool)
        draw = Draw(len(items), generator)
        if items:
            shown = recoloured(draw, shown, grey, strength)
        if items and strength.mix:
            partner = self._tensor(_partners(items, seed), torch.long)
            shown = histograms_mixed(draw, shown, partner, strength.mix)
        if items and strength.cutout:
            shown, inside = cut_out(draw, shown, inside, strength.cutout)
        return shown, _joined(masks, 1, self.device), inside, grey

    def _mended_views(self, items: list[_Mended], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        pairs = []
        for large in (0, 1):
            some = [item for item in items if item.large == large]
            pool = self.pairs[large]
            if not some or pool is None:
                continue
            pair = pool.gather(self._tensor([item.place for item in some], torch.long))
            turns = self._tensor([item.turns for item in some], torch.bool)
            pairs.append(cropped(Draw(len(some), generator), pair.float() / 255, SIDE, turns))
        return _joined(pairs, 6, self.device), self._tensor([item.grey for item in items], torch.bool)

    def _tensor(self, values: Any, dtype: torch.dtype) -> Tensor:
        return sent(values, dtype, self.device)


def _partners(items: list[_Painted], seed: int) -> list[int]:
    """For each another of the same modality, grey as it is; itself where it is the only one."""
    rng = np.random.default_rng(seed)
    alike: dict[tuple[str, bool], list[int]] = {}
    for at, item in enumerate(items):
        alike.setdefault((item.modality, item.grey), []).append(at)
    places = [alike[item.modality, item.grey] for item in items]
    return [some[int(rng.integers(len(some)))] for some in places]


def _joined(parts: list[Tensor], channels: int, device: torch.device) -> Tensor:
    return torch.cat(parts) if parts else torch.zeros(0, channels, SIDE, SIDE, device=device)


def _side_by_side(image: Pixels, goal: Pixels, side: int) -> NDArray[np.uint8]:
    """`(side, side, 6)`: both images as they are, edges repeated up to the square."""
    halves = [letterbox(as_rgb(half), side, enlarge=False)[0] for half in (image, goal)]
    return np.concatenate(halves, axis=2)
