"""Import of a MieDB folder: `metadata.json`, `input/`, `output/`, in itself or in one folder per split.

Where our sidecar stands beside it, the dataset comes back as it was. A folder from elsewhere says neither
modality nor anatomy nor target: those fields say "unknown". Its region masks are read from the overlays.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, Final

import numpy as np

from mie.core.files import inside
from mie.core.hashing import canonical
from mie.datasets.exports.miedb import KEYS, LINK, MULTI, Style, category_of
from mie.datasets.imports.reading import (
    Incoming,
    check_sizes,
    load_json,
    mask,
    picture,
    rejection,
    sample_from,
    storable,
)
from mie.errors import MieError
from mie.images.hashes import pixel_digest
from mie.images.overlay import deblend
from mie.perspectives import PERSPECTIVES, Perspective
from mie.records import Mask, Picture, Pixels, Rejection, Sample
from mie.vocabulary import COLOURS, SPLITS, UNKNOWN

SOURCE: Final = "miedb"
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class _Part:
    """One `metadata.json`."""

    root: Path  # no file may lie outside
    base: Path
    split: str | None  # as the folder's name says
    records: list[Any]
    style: Style

    def place(self, text: str) -> str:
        return (self.base.relative_to(self.root) / text).as_posix()


def read(folder: Path) -> Incoming:
    """Every record of the folder, or of its train, val and test folders. Without a known split it is test."""
    parts = [_load(folder, split) for split in (None, *SPLITS) if _there(folder, split)]
    if not parts:
        raise MieError(
            "no MieDB folder",
            where=folder,
            expected="metadata.json here, or in train/, val/ or test/",
            fix="check the path",
        )
    if parts[0].split is None:
        parts = parts[:1]
    total = sum(len(part.records) for part in parts)
    if not total:
        raise MieError("no record in metadata.json", where=folder)
    return Incoming(
        outcomes=(outcome for part in parts for outcome in _outcomes(part)),
        total=total,
        notes={"styles": {part.split or "test": part.style.as_json() for part in parts}},
        licenses={SOURCE: {"name": "not stated", "use": "unknown", "basis": "stated"}},
    )


def _there(folder: Path, split: str | None) -> bool:
    return (folder / (split or "") / "metadata.json").is_file()


def _load(folder: Path, split: str | None) -> _Part:
    base = folder / (split or "")
    path = inside(folder, base, "metadata.json")
    data = path.read_bytes()
    records = load_json(data, where=path)
    if not isinstance(records, list):
        raise MieError("metadata.json is not a list", where=path, found=type(records).__name__)
    return _Part(folder, base, split, records, Style.of(data.decode("utf-8-sig")))


def _outcomes(part: _Part) -> Iterator[Sample | Rejection]:
    sidecar = _Sidecar(part)
    seen: set[str] = set()
    for number, record in enumerate(part.records):
        try:
            _check(storable(record))
            idx = canonical(record["idx"])
            if idx in seen:
                raise MieError("another record has this idx", expected="one record per idx", found=idx)
            seen.add(idx)
            yield _sample(part, record, sidecar)
        except MieError as error:
            yield rejection(SOURCE, part.place(f"metadata.json[{number}]"), error)


def _check(record: Mapping[str, Any]) -> None:
    missing = [key for key in KEYS if record.get(key) is None]
    if missing:
        raise MieError("record lacks a key", expected=", ".join(KEYS), found=f"no {', '.join(missing)}")
    if not isinstance(record["idx"], str | int | float):
        raise MieError("unusable idx", expected="a number or text", found=repr(record["idx"])[:80])
    if not isinstance(record["prompt"], str):
        raise MieError("unusable prompt", expected="text", found=repr(record["prompt"])[:80])
    if not isinstance(record["category"], str) or _perspective(record) is None:
        known = ", ".join(map(category_of, PERSPECTIVES))
        raise MieError("unknown category", expected=known, found=repr(record["category"])[:80])


def _perspective(record: Mapping[str, Any]) -> Perspective | None:
    name = record["category"].lower()
    known = name in PERSPECTIVES and category_of(name) == record["category"]
    return PERSPECTIVES[name] if known else None


def _sample(part: _Part, record: Mapping[str, Any], sidecar: _Sidecar) -> Sample:
    input_ = picture(part.root, part.base, record["input_image"])
    output = picture(part.root, part.base, record["output_image"])
    known = sidecar.find(record)
    if known is None:
        return _foreign(part, record, input_, output)
    region = known.get("mask_image")
    # `metadata.json` is what people see and edit: it wins where the two differ.
    body = {**known, "prompt": record["prompt"], "perspective": record["category"].lower()}
    return sample_from(
        body if part.split is None else {**body, "split": part.split},
        input=input_.pixels,
        target_image=output.pixels,
        mask=None if region is None else mask(part.root, part.base, region),
    )


def _foreign(part: _Part, record: Mapping[str, Any], input_: Picture, output: Picture) -> Sample:
    check_sizes(input_.pixels, output.pixels, None)
    perspective = PERSPECTIVES[record["category"].lower()]
    painted = perspective.edit == "overlay"
    several = painted and record.get("note") == MULTI
    colours = tuple(COLOURS) if several else _colour(record) if painted else ()
    region, found = _region(input_.pixels, output.pixels, colours)
    split = part.split or "test"
    digests = [pixel_digest(image.pixels).hex() for image in (input_, output)]
    identity = canonical([SOURCE, VERSION, split, dict(record), digests])
    return Sample(
        id=hashlib.sha256(identity.encode()).hexdigest()[:16],
        perspective=perspective.name,
        task="holistic" if several else UNKNOWN,
        target=UNKNOWN,
        modality=UNKNOWN,
        anatomy=UNKNOWN,
        prompt=record["prompt"],
        prompt_template="",
        description="",
        input=input_.pixels,
        target_image=output.pixels,
        mask=region,
        colour=",".join(found) or None,
        split=split,
        bin=None,
        source=SOURCE,
        case_id=part.place(record["input_image"]),
        patient_id=None,
        recipe=SOURCE,
        recipe_version=VERSION,
        params={
            "miedb": {
                **{
                    key: record[key]
                    for key in ("idx", "input_image", "output_image", "note")
                    if key in record
                },
                "record": json.dumps(record),  # as text: `params` are sorted, the record goes back as it came
            },
            "image_steps": [dict(step) for step in input_.steps],
            "target_steps": [dict(step) for step in output.steps],
        },
        seed=0,
    )


def _colour(record: Mapping[str, Any]) -> tuple[str, ...]:
    """The overlay colour: the last `_` token of the output's stem."""
    token = PurePosixPath(record["output_image"]).stem.rsplit("_", 1)[-1]
    return (token,) if token in COLOURS else ()


def _region(image: Pixels, output: Pixels, colours: tuple[str, ...]) -> tuple[Pixels | None, list[str]]:
    """The mask in the store's convention and the colours of its classes, read back from the overlay."""
    masks = {colour: deblend(image, output, colour) for colour in colours}
    if len(masks) > 1:
        _settle(image, output, masks)
        masks = {colour: region for colour, region in masks.items() if region.any()}
    if not masks:
        return None, []
    values = np.zeros(image.shape[:2], np.uint8)
    for k, region in enumerate(masks.values(), start=1):
        values[region] = round(255 * k / len(masks))
    return values, list(masks)


def _settle(image: Pixels, output: Pixels, masks: Mapping[str, Mask]) -> None:
    """Where several colours fit, keep the one whose blend comes nearest to the output. In place."""
    rows, columns = np.nonzero(np.sum(list(masks.values()), axis=0) > 1)
    before = image[rows, columns].astype(np.float64)
    shift = output[rows, columns] - before
    distances = []
    for colour, region in masks.items():
        towards = np.array(COLOURS[colour]) - before
        alpha = (shift * towards).sum(1) / ((towards**2).sum(1) + 1e-6)
        distance = ((shift - np.clip(alpha, 0, 1)[:, None] * towards) ** 2).sum(1)
        distances.append(np.where(region[rows, columns], distance, np.inf))
    nearest = np.argmin(distances, axis=0)
    for k, region in enumerate(masks.values()):
        region[rows, columns] = nearest == k


class _Sidecar:
    """`mie.jsonl` beside a `metadata.json`: where each line begins, so that it is read when it is needed."""

    def __init__(self, part: _Part) -> None:
        self._lines: dict[str, int] = {}
        self._path: Path | None = None
        if not (part.base / "mie.jsonl").exists():
            return
        self._path = inside(part.root, part.base, "mie.jsonl")
        with self._path.open("rb") as file:
            at = 0
            for number, line in enumerate(file, start=1):
                self._lines[_link(storable(load_json(line, where=f"{self._path}:{number}")))] = at
                at += len(line)

    def find(self, record: Mapping[str, Any]) -> dict[str, Any] | None:
        at = self._lines.get(_link(record))
        if at is None or self._path is None:
            return None
        with self._path.open("rb") as file:
            file.seek(at)
            return dict(load_json(file.readline(), where=self._path))


def _link(body: Mapping[str, Any]) -> str:
    return canonical([body.get(key) for key in LINK])
