"""Fine-tuning on a few samples against showing them as examples (MedEBench's experiment).

For each task an editor is fine-tuned on 0, 4, 8 or 16 samples, 50 steps a sample; and an editor that takes
several images is shown 0, 1, 2 or 3 of the same samples, input and edited image, beside the image to edit.
Both edit the same test samples, scored by MedEBench: CP from pixels, EA and VQ by a judge.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from mie.core.files import atomic_write
from mie.core.hashing import canonical
from mie.datasets.dataset import Dataset, StoredSample
from mie.editors import open_editor
from mie.editors.base import Edited, Editor, Request, Turn
from mie.editors.run import run_editor
from mie.errors import ConfigError, MieError
from mie.experiments.arms import Note, record_of
from mie.experiments.config import FewShotConfig
from mie.experiments.results import Column, Results, write_results
from mie.records import Pixels
from mie.scoring.score import score
from mie.training.config import parse_config
from mie.training.latent_cache import content_key
from mie.training.trainee import make_trainee

TASKS: Final = 6
METRICS: Final = (("ea", "EA"), ("cp", "CP"), ("vq", "VQ"))
_ASK: Final = "The first image is to be edited. The others show the same edit, in pairs: before and after. {}"


class WithExamples(Editor):
    """An editor that is shown examples: each request gets their images as references."""

    def __init__(self, editor: Editor, examples: Sequence[StoredSample]) -> None:
        self._editor = editor
        self._images: list[Pixels] = [image for one in examples for image in (one.input, one.target_image)]
        self._about = {"examples": [one.id for one in examples]}
        self.deterministic, self.model = editor.deterministic, editor.model
        self.destination = editor.destination

    def about(self) -> dict[str, Any]:
        return {**self._editor.about(), **self._about}

    def load(self) -> None:
        self._editor.load()

    def close(self) -> None:
        self._editor.close()

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        text = _ASK.format(instruction) if self._images else instruction
        return self._editor.edit_request(Request(image, text, seed, history=history, references=self._images))


def run_fewshot(config: FewShotConfig, out: Path, *, device: str | None = None, note: Note = print) -> Path:
    """Train, edit, score; return the report's page."""
    dataset = Dataset(config.path(config.dataset))
    tasks = config.tasks or most_frequent(dataset)
    chosen = {task: few(dataset, task, max(*config.shots, *config.demonstrations, 1)) for task in tasks}
    records: dict[str, list[list[dict[str, Any]]]] = {}
    labels: dict[str, str] = {}
    for name, label, task, make in _cells(config, chosen, out, device, note):
        labels[name] = label
        found = records.setdefault(name, [[]])[0]
        found += _scored(config, dataset, task, out / "cells" / f"{name}-{content_key(task)[:8]}", make, note)
    columns = [
        Column(task, metric, f"{title}", 2) for task in ("all tasks", *tasks) for metric, title in METRICS
    ]
    records = {
        name: [[*some, *({**record, "perspective": "all tasks"} for record in some)] for some in seeds]
        for name, seeds in records.items()
    }
    about = [
        f"Tasks: {', '.join(tasks)}. {config.steps_per_shot} steps a sample; sets contain the smaller ones. "
        f"Judge: {config.judge or 'none, so EA and VQ are unscored'}.",
        "Published (MedEBench): InstructPix2Pix fine-tuned on a few samples against examples in context, "
        "six tasks; its figures are of its own test images and do not compare with these.",
    ]
    results = Results("A few samples: fine-tuned or shown", config.name, labels, records, columns, (), about)
    return write_results(results, out / "report")


def _cells(
    config: FewShotConfig, chosen: dict[str, list[StoredSample]], out: Path, device: str | None, note: Note
) -> Iterator[tuple[str, str, str, Any]]:
    """Yield name, label, task, and a function that opens the editor, for every cell of the table."""
    if config.train is None and config.in_context is None:
        raise ConfigError("nothing to compare", expected="train and base, or in_context, or both")
    if config.train is not None:
        for shots in config.shots:
            for task, samples in chosen.items():
                make: Any = partial(_tuned, config, task, samples[:shots], out, device, note)
                yield f"tuned-{shots}", f"fine-tuned on {shots}", task, make
    if config.in_context is not None:
        for count in config.demonstrations:
            for task, samples in chosen.items():
                make = partial(_shown, config, samples[:count])
                yield f"shown-{count}", f"shown {count}", task, make


def _shown(config: FewShotConfig, samples: Sequence[StoredSample]) -> WithExamples:
    return WithExamples(open_editor(_with_options(config.in_context or "", config)), samples)


def _tuned(
    config: FewShotConfig,
    task: str,
    samples: Sequence[StoredSample],
    out: Path,
    device: str | None,
    note: Note,
) -> str:
    """Return the spec of the editor fine-tuned on these samples; of the base itself without any."""
    from mie.training.loop import train

    body = {**(config.train or {})}
    data = {
        **body.get("data", {}),
        "datasets": [
            {"path": str(config.path(config.dataset).resolve()), "ids": [one.id for one in samples]}
        ],
        "validate_samples": 0,
    }
    name = f"tuned-{len(samples)}-{content_key(task)[:8]}"
    steps = max(1, config.steps_per_shot * len(samples))
    body |= {"name": name, "seed": config.seed, "steps": steps, "data": data}
    training = parse_config(body, where="train", base=config.path("."))
    trainee = make_trainee(training)
    if not samples:
        if config.base is None:
            raise ConfigError("no editor before training", where="base", expected="a spec, for 0 samples")
        return _with_options(config.base, config)
    folder = out / "trainings" / name
    train(training, folder, device=device, progress=lambda at: note(f"{name}: step {at.step} of {at.steps}"))
    spec = trainee.editor(folder / trainee.product)
    if spec is None:
        raise ConfigError(f"what {training.trainee} trains does not edit", where="train.trainee")
    return _with_options(spec, config)


def _scored(
    config: FewShotConfig, dataset: Dataset, task: str, folder: Path, make: Any, note: Note
) -> list[dict[str, Any]]:
    """Return the records of one cell; a finished one is read."""
    path = folder / "records.json"
    key = content_key(canonical(config.model_dump(mode="json")), dataset.digest, task)
    if path.is_file():
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["key"] != key:
            raise MieError(
                "this folder contains another experiment", where=folder, fix="choose another output folder"
            )
        return list(body["records"])
    samples = dataset.filter(task=task)
    split, limit = config.test.split, config.test.limit
    note(f"{folder.name}: editing {task}")
    run = run_editor(samples, make(), folder / "run", split=split, limit=limit, workers=1)
    results = score(run, "medebench", judge=config.judge, workers=1)
    values = {row["id"]: row for row in results.frame.reset_index().to_dict("records")}
    records = []
    for sample in dataset.filter(id=run.sample_ids()):
        row = values.get(sample.id, {})
        scores = {
            m: float(row[m]) for m, _ in METRICS if isinstance(row.get(m), int | float) and row[m] == row[m]
        }
        records.append({**record_of(sample, scores), "perspective": task})
    atomic_write(path, json.dumps({"key": key, "records": records}) + "\n")
    return records


def most_frequent(dataset: Dataset) -> list[str]:
    """Return the six tasks with most training samples."""
    counts = Counter(dataset.table(["task"], "train")["task"])
    return [task for task, _ in sorted(counts.items(), key=lambda one: (-one[1], one[0]))[:TASKS]]


def few(dataset: Dataset, task: str, count: int) -> list[StoredSample]:
    """Return `count` training samples of a task, of different patients where possible, by content."""
    samples = dataset.filter(task=task, split="train")
    if len(samples) < count:
        raise ConfigError(
            f"too few training samples of {task!r}", expected=f"at least {count}", found=len(samples)
        )
    order = sorted(samples, key=lambda sample: content_key("few", sample.id))
    seen: Counter[str] = Counter()
    turns: list[tuple[int, int, StoredSample]] = []
    for sample in order:
        patient = sample.patient_id or sample.case_id
        turns.append((seen[patient], len(turns), sample))
        seen[patient] += 1
    return [sample for _, _, sample in sorted(turns, key=lambda one: one[:2])[:count]]


def _with_options(spec: str, config: FewShotConfig) -> str:
    return f"{spec},{config.editor_options}" if config.editor_options else spec
