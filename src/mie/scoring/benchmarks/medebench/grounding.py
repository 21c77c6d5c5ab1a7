"""MedEBench's attention grounding: does an editor look where it is to edit?

Variants. `paper`: the instruction and seed of a run, so the maps are those of the run's own edits.
`as_released`: the task's name is the instruction and the seed is 0, as in the released script; its other
settings (25 steps, 512x512) are options of the editor.

    FOLDER/grounding.jsonl   a header, then one line per sample, synced; a call that was stopped resumes
    FOLDER/grounding.json    means by organ, task and layer, the control, and the table of failures
    FOLDER/maps/             the map of each sample's concept, 0 to 255
"""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from mie.core.documents import null_for_nan, write_document
from mie.core.files import atomic_write, folder_lock
from mie.core.hashing import file_stem
from mie.core.journal import Journal
from mie.core.registry import unknown_name
from mie.core.spec import Spec
from mie.datasets.dataset import Dataset
from mie.editors.base import EditError, Editor, Origin, Request, opened
from mie.editors.requests import edit_seed
from mie.editors.runs import Run, chosen_ids
from mie.errors import ConfigError, MetricError, MieError
from mie.images.png import decode_png, encode_png
from mie.records import Mask, Pixels, Values
from mie.scoring.benchmarks import VARIANTS
from mie.scoring.benchmarks.medebench.attention import (
    MEASURES,
    concept_word,
    concepts_of,
    control_word,
    measure_map,
    normalised,
)
from mie.scoring.benchmarks.medebench.judge import mask_of, organ_of, task_of
from mie.scoring.clusters import clusters_of
from mie.scoring.reference import in_colour
from mie.scoring.results import Results
from mie.scoring.statistics.intervals import mean_interval

SCHEMA_VERSION: Final = 1
LINES: Final = "grounding.jsonl"
SUMMARY: Final = "grounding.json"
INSIDE: Final = 128  # of a soft mask
# The table of failures: above these an edit counts as located, executed, preserved.
LOCATED: Final = 0.3  # IoU
EXECUTED: Final = 0.5  # EA
PRESERVED: Final = 0.5  # CP


def ground(
    place: Path | str,
    output: Path | str,
    *,
    editor: str | Editor | None = None,
    variant: str = VARIANTS[0],
    split: str | None = None,
    limit: int | None = None,
    concepts: Mapping[str, str] | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Measure where an editor looks, on a run's samples or a dataset's, and write it to `output`.

    Args:
        place: A run's folder, or a dataset's.
        output: The folder to write to.
        editor: Whose attention; by default the run's own editor.
        variant: `paper` or `as_released`.
        split: Only this split, and
        limit: only so many samples, of a dataset.
        concepts: The concept of a task, where the task itself does not say it.
        progress: Told (done, total).

    Returns:
        The summary, as in `grounding.json`.

    """
    if variant not in VARIANTS:
        raise unknown_name("variant", variant, VARIANTS)
    run = Run.open(place) if (Path(place) / "run.json").is_file() else None
    dataset = run.dataset() if run is not None else Dataset(place)
    if editor is None and run is None:
        raise ConfigError("which editor?", where=place, fix="name one with --editor")
    if run is not None and (split is not None or limit is not None):
        raise ConfigError(
            "a run says itself which samples it has", where=place, fix="leave out split and limit"
        )
    ids = run.sample_ids(dataset) if run is not None else chosen_ids(dataset, split=split, limit=limit)
    folder, table = Path(output), dict(concepts or {})
    spec = editor if editor is not None else str(run.info["editor"]["spec"])  # type: ignore[union-attr]
    with opened(spec) as (model, origin), folder_lock(folder):
        from mie.editors.attention import check_watchable

        check_watchable(model)
        header = {
            "schema_version": SCHEMA_VERSION,
            "dataset": dataset.digest,
            "editor": _named(origin, model),
            "about": model.about(),
            "variant": variant,
            "concepts": table,
        }
        journal = Journal(folder / LINES)
        try:
            done = _resumed(journal, header)
            todo = [at for at, sample in enumerate(ids) if sample not in done]
            rows = dict(zip(dataset.table(["id"])["id"], range(len(dataset)), strict=True))
            for count, at in enumerate(todo):
                if progress is not None:
                    progress(len(done) + count, len(ids))
                row = dataset.row_index.row(rows[ids[at]])
                line = _Sample(row, variant, table, run).line(model, folder)
                journal.append(json.dumps(null_for_nan(line), ensure_ascii=False).encode() + b"\n")
            lines = list(_latest(journal).values())
        finally:
            journal.close()
        document = {**header, "folder": str(folder), **summarise(lines, _judged(run, variant))}
        write_document(folder / SUMMARY, document)
    return document


def _named(origin: Spec | Origin, editor: Editor) -> str:
    return origin.label if isinstance(origin, Origin) else str(origin.without(editor.tuning).masked())


def _resumed(journal: Journal, header: Mapping[str, Any]) -> set[str]:
    """The samples that have a line. Only the same dataset, editor and settings may resume."""
    lines = [json.loads(line) for line in journal.lines()]
    if not lines:
        journal.append(json.dumps(header).encode() + b"\n")
        return set()
    if lines[0] != json.loads(json.dumps(header)):
        differing = [
            key for key, value in header.items() if lines[0].get(key) != json.loads(json.dumps(value))
        ]
        raise MieError(
            "the folder holds the grounding of something else",
            where=journal.path,
            found=f"another {', '.join(differing) or 'header'}",
            fix="choose another folder",
        )
    return {name for name, line in _latest(journal).items() if not line.get("failed")}


def _latest(journal: Journal) -> dict[str, dict[str, Any]]:
    """The last line of each sample: an edit that failed is tried again when the command is."""
    lines = [json.loads(line) for line in journal.lines()][1:]
    return {line["id"]: line for line in lines}


@dataclass(frozen=True, slots=True)
class _Sample:
    row: Mapping[str, Any]
    variant: str
    table: Mapping[str, str]
    run: Run | None

    def line(self, editor: Editor, folder: Path) -> dict[str, Any]:
        row = self.row
        body: dict[str, Any] = {
            "id": row["id"],
            "organ": organ_of(row),
            "task": task_of(row),
            "patient": row["patient_id"],
            "case": f"{row['source']}/{row['case_id']}",
        }
        try:
            return {**body, **self._measured(editor, folder)}
        except EditError as error:
            return {**body, "reason": error.reason, "failed": True}
        except MieError as error:
            return {**body, "reason": error.reason}

    def _measured(self, editor: Editor, folder: Path) -> dict[str, Any]:
        from mie.editors.attention import FROM_WORD, TO_WORD, record_attention

        row, released = self.row, self.variant != VARIANTS[0]
        mask = mask_of(row)
        if mask is None:
            raise MieError("the sample has no region mask")
        task = task_of(row)
        instruction = task if released else str(row["prompt"])
        own = "medebench" in json.loads(row["params"])
        names = concepts_of(task, None if own else str(row["target"]), self.table)
        concept = concept_word(instruction, names)
        if concept is None:
            raise MieError("no word of the instruction says what to edit", found=repr(instruction))
        control = control_word(instruction, concept, row["id"])
        words = [concept] if control is None else [concept, control]
        image = in_colour(decode_png(row["input"]["bytes"]))
        request = Request(image.copy(), instruction, 0 if released else edit_seed(row["id"], 0))
        edited, attention = record_attention(editor, request, [word.end for word in words])
        region = mask >= INSIDE
        to_word, from_word = attention.mean(TO_WORD), attention.mean(FROM_WORD)
        assert to_word is not None  # noqa: S101 (every model has it)
        heat = f"maps/{file_stem(row['id'])}.png"
        found = {
            "instruction": instruction,
            "concept": concept.text,
            "control": None if control is None else control.text,
            "scores": measure_map(to_word[0], region),
            "control_scores": None if control is None else _measured(to_word[1], region),
            "from_word": None if from_word is None else _measured(from_word[0], region),
            "layers": {
                layer.name: (_measured(attention.of_layer(layer, TO_WORD)[0], region) or {}).get("iou")
                for layer in attention.layers
            },
            "map": heat,
        }
        same = self._as_in_run(edited.image)
        (folder / "maps").mkdir(exist_ok=True)
        atomic_write(folder / heat, encode_png(_grey(to_word[0])))
        return found if same is None else {**found, "as_in_run": same}

    def _as_in_run(self, image: Pixels) -> bool | None:
        """The edit is the one that the run holds; None where the run holds none."""
        if self.run is None or self.variant != VARIANTS[0]:
            return None
        path = self.run.output_path(self.row["id"], 0)
        return bool(np.array_equal(decode_png(path.read_bytes()), image)) if path.is_file() else None


def _measured(values: Values, region: Mask) -> dict[str, float] | None:
    """What is measured beside the protocol's own number: a flat map has no value, but costs no sample."""
    try:
        return measure_map(values, region)
    except MetricError:
        return None


def _grey(values: Values) -> Pixels:
    return np.asarray(np.rint(normalised(values) * 255), np.uint8)


Judged = Mapping[str, tuple[float | None, float | None]]  # sample -> EA, CP


def _judged(run: Run | None, variant: str) -> Judged | str:
    """EA and CP of a run's first attempts, or why there are none."""
    if run is None:
        return "a dataset has no scores: give a run"
    try:
        results = Results.open(run.folder, "medebench", variant)
        scores = {}
        for line in results.lines():
            values = line.attempts[0].values if line.attempts else {}
            scores[line.id] = (values.get("ea"), values.get("cp"))
    except MieError as error:
        return error.reason
    if all(ea is None for ea, _ in scores.values()):
        return "the run has no EA: score it by medebench with a judge"
    return scores


def summarise(lines: Sequence[Mapping[str, Any]], judged: Judged | str) -> dict[str, Any]:
    """Means of what was measured, and why the rest was not."""
    scored = [line for line in lines if "scores" in line]
    controlled = [line for line in scored if line["control_scores"] is not None]
    reverse = [line for line in scored if line["from_word"] is not None]
    layers: dict[str, list[float]] = defaultdict(list)
    for line in scored:
        for name, iou in line["layers"].items():
            if iou is not None:
                layers[name].append(iou)
    return {
        "samples": len(lines),
        "scored": len(scored),
        "unscored": dict(Counter(line["reason"] for line in lines if "scores" not in line)),
        "means": _means(scored, lambda line: line["scores"]),
        "control": _means(controlled, lambda line: line["control_scores"]),
        "over_control": _means(
            controlled,
            lambda line: {m: line["scores"][m] - line["control_scores"][m] for m in MEASURES},
            bounds=(-1, 1),
        ),
        "from_word": _means(reverse, lambda line: line["from_word"]),
        "layers": {name: float(np.mean(values)) for name, values in layers.items()},
        "by_organ": _by(scored, "organ"),
        "by_task": _by(scored, "task"),
        "failures": {"reason": judged} if isinstance(judged, str) else failures(scored, judged),
    }


def failures(lines: Iterable[Mapping[str, Any]], judged: Judged) -> dict[str, Any]:
    """Located or not against executed or not, with the mean EA and CP of each of the four."""
    cells: dict[str, list[tuple[float, float, float | None]]] = {
        name: [] for name in ("located_executed", "located_not_executed", "executed_elsewhere", "mislocated")
    }
    missing = 0
    for line in lines:
        ea, cp = judged.get(line["id"], (None, None))
        if ea is None:
            missing += 1
            continue
        located, executed = line["scores"]["iou"] >= LOCATED, ea >= EXECUTED
        name = ("located_" if located else "") + ("executed" if executed else "not_executed")
        name = {"executed": "executed_elsewhere", "not_executed": "mislocated"}.get(name, name)
        cells[name].append((line["scores"]["iou"], ea, cp))
    return {
        "thresholds": {"iou": LOCATED, "ea": EXECUTED, "cp": PRESERVED},
        "without_ea": missing,
        **{name: _cell(rows) for name, rows in cells.items()},
    }


def _cell(rows: Sequence[tuple[float, float, float | None]]) -> dict[str, Any]:
    preserved = [cp for _, _, cp in rows if cp is not None]
    return {
        "n": len(rows),
        "iou": float(np.mean([iou for iou, _, _ in rows])) if rows else None,
        "ea": float(np.mean([ea for _, ea, _ in rows])) if rows else None,
        "cp": float(np.mean(preserved)) if preserved else None,
        "preserved": sum(cp >= PRESERVED for cp in preserved),
    }


def _by(lines: Sequence[Mapping[str, Any]], key: str) -> dict[str, Any]:
    groups: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for line in lines:
        groups[line[key]].append(line)
    return {name: _means(groups[name], lambda line: line["scores"]) for name in sorted(groups)}


def _means(
    lines: Sequence[Mapping[str, Any]],
    scores: Callable[[Mapping[str, Any]], Mapping[str, float]],
    bounds: tuple[float, float] = (0, 1),
) -> dict[str, Any] | None:
    """Mean and 95% interval over patients of every measure; None without any line."""
    if not lines:
        return None
    clusters = clusters_of([line["patient"] for line in lines], [line["case"] for line in lines])
    means: dict[str, Any] = {"n": len(lines)}
    for name in MEASURES:
        interval = mean_interval([scores(line)[name] for line in lines], clusters, bounds=bounds)
        means[name] = {"mean": interval.value, **null_for_nan(interval.entry)}
    return means
