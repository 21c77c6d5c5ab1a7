"""Files of scores: `scores/<benchmark>.<variant>.jsonl` and `summary/<benchmark>.<variant>.json` of a run.

The first is a header and then a line for each sample with its attempts; a metric of an attempt has a value,
or the reason why it has none. The second is the document that `mie score --json` prints. Everything that
writes or reads them goes through this module.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mie.core.documents import null_for_nan, read_document, write_document
from mie.core.files import atomic_path, make_folder
from mie.editors.runs import plain
from mie.errors import MieError

GROUP_KEYS: Final = ("perspective", "task", "modality", "anatomy", "target", "source")
NO_OUTPUT: Final = "*"  # the key of `unscored` that stands for every metric of the attempt


@dataclass(frozen=True, slots=True)
class Score:
    """One metric of one output: its value, or the reason why it has none."""

    metric: str
    value: float | None
    reason: str = ""

    @property
    def scored(self) -> bool:
        return self.value is not None


@dataclass(frozen=True, slots=True)
class Attempt:
    """What one attempt at a sample got."""

    body: Mapping[str, Any]

    @property
    def k(self) -> int:
        return int(self.body["k"])

    @property
    def values(self) -> dict[str, float]:
        """Metric -> value; infinity is text in the file."""
        return {name: float(value) for name, value in self.body["metrics"].items()}

    @property
    def reasons(self) -> Mapping[str, str]:
        """Metric -> why it has no value; `NO_OUTPUT` stands for all of them."""
        found: Mapping[str, str] = self.body.get("unscored", {})
        return found

    @property
    def has_output(self) -> bool:
        return NO_OUTPUT not in self.reasons

    @property
    def drift(self) -> Mapping[str, Any] | None:
        """How the output lies on the input, where it was measured (`metrics.Drift`)."""
        return self.body.get("drift")

    def score(self, metric: str) -> Score:
        """One metric: its value, or why there is none."""
        value = self.body["metrics"].get(metric)
        if value is not None:
            return Score(metric, float(value))
        reasons = self.reasons
        return Score(metric, None, reasons.get(metric) or reasons.get(NO_OUTPUT) or "does not apply")


@dataclass(frozen=True, slots=True)
class Line:
    """One sample of a file of scores."""

    body: Mapping[str, Any]

    @property
    def id(self) -> str:
        return str(self.body["id"])

    @property
    def group(self) -> Mapping[str, str]:
        """What the sample is, by `GROUP_KEYS` and the benchmark's own keys."""
        found: Mapping[str, str] = self.body["group"]
        return found

    @property
    def patient(self) -> str | None:
        return None if self.body["patient"] is None else str(self.body["patient"])

    @property
    def case(self) -> str:
        return str(self.body["case"])

    @property
    def applies(self) -> tuple[str, ...]:
        """The metrics that apply to the sample."""
        return tuple(self.body["applies"])

    @property
    def attempts(self) -> list[Attempt]:
        return [Attempt(body) for body in self.body["attempts"]]


def scores_path(run_folder: Path, benchmark: str, variant: str) -> Path:
    return run_folder / "scores" / f"{benchmark}.{variant}.jsonl"


def summary_path(run_folder: Path, benchmark: str, variant: str) -> Path:
    return run_folder / "summary" / f"{benchmark}.{variant}.json"


def benchmarks_of(run_folder: Path, variant: str) -> list[str]:
    """The benchmarks that a run has a summary or a file of scores of."""
    found = {
        path.name.removesuffix(f".{variant}.json") for path in run_folder.glob(f"summary/*.{variant}.json")
    }
    endings = run_folder.glob(f"scores/*.{variant}.jsonl")
    return sorted(found | {path.name.removesuffix(f".{variant}.jsonl") for path in endings})


def read_scores_file(path: Path) -> tuple[dict[str, Any], Iterator[Line]]:
    """The header, and the lines one at a time. `MieError` for what is no file of scores."""
    fix = "run `mie score` again"
    try:
        file = path.open(encoding="utf-8")
    except FileNotFoundError:
        raise MieError("no scores here", where=path, fix="run `mie score` first") from None
    lines = _objects(file, path, fix)
    header = next(lines, None)
    if header is None or not {"attempts", "metrics", "variant"} <= set(header):
        raise MieError("not a file of scores", where=path, found="no header", fix=fix)
    return header, map(Line, lines)


def _objects(file: Any, path: Path, fix: str) -> Iterator[dict[str, Any]]:
    with file:
        for number, text in enumerate(file, start=1):
            try:
                body = json.loads(text)
                if not isinstance(body, dict):
                    raise ValueError("not an object")
            except ValueError as error:
                where = f"{path}:{number}"
                raise MieError("not a file of scores", where=where, found=error, fix=fix) from None
            yield body


def write_scores_file(path: Path, header: Mapping[str, Any], parts: Iterable[bytes]) -> None:
    """The whole file or nothing; `parts` are whole lines, as `encode_line` makes them."""
    make_folder(path.parent)
    with atomic_path(path) as temporary, temporary.open("wb") as file:
        file.write((json.dumps(header, ensure_ascii=False) + "\n").encode())
        file.writelines(parts)


def encode_line(body: Mapping[str, Any]) -> str:
    return json.dumps(plain(body), ensure_ascii=False, separators=(",", ":")) + "\n"


def read_summary(path: Path) -> dict[str, Any]:
    """The document of a summary; `MieError` for anything else."""
    document = read_document(path, "summary of scores")
    if not isinstance(document.get("groups"), list):
        raise MieError(
            "not a summary of scores",
            where=path,
            expected="an object with `groups`",
            fix="run `mie score` again",
        )
    return document


def write_summary(path: Path, document: Mapping[str, Any]) -> dict[str, Any]:
    """Write the document and return it as JSON has it: no number is null, infinity is the text "inf"."""
    body: dict[str, Any] = plain(null_for_nan(document))
    make_folder(path.parent)
    write_document(path, body, allow_nan=False)
    return body


def number(value: Any) -> float:
    """A number of a document: null and "nan" are none, "inf" is infinite."""
    return math.nan if value is None else float(value)
