"""Import of ImgEdit-Bench: `basic_edit.json`, `UGE_edit.json`, multi-turn lists, and the images they name.

The benchmark has no reference images: each sample's target is its own input, and `params` say so. A list of
several turns gives one sample for each turn, all on the first image; `mie run` feeds a model its own outputs.
`params` keep every record whole, so that `mie export -f imgedit` writes the lists as they came.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mie.datasets.imports.reading import (
    LICENSE,
    Incoming,
    as_imported,
    foreign_sample,
    load_json,
    picture,
    rejection,
    storable,
)
from mie.errors import MieError
from mie.records import Picture, Rejection, Sample

SOURCE: Final = "imgedit"
# Of a multi-turn list, by its file's name.
CATEGORIES: Final = {"memory": "memory", "understand": "understanding", "version": "backtracking"}
_MOST_TURNS: Final = 16


@dataclass(frozen=True, slots=True)
class _List:
    suite: str  # "basic", "uge" or "multiturn"
    name: str  # the file's
    records: Mapping[str, Any]


def read(folder: Path) -> Incoming:
    """Every list in the folder. Images lie beside the lists or in a folder next to them."""
    lists = [found for path in sorted(folder.glob("*.json")) if (found := _load(path)) is not None]
    if not lists:
        raise MieError(
            "no ImgEdit-Bench here",
            where=folder,
            expected="basic_edit.json, UGE_edit.json or a multi-turn list",
            fix="check the path",
        )
    total = sum(_turns(record) for one in lists for record in one.records.values())
    return Incoming(_outcomes(folder, lists), total, licenses={SOURCE: LICENSE})


def _load(path: Path) -> _List | None:
    body = load_json(path.read_bytes(), where=path)
    if not isinstance(body, dict) or not body:
        return None
    records = [record for record in body.values() if isinstance(record, dict) and "id" in record]
    if not records:
        return None
    if any("turn1" in record for record in records):
        suite = "multiturn"
    else:
        suite = "uge" if "uge" in path.stem.lower() or "hard" in path.stem.lower() else "basic"
    return _List(suite, path.name, body)


def _turns(record: Any) -> int:
    if not isinstance(record, dict) or "turn1" not in record:
        return 1
    return next(n for n in range(1, _MOST_TURNS + 1) if f"turn{n + 1}" not in record or n == _MOST_TURNS)


def _outcomes(folder: Path, lists: list[_List]) -> Iterator[Sample | Rejection]:
    for one in lists:
        prefix = f"{one.suite}/" if len({other.suite for other in lists}) > 1 else ""
        for key, record in one.records.items():
            try:
                yield from _samples(folder, one, prefix, key, storable(record))
            except MieError as error:
                for _ in range(_turns(record)):
                    yield rejection(SOURCE, f"{one.name}[{key}]", error)


def _samples(folder: Path, one: _List, prefix: str, name: str, record: Mapping[str, Any]) -> list[Sample]:
    key = f"{prefix}{name}"
    if not isinstance(record.get("id"), str):
        raise MieError("record lacks a key", expected="id", found=repr(record.get("id"))[:80])
    path, image = _picture(folder, record["id"])
    kept = as_imported(folder, SOURCE, (one.name, name), record, {"input": (path, not image.steps)})
    if one.suite != "multiturn":
        body = {"key": key, "suite": one.suite, "edit_type": record.get("edit_type")}
        return [_sample(one, record, "prompt", image, body, kept)]
    category = next((name for word, name in CATEGORIES.items() if word in one.name.lower()), None)
    samples = []
    for turn in range(1, _turns(record) + 1):
        body = {"key": f"{key}_{turn}", "suite": one.suite, "category": category}
        group = f"{one.name}:{key}"
        # The first turn keeps the record for all of them.
        mine = kept if turn == 1 else None
        samples.append(_sample(one, record, f"turn{turn}", image, body, mine, group=group, turn=turn))
    return samples


def _sample(
    one: _List,
    record: Mapping[str, Any],
    field: str,
    image: Picture,
    body: Mapping[str, Any],
    imported: Mapping[str, Any] | None,
    *,
    group: str | None = None,
    turn: int | None = None,
) -> Sample:
    if not isinstance(record.get(field), str):
        raise MieError("record lacks a key", expected=field, found=repr(record.get(field))[:80])
    return foreign_sample(
        SOURCE,
        [one.name, dict(record), dict(body)],
        prompt=record[field],
        input=image.pixels,
        target_image=image.pixels,
        case_id=record["id"],
        group=group,
        turn=turn,
        params={
            "imgedit": {**body, "reference": False},
            "image_steps": [dict(step) for step in image.steps],
            **({} if imported is None else {"imported": imported}),
        },
    )


def _picture(folder: Path, name: str) -> tuple[Path, Picture]:
    bases = [folder, *sorted(path for path in folder.iterdir() if path.is_dir())]
    base = next((base for base in bases if (base / name).is_file()), folder)
    return base / name, picture(folder, base, name)
