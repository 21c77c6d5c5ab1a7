"""The MieDB protocol over a run: perception and transformation from pixels, modification by a judge.

Variants. `paper` (default): what the text promises. `as_released`: what the public script prints, quirks
included. They differ in B-PSNR and B-SSIM, in what a missing output does, and in exact matches (capped at
100 dB and counted, or infinite). Never mix them in one table.

Scoring is cut into chunks whose lines lie in `scores/.parts/` until all are there: killed at any point, the
same call goes on and ends with the same files, whatever the number of workers. A judge is asked once the
pixels are done, in this process; its replies lie in `judge/`, and what lies there is not asked again.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mie
from mie.analysis import read_score_table
from mie.analysis.scores import GROUP_KEYS, NO_OUTPUT
from mie.engines import run_tasks
from mie.errors import ImageError
from mie.images.files import atomic_path, atomic_write, folder_lock
from mie.judges import Judge, JudgeOptions, open_judge
from mie.protocols import check_variant
from mie.protocols.aggregate import summarise
from mie.protocols.chunks import Chunk, Output, make_chunks
from mie.protocols.decode import read_output, read_stored
from mie.protocols.miedb_rubric import RUBRIC, disagreement, fill_line, rubric_drafts
from mie.protocols.miedb_sample import METRICS, PSNR_CAP, Reference, metrics_of, score_output
from mie.records import Pixels
from mie.store.runs import Run, plain

NAME: Final = "miedb"
VERSION: Final = 1
# Below this many outputs the work is done before a pool of processes has started.
_POOL_FROM: Final = 300
_COLUMNS: Final = [*GROUP_KEYS, "id", "input", "target_image", "colour", "case_id", "patient_id"]


@dataclass(frozen=True, slots=True)
class _Task:
    chunk: Chunk
    variant: str
    judged: bool
    part: Path


def score_run(
    run_folder: Path | str,
    *,
    variant: str = "paper",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    judge: JudgeOptions | None = None,
) -> dict[str, Any]:
    """Score every output of a run; write `scores/` and `summary/` into its folder; return the summary.

    `workers` are processes: all cores by default, none beside this one when there is little to do. `progress`
    is told (done, total) outputs. `judge` grades modification samples, which have no number without one; of
    a dry run only the estimate is returned.
    """
    check_variant(variant)
    run = Run.open(run_folder)
    dataset = run.dataset()
    header = {
        "protocol": NAME,
        "variant": variant,
        "version": VERSION,
        "dataset_digest": dataset.digest,
        "edits_sha256": _sha256(run.folder / "edits.jsonl"),
        "mie": mie.__version__,
        "attempts": run.attempts,
        "metrics": METRICS if judge is None else (*METRICS, *RUBRIC),
    }
    name = f"{NAME}.{variant}"
    scores, summary = run.folder / "scores" / f"{name}.jsonl", run.folder / "summary" / f"{name}.json"
    parts = run.folder / "scores/.parts" / name
    with folder_lock(parts), contextlib.ExitStack() as stack:
        chunks = make_chunks(run, dataset)
        asked = None
        if judge is not None:  # first, so that a wrong key or a private dataset stops before any work
            asked = stack.enter_context(open_judge(judge, run.folder / "judge", dataset=dataset.info))
            if judge.dry_run:
                estimate = asked.estimate(rubric_drafts(chunks, variant))
                return {"protocol": NAME, "variant": variant, "run": str(run_folder), "dry_run": estimate}
        paths = _score_chunks(chunks, header, parts, workers, progress)
        if asked is None:
            _join(scores, header, map(Path.read_bytes, paths))
        else:
            header, lines = _judge_lines(asked, chunks, header, paths, progress)
            _join(scores, header, lines)
        document = _document(scores, str(run_folder))
        summary.parent.mkdir(exist_ok=True)
        atomic_write(summary, json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        # A worker of a call that was killed may still be writing there; what it leaves harms nothing.
        shutil.rmtree(parts, ignore_errors=True)
    with contextlib.suppress(OSError):
        parts.parent.rmdir()  # unless another variant is being scored
    return document


def _score_chunks(
    chunks: list[Chunk],
    header: dict[str, Any],
    parts: Path,
    workers: int | None,
    progress: Callable[[int, int], None] | None,
) -> list[Path]:
    """The chunks' files, in order; those that an earlier call left are taken as they are."""
    paths = [parts / f"{chunk.number:05d}-{chunk.key(header)}.jsonl" for chunk in chunks]
    tasks = [
        _Task(chunk, header["variant"], "rubric" in header["metrics"], path)
        for chunk, path in zip(chunks, paths, strict=True)
        if not path.exists()
    ]
    total = sum(chunk.pairs for chunk in chunks)
    left = sum(task.chunk.pairs for task in tasks)
    done = total - left
    if workers is None and left < _POOL_FROM:
        workers = 1
    for pairs in run_tasks(_score_chunk, tasks, workers=workers):
        done += pairs
        if progress is not None:
            progress(done, total)
    return paths


def _score_chunk(task: _Task) -> int:
    """Write the lines of one chunk, all or nothing."""
    inputs = _Inputs()
    lines = [_line(row, outputs, task, inputs) for row, outputs in task.chunk.rows(_COLUMNS)]
    text = [json.dumps(plain(line), ensure_ascii=False, separators=(",", ":")) + "\n" for line in lines]
    atomic_write(task.part, "".join(text))
    return task.chunk.pairs


def _judge_lines(
    judge: Judge,
    chunks: Sequence[Chunk],
    header: Mapping[str, Any],
    parts: Sequence[Path],
    progress: Callable[[int, int], None] | None,
) -> tuple[dict[str, Any], Iterator[bytes]]:
    """The header with the judge on record, and the parts' lines with its numbers."""
    total = sum(chunk.pairs for chunk in chunks)
    answers = judge.ask(
        rubric_drafts(chunks, header["variant"]), progress and (lambda done: progress(done, max(done, total)))
    )
    record = {**judge.record(RUBRIC), "disagreement": disagreement(answers.values())}
    lines = (
        fill_line(line, answers, judge).encode()
        for part in parts
        for line in part.read_text(encoding="utf-8").splitlines(keepends=True)
    )
    return {**header, "judge": record}, lines


def _line(row: Mapping[str, Any], outputs: Sequence[Output], task: _Task, inputs: _Inputs) -> dict[str, Any]:
    applies = metrics_of(row["perspective"], row["task"])
    if task.judged and row["perspective"] == "modification":
        applies = RUBRIC
    return {
        "id": row["id"],
        "group": {key: row[key] for key in GROUP_KEYS},
        "patient": row["patient_id"],
        "case": row["case_id"],
        "applies": applies,
        "attempts": _attempts(row, outputs, task.variant, inputs) if applies else [],
    }


def _attempts(
    row: Mapping[str, Any], outputs: Sequence[Output], variant: str, inputs: _Inputs
) -> list[dict[str, Any]]:
    try:
        image, target = inputs.read(row["input"]["bytes"]), read_stored(row["target_image"]["bytes"])
        reference = Reference.of(row["perspective"], row["task"], row["colour"], image, target)
    except ImageError as error:
        return [_no_output(output.k, f"the sample's own images: {error.reason}") for output in outputs]
    return [_attempt(reference, output, variant) for output in outputs]


def _attempt(reference: Reference, output: Output, variant: str) -> dict[str, Any]:
    if output.path is None:
        return _no_output(output.k, output.reason)
    try:
        pixels = read_output(Path(output.path), variant)
    except ImageError as error:
        return _no_output(output.k, f"unreadable output: {error.reason}")
    return {"k": output.k, **score_output(reference, pixels, variant)}


def _no_output(k: int, reason: str) -> dict[str, Any]:
    return {"k": k, "metrics": {}, "unscored": {NO_OUTPUT: reason}}


class _Inputs:
    """Samples of one image follow each other and hold the same file: it is decoded once."""

    def __init__(self) -> None:
        self._data = b""
        self._pixels: Pixels

    def read(self, data: bytes) -> Pixels:
        if data != self._data:
            self._pixels, self._data = read_stored(data), data
        return self._pixels


def _sha256(path: Path) -> str:
    """Of the file's bytes; of none for a run that has not made its first edit."""
    return hashlib.sha256(path.read_bytes() if path.exists() else b"").hexdigest()


def _join(scores: Path, header: Mapping[str, Any], parts: Iterable[bytes]) -> None:
    with atomic_path(scores) as temporary, temporary.open("wb") as file:
        file.write((json.dumps(header, ensure_ascii=False) + "\n").encode())
        file.writelines(parts)


def _document(scores: Path, run: str) -> dict[str, Any]:
    table = read_score_table(scores)
    variant = table.header["variant"]
    return plain(
        {
            "protocol": NAME,
            "variant": variant,
            "run": run,
            "n_samples": len(table.ids),
            "groups": summarise(table, psnr_cap=PSNR_CAP if variant == "paper" else None),
            # Their rubric needs a judge; no number stands in for it.
            "not_covered": dict(table.not_covered),
            **({"judge": table.header["judge"]} if "judge" in table.header else {}),
            "drift": {"measured": int((table.drift >= 0).sum()), "flagged": int((table.drift == 1).sum())},
        }
    )
