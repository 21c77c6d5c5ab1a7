"""Instruction tuning as LLaVA and ShareGPT write it: conversations of a human and a model, and images."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from mie.core.files import atomic_write
from mie.errors import MieError
from mie.questions.formats.records import (
    EXTRA,
    extra_of,
    load_image,
    question_from,
    read_records,
    save_images,
)
from mie.questions.record import LETTERS, Question
from mie.records import Rejection

_MARK: Final = "<image>"
_DIRECT: Final = "Answer with the option's letter from the given choices directly."
_OPTION: Final = re.compile(r"^\(?([A-Z])\)?[.:)]\s+(.+)$")


def write(questions: Iterable[Question], folder: Path, name: str) -> list[Path]:
    """`NAME.json` and `images/`. A closed question is answered by its letter."""
    rows = []
    for question in questions:
        paths = save_images(question, folder / "images")
        lines = [_MARK] * len(paths) + [question.text]
        if question.options:
            lines += [f"{letter}. {text}" for letter, text in zip(LETTERS, question.options, strict=False)]
            lines.append(_DIRECT)
        answer = question.letter or " ".join(filter(None, (question.answer, question.unit)))
        rows.append(
            {
                "id": question.id,
                "image": paths[0] if len(paths) == 1 else paths,
                "conversations": [
                    {"from": "human", "value": "\n".join(lines)},
                    {"from": "gpt", "value": answer},
                ],
                EXTRA: {**extra_of(question), "answer": question.answer},
            }
        )
    path = folder / f"{name}.json"
    atomic_write(path, json.dumps(rows, indent=1, ensure_ascii=False) + "\n")
    return [path]


def read(place: Path) -> Iterator[Question | Rejection]:
    """Every JSON list in a folder, or one file. Of a conversation the first question and its answer count."""
    for path in sorted(place.glob("*.json")) if place.is_dir() else [place]:
        try:
            body = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise MieError("cannot read the conversations", where=path, found=error) from None
        if not isinstance(body, list):
            raise MieError("not a list of conversations", where=path, found=type(body).__name__)
        records = ((f"{path.name}#{number}", record) for number, record in enumerate(body))
        yield from read_records(records, path.stem, lambda one, path=path: _question(one, path))  # type: ignore[misc]


def _question(record: Mapping[str, Any], path: Path) -> Question:
    said = {turn["from"]: str(turn["value"]) for turn in reversed(record["conversations"])}
    human, answer = said.get("human", said.get("user")), said.get("gpt", said.get("assistant"))
    if human is None or answer is None:
        raise MieError("a conversation needs a question and an answer", expected="from: human, from: gpt")
    lines = [line for line in human.replace(_MARK, "").splitlines() if line.strip()]
    options: list[str] = []
    text: list[str] = []
    for line in lines:
        match = _OPTION.match(line.strip())
        if match and match[1] == LETTERS[len(options)]:
            options.append(match[2].strip())
        elif line.strip() not in (_DIRECT, "Options:"):
            text.append(line.strip().removeprefix("Question: "))
    listed = record.get("image", record.get("images"))
    extra = dict(record.get(EXTRA) or {})
    fields: dict[str, Any] = {"source": path.stem, "case_id": str(record.get("id", ""))}
    return question_from(
        text="\n".join(text),
        options=options if len(options) > 1 else (),
        answer=str(extra.pop("answer", answer)),
        images=[load_image(path.parent, one) for one in (listed if isinstance(listed, list) else [listed])],
        extra=extra,
        **fields,
    )
