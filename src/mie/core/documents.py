"""JSON documents on disk, each read and written in one way, and the keys of `dataset.json`."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict, cast

from mie.core.files import atomic_write
from mie.errors import MieError


def read_document(
    path: Path,
    noun: str,
    *,
    version: int | None = None,
    fix: str = "read it with the version of mie that wrote it",
) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: The file.
        noun: What messages call the thing that the file describes: "run".
        version: The `schema_version` that the document must have; None accepts any document.
        fix: What to do about another version.

    Raises:
        MieError: If the file is missing, is not a JSON object, or has another version.

    """
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MieError(
            f"no {noun} here",
            where=path.parent,
            expected=f"a folder with {path.name}",
            found=f"no {path.name}",
            fix="check the path",
        ) from None
    except ValueError as error:  # also text that is not UTF-8
        raise MieError(f"{path.name} is not valid JSON", where=path, found=error) from None
    if not isinstance(body, dict):
        raise MieError(f"{path.name} is not a JSON object", where=path, found=type(body).__name__)
    if version is not None and body.get("schema_version") != version:
        raise MieError(
            f"{noun} of another schema version",
            where=path,
            expected=version,
            found=body.get("schema_version"),
            fix=fix,
        )
    return body


def write_document(path: Path, body: Mapping[str, Any], *, allow_nan: bool = True) -> None:
    """Write the object, whole or not at all. Equal objects with equal order of keys give equal bytes."""
    atomic_write(path, json.dumps(body, indent=2, ensure_ascii=False, allow_nan=allow_nan) + "\n")


def null_for_nan(value: Any) -> Any:
    """The value as JSON may hold it: what is not a number is null, infinity is the text "inf".

    >>> null_for_nan({"mean": math.nan, "ci95": (0.5, math.inf)})
    {'mean': None, 'ci95': [0.5, 'inf']}
    """
    if isinstance(value, Mapping):
        return {str(key): null_for_nan(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [null_for_nan(item) for item in value]
    if hasattr(value, "tolist"):  # a NumPy number or array
        return null_for_nan(value.tolist())
    if isinstance(value, float) and not math.isfinite(value):
        return None if math.isnan(value) else str(value)
    return value


class Counts(TypedDict):
    """How many samples a dataset holds, in all and by the values of some columns."""

    samples: int
    by_split: dict[str, int]
    by_perspective: dict[str, int]
    by_task: dict[str, int]
    by_modality: dict[str, int]
    by_source: dict[str, int]
    by_source_and_perspective: NotRequired[dict[str, dict[str, int]]]  # where there are several perspectives
    patients_known: int


class DatasetInfo(TypedDict):
    """What `dataset.json` says. A perspective with facts of its own adds them under its name."""

    schema_version: NotRequired[int]  # added when the document is written
    name: str
    description: str
    digest: str
    counts: Counts
    rejected: dict[str, int]  # by gate
    licenses: dict[str, dict[str, str]]  # by source
    deidentified: bool
    recipe: dict[str, Any]
    versions: dict[str, str]
    deidentification: NotRequired[dict[str, str]]  # by source: why it counts as de-identified, or not
    rephrased: NotRequired[dict[str, Any]]
    references: NotRequired[int]  # samples with further input images
    weights: NotRequired[dict[str, dict[str, str]]]  # of networks that made samples, by family


def merged_recipes(recipe: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The recipes behind the one in `dataset.json`: itself, or those of the datasets that were merged."""
    merged = recipe.get("merged")
    if not isinstance(merged, list):
        return [recipe]
    return [one for parent in merged for one in merged_recipes(parent.get("recipe") or {})]


def maker_settings(recipe: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The settings of every perspective that made samples; none for a dataset that was imported."""
    makers: list[Mapping[str, Any]] = []
    for one in merged_recipes(recipe):
        makers += one.get("perspectives") or ([one["recipe"]] if one.get("recipe") else [])
    return makers


def source_entries(recipe: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """The catalogue entry of each data set by name, as the first recipe that lists it has it."""
    entries: dict[str, Mapping[str, Any]] = {}
    for one in merged_recipes(recipe):
        for source in one.get("sources") or ():
            if isinstance(source, Mapping) and isinstance(entry := source.get("entry"), Mapping):
                entries.setdefault(str(entry.get("name")), entry)
    return entries


def is_joint(recipe: Mapping[str, Any]) -> bool:
    """Whether perspectives were built or datasets merged into one, and compared with each other."""
    return "merged" in recipe or bool(recipe.get("perspectives"))


def add_facts(info: DatasetInfo, perspective: str, facts: Mapping[str, Any]) -> None:
    """Put a perspective's own facts into the document, under its name."""
    cast("dict[str, Any]", info)[perspective] = facts


def facts_of(info: DatasetInfo, perspective: str) -> Mapping[str, Any] | None:
    """What `add_facts` put there; None without any."""
    return cast("dict[str, Any]", info).get(perspective)


def markdown_cell(text: str) -> str:
    """Text of others, safe inside a table."""
    return " ".join(text.split()).replace("\\", r"\\").replace("|", r"\|").replace("<", "&lt;")


def markdown_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A table with one line per row."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def plural(count: int, noun: str) -> str:
    """A count with its noun.

    >>> plural(1, "sample"), plural(1200, "sample"), plural(2, "modality")
    ('1 sample', '1,200 samples', '2 modalities')
    """
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{count:,} {noun if count == 1 else many}"
