"""A download as its provider describes it: the official split, and what is missing, renamed or different."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from mie.core.files import digest
from mie.core.registry import nearest_name
from mie.errors import MieError
from mie.records import Case, Rejection, Unit
from mie.sources import patterns
from mie.sources.catalog import Entry, SplitTable
from mie.vocabulary import SPLITS

_MOST_BYTES = 64 * 2**20  # of a list of cases
_SHOWN = 3


class _Source(Protocol):
    entry: Entry
    root: Path

    def scan(self) -> Iterator[Unit | Rejection]: ...
    def load(self, unit: Unit) -> Iterator[Case | Rejection]: ...


class OfficialSplit:
    """A source whose units get the split that the data set's own lists give them."""

    def __init__(self, source: _Source) -> None:
        self._source = source
        self.entry = source.entry
        self.root = source.root

    def scan(self) -> Iterator[Unit | Rejection]:
        tables = [(table, self._read(table)) for table in self.entry.split_tables]
        seen: list[set[str]] = [set() for _ in tables]
        for unit in self._source.scan():
            if isinstance(unit, Rejection):
                yield unit
                continue
            for (table, listed), found in zip(tables, seen, strict=True):
                match = re.search(table.key, unit.key)
                case = None if match is None else match[1]
                if case is not None and case in listed:
                    found.add(case)
                    unit = replace(unit, split=listed[case])
            yield unit
        for (table, listed), found in zip(tables, seen, strict=True):
            missing = sorted(listed.keys() - found)
            if missing:
                more = f" and {len(missing) - _SHOWN} more" if len(missing) > _SHOWN else ""
                names = ", ".join(missing[:_SHOWN]) + more
                reason = f"lists {len(missing)} of {len(listed)} cases that are not in the folder: {names}"
                yield Rejection(self.entry.name, table.file, "source", reason)

    def load(self, unit: Unit) -> Iterator[Case | Rejection]:
        yield from self._source.load(unit)

    def _read(self, table: SplitTable) -> dict[str, str]:
        """Case -> split."""
        path = patterns.Listing(self.root).inside(table.file)
        if not path.is_file():
            near = nearest_name(path.name, [p.name for p in path.parent.glob("*") if p.is_file()])
            raise MieError(
                "the list of the official split is missing",
                where=path,
                expected=f"{table.file} of {self.entry.name}",
                found=near or "no such file",
                fix="complete the download; or give `split_tables: []` in the recipe to draw a split",
            )
        if path.stat().st_size > _MOST_BYTES:
            raise MieError("the list of the official split is too large", where=path)
        text = path.read_text(encoding="utf-8-sig", errors="replace")
        if table.case is None:
            return dict.fromkeys((_name(line) for line in text.splitlines() if line.strip()), table.split)
        rows = csv.DictReader(io.StringIO(text), delimiter=_separator(text))
        columns = rows.fieldnames or ()
        wanted = [table.case, *([] if table.split in SPLITS else [table.split])]
        absent = [name for name in wanted if name not in columns]
        if absent:
            raise MieError(
                "the list of the official split has other columns",
                where=path,
                expected=", ".join(wanted),
                found=", ".join(columns),
                fix="check that the file is the provider's; `split_tables` in the recipe says its columns",
            )
        cases = {}
        for row in rows:
            written = table.split if table.split in SPLITS else str(row[table.split]).strip()
            split = self.entry.splits.get(written, written)
            if split in SPLITS and row[table.case]:
                cases[_name(str(row[table.case]))] = split
        return cases


def _name(text: str) -> str:
    return text.strip().strip("'\"")


def _separator(text: str) -> str:
    first = text.partition("\n")[0]
    return max(",;\t", key=first.count)


def differences(entry: Entry, root: Path, units: int) -> list[str]:
    """What a download lacks, has under another name, or has in another number, in words."""
    found = [*_places(entry, root, units), *_counts(entry, units), *_checksums(entry, root)]
    if found and entry.layout_basis == "unconfirmed":
        found.append("this entry's layout is not confirmed: the patterns under `layout` may need a change")
    return found


def _patterns(entry: Entry) -> dict[str, str]:
    """Role -> pattern, for layouts of files."""
    layout: Any = entry.layout
    roles: Mapping[str, str | None] = {
        "images": getattr(layout, "images", None) or getattr(layout, "series", None),
        "pair": getattr(layout, "pair", None),
        "masks": getattr(layout, "masks", None),
        **{f"masks of {target.name}": target.masks for target in entry.targets},
    }
    return {role: pattern for role, pattern in roles.items() if pattern is not None}


def _places(entry: Entry, root: Path, units: int) -> Iterator[str]:
    """Folders that are missing or renamed, and patterns that nothing fits."""
    if units and entry.layout_basis == "files":
        return  # a part of such a set is nothing unusual, and its files were looked at
    told: set[str] = set()
    listing = patterns.Listing(root)
    for role, pattern in _patterns(entry).items():
        folder = patterns.fixed_folder(pattern)
        broken = _first_missing(root, folder)
        if broken is not None:
            if broken not in told:
                told.add(broken)
                yield _missing_folder(root, broken)
        elif not listing.matches(pattern):
            names = listing.under(folder)[:_SHOWN]
            inside = f", which holds {', '.join(names)}" if names else ", which holds no file"
            yield f"no file matches {pattern} ({role}) in {folder or 'the folder'}{inside}"
    if not units and told:
        deeper = [path for path in sorted(root.iterdir()) if path.is_dir() and _fits(entry, path)]
        if deeper:
            yield f"the data set lies one folder deeper: give {deeper[0]} as its root"


def _fits(entry: Entry, root: Path) -> bool:
    return all(
        _first_missing(root, patterns.fixed_folder(pattern)) is None for pattern in _patterns(entry).values()
    )


def _first_missing(root: Path, folder: str) -> str | None:
    """The first part of a relative folder that is not there."""
    there = ""
    for part in folder.split("/") if folder else ():
        there = f"{there}/{part}" if there else part
        if not (root / there).is_dir():
            return there
    return None


def _missing_folder(root: Path, folder: str) -> str:
    above, _, name = folder.rpartition("/")
    siblings = [path.name for path in (root / above).iterdir() if path.is_dir()]
    near = nearest_name(name, siblings)
    if near is None:
        alike = [
            s for s in siblings if _plain(s).startswith(_plain(name)) or _plain(name).startswith(_plain(s))
        ]
        near = alike[0] if alike else None
    if near is not None:
        return f"folder {folder} is missing; {f'{above}/' if above else ''}{near} looks like it, renamed"
    there = ", ".join(sorted(siblings)[:8]) or "no folder"
    return f"folder {folder} is missing; there is {there}"


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.lower())


def _counts(entry: Entry, units: int) -> Iterator[str]:
    if entry.published is not None and units != entry.published:
        what = "missing" if units < entry.published else "more than published"
        yield (
            f"{units:,} images or volumes, {entry.published:,} are published: "
            f"{abs(entry.published - units):,} {what}"
        )


def _checksums(entry: Entry, root: Path) -> Iterator[str]:
    for name, expected in sorted(entry.checksums.items()):
        path = patterns.Listing(root).inside(name)
        if not path.is_file():
            yield f"{name} is missing"
        elif (found := digest(path)) != expected.lower():
            yield f"{name} differs from the published file: SHA-256 {found[:16]}…, published {expected[:16]}…"
