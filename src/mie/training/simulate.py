"""New simulations: a clean image degraded again, as the recipe would, with new severity and new noise.

A dataset holds one draw of each pair. A network that sees it a hundred times learns that one noise by heart,
so training draws new ones from the clean images. A clean image is the goal of a simulated row, or the input
of a row that is painted on, if the physics of its modality needs no more than an ordinary picture. CT physics
needs Hounsfield units, which such pictures have lost: a window such as radiologists use is assumed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, TypeAlias

import cv2
import numpy as np

from mie.core.hashing import generator, stable_hash
from mie.datasets.engine import run_tasks
from mie.editors.compact.kinds import PERSPECTIVE_OF, EditKind
from mie.errors import ImageError
from mie.images.hashes import pixel_digest
from mie.images.resize import fitted_size
from mie.images.windows import through_ct_window
from mie.perspectives.transformation.simulation import as_acquired, simulate
from mie.perspectives.transformation.targets import TARGETS, TransformTarget
from mie.records import Case, Pixels
from mie.training.pack import TRAIN, Instruction, Pack, as_rgb, one_channel_if_grey
from mie.training.wordings import WIDE, transformation_instruction, widened_instruction

_JOBS_PER_TASK: Final = 16
# Of this many places for a window, the one with most contrast is taken: black air teaches nothing.
_PLACES: Final = 4
# OCT is left out: only averaged scans are clean, and overlays do not say which are.
_CLEAN_MODALITIES: Final = ("MRI", "ultrasound", "dermoscopy")
_SMALLEST: Final = 96  # pixels, of the longer side of a warped image
_TURN: Final = 20  # degrees
_STRETCH: Final = 0.2  # log, of each side
_BEND: Final = 0.03  # standard deviation of the displacement, of the longer side
_NARROW: Final = 0.5  # chance that warped CT is shown in a window for soft tissue
# Windows about those of mediastinum, abdomen and liver, and of the brain: their levels and widths, in HU.
_SOFT: Final = ((-50.0, 120.0), (250.0, 700.0))
_BRAIN: Final = ((30.0, 50.0), (100.0, 350.0))
_LEAST_CT: Final = 256  # pixels, of the longer side: smaller pictures show no grain


@dataclass(frozen=True, slots=True)
class Job:
    """One pair to make: which target, from which of the pack's images, and which draw of it."""

    row: int  # the row the clean image belongs to
    image: int
    key: str
    facts: Mapping[str, Any]  # Row.simulate
    draw: int


@dataclass(frozen=True, slots=True)
class FreshPair:
    """`input` and `goal` are uint8, `(H, W)` where grey, at most `size` a side; `words` fill phrasings."""

    job: Job
    input: Pixels
    goal: Pixels
    words: Mapping[str, str]


def own_jobs(pack: Pack, per_row: int = 1) -> list[Job]:
    """Return each simulated training row again, `per_row` times."""
    return [
        Job(at, row.goal, row.key, row.simulate, draw)
        for at, row in enumerate(pack.rows)
        if row.fold == TRAIN and row.simulate is not None and row.goal is not None and row.key is not None
        for draw in range(per_row)
    ]


def wide_jobs(pack: Pack, per_target: int, *, seed: int = 0) -> list[Job]:
    """Return `per_target` jobs for each simulated target, over all clean images that suit its modality.

    Every image, in every variant (super-resolution by 2 and by 4), comes once before one comes again. CT of
    known and of assumed Hounsfield units alternate: the many pictures of the second kind show hardly a
    lung.
    """
    jobs = []
    for key in sorted({row.key for row in pack.rows if row.key and row.simulate is not None}):
        halves: dict[bool, list[_Clean]] = {True: [], False: []}
        for each in _clean_images(pack, key):
            halves[_knows_units(TARGETS[key], each[2])].append(each)
        pools = [pool for pool in halves.values() if pool]
        rng = generator(stable_hash("clean images", seed, key))
        orders = [rng.permutation(len(pool)) for pool in pools]
        for at in range(per_target):
            turn, which = divmod(at, len(pools))
            pool, order = pools[which], orders[which]
            row, image, facts = pool[order[turn % len(pool)]]
            jobs.append(Job(row, image, key, facts, turn // len(pool)))
    return jobs


def fresh_pairs(
    pack: Pack,
    *,
    per_row: int = 1,
    jobs: Sequence[Job] | None = None,
    size: int = 256,
    bent: float = 0,
    seed: int = 0,
    workers: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> list[FreshPair]:
    """Make the pairs of `jobs` (`own_jobs(pack, per_row)` by default), in order, whatever `workers` is.

    A larger image is degraded whole and then cut to a window of `size`, because motion, coils and frames
    belong to the whole field of view; CT, whose projections cost most, is scaled down to `size` before. An
    image that the physics does not take (colour where it needs grey) gives no pair. Of CT, whose clean images
    come from few patients, the share `bent` is warped, turned, stretched and scaled down first.
    """
    jobs = own_jobs(pack, per_row) if jobs is None else jobs
    tasks = [
        _Task(at, size, bent, [_item(pack, job, seed) for job in jobs[at : at + _JOBS_PER_TASK]])
        for at in range(0, len(jobs), _JOBS_PER_TASK)
    ]
    pairs: dict[int, FreshPair] = {}
    done = 0
    progress(0, len(jobs))
    for at, results in run_tasks(_make, tasks, workers=workers):
        for number, (job, pair) in enumerate(zip(jobs[at : at + _JOBS_PER_TASK], results, strict=True)):
            if pair is not None:
                pairs[at + number] = FreshPair(job, *pair)
        done += len(results)
        progress(done, len(jobs))
    return [pairs[number] for number in sorted(pairs)]


def add_pairs(pack: Pack, pairs: Sequence[FreshPair], *, wordings: int = 24) -> Pack:
    """Return a pack with one more training row for each pair; the given pack stays, arrays are shared."""
    grown = Pack([*pack.images], pack.masks, [*pack.rows], [*pack.instructions], pack.facts)
    seen: dict[bytes, int] = {}
    places: dict[Instruction, int] = {one: at for at, one in enumerate(pack.instructions)}
    widened: dict[str, Instruction] = {}

    def place(picture: Pixels) -> int:
        digest = pixel_digest(picture)
        if digest not in seen:
            seen[digest] = len(grown.images)
            grown.images.append(picture)
        return seen[digest]

    for pair in pairs:
        row, target = pack.rows[pair.job.row], TARGETS[pair.job.key]
        instruction = transformation_instruction(
            target.key, row.modality, row.anatomy, pair.words, limit=wordings
        )
        if pack.instructions[row.instruction].key.startswith(WIDE):
            instruction = widened.setdefault(
                instruction.key, widened_instruction(instruction, (), row.modality)
            )
        if instruction not in places:
            places[instruction] = len(grown.instructions)
            grown.instructions.append(instruction)
        added = replace(
            row,
            id=f"{row.id}-{target.key}-{pair.job.draw}",
            perspective=PERSPECTIVE_OF[EditKind.IMAGE],
            task=target.task,
            target=target.name,
            key=target.key,
            input=place(pair.input),
            goal=place(pair.goal),
            mask=None,
            classes=0,
            instruction=places[instruction],
            simulate=None,
        )
        grown.rows.append(added)
    return grown


_Clean: TypeAlias = tuple[int, int, Mapping[str, Any]]  # row, image, facts
_Result: TypeAlias = tuple[Pixels, Pixels, dict[str, str]]  # input, goal, words


@dataclass(frozen=True, slots=True)
class _Item:
    clean: Pixels
    key: str
    modality: str
    anatomy: str
    facts: Mapping[str, Any]
    seed: int
    stored: bool  # a picture as its file has it; others a recipe has prepared


@dataclass(frozen=True, slots=True)
class _Task:
    first: int
    size: int
    bent: float
    items: list[_Item]


def _item(pack: Pack, job: Job, seed: int) -> _Item:
    row = pack.rows[job.row]
    own = stable_hash("fresh", seed, row.id, job.key, dict(job.facts), job.draw)
    stored = row.kind is EditKind.OVERLAY
    return _Item(pack.images[job.image], job.key, row.modality, row.anatomy, job.facts, own, stored)


def _make(task: _Task) -> tuple[int, list[_Result | None]]:
    results: list[_Result | None] = []
    for item in task.items:
        try:
            results.append(_pair(item, task.size, task.bent))
        except ImageError:
            results.append(None)
    return task.first, results


def _pair(item: _Item, size: int, bent: float = 0) -> _Result:
    target, facts = TARGETS[item.key], item.facts
    clean = item.clean
    rng = generator(item.seed)
    warps = target.domain == "HU" and bent > 0 and rng.random() < bent
    if warps:
        clean = _warped(clean, size, rng)
    if "white" in facts:  # brighten what was darkened to fit a degraded image into 8 bits
        clean = np.minimum(np.round(clean * (facts["white"] / 255)), 255).astype(np.uint8)
    height, width = clean.shape[:2]
    side = facts["field_mm"] / max(height, width) if "field_mm" in facts else None
    case = Case(
        source="",
        case_id="",
        image=as_rgb(clean),
        modality=item.modality,
        anatomy=item.anatomy,
        hu_range=facts.get("hu_range") if _knows_units(target, facts) else _assumed(item.anatomy, rng),
        spacing=None if side is None else (side, side),
    )
    if item.stored and item.modality == "MRI":
        case = as_acquired(case)
        height, width = case.image.shape[:2]
    large = max(height, width) > size
    shape = fitted_size(height, width, size) if large and target.domain == "HU" else (height, width)
    simulated = simulate(target, facts["fixed"], case, shape, rng)
    shown = [simulated.input, simulated.target_image]
    if warps and "hu_range" in facts and rng.random() < _NARROW:
        grey_of = _narrowed(facts["hu_range"], rng)
        shown = [grey_of[picture] for picture in shown]
    place = _window(shown[1], size, rng)
    pictures = [one_channel_if_grey(np.ascontiguousarray(picture[place])) for picture in shown]
    return pictures[0], pictures[1], dict(simulated.words)


def _warped(image: Pixels, size: int, rng: np.random.Generator) -> Pixels:
    """Warp an image as if it were another patient's; its longer side is then between 96 pixels and `size`."""
    height, width = image.shape[:2]
    most = min(size, max(height, width))
    longer = int(np.exp(rng.uniform(np.log(min(_SMALLEST, most)), np.log(most))))
    height, width = fitted_size(height, width, longer)
    image = np.asarray(cv2.resize(image, (width, height), interpolation=cv2.INTER_AREA))
    turn = np.deg2rad(rng.uniform(-_TURN, _TURN))
    stretch = np.exp(rng.uniform(-_STRETCH, _STRETCH, 2))
    slow = rng.normal(0, _BEND * longer, (4, 4, 2)).astype(np.float32)
    field = cv2.resize(slow, (width, height), interpolation=cv2.INTER_CUBIC)
    y, x = np.mgrid[:height, :width].astype(np.float32)
    y, x = (y - height / 2) * stretch[0], (x - width / 2) * stretch[1]
    to_x = np.cos(turn) * x - np.sin(turn) * y + width / 2 + field[..., 0]
    to_y = np.sin(turn) * x + np.cos(turn) * y + height / 2 + field[..., 1]
    to_x, to_y = to_x.astype(np.float32), to_y.astype(np.float32)
    moved = cv2.remap(image, to_x, to_y, cv2.INTER_LINEAR, borderMode=cv2.BORDER_REPLICATE)
    return np.asarray(moved, np.uint8)


def _narrowed(hu_range: tuple[float, float], rng: np.random.Generator) -> Pixels:
    """For each grey level of a picture of that range, the one in a random window for soft tissue."""
    level, width = (rng.uniform(*bounds) for bounds in _SOFT)
    return through_ct_window(np.linspace(*hu_range, 256), level, width)


def _knows_units(target: TransformTarget, facts: Mapping[str, Any]) -> bool:
    """Whether the physics needs no more than the clean image's facts say."""
    return target.domain != "HU" or "hu_range" in facts


def _assumed(anatomy: str, rng: np.random.Generator) -> tuple[float, float]:
    """What black and white of a CT picture may stand for, in HU."""
    level, width = (rng.uniform(*bounds) for bounds in (_BRAIN if anatomy == "brain" else _SOFT))
    return level - width / 2, level + width / 2


def _window(image: Pixels, size: int, rng: np.random.Generator) -> tuple[slice, slice]:
    """A window of at most `size` a side, where the image shows most of a few places."""
    height, width = image.shape[:2]
    if max(height, width) <= size:
        return slice(None), slice(None)
    places = []
    for _ in range(_PLACES):
        top, left = (int(rng.integers(max(0, side - size) + 1)) for side in (height, width))
        places.append((slice(top, top + size), slice(left, left + size)))
    return max(places, key=lambda place: float(image[place].std()))


def _clean_images(pack: Pack, key: str) -> list[_Clean]:
    """(row, image, facts) of each training image that target `key` can be made from, in each variant."""
    target = TARGETS[key]
    own = [(row, row.simulate) for row in pack.rows if row.key == key and row.simulate is not None]
    fixed = {stable_hash(facts["fixed"]): facts["fixed"] for _, facts in own}
    images: dict[tuple[int, int], _Clean] = {}
    for at, row in enumerate(pack.rows):
        if row.fold != TRAIN or row.modality not in target.modalities:
            continue
        if row.simulate is not None and row.goal is not None and "white" not in row.simulate:
            image, facts = row.goal, row.simulate
        elif row.kind is EditKind.OVERLAY and _is_clean(pack.images[row.input], row.modality):
            image, facts = row.input, {}
        else:
            continue
        for number, values in fixed.items():
            images.setdefault((image, number), (at, image, {**facts, "fixed": values}))
    return list(images.values())


def _is_clean(picture: Pixels, modality: str) -> bool:
    if modality == "CT":
        return max(picture.shape[:2]) >= _LEAST_CT
    return modality in _CLEAN_MODALITIES
