"""What a review of questions is about: a question set, its rows, and the images of a question as PNG.

It stands in for `Material`: the same way to list entries and to read rows, and no runs. Whoever answers must
not see the key, nor what gives it away: the modality, the structure, the source, the file names.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from mie.datasets.parquet import ShardFile
from mie.errors import ConfigError, ImageError
from mie.images.png import encode_png
from mie.questions.record import LETTERS, TASKS, QuestionImage
from mie.questions.store import MARKER, QuestionSet
from mie.review.api import ApiError
from mie.review.material import Entry, Stack, stored_row

KINDS: Final = ("question", "answer")
_INDEXED: Final = ("id", "sha256", "task", "modality", "anatomy", "source", "split", "flags")
_TEXT: Final = ("kind", "text", "options", "unit", "task")
_KEY: Final = ("answer", "tolerance", "modality", "submodality", "anatomy", "source", "template", "evidence")


def is_question_set(folder: Path) -> bool:
    return (folder / MARKER).is_file()


class QuestionMaterial:
    """A question set in the place of a dataset. Rows are read when they are needed."""

    kinds = KINDS
    noun = "question"

    def __init__(self, questions: QuestionSet) -> None:
        self.dataset = questions
        self.runs: dict[str, Any] = {}
        self.volumes: dict[Any, Stack] = {}  # a question shows single images
        self._shards: dict[str, Path] = {path.name: path for path in questions.shards()}
        flags = questions.columns(["flags"])["flags"]
        # Where a model wrote some of the questions, those are the ones to be checked.
        self._written = any("written" in found for found in flags)

    @classmethod
    def open(cls, folders: Sequence[Path]) -> QuestionMaterial:
        if len(folders) != 1:
            raise ConfigError(
                "a review of questions is about one set", found=", ".join(str(folder) for folder in folders)
            )
        return cls(QuestionSet(folders[0]))

    def entries(self, kind: str) -> Iterator[Entry]:
        """The questions to check, or those that count and are to be answered, in the order of the set."""
        for name, path in self._shards.items():
            with ShardFile(path) as file:
                rows = file.read(columns=list(_INDEXED)).to_pylist()
                sizes = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
            places = ((name, group, at) for group, size in enumerate(sizes) for at in range(size))
            for row, place in zip(rows, places, strict=True):
                flags = row.pop("flags") or ()
                waits = "written" in flags and "reviewed" not in flags
                if (not waits) if kind == "answer" else (waits or not self._written):
                    yield Entry({**row, "perspective": "questions", "target": ""}, place)

    def row(self, place: Sequence[Any], columns: Sequence[str]) -> dict[str, Any]:
        """Read some columns of one row."""
        return stored_row(self._shards, place, columns, self.dataset.folder)

    def image(self, place: Sequence[Any], number: int) -> bytes:
        """An image of a question as PNG; smaller ones stand in the corner of the size that all fit into."""
        images = self._images(place)
        if not 0 <= number < len(images):
            raise ApiError(404, "unknown", "there is no such image")
        try:
            sizes = [image.size for image in images]
            pixels = images[number].decoded()
        except ImageError:
            raise ApiError(404, "unknown", "this image cannot be read") from None
        height, width = max(h for h, _ in sizes), max(w for _, w in sizes)
        short = height - pixels.shape[0], width - pixels.shape[1]
        if any(short):
            pads = ((0, short[0]), (0, short[1]), (0, 0))[: pixels.ndim]
            pixels = np.pad(pixels, pads)
        return encode_png(pixels)

    def view(self, place: Sequence[Any], kind: str) -> dict[str, Any]:
        """What the page shows of a question: its key and what gives it away only to whoever checks it."""
        row = self.row(place, [*_TEXT, *(_KEY if kind == "question" else ())])
        images = self._images(place)
        sizes = [image.size for image in images]
        options = [{"letter": LETTERS[at], "text": text} for at, text in enumerate(row["options"] or ())]
        found = {
            "question": {
                "kind": row["kind"],
                "text": row["text"],
                "options": options,
                "unit": row["unit"] or "",
                "task": TASKS[row["task"]].name if row["task"] in TASKS else "",
                "images": len(images),
            },
            "grey": all(_is_grey(image) for image in images),
            "size": [max(w for _, w in sizes), max(h for h, _ in sizes)],
        }
        if kind == "question":
            found["key"] = {name: row[name] for name in _KEY}
        return found

    def _images(self, place: Sequence[Any]) -> list[QuestionImage]:
        return [
            QuestionImage(one["bytes"], one["path"] or "") for one in self.row(place, ["images"])["images"]
        ]


def check_reply(question: dict[str, Any], reply: str) -> str | None:
    """What is wrong with a person's answer to a question of the view; None where it fits."""
    kind = question["kind"]
    if not reply:  # "I cannot tell"
        return None
    if kind == "closed":
        letters = [option["letter"] for option in question["options"]]
        return None if reply in letters else f"choose one of {', '.join(letters)}"
    if kind == "open":
        return None
    parts = reply.strip("()[]").split(",")
    wanted = {"number": 1, "point": 2, "box": 4}[kind]
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        numbers = []
    if len(numbers) != wanted or not all(np.isfinite(numbers)):
        return "give a number" if wanted == 1 else f"give {wanted} numbers"
    if wanted > 1 and not all(0 <= number <= 1 for number in numbers):
        return "the place lies outside the image"
    return None


def _is_grey(image: QuestionImage) -> bool:
    try:
        pixels = image.decoded()
    except ImageError:
        return False
    return pixels.ndim == 2 or bool((pixels == pixels[..., :1]).all())
