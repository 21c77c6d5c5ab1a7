"""The share of good samples in a dataset: which are asked about, the answers, the share with its interval.

Samples are drawn by stratum and by hash, so the same everywhere. The key of a blind sheet keeps what the
sheet does not show; answers come back as CSV.
"""

from __future__ import annotations

import csv
import io
import json
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from mie.core.allocation import allocate, allocate_equally
from mie.core.hashing import canonical, stable_hash
from mie.core.registry import unknown_name
from mie.datasets.dataset import Dataset
from mie.errors import MieError
from mie.scoring.statistics.intervals import wilson

KEY_FILE: Final = "key.json"
COLUMNS: Final = ("sheet", "row", "answer", "reason")
_ANSWERS: Final = {"good": True, "bad": False}
# The published pipeline: over 95% of 6,000 sampled triplets were found good.
BAR_SHARE: Final = 0.95
BAR_SIZE: Final = 6000
ALLOCATIONS: Final = ("proportional", "equal")
STRATA: Final = ("perspective", "task", "target", "modality", "anatomy", "source", "split")


@dataclass(frozen=True, slots=True)
class Stratum:
    """What its samples share, how many the dataset has, and how many are on the sheet."""

    name: Mapping[str, Any]  # {"modality": "CT", "task": "lesion"}
    samples: int
    asked: int


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

    def as_json(self) -> str:
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


@dataclass(frozen=True, slots=True)
class Opinion:
    good: bool
    reason: str


def draw_key(
    dataset: Dataset,
    size: int,
    stratify: Sequence[str],
    *,
    allocation: str = "proportional",
    seed: int = 0,
) -> Key:
    """Which samples are asked about, in which order: the same for the same dataset, numbers and seed."""
    for name in stratify:
        if name not in STRATA:
            raise unknown_name("stratum", name, STRATA)
    if allocation not in ALLOCATIONS:
        raise unknown_name("allocation", allocation, ALLOCATIONS)
    if not len(dataset):
        raise MieError("the dataset holds no sample", where=dataset.folder)
    columns = dataset.table(["id", *dict.fromkeys(stratify)])
    ids = columns["id"]
    names = [canonical({n: columns[n][at] for n in stratify}) for at in range(len(ids))]
    strata = dict(zip(ids, names, strict=True))
    chosen = draw(ids, strata, size, seed, equal=allocation == "equal")
    sizes, asked = Counter(names), Counter(strata[i] for i in chosen)
    values = {name: {n: columns[n][at] for n in stratify} for at, name in enumerate(names)}
    places = {name: at for at, name in enumerate(sorted(sizes))}
    return Key(
        sheet=f"{stable_hash('sheet', dataset.digest, list(stratify), allocation, seed, chosen):016x}",
        dataset={"name": dataset.name, "digest": dataset.digest, "samples": len(ids)},
        stratify=tuple(stratify),
        allocation=allocation,
        seed=seed,
        strata=tuple(Stratum(values[name], sizes[name], asked[name]) for name in places),
        rows=tuple((i, places[strata[i]]) for i in chosen),
    )


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
        return Key(**{**body, "stratify": tuple(body["stratify"])})
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

    `MieError` for a line of another sheet, an unknown row, a row given twice, a word other than good and bad.
    """
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
        if answer and answer not in _ANSWERS:
            raise MieError(
                "not an answer", where=where, expected="good, bad or nothing", found=cells["answer"][:80]
            )
        if answer:
            opinions[row] = Opinion(_ANSWERS[answer], cells["reason"])
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


def quality(key: Key, opinions: Mapping[int, Opinion]) -> dict[str, Any]:
    """The document of `mie sample --answers`.

    A stratum counts as much as it has samples in the dataset, however many of them were asked about. The
    interval is Wilson's, of the weighted share and the effective number of answers: 1 / sum(weight^2 / n)
    over strata with n answers, which is the number of answers where strata are asked in proportion.
    """
    strata = [_stratum(key, at, opinions) for at in range(len(key.strata))]
    share, effective = _weighted(strata)
    low, high = (None, None) if share is None else wilson(share * effective, effective)
    silent = [one["stratum"] for one in strata if not one["answered"]]
    bad = Counter(opinion.reason or "no reason given" for opinion in opinions.values() if not opinion.good)
    return {
        "sheet": key.sheet,
        "dataset": dict(key.dataset),
        "stratify": list(key.stratify),
        "allocation": key.allocation,
        "asked": len(key.rows),
        "answered": len(opinions),
        "good": sum(opinion.good for opinion in opinions.values()),
        "share": share,
        "ci95": [low, high],
        "effective_answers": effective,
        "strata": strata,
        "strata_without_answers": silent,
        "reasons": dict(bad.most_common()),
        "bar": {"share": BAR_SHARE, "of": BAR_SIZE, **_verdict(low, high, len(silent))},
    }


def _stratum(key: Key, at: int, opinions: Mapping[int, Opinion]) -> dict[str, Any]:
    rows = [row for row, (_, stratum) in enumerate(key.rows, start=1) if stratum == at]
    said = [opinions[row].good for row in rows if row in opinions]
    low, high = wilson(sum(said), len(said)) if said else (None, None)
    return {
        "stratum": dict(key.strata[at].name),
        "samples": key.strata[at].samples,
        "asked": len(rows),
        "answered": len(said),
        "good": sum(said),
        "share": sum(said) / len(said) if said else None,
        "ci95": [low, high],
    }


def _weighted(strata: Sequence[Mapping[str, Any]]) -> tuple[float | None, float]:
    """(the share, the effective number of answers) over the strata that have answers."""
    heard = [one for one in strata if one["answered"]]
    total = sum(one["samples"] for one in heard)
    if not heard:
        return None, 0.0
    share = sum(one["samples"] * one["good"] / one["answered"] for one in heard) / total
    return share, total**2 / sum(one["samples"] ** 2 / one["answered"] for one in heard)


def _verdict(low: float | None, high: float | None, silent: int) -> dict[str, str]:
    if low is None or high is None:
        return {"verdict": "undecided", "why": "there is no answer"}
    if silent:
        return {"verdict": "undecided", "why": f"{silent} strata have no answer"}
    if low > BAR_SHARE:
        return {"verdict": "met", "why": f"the whole interval lies over {BAR_SHARE:.0%}"}
    if high <= BAR_SHARE:
        return {"verdict": "missed", "why": f"the whole interval lies at or under {BAR_SHARE:.0%}"}
    return {"verdict": "undecided", "why": f"the interval holds {BAR_SHARE:.0%}: more answers are needed"}
