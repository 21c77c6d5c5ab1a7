"""An arm of an experiment: one training, its edits of the test samples, and what they are worth.

```text
OUT/arms/<arm>-<seed>/
  training/            as `mie train` writes it
  <perspective>/       the run, as `mie run` writes it: `mie score` and `mie review` take it
  records.json         one record for each edit; written last
OUT/packs/             for trainees that read packs
```

Every step is skipped where it is done, so the same command resumes an experiment wherever it was killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mie.core.files import atomic_write
from mie.core.hashing import canonical
from mie.datasets.dataset import Dataset, StoredSample
from mie.editors.run import run_editor
from mie.editors.runs import Run
from mie.errors import ConfigError, MieError
from mie.experiments.config import ExperimentConfig
from mie.images.png import decode_png
from mie.records import Pixels
from mie.training.config import TrainConfig, parse_config
from mie.training.latent_cache import content_key
from mie.training.trainee import make_trainee, trainee_class

Note = Callable[[str], None]
Measure = Callable[[StoredSample, Pixels], dict[str, float]]


@dataclass(frozen=True, slots=True)
class Arm:
    """One training: what it sees, and for how many steps."""

    name: str
    shares: Mapping[str, float]  # by perspective
    steps: int
    seed: int
    without: Sequence[Mapping[str, str]] = field(default_factory=tuple)  # samples that have all these values
    label: str = ""

    @property
    def folder(self) -> str:
        return f"{self.name}-{self.seed}"


class Arms:
    """Trains and measures the arms of one experiment."""

    def __init__(
        self,
        config: ExperimentConfig,
        out: Path,
        device: str | None,
        note: Note,
        extra: Measure | None = None,
    ) -> None:
        """`extra` measures more about an output than its pixels' distance from the target image."""
        self.config, self.out, self.device, self.note, self.extra = config, out, device, note, extra
        self.datasets = {name: config.path(path) for name, path in config.datasets.items()}
        for name, path in self.datasets.items():
            samples = Dataset(path).filter(perspective=name, split=config.test.split)
            if not len(samples):
                raise ConfigError(
                    f"nothing to measure {name} on",
                    where=f"datasets.{name}",
                    expected=f"samples of {name} in the {config.test.split} split",
                    found=str(path),
                )

    def finished(self, arm: Arm) -> list[dict[str, Any]]:
        """Return the records of an arm, training and editing first where that has not been done."""
        folder = self.out / "arms" / arm.folder
        path = folder / "records.json"
        training = self.training(arm)
        known = content_key(canonical(training.decisive()), canonical(self.config.test.model_dump()))
        if path.is_file():
            body = json.loads(path.read_text(encoding="utf-8"))
            if body["key"] == known:
                return list(body["records"])
            raise MieError(
                "this folder contains the arm of another experiment",
                where=folder,
                fix="choose another output folder, or the file that the experiment started with",
            )
        product = self._trained(training, folder / "training", arm)
        records: list[dict[str, Any]] = []
        for perspective, dataset in self.datasets.items():
            run = self._edited(training, product, dataset, perspective, folder / perspective, arm)
            records += [
                {**record, "arm": arm.name, "seed": arm.seed} for record in records_of(run, self.extra)
            ]
        atomic_write(path, json.dumps({"key": known, "records": records}) + "\n")
        return records

    def training(self, arm: Arm) -> TrainConfig:
        """Return the arm's training file."""
        body = {**self.config.train, "name": arm.folder, "seed": arm.seed, "steps": arm.steps}
        kind = trainee_class(str(body.get("trainee", "omnigen2")))
        data = dict(body.get("data") or {})
        if kind.reads == "packs":
            data |= {"packs": [str(self._pack(arm))], "shares": dict(arm.shares)}
        else:
            data["datasets"] = [
                {
                    "path": str(self.datasets[name].resolve()),
                    "perspectives": [name],
                    "weight": share,
                    "leave_out": [dict(one) for one in arm.without if one.get("perspective") == name],
                }
                for name, share in arm.shares.items()
            ]
        return parse_config({**body, "data": data}, where="train", base=self.config.path("."))

    def _pack(self, arm: Arm) -> Path:
        """Return the pack without what the arm leaves out; made once for all arms that leave out the same."""
        from mie.training.pack import part_of, write_pack
        from mie.training.pack_datasets import pack_datasets

        folders = list(self.datasets.values())
        digests = [Dataset(folder).digest for folder in folders]
        path = (
            self.out
            / "packs"
            / content_key(canonical(digests), canonical([dict(o) for o in arm.without]))[:16]
        )
        if not (path / "pack.json").is_file():
            self.note("packing the datasets")
            whole = pack_datasets(folders)
            for values in arm.without:
                if not any(_has(row, values) for row in whole.rows):
                    raise ConfigError("nothing to leave out", found=canonical(dict(values)))
            keep = lambda row: not any(_has(row, values) for values in arm.without)
            path.parent.mkdir(parents=True, exist_ok=True)
            write_pack(path, part_of(whole, keep))
        return path

    def _trained(self, config: TrainConfig, folder: Path, arm: Arm) -> Path:
        from mie.training.loop import Progress, train

        def show(at: Progress) -> None:
            loss = "" if at.loss is None else f", loss {at.loss:.4g}"
            self.note(f"{arm.folder}: step {at.step} of {at.steps}{loss} {at.note}".rstrip())

        train(config, folder, device=self.device, progress=show)
        return folder / make_trainee(config).product

    def _edited(
        self, config: TrainConfig, product: Path, dataset: Path, perspective: str, folder: Path, arm: Arm
    ) -> Run:
        spec = make_trainee(config).editor(product)
        if spec is None:
            raise ConfigError(
                f"what {config.trainee} trains does not edit",
                where="train.trainee",
                expected="compact, omnigen2",
            )
        if self.config.editor_options:
            spec += f",{self.config.editor_options}"
        samples = Dataset(dataset).filter(perspective=perspective)
        return run_editor(
            samples,
            spec,
            folder,
            split=self.config.test.split,
            limit=self.config.test.limit,
            workers=1,
            progress=lambda at: self.note(f"{arm.folder}: editing {perspective}"),
        )


def _has(row: Any, values: Mapping[str, str]) -> bool:
    return all(getattr(row, name) == value for name, value in values.items())


def records_of(run: Run, extra: Measure | None = None) -> list[dict[str, Any]]:
    """Return one record for each sample of a run; an edit that failed has no scores."""
    edits, records = run.edits(), []
    wanted = set(run.sample_ids())
    for sample in run.dataset():
        if sample.id not in wanted:
            continue
        edit = edits.get((sample.id, 0))
        scores = {}
        if edit is not None and edit.state == "done":
            output = decode_png(run.output_path(sample.id, 0).read_bytes())
            scores = {**score_sample(sample, output), **(extra(sample, output) if extra else {})}
        records.append(record_of(sample, scores))
    return records


def record_of(sample: StoredSample, scores: dict[str, float]) -> dict[str, Any]:
    """Return what the tables need of a sample, and its scores."""
    return {
        **{name: getattr(sample, name) for name in ("id", "perspective", "task", "target", "source")},
        "patient": sample.patient_id or f"{sample.source}//{sample.case_id}",
        "scores": scores,
    }


def score_sample(sample: StoredSample, output: Pixels) -> dict[str, float]:
    """Measure one output from pixels, as `mie.training.compact_validation.score_case` does."""
    from mie.training.compact_validation import Case, score_case
    from mie.training.pack import Row, Wording

    colours = tuple(sample.colour.split(",")) if sample.colour else ()
    row = Row(
        id=sample.id,
        perspective=sample.perspective,
        task=sample.task,
        target=sample.target,
        key=None,
        modality=sample.modality,
        anatomy=sample.anatomy,
        source=sample.source,
        patient_id=sample.patient_id,
        license=sample.license,
        fold=sample.split,
        input=0,
        goal=0,
        mask=None,
        classes=len(colours),
        instruction=0,
    )
    area = None if sample.mask is None else sample.mask > 0
    wording = Wording(sample.prompt, sample.prompt_template, colours)
    return score_case(Case(row, wording, True, sample.input, sample.target_image, area), output)
