"""lmms-eval's task folders: a YAML task, its functions, and Parquet with the images."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq
import yaml

from mie.core.files import atomic_path, atomic_write, make_folder
from mie.datasets.schema import read_rows, table
from mie.errors import MieError
from mie.questions.formats.records import EXTRA, extra_of, question_from, read_records
from mie.questions.record import Question, QuestionImage
from mie.records import Rejection

_IMAGE: Final = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
_TEXTS: Final = ("question", "answer", "letter", "kind", "task", "phase", "modality", "split", EXTRA)
_FEATURES: Final = {
    **{name: {"dtype": "string", "_type": "Value"} for name in _TEXTS},
    "options": {"_type": "List", "feature": {"dtype": "string", "_type": "Value"}},
    "images": {"_type": "List", "feature": {"_type": "Image"}},
}
_SCHEMA: Final = pa.schema(
    [
        *((name, pa.string()) for name in _TEXTS),
        ("options", pa.list_(pa.string())),
        ("images", pa.list_(_IMAGE)),
    ],
    metadata={"huggingface": json.dumps({"info": {"features": _FEATURES}})},
)
_ROWS: Final = 64
# The module that the task names. It stands alone: lmms-eval imports it without this package.
_MODULE: Final = '''"""Functions of the task {name}: images, prompt, key and score."""

import re

LETTERS = "ABCDEFGHIJ"


def doc_to_visual(doc):
    return [image.convert("RGB") for image in doc["images"]]


def doc_to_text(doc, lmms_eval_specific_kwargs=None):
    if not doc["options"]:
        return f"{{doc['question']}}\\nAnswer concisely."
    options = "".join(f"\\n{{letter}}. {{text}}" for letter, text in zip(LETTERS, doc["options"]))
    end = "\\nAnswer with the option's letter from the given choices directly."
    return f"Question: {{doc['question']}}\\nOptions:{{options}}{{end}}"


def doc_to_target(doc):
    return doc["letter"] or doc["answer"]


def process_results(doc, results):
    """A reply that names no letter is wrong here: lmms-eval has no state for "not scored"."""
    reply = str(results[0]).strip()
    if doc["options"]:
        found = re.fullmatch(r"\\(?([A-J])\\)?[.:)]?(\\s.*)?", reply, re.DOTALL)
        return {{"accuracy": float(bool(found) and found[1] == doc["letter"])}}
    return {{"accuracy": float(reply.casefold().rstrip(".") == doc["answer"].casefold())}}
'''


def write(questions: Iterable[Question], folder: Path, name: str) -> list[Path]:
    """`NAME.yaml`, `utils.py` and `data/SPLIT.parquet`."""
    by_split: dict[str, list[Question]] = {}
    for question in questions:
        by_split.setdefault(question.split, []).append(question)
    written = []
    for split, chosen in by_split.items():
        path = make_folder(folder / "data") / f"{split}.parquet"
        with (
            atomic_path(path) as temporary,
            pq.ParquetWriter(temporary, _SCHEMA, compression="zstd") as writer,
        ):
            for start in range(0, len(chosen), _ROWS):
                writer.write_table(table([_row(one) for one in chosen[start : start + _ROWS]], _SCHEMA))
        written.append(path)
    atomic_write(folder / "utils.py", _MODULE.format(name=name))
    atomic_write(folder / f"{name}.yaml", _task(name, folder, sorted(by_split)))
    return [*written, folder / "utils.py", folder / f"{name}.yaml"]


def _row(question: Question) -> dict[str, Any]:
    return {
        "question": question.text,
        "answer": question.answer,
        "letter": question.letter,
        **{field: getattr(question, field) for field in ("kind", "task", "phase", "modality", "split")},
        EXTRA: json.dumps(extra_of(question), ensure_ascii=False),
        "options": list(question.options),
        "images": [{"bytes": image.data, "path": image.path} for image in question.images],
    }


def _task(name: str, folder: Path, splits: list[str]) -> str:
    tested = "test" if "test" in splits else splits[0]
    body = {
        "dataset_path": "parquet",
        "dataset_kwargs": {
            "data_files": {split: str((folder / "data" / f"{split}.parquet").absolute()) for split in splits}
        },
        "task": name,
        "test_split": tested,
        "output_type": "generate_until",
        "generation_kwargs": {"max_new_tokens": 64, "temperature": 0, "do_sample": False},
        "metric_list": [{"metric": "accuracy", "aggregation": "mean", "higher_is_better": True}],
        "metadata": [{"version": 1}],
    }
    functions = ("doc_to_visual", "doc_to_text", "doc_to_target", "process_results")
    tags = "".join(f"{function}: !function utils.{function}\n" for function in functions)
    return yaml.safe_dump(body, sort_keys=False, allow_unicode=True) + tags


def read(place: Path) -> Iterator[Question | Rejection]:
    """The Parquet files of a task folder."""
    paths = sorted((place / "data").glob("*.parquet")) if place.is_dir() else [place]
    if not paths:
        raise MieError("no questions here", where=place, expected="data/*.parquet in a task folder")
    for path in paths:
        records = ((f"{path.name}#{number}", row) for number, row in enumerate(read_rows(path)))
        yield from read_records(records, place.stem, _question)


def _question(row: Mapping[str, Any]) -> Question:
    return question_from(
        text=row["question"],
        options=row["options"] or (),
        answer=row["answer"],
        images=[QuestionImage(one["bytes"], one["path"] or "") for one in row["images"] or ()],
        extra=json.loads(row[EXTRA]) if row.get(EXTRA) else None,
    )
