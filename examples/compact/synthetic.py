"""Lesions removed from training images and drawn anew by the flow expert: packs beside the one they are from.

    python examples/compact/synthetic.py PACK -o OUT [--device cuda] [--workers 8]

OUT/healed has two rows for each lesion of a training patient: it is removed, and it is added again. OUT/drawn
has another lesion of the same name near the place of the first, for perception. OUT/named has the real ones
again by their more general names ("brain lesion" for a glioma). Nothing is checked by a detector: a build
with `kind: modification` does that. Validation patients are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from mie.core.hashing import generator, stable_hash
from mie.datasets.engine import run_tasks
from mie.images.families import MARGIN, family_of
from mie.perspectives.modification import phrasings
from mie.perspectives.modification.inpainters import make_inpainter
from mie.perspectives.modification.lesions import body_of, equivalent_diameter, place_of
from mie.records import Target
from mie.training.pack import (
    TRAIN,
    Instruction,
    Pack,
    Row,
    as_rgb,
    one_channel_if_grey,
    read_pack,
    write_pack,
)
from mie.training.wordings import modification_instruction, perception_instruction, widened_instruction
from mie.words.vocabulary import vocabulary

MOST = 0.35  # share of an image that is filled
LEAST = 24  # pixels of a lesion
TRIES = 12
CHUNK = 16


@dataclass(frozen=True)
class Job:
    row: int
    image: np.ndarray
    mask: np.ndarray
    outline: np.ndarray  # of another lesion of the name
    family: str
    target: str
    seed: int
    device: str


@dataclass(frozen=True)
class Made:
    row: int
    healed: np.ndarray
    hole: np.ndarray
    drawn: np.ndarray | None
    region: np.ndarray | None
    location: str
    size: str


@lru_cache(maxsize=16)
def expert(family: str, device: str) -> Any:
    return make_inpainter(f"flow,device={device}", family=family)


def work(jobs: list[Job]) -> list[Made]:
    return [made for job in jobs if (made := make(job)) is not None]


def make(job: Job) -> Made | None:
    image = as_rgb(job.image)
    share, least = MARGIN[job.family]
    wider = max(least, round(share * equivalent_diameter(float(job.mask.sum()))))
    kernel = cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (2 * wider + 1,) * 2)
    hole = cv2.dilate(job.mask.astype(np.uint8), kernel).astype(bool)
    if job.mask.sum() < LEAST or hole.mean() > MOST:
        return None
    flow = expert(job.family, job.device)
    healed = flow.fill(np.where(hole[..., None], np.uint8(255), image), hole, seed=job.seed)
    body = body_of(image, job.family)
    place = place_of(job.mask, body, family=job.family, anatomy="", plane=None)
    region = moved(job, body) if job.target in flow.targets else None
    drawn = None if region is None else flow.paint(healed, region, job.target, seed=job.seed + 1)[0]
    return Made(job.row, healed, hole, drawn, region, place.location, place.size)


def moved(job: Job, body: np.ndarray) -> np.ndarray | None:
    """The other outline, turned and scaled, near the middle of the lesion and inside the body."""
    random = generator(job.seed)
    rows, columns = np.nonzero(job.mask)
    extent = max(np.ptp(rows), np.ptp(columns)) + 1
    for _ in range(TRIES):
        shape = np.rot90(job.outline, int(random.integers(4)))
        shape = shape[:, ::-1] if random.random() < 0.5 else shape
        scale = float(np.clip(extent / max(shape.shape), 0.5, 2.0) * random.uniform(0.7, 1.3))
        size = [max(4, round(side * scale)) for side in shape.shape]
        if any(side >= whole for side, whole in zip(size, job.mask.shape, strict=True)):
            continue
        small = cv2.resize(shape.astype(np.float32), size[::-1], interpolation=cv2.INTER_LINEAR) > 0.5
        shift = random.uniform(-0.9, 0.9, 2) * extent
        top, left = (
            round(rows.mean() + shift[0] - size[0] / 2),
            round(columns.mean() + shift[1] - size[1] / 2),
        )
        if min(top, left) < 0 or top + size[0] > body.shape[0] or left + size[1] > body.shape[1]:
            continue
        region = np.zeros_like(job.mask)
        region[top : top + size[0], left : left + size[1]] = small
        if region.sum() >= LEAST and (region & body).sum() >= 0.97 * region.sum():
            return region
    return None


def jobs_of(pack: Pack, device: str) -> Iterator[Job]:
    outlines: dict[tuple[str, str], list[np.ndarray]] = {}
    rows = []
    for at, row in enumerate(pack.rows):
        family = family_of(row.modality)
        if row.fold != TRAIN or row.task != "lesion" or row.mask is None or family in (None, "microscopy"):
            continue
        mask = pack.masks[row.mask] > 0
        if mask.sum() < LEAST:
            continue
        stats = cv2.connectedComponentsWithStats(mask.astype(np.uint8), connectivity=8)[2]
        x, y, width, height, _ = stats[1 + int(np.argmax(stats[1:, cv2.CC_STAT_AREA]))]
        outlines.setdefault((family, row.target), []).append(mask[y : y + height, x : x + width])
        rows.append((at, row, family, mask))
    for at, row, family, mask in rows:
        seed = stable_hash("synthetic", row.id) >> 33
        others = outlines[family, row.target]
        yield Job(
            at, pack.images[row.input], mask, others[seed % len(others)], family, row.target, seed, device
        )


def asked(row: Row, task: str, location: str, size: str) -> Instruction:
    known = vocabulary().targets.get(row.target)
    target = Target(row.target, "lesion", known is not None and known.plural)
    words = phrasings.words(
        [target], anatomy=row.anatomy, modality=row.modality, location=location, size=size
    )
    plain = modification_instruction(task, [target], row.modality, words)
    return widened_instruction(plain, [row.target], row.modality)


class Growing:
    """A pack that grows; instructions that are equal are kept once."""

    def __init__(self, facts: dict[str, Any]) -> None:
        self.pack = Pack([], [], [], [], facts)
        self._asked: dict[str, int] = {}
        self._placed: dict[int, int] = {}

    def image(self, picture: np.ndarray, of: int | None = None) -> int:
        """`of`: the number of the original that it is, which is kept once."""
        if of is None or of not in self._placed:
            self.pack.images.append(one_channel_if_grey(as_rgb(picture)))
            if of is None:
                return len(self.pack.images) - 1
            self._placed[of] = len(self.pack.images) - 1
        return self._placed[of]

    def mask(self, mask: np.ndarray) -> int:
        self.pack.masks.append(mask.astype(np.uint8))
        return len(self.pack.masks) - 1

    def instruction(self, instruction: Instruction) -> int:
        if instruction.key not in self._asked:
            self._asked[instruction.key] = len(self.pack.instructions)
            self.pack.instructions.append(instruction)
        return self._asked[instruction.key]


def named(row: Row, name: str) -> Instruction:
    """The wordings that ask for a lesion by this name."""
    known = vocabulary().targets.get(name)
    target = Target(name, "lesion", known is not None and known.plural)
    plain = perception_instruction("lesion", [target], row.modality, numbered=known is not None)
    return widened_instruction(plain, [name], row.modality)


def general_names(pack: Pack, general: Growing) -> None:
    """Add each lesion that is the only one marked in its image by its more general names."""
    marked: dict[int, set[str]] = {}
    for row in pack.rows:
        if row.task == "lesion":
            marked.setdefault(row.input, set()).add(row.target)
    for row in pack.rows:
        known = vocabulary().targets.get(row.target)
        if row.task != "lesion" or row.fold != TRAIN or row.mask is None or known is None:
            continue
        if len(marked[row.input]) > 1:
            continue
        for name in known.parents:
            if " " not in name:
                continue  # "tumour": of what, the image says, and the editor compares kinds
            place, mask = general.image(pack.images[row.input], row.input), general.mask(pack.masks[row.mask])
            number = general.instruction(named(row, name))
            new = replace(row, id=f"{row.id}-{name}", target=name, input=place, mask=mask, instruction=number)
            general.pack.rows.append(new)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("-o", "--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int)
    parser.add_argument("--lossy", type=int, default=90)
    parser.add_argument("--limit", type=int, help="only so many lesions, for a trial")
    given = parser.parse_args()
    pack = read_pack(given.pack)
    jobs = list(jobs_of(pack, given.device))[: given.limit]
    tasks = [jobs[at : at + CHUNK] for at in range(0, len(jobs), CHUNK)]
    facts = {"from": pack.facts, "synthetic": "drawn by the flow expert"}
    healed, drawn, general = Growing(facts), Growing(facts), Growing({"from": pack.facts})
    results = sorted((one for part in run_tasks(work, tasks, workers=given.workers) for one in part),
                     key=lambda one: one.row)  # fmt: skip
    for made in results:
        row = pack.rows[made.row]
        ill = healed.image(pack.images[row.input], row.input)
        well, hole = healed.image(made.healed), healed.mask(made.hole)
        for task, (before, after) in {"removal": (ill, well), "addition": (well, ill)}.items():
            number = healed.instruction(asked(row, task, made.location, made.size))
            new = replace(row, id=f"{row.id}-{task}", perspective="modification", task=task, classes=1)
            new = replace(new, input=before, goal=after, mask=hole, instruction=number)
            healed.pack.rows.append(new)
        if made.drawn is not None and made.region is not None:
            number = drawn.instruction(pack.instructions[row.instruction])
            place, mask = drawn.image(made.drawn), drawn.mask(made.region)
            new = replace(row, id=f"{row.id}-drawn", input=place, mask=mask, instruction=number)
            drawn.pack.rows.append(new)
    general_names(pack, general)
    for name, grown in (("healed", healed), ("drawn", drawn), ("named", general)):
        print(name, write_pack(given.out / name, grown.pack, lossy=given.lossy)["counts"], flush=True)


if __name__ == "__main__":
    main()
