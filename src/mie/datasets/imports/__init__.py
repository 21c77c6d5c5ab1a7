"""Datasets from layouts that others write (and that we export).

>>> FORMATS.names()
['folder', 'imgedit', 'medebench', 'miedb', 'omni-iie']
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from mie.core.documents import DatasetInfo
from mie.core.registry import Registry
from mie.datasets.imports.reading import Incoming, Origin, read_origin
from mie.datasets.rejected import read_rejected
from mie.datasets.write import write_dataset
from mie.errors import ConfigError
from mie.records import Rejection, Sample

FORMATS: Final[Registry[Callable[[Path], Incoming]]] = Registry(
    "import format",
    {
        "folder": "mie.datasets.imports.reading:read",
        "imgedit": "mie.scoring.benchmarks.imgedit.importer:read",
        "medebench": "mie.scoring.benchmarks.medebench.importer:read",
        "miedb": "mie.datasets.imports.miedb:read",
        "omni-iie": "mie.scoring.benchmarks.omni_iie.importer:read",
    },
    group="mie.imports",
)


@dataclass(frozen=True, slots=True)
class ImportResult:
    """What `dataset.json` says, and what was not imported, with reasons (also in `rejected.parquet`)."""

    info: DatasetInfo
    rejections: tuple[Rejection, ...]


def import_dataset(
    folder: Path,
    target: Path,
    format: str,
    *,
    name: str | None = None,
    deidentified: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> ImportResult:
    """Read `folder` in that format and write a dataset to `target`, a new folder.

    A record that cannot be used is rejected with its reason, and the rest is imported. `progress` gets
    (done, total). The name is the exported dataset's own, or made from the folder's, unless it is given.
    """
    folder, target = Path(folder), Path(target)
    read = FORMATS[format]
    if name is not None and _name_from(name) != name:
        raise ConfigError(
            f"{name!r} is no name for a dataset", expected="letters, digits, '.', '_' and '-'", found=name
        )
    origin = read_origin(folder, format) or Origin(folder.resolve().name)
    incoming = read(folder)
    vouched = {"vouched": True} if deidentified else {}

    def counted() -> Iterator[Sample | Rejection]:
        for done, outcome in enumerate(incoming.outcomes, start=1):
            yield outcome
            if progress is not None:
                progress(done, incoming.total)

    info = write_dataset(
        counted(),
        target,
        name=name or _name_from(origin.name),
        description=origin.description,
        recipe={"import": {"format": format, **incoming.notes, "of": origin.recipe, **vouched}},
        licenses={**incoming.licenses, **origin.licenses},
        deidentified=deidentified,  # never what the folder says of itself: that is a stranger's word
    )
    return ImportResult(info, tuple(read_rejected(target / "rejected.parquet")))


def _name_from(text: str) -> str:
    """A name that a recipe could have: it stands in code and links of the data card."""
    return re.sub(r"[^A-Za-z0-9._-]+", "-", text).lstrip("._-")[:96] or "imported"


__all__ = ["FORMATS", "ImportResult", "import_dataset"]
