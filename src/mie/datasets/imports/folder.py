"""Import of the plain folder: `samples.jsonl` with the files that it names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from mie.core.files import inside
from mie.datasets.imports.reading import Incoming, load_json, mask, picture, refusal, sample_from, storable
from mie.errors import MieError
from mie.records import Refusal, Sample

_LIST = "samples.jsonl"


def read(folder: Path) -> Incoming:
    """The samples in the order of their lines. `samples.csv` is for people and is not read."""
    path = inside(folder, folder, _LIST)
    with path.open("rb") as lines:
        total = sum(1 for line in lines if line.strip())
    if not total:
        raise MieError("no sample in the list", where=path, expected="one JSON object per line")
    return Incoming(_outcomes(folder, path), total)


def _outcomes(folder: Path, path: Path) -> Iterator[Sample | Refusal]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield _sample(folder, line)
            except MieError as error:
                yield refusal("folder", f"{_LIST}:{number}", error)


def _sample(folder: Path, line: bytes) -> Sample:
    body = storable(load_json(line, where=None))
    region = body.get("mask")
    return sample_from(
        body,
        input=picture(folder, folder, body.get("input")).pixels,
        target_image=picture(folder, folder, body.get("target_image")).pixels,
        mask=None if region is None else mask(folder, folder, region),
    )
