"""What an editor is shown beside the image to edit: reference images, and demonstrations of the same task.

A demonstration is another sample's input and target image with its instruction. Those that a dataset stores
with a sample come first; `mie run --demonstrations N` adds N more, drawn by hash from samples of the same
task (of the same target where there are some) of other patients, from the train split where it has any.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from functools import cached_property
from typing import Any, Final

from mie.core.documents import plural
from mie.core.hashing import stable_hash
from mie.datasets.dataset import Dataset
from mie.editors.outputs import as_rgb
from mie.errors import ConfigError
from mie.images.png import decode_png
from mie.records import Pixels, Reference

_COLUMNS: Final = ("id", "perspective", "task", "target", "split", "patient_id", "source", "case_id")


def in_context(instruction: str, references: Sequence[Reference]) -> tuple[str, tuple[Pixels, ...]]:
    """The instruction with what it must say about further images, and those images; image 1 is the input.

    >>> in_context("Remove the cyst.", ())
    ('Remove the cyst.', ())
    """
    said = []
    for at, one in enumerate(references):
        follows = references[at + 1].role if at + 1 < len(references) else None
        if one.role == "before" and follows == "after":
            said.append(f'Image {at + 2} became image {at + 3} by the instruction "{one.text}".')
        elif one.role == "reference" and one.text:
            said.append(f"Image {at + 2} shows {one.text}.")
    images = tuple(as_rgb(one.image) for one in references)
    demonstrated = any(one.role == "after" for one in references)
    asked = f"Edit image 1 in the same way: {instruction}" if demonstrated else instruction
    return " ".join([*said, asked]), images


class Demonstrations:
    """Draws demonstrations for the samples of a dataset; the same in every run."""

    def __init__(self, dataset: Dataset, count: int) -> None:
        self._dataset = dataset
        self._count = count

    def of(self, sample_id: str) -> tuple[Reference, ...]:
        """The demonstrations for a sample; `ConfigError` where the dataset has too few."""
        found: list[Reference] = []
        for place in self._drawn(sample_id):
            row = self._dataset.row_index.row(place)
            found.append(Reference(decode_png(row["input"]["bytes"]), "before", row["prompt"]))
            found.append(Reference(decode_png(row["target_image"]["bytes"]), "after"))
        return tuple(found)

    def check(self, ids: Sequence[str]) -> None:
        """Raise unless every sample has enough others to learn from."""
        poor = [sample for sample in ids if len(self._drawn(sample)) < self._count]
        if poor:
            raise ConfigError(
                "some samples have too few others to be demonstrated by",
                where=self._dataset.folder,
                expected=f"{plural(self._count, 'sample')} of the same task and another patient",
                found=f"{plural(len(poor), 'sample')} with fewer, for example {poor[0]}",
                fix="ask for fewer --demonstrations, or run on samples that have them",
            )

    def _drawn(self, sample_id: str) -> list[int]:
        table, place = self._table, self._places[sample_id]
        own = self._subject(place)
        chosen: list[int] = []
        for narrow in (True, False):
            group = self._groups[self._group(place, narrow)]
            start = stable_hash("demonstration", sample_id) % len(group)
            for other in (*group[start:], *group[:start]):
                if len(chosen) == self._count:
                    return chosen
                if other not in chosen and table["id"][other] != sample_id and self._subject(other) != own:
                    chosen.append(other)
        return chosen

    def _group(self, place: int, narrow: bool) -> tuple[str, ...]:
        names = ("perspective", "task", "target") if narrow else ("perspective", "task")
        return tuple(self._table[name][place] for name in names)

    def _subject(self, place: int) -> str:
        table = self._table
        return table["patient_id"][place] or f"{table['source'][place]}//{table['case_id'][place]}"

    @cached_property
    def _table(self) -> dict[str, list[Any]]:
        return self._dataset.table(list(_COLUMNS))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {sample: place for place, sample in enumerate(self._table["id"])}

    @cached_property
    def _groups(self) -> dict[tuple[str, ...], list[int]]:
        """Samples by task, and by task and target: those of the train split first, each by a hash."""
        groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
        for place in range(len(self._table["id"])):
            for narrow in (True, False):
                groups[self._group(place, narrow)].append(place)
        for name, group in groups.items():
            train = [place for place in group if self._table["split"][place] == "train"]
            ids = self._table["id"]
            groups[name] = sorted(train or group, key=lambda at: stable_hash("demonstration", ids[at]))
        return dict(groups)
