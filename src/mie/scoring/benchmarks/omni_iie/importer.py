"""Import of Omni IIE Bench: lists of records with an image before and after, masks, and questions.

`level` is `low` or `high` in the single-turn track, where records of one `sample_id` share their image, and
the number of the turn in the multi-turn track. `params` keep every record whole, and the files that a sample
does not hold as they are (masks, of which it has the union): `mie export -f omni-iie` writes them back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from mie.datasets.imports.reading import (
    LICENSE,
    Incoming,
    as_imported,
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
from mie.records import Pixels, Rejection, Sample

SOURCE: Final = "omni-iie"
_TEXTS: Final = ("original_image_path", "modified_image_path", "modification_text")
_KEPT: Final = ("entities", "qa_pairs", "edit_type")
_MASKS: Final = ("source_mask_path", "target_mask_path")


def read(folder: Path) -> Incoming:
    """The records of every list in the folder; `dataset` is the record's own, or the file's name."""
    lists = [(path, _load(path)) for path in sorted((*folder.glob("*.json"), *folder.glob("*.jsonl")))]
    records = [(path, at, record) for path, found in lists for at, record in enumerate(found)]
    if not records:
        raise MieError(
            "no Omni IIE Bench here",
            where=folder,
            expected="a JSON list of records with sample_id",
            fix="check the path",
        )
    return Incoming(_outcomes(folder, records), len(records), licenses={SOURCE: LICENSE})


def _load(path: Path) -> list[Any]:
    data = path.read_bytes()
    if path.suffix == ".jsonl":
        lines = enumerate(data.splitlines(), start=1)
        body: Any = [load_json(line, where=f"{path}:{n}") for n, line in lines if line.strip()]
    else:
        body = load_json(data, where=path)
    found = body if isinstance(body, list) else []
    return found if any(isinstance(one, dict) and "sample_id" in one for one in found) else []


def _outcomes(folder: Path, records: list[tuple[Path, int, Any]]) -> Iterator[Sample | Rejection]:
    seen: set[tuple[str, ...]] = set()
    for path, at, record in records:
        try:
            yield _sample(folder, path, at, storable(record), seen)
        except MieError as error:
            yield rejection(SOURCE, f"{path.name}[{at}]", error)


def _sample(
    folder: Path, path: Path, at: int, record: Mapping[str, Any], seen: set[tuple[str, ...]]
) -> Sample:
    wrong = [key for key in _TEXTS if not isinstance(record.get(key), str) or not record[key]]
    wrong += [key for key in ("sample_id", "level") if not isinstance(record.get(key), str | int)]
    if wrong:
        raise MieError("record lacks a key", expected=", ".join(_TEXTS), found=f"no {', '.join(wrong)}")
    dataset = str(record.get("dataset") or path.stem)
    name, level = str(record["sample_id"]), str(record["level"]).lower()
    if level not in ("low", "high") and not level.isdecimal():
        raise MieError("unknown level", expected="low, high or the number of a turn", found=level)
    if (dataset, name, level) in seen:
        raise MieError("another record has this sample_id and level", found=f"{dataset}/{name}_{level}")
    seen.add((dataset, name, level))
    before = picture(folder, folder, record["original_image_path"])
    size = (before.pixels.shape[0], before.pixels.shape[1])
    after = picture(folder, folder, record["modified_image_path"])
    target, steps = fitted(after, size, Image.Resampling.LANCZOS)
    masks = [folder / record[key] for key in _MASKS if isinstance(record.get(key), str) and record[key]]
    images = {
        "input": (folder / record["original_image_path"], not before.steps),
        "target_image": (folder / record["modified_image_path"], not steps),
    }
    return foreign_sample(
        SOURCE,
        [dataset, dict(record)],
        prompt=record["modification_text"],
        input=before.pixels,
        target_image=target,
        mask=_region(folder, record, size),
        case_id=f"{dataset}/{name}",
        group=f"{dataset}/{name}",
        turn=int(level) if level.isdecimal() else None,
        params={
            "omni-iie": {
                "dataset": dataset,
                "sample_id": record["sample_id"],
                "level": record["level"],
                **{key: record[key] for key in _KEPT if key in record},
            },
            "image_steps": [dict(step) for step in before.steps],
            "target_steps": steps,
            "imported": as_imported(folder, SOURCE, (path.name, at), record, images, masks),
        },
    )


def _region(folder: Path, record: Mapping[str, Any], size: tuple[int, int]) -> Pixels | None:
    """Where something was or came to be: the union of both masks, 255 inside."""
    region = None
    for key in _MASKS:
        named = record.get(key)
        if isinstance(named, str) and named:
            found = fitted_mask(mask(folder, folder, named), size) > 128
            region = found if region is None else region | found
    return None if region is None else region.astype(np.uint8) * np.uint8(255)
