"""The fake score of ImgEdit-Bench: how many of a run's outputs a forensic detector takes for fake.

mie has no detector: you run one, and bring its verdicts as a file. Every output is an edit, so all of them
are positives and the score is the detector's recall. A lower one means edits that are harder to tell.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any, Final

from mie.editors.runs import Run
from mie.errors import ConfigError
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
    return {
        "mean": sum(values) / len(values) if values else float("nan"),
        "n": len(values),
        "unscored": len(ids) - len(values),
        **mean_interval(values, clusters_of_samples(scored, identities), bounds=(0, 1)).entry,
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
