"""Counting a dataset: the part of `dataset.json` that follows from its rows and refusals alone."""

from __future__ import annotations

import importlib.metadata
import platform
from collections import Counter
from collections.abc import Mapping
from typing import Any, Final

import mie
from mie.store.dataset import dataset_digest
from mie.vocabulary import SPLITS

_COUNTED: Final = ("split", "perspective", "task", "modality", "source")
_VERSIONS: Final = (
    "numpy",
    "opencv-python-headless",
    "pillow",
    "pyarrow",
    "pydicom",
    "nibabel",
    "simpleitk",
    "isal",
)


class Tally:
    """Counts rows as they come; they may come with their splits mixed.

    Dataset order is by split, then as they came: the order in which the shards are read back.
    """

    COLUMNS: Final = (*_COUNTED, "patient_id", "sha256")

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
        self._digests: dict[str, list[str]] = {split: [] for split in SPLITS}
        self._patients: set[str] = set()
        self._rejected: Counter[str] = Counter()

    def keep(self, row: Mapping[str, Any]) -> None:
        """Count a row; of its columns only `COLUMNS` are looked at."""
        for name, counter in self._counts.items():
            counter[row[name]] += 1
        self._digests[row["split"]].append(row["sha256"])
        if row["patient_id"] is not None:
            self._patients.add(row["patient_id"])

    def refuse(self, gate: str) -> None:
        self._rejected[gate] += 1

    def info(
        self,
        *,
        name: str,
        description: str,
        recipe: Mapping[str, Any],
        licenses: Mapping[str, Mapping[str, str]],
        deidentified: bool,
    ) -> dict[str, Any]:
        """What `write_info` wants."""
        return {
            "name": name,
            "description": description,
            "digest": dataset_digest(digest for split in SPLITS for digest in self._digests[split]),
            "counts": {
                "samples": self._counts["split"].total(),
                **{f"by_{name}": dict(sorted(counter.items())) for name, counter in self._counts.items()},
                "patients_known": len(self._patients),
            },
            "rejected": dict(sorted(self._rejected.items())),
            "licenses": {
                source: dict(terms) for source, terms in licenses.items() if source in self._counts["source"]
            },
            "deidentified": deidentified,
            "recipe": dict(recipe),
            "versions": {
                "mie": mie.__version__,
                "python": platform.python_version(),
                **{package: importlib.metadata.version(package) for package in _VERSIONS},
            },
        }
