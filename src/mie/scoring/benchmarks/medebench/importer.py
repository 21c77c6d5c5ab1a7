"""Import of MedEBench: `editing/editing_metadata.json` with images before and after, and soft masks.

`rephrased_prompt` is not read: many were cut to a few characters by a token limit.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from PIL import Image

from mie.core.files import inside
from mie.datasets.imports.reading import (
    LICENSE,
    Incoming,
    fitted,
    fitted_mask,
    foreign_sample,
    load_json,
    mask,
    picture,
    rejection,
    storable,
)
from mie.errors import MieError
from mie.records import Rejection, Sample
from mie.vocabulary import UNKNOWN

SOURCE: Final = "medebench"
_LIST: Final = "editing_metadata.json"
_TEXTS: Final = ("prompt", "previous_image", "changed_image")


def read(folder: Path) -> Incoming:
    """The records of the repository's folder, with the list in it or in `editing`, or of `editing` itself."""
    base = folder / "editing" if (folder / "editing" / _LIST).is_file() else folder
    if not (base / _LIST).is_file():
        raise MieError("no MedEBench here", where=folder, expected=f"editing/{_LIST}", fix="check the path")
    path = inside(folder, base, _LIST)
    body = load_json(path.read_bytes(), where=path)
    records = body.get("samples") if isinstance(body, dict) else None
    if not isinstance(records, list) or not records:
        raise MieError("no record in the list", where=path, expected='{"samples": [...]}')
    return Incoming(_outcomes(folder, base, records), len(records), licenses={SOURCE: LICENSE})


def _outcomes(folder: Path, base: Path, records: list[Any]) -> Iterator[Sample | Rejection]:
    seen: set[str] = set()
    for number, record in enumerate(records):
        try:
            yield _sample(folder, base, storable(record), seen)
        except MieError as error:
            yield rejection(SOURCE, f"{_LIST}[{number}]", error)


def _sample(folder: Path, base: Path, record: Mapping[str, Any], seen: set[str]) -> Sample:
    wrong = [key for key in _TEXTS if not isinstance(record.get(key), str) or not record[key]]
    if wrong or not isinstance(record.get("id"), int | str):
        raise MieError("record lacks a key", expected=", ".join(("id", *_TEXTS)), found=f"no {wrong or 'id'}")
    key = str(record["id"])
    if key in seen:
        raise MieError("another record has this id", expected="one record per id", found=key)
    seen.add(key)
    before = picture(folder, base, _place(base, record["previous_image"]))
    size = (before.pixels.shape[0], before.pixels.shape[1])
    after = picture(folder, base, _place(base, record["changed_image"]))
    target, steps = fitted(after, size, Image.Resampling.BICUBIC)
    named = record.get("previous_mask")
    region = fitted_mask(mask(folder, base, _place(base, named)), size) if isinstance(named, str) else None
    organ, task = (str(record.get(name) or UNKNOWN) for name in ("Organ", "Task"))
    return foreign_sample(
        SOURCE,
        dict(record),
        prompt=record["prompt"],
        description=str(record.get("detailed_prompt") or ""),
        input=before.pixels,
        target_image=target,
        mask=region,
        anatomy=organ,
        target=task,
        case_id=key,
        params={
            "medebench": {"id": record["id"], "organ": organ, "task": task, "url": record.get("url")},
            "image_steps": [dict(step) for step in before.steps],
            "target_steps": steps,
        },
    )


def _place(base: Path, text: str) -> str:
    """The file's path from the list's folder. In the list, paths begin at the repository.

    The list stands in `editing`, where that prefix is too much, or at the root of the repository.
    """
    short = text.removeprefix("editing/")
    places = (short, f"editing/{short}")
    return next((place for place in places if os.path.isfile(base / place)), short)  # noqa: PTH113
