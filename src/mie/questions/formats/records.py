"""What the formats share: a question as a plain record, image files, and records of strangers as questions.

Other formats have no place for tolerance, patient, split and the like. They travel in one extra field, `mie`,
which other readers ignore; a file without it is read as well. Masks and evidence stay behind: they would tell
the answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mie.core.files import atomic_write, inside, make_folder
from mie.errors import MieError
from mie.images.read import read_picture
from mie.questions.label import label_task
from mie.questions.record import LETTERS, PHASES, TASKS, Question, QuestionImage, question_id
from mie.records import Rejection
from mie.vocabulary import UNKNOWN

EXTRA: Final = "mie"
_EXTRA_FIELDS: Final = (
    *("id", "kind", "tolerance", "unit", "task", "modality", "submodality", "anatomy", "template"),
    *("source", "case_id", "patient_id", "split", "seed", "license", "flags"),
)
_LARGEST: Final = 64 * 2**20  # bytes of an image file
_TASK_NAMES: Final = {task.name.casefold(): code for code, task in TASKS.items()} | {
    code.casefold(): code for code in TASKS
}


def extra_of(question: Question) -> dict[str, Any]:
    """The fields that a format has no place for."""
    return {name: list(v) if isinstance(v := getattr(question, name), tuple) else v for name in _EXTRA_FIELDS}


def save_images(question: Question, folder: Path) -> list[str]:
    """Write the question's images under names of their content; their paths below `folder`'s parent."""
    paths = []
    for image in question.images:
        suffix = {"JPEG": "jpg", "PNG": "png"}.get(image.format, image.format.lower())
        path = make_folder(folder) / f"{image.digest}.{suffix}"
        if not path.exists():
            atomic_write(path, image.data)
        paths.append(f"{folder.name}/{path.name}")
    return paths


def load_image(root: Path, text: object) -> QuestionImage:
    """An image file below `root`. `MieError` where it is missing, leads out of it, or is no picture."""
    path = inside(root, root, text)
    if path.stat().st_size > _LARGEST:
        raise MieError("image file is too large", expected=f"at most {_LARGEST:,} bytes")
    image = QuestionImage(path.read_bytes(), path.name)
    if image.format not in ("PNG", "JPEG"):
        return QuestionImage.of(read_picture(path).pixels, f"{path.stem}.png")
    return image


def task_code(text: object) -> str:
    """A task's code from its code or name; "unknown" for anything else."""
    plain = re.sub(r"\s*\(.*\)\s*$", "", str(text or "")).replace("_", " ").strip().casefold()
    return _TASK_NAMES.get(plain, UNKNOWN)


def phase_name(question: Question) -> str:
    """The phase as the benchmark's files write it."""
    return PHASES.get(question.phase, UNKNOWN)


def question_from(
    *,
    text: str,
    options: Sequence[str],
    answer: str,
    images: Sequence[QuestionImage],
    extra: Mapping[str, Any] | None,
    **fields: Any,
) -> Question:
    """A question from the fields of another format; `answer` of a closed question may be a letter."""
    extra = dict(extra or {})
    kind = str(extra.get("kind") or ("closed" if options else "open"))
    if kind == "closed":
        answer = option_of(answer, options)
    values: dict[str, Any] = {**fields, **{k: v for k, v in extra.items() if k in _EXTRA_FIELDS}}
    values["flags"] = tuple(values.get("flags") or ())
    if values.get("task", UNKNOWN) == UNKNOWN:
        values["task"] = label_task(text)
    ident = values.pop("id", None) or question_id(text, list(options), answer, [one.digest for one in images])
    values["kind"] = kind
    options = tuple(options) if kind == "closed" else ()
    return Question(id=str(ident), text=text, options=options, answer=answer, images=tuple(images), **values)


def option_of(answer: str, options: Sequence[str]) -> str:
    """The text of the right option, from its letter or its text. `MieError` for a key outside the options."""
    if answer in options:
        return answer
    letter = re.fullmatch(r"\(?([A-Za-z])\)?[.:)]?(\s.*)?", answer.strip(), re.DOTALL)
    if letter and LETTERS.index(letter[1].upper()) < len(options):
        return options[LETTERS.index(letter[1].upper())]
    raise MieError(
        "the key is not among the options",
        expected=f"a letter from A to {LETTERS[max(0, len(options) - 1)]}, or the text of an option",
        found=answer[:80],
    )


def without_letters(options: Sequence[str]) -> list[str]:
    """The options' texts, without the "A.", "B." and so on before them, where all of them have one."""
    found = [
        re.fullmatch(rf"\s*\(?{letter}\)?\s*[.:)]\s+(.*)", option, re.DOTALL)
        for letter, option in zip(LETTERS, options, strict=False)
    ]
    if options and len(found) == len(options) and all(found):
        return [match[1].strip() for match in found if match]
    return list(options)


def read_records(
    records: Iterable[tuple[str, Any]], source: str, parse: Callable[[Mapping[str, Any]], Question]
) -> Iterator[Question | Rejection]:
    """Every record as a question, or as the reason why it is none. Nothing is made up for a bad one."""
    for where, record in records:
        try:
            if not isinstance(record, Mapping):
                raise MieError("not a record", expected="an object", found=type(record).__name__)
            yield parse(record)
        except MieError as error:
            yield Rejection(source, where, "source", error.reason)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = f"the record cannot be read: {type(error).__name__}: {error}"
            yield Rejection(source, where, "source", reason[:300])
