"""A question set from a stream of questions, in one process: what importers and the end of a build use."""

from __future__ import annotations

import importlib.metadata
import platform
import re
import shutil
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeAlias

import mie
from mie.core.documents import write_document
from mie.core.files import atomic_write, folder_lock, make_folder, refuse_foreign
from mie.datasets.dataset import dataset_digest, shard_name
from mie.datasets.rejected import nothing_kept, write_rejected
from mie.errors import MieError
from mie.questions.card import question_card
from mie.questions.record import Question
from mie.questions.store import BLIND_FILE, MARKER, SCHEMA_VERSION, QuestionWriter, row_of
from mie.records import Rejection
from mie.vocabulary import SPLITS

ROWS_PER_SHARD: Final = 1024
COUNTED: Final = (
    *("split", "kind", "task", "phase", "modality", "submodality", "anatomy", "template", "letter", "source"),
)
_VERSIONS: Final = ("numpy", "opencv-python-headless", "pillow", "pyarrow", "isal")
_FILES: Final = (MARKER, "README.md", "rejected.parquet", BLIND_FILE)
_TEMPORARY: Final = r"\..*\.tmp"
_FOLDERS: Final = {
    "data": re.compile(rf"(train|val|test)-\d{{5}}-of-\d{{5}}\.parquet|{_TEMPORARY}"),
    "parts": re.compile(rf"plan|(train|val|test)-\d{{5}}\.parquet|\d{{5}}\.[a-z]+\.parquet|{_TEMPORARY}"),
    "stats": re.compile(rf"[a-z]+\.png|{_TEMPORARY}"),
}


# By source: whether somebody states that its images are de-identified, and in which words.
Stated: TypeAlias = Mapping[str, tuple[bool, str]]
_NOT_STATED: Final = (False, "not stated")


def write_questions(
    questions: Iterable[Question | Mapping[str, Any] | Rejection],
    folder: Path | str,
    *,
    name: str,
    description: str = "",
    recipe: Mapping[str, Any] | None = None,
    licenses: Mapping[str, Mapping[str, str]] | None = None,
    deidentified: Stated | None = None,
    funnel: Sequence[Mapping[str, Any]] = (),
) -> dict[str, Any]:
    """Write the questions to a new folder in the order they come (per split); what `questions.json` says.

    A question may come as the row of another set. A second question with the same id is rejected. After an
    error, and where no question was kept, the folder holds no set.
    """
    folder = Path(folder)
    refuse_other_files(folder)  # before the lock, which would leave its file in a folder that is not ours
    refuse_taken(folder)
    with folder_lock(folder):
        refuse_taken(folder)
        clear(folder)
        try:
            return write_into(
                questions,
                folder,
                name=name,
                description=description,
                recipe=recipe or {},
                licenses=licenses or {},
                deidentified=deidentified or {},
                funnel=funnel,
            )
        except BaseException:
            clear(folder)
            raise


def write_into(
    questions: Iterable[Question | Mapping[str, Any] | Rejection],
    folder: Path,
    *,
    name: str,
    description: str,
    recipe: Mapping[str, Any],
    licenses: Mapping[str, Mapping[str, str]],
    deidentified: Stated,
    funnel: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The same in a folder that is held already. Safe to repeat from the start; `parts/` is left alone."""
    parts, data = make_folder(folder / "parts"), folder / "data"
    shutil.rmtree(data, ignore_errors=True)
    data.mkdir()
    tally = _Tally()
    shards = _write_shards(questions, parts, tally)
    for split, count in shards.items():
        for number in range(count):
            _shard(parts, split, number).replace(data / shard_name(split, number, count))
    write_rejected(folder / "rejected.parquet", tally.rejections)
    if not tally.questions:
        clear(folder)
        write_rejected(folder / "rejected.parquet", tally.rejections)
        raise nothing_kept(folder, tally.rejections, "put it right and run the same command again")
    kept = tally.counts["source"]
    stated = {source: deidentified.get(source, _NOT_STATED) for source in sorted(kept)}
    info: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        "name": name,
        "description": description,
        "digest": dataset_digest(digest for split in SPLITS for digest in tally.digests[split]),
        "counts": tally.as_json(),
        "rejected": dict(sorted(Counter(r.gate for r in tally.rejections).items())),
        "funnel": [dict(step) for step in funnel],
        "licenses": {source: dict(terms) for source, terms in licenses.items() if source in kept},
        "deidentified": bool(stated) and all(yes for yes, _ in stated.values()),
        "deidentification": {source: reason for source, (_, reason) in stated.items()},
        "recipe": dict(recipe),
        "versions": {
            "mie": mie.__version__,
            "python": platform.python_version(),
            **{package: importlib.metadata.version(package) for package in _VERSIONS},
        },
    }
    atomic_write(folder / "README.md", question_card(info))
    write_document(folder / MARKER, info)
    shutil.rmtree(parts)
    return info


def stated_of(info: Mapping[str, Any]) -> Stated:
    """What `questions.json` says of its sources. A set of an older version says nothing: not stated."""
    yes, reasons = info.get("deidentified") is True, info.get("deidentification") or {}
    return {source: (yes, reasons.get(source, _NOT_STATED[1])) for source in info["counts"]["by_source"]}


def question_line(row: Mapping[str, Any]) -> str:
    """What the set's digest covers of a question: its own digest and its flags."""
    return " ".join((row["sha256"], *row["flags"]))


class _Tally:
    def __init__(self) -> None:
        self.questions = 0
        self.counts: dict[str, Counter[str]] = {column: Counter() for column in COUNTED}
        self.digests: dict[str, list[str]] = {split: [] for split in SPLITS}
        self.flags: Counter[str] = Counter()
        self.patients: set[str] = set()
        self.images: set[int] = set()
        self.rejections: list[Rejection] = []

    def keep(self, row: Mapping[str, Any]) -> None:
        self.questions += 1
        for column, counter in self.counts.items():
            if row[column]:
                counter[row[column]] += 1
        self.digests[row["split"]].append(question_line(row))
        self.flags.update(row["flags"])
        self.images.update(hash(one["bytes"]) for one in row["images"])
        if row["patient_id"] is not None:
            self.patients.add(row["patient_id"])

    def as_json(self) -> dict[str, Any]:
        return {
            "questions": self.questions,
            "images": len(self.images),
            **{f"by_{column}": dict(sorted(counter.items())) for column, counter in self.counts.items()},
            "by_flag": dict(sorted(self.flags.items())),
            "patients_known": len(self.patients),
        }


def _write_shards(
    questions: Iterable[Question | Mapping[str, Any] | Rejection], parts: Path, tally: _Tally
) -> dict[str, int]:
    """The shards under names without their count, which is known only at the end."""
    counts = dict.fromkeys(SPLITS, 0)
    seen: set[str] = set()
    with ExitStack() as stack:
        shelves = {split: stack.enter_context(ExitStack()) for split in SPLITS}
        writers: dict[str, QuestionWriter] = {}
        for question in questions:
            if isinstance(question, Rejection):
                tally.rejections.append(question)
                continue
            row = row_of(question) if isinstance(question, Question) else dict(question)
            if row["id"] in seen:
                reason = f"another question has the id {row['id']}"
                tally.rejections.append(Rejection(row["source"], row["case_id"], "duplicate", reason))
                continue
            seen.add(row["id"])
            split = row["split"]
            if split not in writers or writers[split].rows >= ROWS_PER_SHARD:
                shelves[split].close()  # ends the full shard; its shelf is empty and serves the next one
                writers[split] = shelves[split].enter_context(
                    QuestionWriter(_shard(parts, split, counts[split]))
                )
                counts[split] += 1
            writers[split].write(row)
            tally.keep(row)
    return counts


def _shard(parts: Path, split: str, number: int) -> Path:
    return parts / f"{split}-{number:05d}.parquet"


def refuse_other_files(folder: Path) -> None:
    """Raise unless `folder` is absent, empty, or holds a question set, finished or not, and nothing else."""
    built = (
        any((folder / name).is_dir() for name in ("data", "parts")) and not (folder / "dataset.json").exists()
    )

    def ours(path: Path) -> bool:
        if path.name in _FOLDERS and path.is_dir():
            return all(_FOLDERS[path.name].fullmatch(leaf.name) for leaf in path.iterdir())
        return path.name == "rejected.parquet" or (path.name in _FILES and built)

    refuse_foreign(folder, "a question set of ours", ours)


def clear(folder: Path) -> None:
    """Remove our files from a folder that `refuse_other_files` has accepted; the marker goes first."""
    for name in _FILES:
        (folder / name).unlink(missing_ok=True)
    for name in _FOLDERS:
        shutil.rmtree(folder / name, ignore_errors=True)


def refuse_taken(folder: Path) -> None:
    """Raise where a question set, or an unfinished build of one, is in the folder."""
    if (folder / MARKER).exists() or (folder / "parts/plan").exists():
        found = "a question set" if (folder / MARKER).exists() else "an unfinished build"
        raise MieError(
            "the output folder is taken",
            where=folder,
            expected="a new folder",
            found=found,
            fix="choose another folder",
        )
