"""A question set on disk: `questions.json`, a card, and Parquet shards with `images: list<Image>`.

Questions about one image stand next to each other, and the bytes of images and masks are stored by
dictionary: ten questions about an image keep one copy of it. `datasets.load_dataset(FOLDER)` opens it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from mie.core.documents import plural, read_document
from mie.core.hashing import canonical
from mie.core.registry import unknown_name
from mie.core.storage import local
from mie.datasets.dataset import RowIndex
from mie.datasets.parquet import shard_files
from mie.datasets.schema import RowWriter, read_rows, read_table, row_errors, table
from mie.errors import MieError
from mie.questions.record import FLAGS, TEXT_FIELDS, Question, QuestionImage, QuestionMask, question_digest
from mie.vocabulary import SPLITS

SCHEMA_VERSION: Final = 1
MARKER: Final = "questions.json"  # written last: its presence says that the set is whole
BLIND_FILE: Final = "blind.json"  # what runs got right without the images
BLIND_VERSION: Final = 1

_IMAGE: Final = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_IMAGE_FEATURE: Final = {"_type": "Image"}
_TEXT_FEATURE: Final = {"dtype": "string", "_type": "Value"}
_TEXTS_FEATURE: Final = {"_type": "List", "feature": _TEXT_FEATURE}
# Column -> (Arrow type, Hugging Face feature).
_COLUMNS: Final[dict[str, tuple[pa.DataType, Any]]] = {
    **{name: (pa.string(), _TEXT_FEATURE) for name in ("id", "kind", "text")},
    "images": (pa.list_(_IMAGE), {"_type": "List", "feature": _IMAGE_FEATURE}),
    "options": (pa.list_(pa.string()), _TEXTS_FEATURE),
    "answer": (pa.string(), _TEXT_FEATURE),
    "letter": (pa.string(), _TEXT_FEATURE),
    "tolerance": (pa.float64(), {"dtype": "float64", "_type": "Value"}),
    **{
        name: (pa.string(), _TEXT_FEATURE)
        for name in (
            *("unit", "task", "phase", "modality", "submodality", "anatomy", "template", "source"),
            *("case_id", "patient_id", "split", "evidence"),
        )
    },
    "masks": (
        pa.list_(pa.struct([("image", pa.int32()), ("target", pa.string()), ("mask", _IMAGE)])),
        {
            "_type": "List",
            "feature": {
                "image": {"dtype": "int32", "_type": "Value"},
                "target": _TEXT_FEATURE,
                "mask": _IMAGE_FEATURE,
            },
        },
    ),
    "seed": (pa.int64(), {"dtype": "int64", "_type": "Value"}),
    "license": (pa.string(), _TEXT_FEATURE),
    "flags": (pa.list_(pa.string()), _TEXTS_FEATURE),
    "sha256": (pa.string(), _TEXT_FEATURE),
}
FEATURES: Final = {name: feature for name, (_, feature) in _COLUMNS.items()}
SCHEMA: Final = pa.schema(
    [(name, kind) for name, (kind, _) in _COLUMNS.items()],
    metadata={"huggingface": json.dumps({"info": {"features": FEATURES}})},
)
PICTURES: Final = ("images", "masks")
TEXT_COLUMNS: Final = tuple(name for name in _COLUMNS if name not in PICTURES)
# The columns that `filter` takes.
_UNWANTED: Final = "not flags"  # in a part's `where`
FILTERS: Final = tuple(name for name in TEXT_COLUMNS if name not in ("options", "tolerance", "evidence"))
# PNG does not compress again.
_PACKED: Final = ("images.list.element.bytes", "masks.list.element.mask.bytes")
_LISTS: Final = ("options.list.element", "flags.list.element", "images.list.element.path")
_MASKS: Final = tuple(f"masks.list.element.{leaf}" for leaf in ("image", "target", "mask.path"))
_PLAIN: Final = tuple(name for name in _COLUMNS if name not in ("images", "masks", "options", "flags"))
_COMPRESSION: Final = {
    **dict.fromkeys((*_PLAIN, *_LISTS, *_MASKS), "zstd"),
    **dict.fromkeys(_PACKED, "none"),
}
_ROWS_PER_GROUP: Final = 64
_BYTES_PER_GROUP: Final = 16 * 2**20  # of distinct pictures
# A row group's pictures fit into its dictionary, or ten questions would keep ten copies.
_DICTIONARY: Final = 4 * _BYTES_PER_GROUP


def row_of(question: Question, sha256: str | None = None) -> dict[str, Any]:
    """The question as a row; `sha256` where the digest is known."""
    row: dict[str, Any] = {name: getattr(question, name) for name in TEXT_FIELDS}
    row["options"], row["flags"] = list(question.options), list(question.flags)
    row["letter"] = question.letter
    row["evidence"] = canonical(dict(question.evidence))
    row["images"] = [{"bytes": image.data, "path": image.path} for image in question.images]
    row["masks"] = [
        {"image": one.image, "target": one.target, "mask": {"bytes": one.mask.data, "path": one.mask.path}}
        for one in question.masks
    ]
    row["sha256"] = sha256 or question_digest(question)
    return row


def question_of(row: Mapping[str, Any]) -> Question:
    """The question that a row holds. `MieError` for a row that is none of ours."""
    with row_errors(f"question {row.get('id')}"):
        evidence = json.loads(row["evidence"])
        if not isinstance(evidence, dict):
            raise MieError("`evidence` is not a JSON object", found=type(evidence).__name__)
        values = {name: row[name] for name in TEXT_FIELDS if name not in ("phase", "options", "flags")}
        return Question(
            **values,
            options=tuple(row["options"] or ()),
            flags=tuple(row["flags"] or ()),
            evidence=evidence,
            images=tuple(QuestionImage(one["bytes"], one["path"] or "") for one in row["images"] or ()),
            masks=tuple(
                QuestionMask(one["image"], one["target"], QuestionImage(one["mask"]["bytes"]))
                for one in row["masks"] or ()
            ),
        )


class QuestionWriter(RowWriter):
    """A shard of questions. A row group ends by the bytes of its pictures, each counted once."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._pictures: dict[int, int] = {}  # id of a bytes object -> its length

    def _open(self, path: Path) -> pq.ParquetWriter:
        return pq.ParquetWriter(
            path,
            SCHEMA,
            compression=_COMPRESSION,
            use_dictionary=True,
            dictionary_pagesize_limit=_DICTIONARY,
            write_statistics=["id", "split", "task", "modality", "source"],
            version="2.6",
        )

    def _full(self, row: dict[str, Any]) -> bool:
        pictures = [*row["images"], *(one["mask"] for one in row["masks"])]
        self._pictures.update((id(one["bytes"]), len(one["bytes"])) for one in pictures)
        return len(self._pending) >= _ROWS_PER_GROUP or sum(self._pictures.values()) >= _BYTES_PER_GROUP

    def _write_group(self, rows: list[dict[str, Any]]) -> None:
        self._writer.write_table(table(rows, SCHEMA))
        self._pictures = {}


class _Questions:
    """What a set and a part of one have in common: length, items, iteration, filters."""

    whole: QuestionSet
    where: Mapping[str, tuple[Any, ...]]

    @property
    def _positions(self) -> Sequence[int]:
        raise NotImplementedError

    def __len__(self) -> int:
        return len(self._positions)

    def __getitem__(self, at: int) -> Question:
        """The question at a position."""
        try:
            position = self._positions[at]
        except IndexError:
            raise IndexError(f"no question {at}: there are {len(self)}") from None
        return question_of(self.whole.marked(self.whole.row_index.row(position)))

    def __iter__(self) -> Iterator[Question]:
        whole, index = self.whole, self.whole.row_index
        return (question_of(whole.marked(index.row(position))) for position in self._positions)

    def filter(self, **columns: Any) -> QuestionSubset:
        """The questions whose columns have these values: `filter(task="LL", modality=["CT", "MRI"])`.

        `flags="blind"` keeps questions that have the flag.
        """
        where = dict(self.where)
        for name, given in columns.items():
            if name not in FILTERS:
                raise unknown_name("column to filter by", name, FILTERS)
            values = given if isinstance(given, Collection) and not isinstance(given, str) else (given,)
            allowed = where.get(name)
            where[name] = tuple(v for v in dict.fromkeys(values) if allowed is None or v in allowed)
        return QuestionSubset(self.whole, where)

    def with_flag(self, flag: str) -> QuestionSubset:
        """The questions that have the flag: `with_flag("counterfactual")`."""
        if flag not in FLAGS:
            raise unknown_name("flag", flag, FLAGS)
        return self.filter(flags=flag)

    def without(self, flag: str) -> QuestionSubset:
        """The questions that do not have the flag: `without("blind")`."""
        if flag not in FLAGS:
            raise unknown_name("flag", flag, FLAGS)
        unwanted = self.where.get(_UNWANTED, ())
        return QuestionSubset(self.whole, {**self.where, _UNWANTED: (*unwanted, flag)})

    def split(self, name: str) -> QuestionSubset:
        """The questions of one split: "train", "val" or "test"."""
        if name not in SPLITS:
            raise unknown_name("split", name, SPLITS)
        return self.filter(split=name)

    def table(self, columns: Sequence[str]) -> dict[str, list[Any]]:
        """Some text columns whole, without reading an image."""
        whole = self.whole.columns(columns)
        if isinstance(self, QuestionSet):
            return whole
        return {name: [values[at] for at in self._positions] for name, values in whole.items()}

    def ids(self) -> list[str]:
        """The questions' ids, in order."""
        return list(self.table(["id"])["id"])


class QuestionSubset(_Questions):
    """The questions of a set that a filter chose. Nothing is copied."""

    def __init__(self, whole: QuestionSet, where: Mapping[str, tuple[Any, ...]]) -> None:
        self.whole = whole
        self.where = where

    def __repr__(self) -> str:
        chosen = ", ".join(f"{name}={list(values)!r}" for name, values in self.where.items())
        return f"{self.whole.name}: {len(self):,} of {plural(len(self.whole), 'question')}, {chosen or 'all'}"

    @cached_property
    def _positions(self) -> Sequence[int]:
        names = list(self.where)
        if not names:
            return range(len(self.whole))
        columns = self.whole.columns(["flags" if name == _UNWANTED else name for name in names])
        chosen = [
            [not fits for fits in _matches(columns["flags"], set(self.where[name]))]
            if name == _UNWANTED
            else _matches(columns[name], set(self.where[name]))
            for name in names
        ]
        return [at for at, fits in enumerate(zip(*chosen, strict=True)) if all(fits)]


def _with_blind(flags: Sequence[str] | None) -> list[str]:
    return [*dict.fromkeys((*(flags or ()), "blind"))]


def _matches(values: Sequence[Any], wanted: set[Any]) -> list[bool]:
    return [bool(wanted & set(v)) if isinstance(v, list) else v in wanted for v in values]


class QuestionSet(_Questions):
    """A finished folder of questions: `len(qs)`, `qs[0].images[0].pixels`, `qs.filter(task="LL")`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = local(folder)
        if not (self.folder / MARKER).is_file():
            unfinished = (self.folder / "parts").is_dir()
            raise MieError(
                "no finished question set here",
                where=self.folder,
                expected=f"a folder with {MARKER}",
                found="an unfinished build" if unfinished else f"no {MARKER}",
                fix="run the same `mie vqa build` again to finish it" if unfinished else "check the path",
            )
        self.info: dict[str, Any] = read_document(
            self.folder / MARKER, "question set", version=SCHEMA_VERSION
        )
        self.where = {}

    @property
    def whole(self) -> QuestionSet:  # type: ignore[override]
        return self

    @property
    def name(self) -> str:
        return str(self.info["name"])

    @property
    def digest(self) -> str:
        """SHA-256 over the digests and flags of all questions, in order."""
        return str(self.info["digest"])

    @property
    def card(self) -> str:
        """The text of `README.md`."""
        return (self.folder / "README.md").read_text(encoding="utf-8")

    @cached_property
    def blind(self) -> dict[str, Any]:
        """What `mie vqa blind` wrote: `runs`, and `marks` (id of a question: which runs); empty without."""
        if not (self.folder / BLIND_FILE).is_file():
            return {"runs": [], "marks": {}}
        found = read_document(self.folder / BLIND_FILE, "marks", version=BLIND_VERSION)
        if found["questions"] != self.digest:
            raise MieError(
                "the marks belong to another question set",
                where=self.folder / BLIND_FILE,
                expected=f"digest {self.digest[:16]}",
                found=f"digest {found['questions'][:16]}",
                fix=f"delete {BLIND_FILE}, and mark the questions again with `mie vqa blind`",
            )
        return found

    @property
    def blind_evidence(self) -> dict[str, Any]:
        """Who marked questions as needing no image: the build's guess, and runs with their models."""
        guessed = self.info["counts"].get("by_flag", {}).get("blind", 0)
        return {"built": guessed, "votes": self.blind.get("votes", 1), "runs": self.blind["runs"]}

    def marked(self, row: dict[str, Any]) -> dict[str, Any]:
        """A row with the flag `blind` where a run got it right without the images."""
        if row["id"] in self.blind["marks"]:
            row["flags"] = _with_blind(row["flags"])
        return row

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"{self.name}: {plural(len(self), 'question')} in {self.folder}"

    def __len__(self) -> int:
        return int(self.info["counts"]["questions"])

    @property
    def _positions(self) -> Sequence[int]:
        return range(self.row_index.rows)

    @cached_property
    def row_index(self) -> RowIndex:
        """Rows by their position."""
        return RowIndex(self.shards())

    def shards(self, split: str | None = None) -> list[Path]:
        """The shard files in order: train, val, test, then by number."""
        return shard_files(self.folder, split)

    def rows(self, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
        """Raw rows; images as bytes."""
        for path in self.shards():
            yield from read_rows(path, columns)

    def columns(self, names: Sequence[str]) -> dict[str, list[Any]]:
        """Some text columns whole."""
        marks = self.blind["marks"] if "flags" in names else {}
        wanted = list(dict.fromkeys([*names, *(["id"] if marks else [])]))
        out: dict[str, list[Any]] = {name: [] for name in wanted}
        for path in self.shards():
            with row_errors(path):
                read = read_table(path, wanted)
                for name in wanted:
                    out[name].extend(read.column(name).to_pylist())
        if marks:
            pairs = zip(out["id"], out["flags"], strict=True)
            out["flags"] = [_with_blind(flags) if id in marks else flags for id, flags in pairs]
        return {name: out[name] for name in names}
