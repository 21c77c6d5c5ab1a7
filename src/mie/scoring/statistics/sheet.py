"""The key of a blind sheet, and the answers that people give on it: what both questions share.

`good`: is this sample good (`mie.scoring.statistics.quality`)? `real`: is this image real, or generated
(`mie.scoring.statistics.realism`)? The key keeps what the sheet does not show; answers come back as CSV.
"""

from __future__ import annotations

import csv
import io
import json
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mie.core.allocation import allocate, allocate_equally
from mie.core.hashing import stable_hash
from mie.core.registry import unknown_name
from mie.errors import MieError

KEY_FILE: Final = "key.json"
COLUMNS: Final = ("sheet", "row", "answer", "reason")
# What is asked, and the two answers.
QUESTIONS: Final[Mapping[str, tuple[str, str]]] = {"good": ("good", "bad"), "real": ("real", "generated")}
ALLOCATIONS: Final = ("proportional", "equal")
STRATA: Final = ("perspective", "task", "target", "modality", "anatomy", "source", "split")


@dataclass(frozen=True, slots=True)
class Stratum:
    """What its samples share, how many the dataset has, and how many are on the sheet."""

    name: Mapping[str, Any]  # {"modality": "CT", "task": "lesion"}
    samples: int
    asked: int


@dataclass(frozen=True, slots=True)
class Truth:
    """Of one row that asks whether an image is real: which image of the sample it shows, and the answer."""

    image: str  # "input" or "target_image"
    real: bool
    patient: int  # the same number for rows of one patient
    source: str


@dataclass(frozen=True, slots=True)
class Key:
    """`key.json`: what the sheet does not show. Row k of the sheet is `rows[k - 1]`."""

    sheet: str  # the sheet's id, on the page and in every line of its answers
    dataset: Mapping[str, Any]  # name, digest, samples
    stratify: tuple[str, ...]
    allocation: str
    seed: int
    strata: tuple[Stratum, ...]
    rows: tuple[tuple[str, int], ...]  # (sample id, place in `strata`)
    question: str = "good"
    truth: tuple[Truth, ...] = ()  # of each row, where it is asked whether an image is real
    left_out: tuple[Mapping[str, Any], ...] = ()  # what has nothing to be compared with, and its pairs

    def as_json(self) -> str:
        body = asdict(self)
        if self.question == "good":  # as written before there was another question
            body = {name: body[name] for name in body if name not in ("question", "truth", "left_out")}
        return json.dumps(body, indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True, slots=True)
class Opinion:
    answer: str  # one of the question's two
    reason: str


def check_strata(stratify: Sequence[str], allocation: str) -> None:
    """`ConfigError` for a column that is no stratum, and for an unknown allocation."""
    for name in stratify:
        if name not in STRATA:
            raise unknown_name("stratum", name, STRATA)
    if allocation not in ALLOCATIONS:
        raise unknown_name("allocation", allocation, ALLOCATIONS)


def draw(
    ids: Sequence[str],
    strata: Mapping[str, Hashable],
    size: int | None,
    seed: int,
    *,
    equal: bool = False,
) -> list[str]:
    """`size` of the ids (None: all) in an order without meaning, each stratum with its share or equally many.

    >>> draw(["a", "b", "c", "d"], {"a": "CT", "b": "CT", "c": "CT", "d": "MRI"}, 2, seed=1)
    ['b', 'd']
    """
    keys = {i: stable_hash("review", seed, i) for i in ids}
    chosen = list(ids)
    if size is not None and size < len(ids):
        groups: dict[Hashable, list[str]] = defaultdict(list)
        for i in ids:
            groups[strata[i]].append(i)
        sizes = {name: len(group) for name, group in groups.items()}
        shares = allocate_equally(sizes, size) if equal else allocate(sizes, size)
        chosen = [
            i for name, group in groups.items() for i in sorted(group, key=keys.__getitem__)[: shares[name]]
        ]
    return sorted(chosen, key=keys.__getitem__)


def read_key(folder: Path) -> Key:
    """The key of the sheet in a folder."""
    path = folder / KEY_FILE
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        body["strata"] = tuple(Stratum(**one) for one in body["strata"])
        body["rows"] = tuple((str(sample), int(at)) for sample, at in body["rows"])
        body["truth"] = tuple(Truth(**one) for one in body.get("truth", ()))
        body["left_out"] = tuple(body.get("left_out", ()))
        key = Key(**{**body, "stratify": tuple(body["stratify"])})
        if key.question not in QUESTIONS or len(key.truth) != (
            len(key.rows) if key.question == "real" else 0
        ):
            raise ValueError(f"question {key.question!r} with {len(key.truth)} of {len(key.rows)} answers")
        return key
    except OSError as error:
        found = "no key.json" if isinstance(error, FileNotFoundError | NotADirectoryError) else error
        raise MieError(
            "no review sheet here",
            where=folder,
            expected="a folder that `mie sample DATASET -o SHEET` wrote",
            found=found,
        ) from None
    except (ValueError, TypeError, KeyError) as error:
        raise MieError("not a sheet's key", where=path, found=error) from None


def read_answers(path: Path, key: Key) -> dict[int, Opinion]:
    """Row -> what was said; rows without an answer are left out.

    `MieError` for a line of another sheet, an unknown row, a row given twice, a word that is not an answer.
    """
    words = QUESTIONS[key.question]
    try:
        text = path.read_text(encoding="utf-8-sig")  # spreadsheets write a byte order mark
    except (OSError, UnicodeDecodeError) as error:
        raise MieError("cannot read the answers", where=path, expected="a CSV file", found=error) from None
    head = text.split("\n", 1)[0]
    delimiter = max(",;\t", key=head.count)  # a spreadsheet's comma depends on its country
    lines = csv.DictReader(io.StringIO(text, newline=""), delimiter=delimiter)
    if not set(COLUMNS[:3]) <= set(lines.fieldnames or ()):
        raise MieError(
            "not a sheet's answers", where=path, expected=",".join(COLUMNS), found=head[:120].strip()
        )
    opinions: dict[int, Opinion] = {}
    seen: set[int] = set()
    for line in lines:
        where = f"{path}, line {lines.line_num}"
        cells = {name: (line.get(name) or "").strip() for name in COLUMNS}
        if not any(cells.values()):
            continue
        row = _row(cells, key, where)
        if row in seen:
            raise MieError(f"row {row} is answered twice", where=where, fix="keep one of the two lines")
        seen.add(row)
        answer = cells["answer"].casefold()
        if answer and answer not in words:
            expected = f"{', '.join(words)} or nothing"
            raise MieError("not an answer", where=where, expected=expected, found=cells["answer"][:80])
        if answer:
            opinions[row] = Opinion(answer, cells["reason"])
    return opinions


def _row(cells: Mapping[str, str], key: Key, where: str) -> int:
    if cells["sheet"] != key.sheet:
        raise MieError(
            "the answers are of another sheet",
            where=where,
            expected=f"{key.sheet}, of {key.dataset['name']} (digest {key.dataset['digest'][:16]})",
            found=cells["sheet"][:40] or "nothing",
        )
    number = cells["row"]
    if not number.isascii() or not number.isdecimal() or not 1 <= int(number) <= len(key.rows):
        raise MieError(
            "no such row", where=where, expected=f"1 to {len(key.rows)}", found=number[:40] or "nothing"
        )
    return int(number)
