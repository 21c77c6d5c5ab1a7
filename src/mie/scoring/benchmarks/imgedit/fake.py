"""The fake score of ImgEdit-Bench: how many of a run's outputs a forensic detector takes for fake.

The detector is one that `mie train` trained, or any other, whose verdicts come as a file. Every output is an
edit, so all of them are positives and the score is the detector's recall; a lower one means edits that are
harder to tell. A detector that calls everything fake has recall 1, so `false_alarms` on the inputs stand
beside it.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from mie.core.files import atomic_path, digest
from mie.editors.outputs import read_output
from mie.editors.runs import Run
from mie.errors import ConfigError, MieError
from mie.images.hashes import checksum
from mie.scoring.clusters import clusters_of_samples
from mie.scoring.statistics import mean_interval

_WORDS: Final = {
    "1": 1.0,
    "true": 1.0,
    "yes": 1.0,
    "fake": 1.0,
    "0": 0.0,
    "false": 0.0,
    "no": 0.0,
    "real": 0.0,
}


def detect(
    run_folder: Path | str,
    detector: Path | str,
    *,
    threshold: float = 0.5,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Any]:
    """Ask a trained detector about every first output and every input; return what `fake_score` does.

    The verdicts are kept in the run, as `fake/<digest of the detector>.csv` with the probability of each.
    Beside the score: `false_alarms`, the same measure of the inputs, each distinct image once, and how many
    outputs equal their input. An input that was generated itself is no false alarm: score removals, not
    additions.
    """
    from mie.networks.forensic import fake_probability, load_forensic  # verdicts of others need no torch

    run = Run.open(run_folder)
    net = load_forensic(Path(detector))
    dataset = run.dataset()
    ids = set(run.sample_ids(dataset))
    edits = {sample for (sample, k), edit in run.edits().items() if k == 0 and edit.state == "done"}
    said: dict[str, float] = {}
    inputs: dict[str, tuple[float, tuple[str | None, str]]] = {}
    unchanged = done = 0
    for sample in dataset.samples(run.info["config"]["split"]):
        if sample.id not in ids or sample.id not in edits:
            continue
        progress(done, len(edits))
        done += 1
        key = f"{checksum(sample.input):x}"
        if key not in inputs:
            owner = (sample.patient_id, f"{sample.source} {sample.case_id}")
            inputs[key] = fake_probability(net, sample.input), owner
        try:
            output = read_output(run.output_path(sample.id, 0), like=sample.input.shape).image
        except MieError:
            continue  # without a verdict: unscored
        unchanged += bool(np.array_equal(output, sample.input))
        said[sample.id] = fake_probability(net, output)
    path = run.folder / "fake" / f"{digest(Path(detector))[:16]}.csv"
    path.parent.mkdir(exist_ok=True)
    with atomic_path(path) as temporary:
        lines = [f"{name},{'yes' if p >= threshold else 'no'},{p:.6f}\n" for name, p in said.items()]
        temporary.write_text("sample_id,fake,probability\n" + "".join(lines), encoding="utf-8")
    alarms = [float(p >= threshold) for p, _ in inputs.values()]
    owners = {key: owner for key, (_, owner) in inputs.items()}
    return {
        **fake_score(run_folder, path),
        "false_alarms": _share(alarms, list(inputs), owners),
        "outputs_equal_to_their_input": unchanged,
        "threshold": threshold,
        "verdicts": str(path),
    }


def fake_score(run_folder: Path | str, verdicts: Path | str) -> dict[str, Any]:
    """`mean`, `n`, `unscored` and `ci95` over the outputs of a run's first attempts.

    `verdicts` is a CSV file with the columns `sample_id` and `fake` (yes or no, 1 or 0, fake or real). An
    output without a verdict is unscored, and so is a sample without an output; neither is a number. The
    interval is over patients, or images where the patient is unknown.
    """
    run = Run.open(run_folder)
    dataset = run.dataset()
    said = _read(Path(verdicts))
    table = dataset.table(["id", "patient_id", "source", "case_id"])
    about = zip(table["patient_id"], table["source"], table["case_id"], strict=True)
    identities = {
        sample: (patient, f"{source} {case}")
        for sample, (patient, source, case) in zip(table["id"], about, strict=True)
    }
    ids = run.sample_ids(dataset)
    strangers = sorted(set(said) - set(ids))
    if strangers:
        raise ConfigError(
            "a verdict about a sample that is not of this run", where=verdicts, found=strangers[0]
        )
    made = {
        sample for (sample, attempt), edit in run.edits().items() if attempt == 0 and edit.state == "done"
    }
    scored = [sample for sample in ids if sample in made and sample in said]
    values = [said[sample] for sample in scored]
    return {**_share(values, scored, identities), "unscored": len(ids) - len(values)}


def _share(
    values: list[float], names: list[str], identities: Mapping[str, tuple[str | None, str]]
) -> dict[str, Any]:
    return {
        "mean": sum(values) / len(values) if values else float("nan"),
        "n": len(values),
        **mean_interval(values, clusters_of_samples(names, identities), bounds=(0, 1)).entry,
    }


def _read(path: Path) -> dict[str, float]:
    found: dict[str, float] = {}
    try:
        with path.open(encoding="utf-8-sig", newline="") as file:
            rows = csv.DictReader(file)
            if not {"sample_id", "fake"} <= set(rows.fieldnames or ()):
                raise ConfigError("not a file of verdicts", where=path, expected="columns sample_id and fake")
            for row in rows:
                where = f"{path}:{rows.line_num}"
                word = str(row["fake"]).strip().lower()
                if word not in _WORDS:
                    raise ConfigError("not a verdict", where=where, expected="yes or no", found=row["fake"])
                if row["sample_id"] in found:
                    raise ConfigError("two verdicts on one sample", where=where, found=row["sample_id"])
                found[row["sample_id"]] = _WORDS[word]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError("cannot read the verdicts", where=path, found=error) from None
    return found
