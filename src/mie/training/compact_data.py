"""The compact editor's training data on the device: pools of images, and batches of views of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from mie.editors.compact.kinds import EDIT_KINDS, PERSPECTIVE_OF, EditKind
from mie.perspectives.transformation.targets import TARGETS
from mie.records import Pixels
from mie.training.augment import (
    STRENGTHS,
    Draw,
    Strength,
    crop_pairs,
    cut_out,
    may_flip,
    may_turn,
    milder,
    mix_histograms,
    recolour,
    warp,
)
from mie.training.batches import Groups, Pool, counts, letterbox, letterbox_mask, to_tensor
from mie.training.modification_data import (
    AreaItem,
    AreaRows,
    HoleMaker,
    StoredRow,
    area_views,
    fill_instruction,
    healthy_pictures,
    names_a_place,
)
from mie.training.pack import Pack, Row, as_rgb
from mie.training.wordings import MOST_CLASSES, NOTHING, PromptTable, painted_instruction
from mie.vocabulary import PERSPECTIVES

SIDE: Final = 256
LARGE: Final = 512
_SCALED: Final = ("denoising", "artifact removal")  # of these tasks, less of the fault is a milder fault
_TINY: Final = 50  # rows of a group below which its masks are smoothed


@dataclass(frozen=True, slots=True)
class Choices:
    """How rows are drawn and augmented; the defaults are those of the first weights."""

    merge: bool = False  # rows of one target in one modality are one group, whatever their data set
    patients: bool = False  # a group's size is the geometric mean of its rows and its patients
    power: float = 0.5  # a group of n rows is drawn by n to this power
    emphasis: Mapping[str, float] = field(default_factory=dict)  # of transformation targets
    strength: Strength = STRENGTHS["usual"]
    smoothing: float = 0.0  # of the masks of groups below 50 rows
    holes: float = 0.0  # share of the edits of an area whose hole is made during training
    healthy: float = 0.0  # share of the absent targets that are lesions which a counterfactual removed
    painted: bool = False  # lesions that were painted into healthy images are also to be found
    mild: float = 0.0  # share of pairs whose input is shown with a part of what is wrong with it


@dataclass(slots=True)
class Views:
    """A batch as the network sees it. `(B, 3, S, S)` in [0, 1].

    P rows that paint an overlay come first, then T that map the image, then M that change an area.
    """

    image: Tensor
    prompt: Tensor  # (B,) places in the table of prompts
    perspective: Tensor  # (B,)
    overlay: Tensor  # (P, 3, S, S) what to paint
    counted: Tensor  # (P, 1, S, S)
    asked: Tensor  # (P, 3) which colours are asked for
    present: Tensor  # (P,)
    smooth: Tensor  # (P,) how much the masks are smoothed
    goal: Tensor  # (T + M, 3, S, S)
    grey: Tensor  # (B,) bool
    area: Tensor  # (M, 1, S, S) what changes
    hole: Tensor  # (B, 1, S, S) the white hole
    removable: Tensor  # (M,) whether what is to be removed is there
    removal: Tensor  # (M,) bool: only then is it known


class _OverlayItem(NamedTuple):
    """A row that paints an overlay, as drawn for a batch."""

    large: int
    place: int
    prompt: int
    colours: NDArray[np.int64]  # of each class, background first
    absent: bool  # what is asked for is not there
    grey: bool
    flips: bool
    turns: bool
    modality: str
    smooth: float


class _ImageItem(NamedTuple):
    """A row that maps the whole image, as drawn for a batch."""

    large: int
    place: int
    prompt: int
    grey: bool
    turns: bool
    scales: bool  # what is wrong with the input can be shown in part


class CompactData:
    """Everything a training step needs, on `device`."""

    def __init__(
        self, packs: Sequence[Pack], fold: str, device: torch.device, choices: Choices | None = None
    ) -> None:
        self.device = device
        self.choices = choices or Choices()
        self.prompts = PromptTable()
        self._overlay_rows: list[StoredRow] = []
        self._image_rows: list[StoredRow] = []
        images: tuple[list[Any], list[Any]] = ([], [])
        masks: tuple[list[Any], list[Any]] = ([], [])
        filled: tuple[list[Any], list[Any]] = ([], [])
        both: tuple[list[Any], list[Any]] = ([], [])
        self.area_rows = AreaRows(device, (SIDE, LARGE))

        def store(row: Row, image: Pixels, instruction: int, mask: Pixels) -> StoredRow:
            large = int(max(image.shape[:2]) > SIDE)
            side = (SIDE, LARGE)[large]
            square, (h, w) = letterbox(as_rgb(image), side)
            images[large].append(square)
            masks[large].append(letterbox_mask(mask, side))
            filled[large].append((h / side, w / side))
            return StoredRow(row, large, len(images[large]) - 1, instruction, image.ndim == 2)

        for pack in packs:
            instructions = [self.prompts.add(instruction) for instruction in pack.instructions]
            for row in pack.rows:
                if row.fold != fold:
                    continue
                image, instruction = pack.images[row.input], instructions[row.instruction]
                large = int(max(image.shape[:2]) > SIDE)
                if row.kind is EditKind.AREA:
                    self.area_rows.add(pack, row, instruction)
                elif row.mask is not None:
                    self._overlay_rows.append(store(row, image, instruction, pack.masks[row.mask]))
                elif row.goal is not None:
                    goal = pack.images[row.goal]
                    stored = StoredRow(row, large, len(both[large]), instruction, goal.ndim == 2)
                    self._image_rows.append(stored)
                    both[large].append(_side_by_side(image, goal, (SIDE, LARGE)[large]))
        marked = len(self._overlay_rows)
        for pack, row in self._painted_lesions(packs, fold):
            instruction = self.prompts.add(painted_instruction(row))
            image, mask = pack.images[row.input], pack.masks[row.mask or 0]
            self._overlay_rows.append(store(row, image, instruction, mask))
        self._healthy_rows = [
            store(row, picture, instruction, np.zeros(picture.shape[:2], np.uint8))
            for row, picture, instruction in self._without_lesions(packs, fold)
        ]
        sources = [stored.row.source for stored in self._healthy_rows]
        self.healthy_groups = Groups.of(sources, self.choices.power) if sources else None
        self.images = [Pool(some, device) if some else None for some in images]
        self.masks = [Pool(some, device) if some else None for some in masks]
        self.filled = [torch.tensor(some, dtype=torch.float32, device=device) for some in filled]
        self.pairs = [Pool(some, device) if some else None for some in both]
        self.area_rows.finish()
        rows = [stored.row for stored in self._overlay_rows]
        names = [self._group(row) for row in rows]
        patients = [row.patient_id or f"{row.source}//{row.input}" for row in rows]
        by = patients if self.choices.patients else None
        self.overlay_groups = Groups.of(names, self.choices.power, patients=by) if names else None
        sizes = Counter(names)
        self._smooth = [self.choices.smoothing * (sizes[name] < _TINY) for name in names]
        keys = [stored.row.key or "" for stored in self._image_rows]
        self.image_groups = Groups.of(keys, 0.25, self.choices.emphasis) if keys else None
        self.holes = self._hole_maker(packs, fold, marked) if self.choices.holes else None
        # What may be asked for although it is absent: targets of other modalities that this one never shows.
        targets: dict[str, set[str]] = {}
        for row in rows:
            targets.setdefault(row.modality, set()).update(row.target.split(", "))
        self._elsewhere = {
            modality: sorted(
                {
                    other.instruction
                    for other in self._overlay_rows
                    if not known & set(other.row.target.split(", "))
                }
            )
            for modality, known in targets.items()
        }

    def _group(self, row: Row) -> tuple[str, ...]:
        # Slices of one volume show many choices of classes: by these, one patient would fill many groups.
        if row.task == "holistic":
            return row.source, row.task
        return (row.modality if self.choices.merge else row.source), row.task, row.target

    def _painted_lesions(self, packs: Sequence[Pack], fold: str) -> Iterator[tuple[Pack, Row]]:
        """Yield the rows of lesions that were painted into images of data sets that mark organs alone.

        What a data set marks, any of the packs may say: pairs may have one of their own.
        """
        if not self.choices.painted:
            return
        marks: dict[str, set[str]] = {}
        for row in (row for pack in packs for row in pack.rows if row.kind is EditKind.OVERLAY):
            marks.setdefault(row.source, set()).add(row.task)
        for pack in packs:
            for row in pack.rows:
                painted = "lesion" not in marks.get(row.source, ("lesion",))
                if row.fold == fold and row.task == "removal" and row.mask is not None and painted:
                    overlay = PERSPECTIVE_OF[EditKind.OVERLAY]
                    yield pack, replace(row, perspective=overlay, task="lesion", goal=None)

    def _without_lesions(self, packs: Sequence[Pack], fold: str) -> Iterator[tuple[Row, Pixels, int]]:
        """Yield removals of lesions that are also painted: row, healthy picture, instruction to paint it."""
        if not self.choices.healthy:
            return
        lesions = {
            (stored.row.source, stored.row.target): stored.instruction
            for stored in self._overlay_rows
            if stored.row.task == "lesion"
        }
        for pack in packs:
            for row in pack.rows:
                instruction = lesions.get((row.source, row.target))
                if row.fold != fold or row.task != "removal" or row.goal is None or instruction is None:
                    continue
                yield row, pack.images[row.goal], instruction

    def _hole_maker(self, packs: Sequence[Pack], fold: str, marked: int) -> HoleMaker | None:
        places = [(stored.large, stored.place, stored.grey) for stored in self._overlay_rows[:marked]]
        pictures, shapes = healthy_pictures(packs, fold, places, (SIDE, LARGE))
        if not shapes:
            return None
        modalities = sorted({one.modality for one in pictures})
        self._fill_instructions = {
            modality: self.prompts.add(fill_instruction(modality)) for modality in modalities
        }
        return HoleMaker(pictures, shapes, self.device)

    def choose(
        self, rng: np.random.Generator, batch: int, shares: Mapping[str, float], absent: float
    ) -> dict[EditKind, list[Any]]:
        """Draw rows, wordings and places of one batch, by kind; those of the small pool first.

        `shares` are by perspective.
        """
        number = {EDIT_KINDS[name]: count for name, count in counts(batch, shares).items()}
        overlays = self._draw_overlays(rng, number.get(EditKind.OVERLAY, 0), absent)
        images = self._draw_images(rng, number.get(EditKind.IMAGE, 0))
        areas = self._draw_areas(rng, number.get(EditKind.AREA, 0), absent)
        return {
            EditKind.OVERLAY: sorted(overlays, key=lambda item: item.large),
            EditKind.IMAGE: sorted(images, key=lambda item: item.large),
            EditKind.AREA: sorted(areas, key=lambda item: (item.large, item.new_hole)),
        }

    def _draw_overlays(self, rng: np.random.Generator, count: int, absent: float) -> list[_OverlayItem]:
        if self.overlay_groups is None:
            return []
        items = []
        for at in self.overlay_groups.draw(rng, count):
            row, large, place, instruction, grey = self._overlay_rows[at]
            elsewhere, smooth = self._elsewhere[row.modality], self._smooth[at]
            missing = bool(rng.random() < absent)
            if missing and self.healthy_groups is not None and rng.random() < self.choices.healthy:
                drawn = self.healthy_groups.draw(rng, 1)[0]
                row, large, place, instruction, grey = self._healthy_rows[drawn]
            elif missing and elsewhere:
                instruction = elsewhere[int(rng.integers(len(elsewhere)))]
            else:
                missing = False
            prompt, colours = self._wording(rng, instruction)
            flips, turns = may_flip(row.target), may_turn(row.modality)
            items.append(
                _OverlayItem(large, place, prompt, colours, missing, grey, flips, turns, row.modality, smooth)
            )
        return items

    def _draw_images(self, rng: np.random.Generator, count: int) -> list[_ImageItem]:
        if self.image_groups is None:
            return []
        items = []
        for at in self.image_groups.draw(rng, count):
            row, large, place, instruction, grey = self._image_rows[at]
            prompt, _ = self._wording(rng, instruction)
            scales = row.key in TARGETS and TARGETS[row.key].task in _SCALED
            items.append(_ImageItem(large, place, prompt, grey, may_turn(row.modality), scales))
        return items

    def _draw_areas(self, rng: np.random.Generator, count: int, absent: float) -> list[AreaItem]:
        new = 0 if self.holes is None else round(self.choices.holes * count)
        if self.area_rows.groups is None:
            new = 0 if self.holes is None else count
        items = []
        if self.area_rows.groups is not None:
            for at in self.area_rows.groups.draw(rng, count - new):
                row, large, place, instruction, grey = self.area_rows.stored[at]
                prompt, _ = self._wording(rng, instruction)
                removal = row.task == "removal"
                missing = removal and bool(rng.random() < absent)
                still = row.task == "addition" or names_a_place(self.prompts.texts[prompt])
                turns = may_turn(row.modality) and not still
                items.append(AreaItem(large, False, place, prompt, grey, not still, turns, removal, missing))
        if self.holes is not None:
            for at in self.holes.groups.draw(rng, new):
                one = self.holes.pictures[at]
                prompt, _ = self._wording(rng, self._fill_instructions[one.modality])
                turns = may_turn(one.modality)
                items.append(AreaItem(one.large, True, int(at), prompt, one.grey, True, turns, False, False))
        return items

    def _wording(self, rng: np.random.Generator, instruction: int) -> tuple[int, NDArray[np.int64]]:
        wordings = self.prompts.wordings[instruction]
        return wordings[int(rng.integers(len(wordings)))]

    def views(self, chosen: Mapping[EditKind, list[Any]], seed: int) -> Views:
        """Return the batch's pixels, augmented. Everything random comes from `seed`."""
        generator = torch.Generator(self.device)
        generator.manual_seed(seed)
        p: list[_OverlayItem] = chosen[EditKind.OVERLAY]
        t: list[_ImageItem] = chosen[EditKind.IMAGE]
        m: list[AreaItem] = chosen[EditKind.AREA]
        image, mask, counted, grey = self._overlay_views(p, generator, seed)
        pairs, pairs_grey = self._image_views(t, generator)
        areas = area_views(m, self.area_rows, self.holes, self.images, generator, SIDE)
        classes = np.array([item.colours for item in p]).reshape(len(p), MOST_CLASSES + 1)
        colours = self._tensor(classes, torch.long)
        present = self._tensor([not item.absent for item in p], torch.bool)
        asked = torch.stack([(colours == c).any(1) for c in range(NOTHING)], 1)
        lut = F.one_hot(colours, NOTHING + 1)[..., :NOTHING].to(torch.float32)  # (P, classes, 3)
        each = torch.arange(len(p), device=self.device)[:, None, None]
        overlay = lut[each, mask[:, 0].long()].permute(0, 3, 1, 2)
        order = (EditKind.OVERLAY, EditKind.IMAGE, EditKind.AREA)
        perspectives = [
            PERSPECTIVES.index(PERSPECTIVE_OF[kind]) for kind in order for _ in range(len(chosen[kind]))
        ]
        no_hole = torch.zeros(len(p) + len(t), 1, SIDE, SIDE, device=self.device)
        return Views(
            image=torch.cat([image, pairs[:, :3], areas.image]),
            prompt=self._tensor([item.prompt for kind in order for item in chosen[kind]], torch.long),
            perspective=self._tensor(perspectives, torch.long),
            overlay=overlay * present[:, None, None, None],
            counted=counted,
            asked=asked & present[:, None],
            present=present.float(),
            smooth=self._tensor([item.smooth for item in p], torch.float32),
            goal=torch.cat([pairs[:, 3:], areas.goal]),
            grey=torch.cat([grey, pairs_grey, self._tensor([item.grey for item in m], torch.bool)]),
            area=areas.area,
            hole=torch.cat([no_hole, areas.hole]),
            removable=self._tensor([not item.absent for item in m], torch.float32),
            removal=self._tensor([item.removal for item in m], torch.bool),
        )

    def _overlay_views(
        self, items: list[_OverlayItem], generator: torch.Generator, seed: int
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
            seen = warp(
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
            shown = recolour(draw, shown, grey, strength)
        if items and strength.mix:
            partner = self._tensor(_partners(items, seed), torch.long)
            shown = mix_histograms(draw, shown, partner, strength.mix)
        if items and strength.cutout:
            shown, inside = cut_out(draw, shown, inside, strength.cutout)
        return shown, _joined(masks, 1, self.device), inside, grey

    def _image_views(self, items: list[_ImageItem], generator: torch.Generator) -> tuple[Tensor, Tensor]:
        pairs = []
        for large in (0, 1):
            some = [item for item in items if item.large == large]
            pool = self.pairs[large]
            if not some or pool is None:
                continue
            pair = pool.gather(self._tensor([item.place for item in some], torch.long))
            turns = self._tensor([item.turns for item in some], torch.bool)
            draw = Draw(len(some), generator)
            pair = crop_pairs(draw, pair.float() / 255, SIDE, turns)
            if self.choices.mild:
                scales = self._tensor([item.scales for item in some], torch.bool)
                pair = milder(draw, pair, scales, self.choices.mild)
            pairs.append(pair)
        return _joined(pairs, 6, self.device), self._tensor([item.grey for item in items], torch.bool)

    def _tensor(self, values: Any, dtype: torch.dtype) -> Tensor:
        return to_tensor(values, dtype, self.device)


def _partners(items: list[_OverlayItem], seed: int) -> list[int]:
    """Return for each item another of its modality, grey if it is; itself where it is the only one."""
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
