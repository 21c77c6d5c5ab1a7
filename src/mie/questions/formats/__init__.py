"""Question sets in the formats of other tools: written from a set, and read into one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mie.core.files import folder_lock, make_folder
from mie.core.registry import unknown_name
from mie.datasets.part import part_path
from mie.datasets.rejected import write_rejected
from mie.errors import MieError
from mie.images.hashes import perceptual
from mie.questions.build import finish
from mie.questions.formats import llava, lmms_eval, omnibrain, vlmevalkit
from mie.questions.part import PartIndex, write_index
from mie.questions.recipe import CurateConfig
from mie.questions.record import Question
from mie.questions.store import QuestionSet, QuestionSubset, QuestionWriter
from mie.questions.write import clear, refuse_other_files, refuse_taken
from mie.records import Rejection


@dataclass(frozen=True, slots=True)
class Format:
    """How another tool keeps questions."""

    write: Callable[[Iterable[Question], Path, str], list[Path]]
    read: Callable[[Path], Iterator[Question | Rejection]]
    about: str


FORMATS: Final[dict[str, Format]] = {
    "omnibrain": Format(omnibrain.write, omnibrain.read, "the benchmark's own JSON files and images"),
    "vlmevalkit": Format(vlmevalkit.write, vlmevalkit.read, "VLMEvalKit: a TSV with base64 images"),
    "lmms-eval": Format(lmms_eval.write, lmms_eval.read, "lmms-eval: a task folder with YAML and Parquet"),
    "llava": Format(llava.write, llava.read, "LLaVA or ShareGPT: conversations for instruction tuning"),
}


def find_format(name: str) -> Format:
    """The format of that name; a near miss is suggested."""
    if name not in FORMATS:
        raise unknown_name("format", name, FORMATS)
    return FORMATS[name]


def export_questions(questions: QuestionSet | QuestionSubset, to: str, folder: Path | str) -> list[Path]:
    """Write the questions to a new folder in another tool's format; the files that were written."""
    target, folder = find_format(to), Path(folder)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise MieError(
            "the output folder is taken", where=folder, expected="a new folder", fix="choose another folder"
        )
    return target.write(questions, make_folder(folder), questions.whole.name)


def import_questions(
    place: Path | str,
    kind: str,
    folder: Path | str,
    *,
    name: str | None = None,
    license_name: str = "not stated",
    deidentified: bool = False,
    curate: CurateConfig | None = None,
    progress: Callable[[int], None] = lambda _done: None,
) -> QuestionSet:
    """Read another tool's questions into a new set. What is unsound is rejected, with the reason.

    `curate` is what a recipe has under `curate:`; by default only exact copies are dropped. `deidentified` is
    the user's own word: what the files say of themselves does not count.
    """
    source, place, folder = find_format(kind), Path(place), Path(folder)
    if not place.exists():
        raise MieError("no such file or folder", where=place, expected=source.about)
    config = curate or CurateConfig(
        near_duplicates=False, most_same_answer=1.0, most_above_chance=10, blind="off"
    )
    refuse_other_files(folder)
    refuse_taken(folder)
    with folder_lock(folder):
        refuse_taken(folder)
        clear(folder)
        try:
            sources = _write_part(source.read(place), make_folder(folder / "parts"), progress)
            finish(
                folder,
                [0],
                config,
                seed=0,
                name=name or place.stem,
                description=f"Imported from {kind}.",
                recipe={"imported": {"format": kind, "curate": config.model_dump(mode="json")}},
                licenses={
                    one: {"name": license_name, "use": "unknown", "basis": "stated"} for one in sources
                },
                deidentified=dict.fromkeys(sources, (True, "stated at the import")) if deidentified else {},
            )
        except BaseException:
            if not (folder / "rejected.parquet").exists():
                clear(folder)
            raise
    return QuestionSet(folder)


def _write_part(
    found: Iterator[Question | Rejection], parts: Path, progress: Callable[[int], None]
) -> list[str]:
    """Everything as one part; the names of its sources."""
    index, rejections = PartIndex(), []
    traces: dict[str, dict[str, Any]] = {}
    sources: dict[str, None] = {}
    with QuestionWriter(part_path(parts, 0, "questions")) as writer:
        for number, one in enumerate(found):
            progress(number)
            if isinstance(one, Rejection):
                rejections.append(one)
                continue
            try:
                keys = _trace(one, traces)
                row = index.add(one, "", keys)
            except MieError as error:  # an image that cannot be decoded
                rejections.append(Rejection(one.source, one.case_id or one.id, "image", error.reason))
                continue
            sources[one.source] = None
            writer.write(row)
    if rejections:
        write_rejected(part_path(parts, 0, "rejected"), rejections)
    write_index(parts, 0, index, list(traces.values()))
    return list(sources)


def _trace(question: Question, traces: dict[str, dict[str, Any]]) -> tuple[str, ...]:
    """The keys of the question's images; each image is compared by what it looks like, once a split."""
    keys = []
    for image in question.images:
        key = f"{question.split}//{image.digest}"
        keys.append(key)
        if key in traces:
            continue
        value, thumb = perceptual(image.decoded())
        traces[key] = {
            "key": key,
            "source": question.source,
            "case_id": question.case_id or image.digest,
            "patient_id": question.patient_id if len(question.images) == 1 else None,
            "split": question.split,
            "content": bytes.fromhex(image.digest),
            "hash": value,
            "thumb": thumb,
        }
    return tuple(keys)


__all__ = ["FORMATS", "Format", "export_questions", "find_format", "import_questions"]
