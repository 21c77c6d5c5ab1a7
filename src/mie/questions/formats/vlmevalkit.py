"""VLMEvalKit's TSV files: one row per question, images as base64, one split per file."""

from __future__ import annotations

import base64
import binascii
import csv
import io
import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

from mie.core.files import atomic_write
from mie.errors import MieError
from mie.images.raster import check_header
from mie.questions.formats.records import (
    EXTRA,
    extra_of,
    load_image,
    phase_name,
    question_from,
    read_records,
    task_code,
)
from mie.questions.record import LETTERS, Question, QuestionImage
from mie.records import Rejection
from mie.vocabulary import UNKNOWN

_LONGEST: Final = 512 * 2**20  # characters of a field: some images


def write(questions: Iterable[Question], folder: Path, name: str) -> list[Path]:
    """`NAME.tsv`: index, image, question, A to J, answer, category, l2-category, split, hint."""
    chosen = list(questions)
    letters = LETTERS[: max((len(question.options) for question in chosen), default=0)]
    header = [
        *("index", "image", "question", *letters, "answer", "category", "l2-category", "split", "hint"),
        EXTRA,
    ]
    out = io.StringIO()
    writer = csv.writer(out, delimiter="\t", lineterminator="\n")
    writer.writerow(header)
    for index, question in enumerate(chosen):
        pictures = [base64.b64encode(image.data).decode() for image in question.images]
        options = [*question.options, *[""] * (len(letters) - len(question.options))]
        writer.writerow(
            [
                index,
                pictures[0] if len(pictures) == 1 else json.dumps(pictures),
                question.text,
                *options,
                question.letter or question.answer,
                question.task,
                phase_name(question),
                question.split,
                "",
                json.dumps(extra_of(question), ensure_ascii=False),
            ]
        )
    path = folder / f"{name}.tsv"
    atomic_write(path, out.getvalue())
    return [path]


def read(place: Path) -> Iterator[Question | Rejection]:
    """A TSV file, or every one in a folder; images as base64 or, under `image_path`, beside the file."""
    for path in sorted(place.glob("*.tsv")) if place.is_dir() else [place]:
        with _long_fields(), path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file, delimiter="\t")
            if rows.fieldnames is None or not {"question", "answer"} <= set(rows.fieldnames):
                raise MieError("not a table of questions", where=path, expected="columns question and answer")
            records = ((f"{path.name}#{number}", row) for number, row in enumerate(rows))
            yield from read_records(records, path.stem, lambda row, path=path: _question(row, path))  # type: ignore[misc]


@contextmanager
def _long_fields() -> Iterator[None]:
    """An image is longer than the fields that Python's reader allows."""
    before = csv.field_size_limit(min(_LONGEST, sys.maxsize))
    try:
        yield
    finally:
        csv.field_size_limit(before)


def _question(row: Mapping[str, str], path: Path) -> Question:
    options = []
    for letter in LETTERS:
        text = (row.get(letter) or "").strip()
        if not text or text.casefold() == "nan":
            break
        options.append(text)
    return question_from(
        text=row["question"],
        options=options,
        answer=row["answer"],
        images=_images(row, path),
        extra=json.loads(row[EXTRA]) if row.get(EXTRA) else None,
        task=task_code(row.get("category")),
        modality=UNKNOWN,
        split=row.get("split") if row.get("split") in ("train", "val", "test") else "test",
        source=path.stem,
    )


def _images(row: Mapping[str, str], path: Path) -> list[QuestionImage]:
    text = row.get("image") or ""
    if not text:
        given = row.get("image_path") or ""
        return [load_image(path.parent, one) for one in _listed(given)]
    return [_decoded(one) for one in _listed(text)]


def _listed(text: str) -> list[Any]:
    if text.lstrip().startswith("["):
        found = json.loads(text)
        return found if isinstance(found, list) else [found]
    return [text] if text else []


def _decoded(text: Any) -> QuestionImage:
    try:
        data = base64.b64decode(str(text), validate=True)
    except (binascii.Error, ValueError):
        raise MieError("an image is not base64", expected="PNG or JPEG as base64") from None
    check_header(data, where=None)
    return QuestionImage(data)
