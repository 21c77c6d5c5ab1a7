"""The benchmark's own files: one JSON list for closed and one for open questions, images beside them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mie.core.files import atomic_write
from mie.errors import MieError
from mie.questions.formats.records import (
    EXTRA,
    extra_of,
    load_image,
    phase_name,
    question_from,
    read_records,
    save_images,
    task_code,
    without_letters,
)
from mie.questions.record import TASKS, Question
from mie.records import Rejection
from mie.vocabulary import MODALITIES, UNKNOWN

_MOST: Final = 512 * 2**20  # bytes of a JSON file
# The benchmark's labels -> (modality, submodality).
_LABELS: Final = {
    "ADiag": ("anatomical diagram", ""),
    "HI": ("histopathology", ""),
    **{name: ("MRI", name) for name in ("T1W", "T1CE", "T2W", "FLAIR", "DWI", "SWI", "MRA", "PD", "fMRI")},
}


def write(questions: Iterable[Question], folder: Path, name: str) -> list[Path]:
    """`NAME_closed.json`, `NAME_open.json` and `images/`."""
    records: dict[str, list[dict[str, Any]]] = {"closed": [], "open": []}
    for question in questions:
        paths = save_images(question, folder / "images")
        records["closed" if question.kind == "closed" else "open"].append(
            {
                "question": question.text,
                "options": list(question.options),
                "answer": question.letter or question.answer,
                "image_path": paths[0] if len(paths) == 1 else paths,
                "task_label": TASKS[question.task].name if question.task in TASKS else UNKNOWN,
                "clinical_phase": phase_name(question),
                "modality_type": [value for value in (question.modality, question.submodality) if value],
                "source_file": question.source,
                EXTRA: extra_of(question),
            }
        )
    written = []
    for kind, rows in records.items():
        if rows:
            path = folder / f"{name}_{kind}.json"
            atomic_write(path, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
            written.append(path)
    return written


def read(place: Path) -> Iterator[Question | Rejection]:
    """Every JSON list in a folder, or one file; images are found below the file's folder."""
    for path in sorted(place.glob("*.json")) if place.is_dir() else [place]:
        yield from _read_file(path)


def _read_file(path: Path) -> Iterator[Question | Rejection]:
    if not path.is_file() or path.stat().st_size > _MOST:
        raise MieError(
            "cannot read the questions", where=path, expected=f"a JSON file of at most {_MOST:,} bytes"
        )
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise MieError("not valid JSON", where=path, found=error) from None
    if not isinstance(body, list):
        raise MieError(
            "not a list of questions", where=path, expected="[{question, ...}]", found=type(body).__name__
        )
    records = ((f"{path.name}#{number}", record) for number, record in enumerate(body))
    return read_records(records, path.stem, lambda record: _question(record, path))


def _question(record: Mapping[str, Any], path: Path) -> Question:
    listed = record["image_path"]
    paths = listed if isinstance(listed, list) else [listed]
    options = record.get("options") or []
    if isinstance(options, Mapping):
        options = [options[key] for key in sorted(options)]
    modality, submodality = _modality(record.get("modality_type"))
    return question_from(
        text=str(record["question"]),
        options=without_letters([str(option) for option in options]),
        answer=str(record["answer"]),
        images=[load_image(path.parent, one) for one in paths],
        extra=record.get(EXTRA),
        task=task_code(record.get("task_label")),
        modality=modality,
        submodality=submodality,
        source=str(record.get("source_file") or path.stem),
    )


def _modality(said: Any) -> tuple[str, str]:
    labels = [str(label) for label in (said if isinstance(said, list) else [said]) if label]
    modality, submodality = UNKNOWN, ""
    for label in labels:
        known = next(
            (name for name in (*MODALITIES, "PET", "SPECT") if name.casefold() == label.casefold()), None
        )
        if known is not None:
            modality = known
        elif label in _LABELS:
            group, fine = _LABELS[label]
            modality, submodality = (group if modality == UNKNOWN else modality), fine or submodality
    return modality, submodality
