"""Which perspective helps which: one editor trained on each perspective alone and on all of them.

Two comparisons, because they answer different questions. With equal *steps*, the arm that has all sees
fewer samples of each perspective than the arm that has only that one. With equal *samples*, it is trained
for as many more steps as it takes to see just as many samples of each.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

from mie.errors import ConfigError
from mie.experiments.arms import Arm, Arms, Note
from mie.experiments.config import SAMPLES, STEPS, AblationConfig
from mie.experiments.results import Column, Published, Results, untrained, write_results
from mie.scoring.benchmarks.miedb import MIEDB_ABLATION

ALL: Final = "all"
COLUMNS: Final = (
    Column("perception", "dice", "DICE", 3),
    Column("perception", "p_acc", "P-ACC", 3),
    Column("modification", "psnr", "modification, dB in the area", 2),
    Column("modification", "gain_db", "its gain, dB", 2),
    Column("transformation", "psnr", "transformation, dB", 2),
    Column("transformation", "gain_db", "its gain, dB", 2),
    Column("transformation", "ssim", "SSIM", 3),
)


def arms_of(config: AblationConfig) -> list[Arm]:
    """Return the trainings. `steps` of the training file is that of every arm with equal steps."""
    steps = config.train.get("steps")
    if not isinstance(steps, int) or steps < 1:
        raise ConfigError(
            "no number of steps", where="train.steps", expected="a whole number from 1", found=steps
        )
    names = list(config.datasets)
    unknown = [name for name in config.shares if name not in names]
    if unknown or (config.shares and set(config.shares) != set(names)):
        raise ConfigError(
            "the shares are not those of the datasets",
            where="shares",
            expected=", ".join(names),
            found=str(config.shares),
        )
    shares = config.shares or dict.fromkeys(names, 1.0)
    arms = []
    for seed in config.seeds:
        for name in names:
            arms.append(Arm(name, {name: 1.0}, steps, seed, label=f"{name} alone"))
        if STEPS in config.match:
            arms.append(Arm(ALL, shares, steps, seed, label="all, as many steps"))
        if SAMPLES in config.match:
            # Equal shares: then one number of steps gives each perspective the samples that it has alone.
            equal = dict.fromkeys(names, 1.0)
            label = "all, as many samples of each"
            arms.append(Arm(f"{ALL}-samples", equal, steps * len(names), seed, label=label))
    return arms


def run_ablation(config: AblationConfig, out: Path, *, device: str | None = None, note: Note = print) -> Path:
    """Train, edit, measure; return the report's page."""
    arms = Arms(config, out, device, note)
    records: dict[str, list[list[dict[str, Any]]]] = {}
    labels = {}
    for arm in (plan := arms_of(config)):
        note(f"{arm.folder}: {arm.label}")
        records.setdefault(arm.name, []).append(arms.finished(arm))
        labels[arm.name] = arm.label
    records = {"none": [untrained(config, arms.datasets)], **records}
    labels = {"none": "nothing (the input)", **labels}
    columns = [column for column in COLUMNS if column.perspective in config.datasets]
    published = Published(
        "MieDB-100k, OmniGen2; modification by a judge's rubric from 0 to 100. Its levels do not compare "
        "with ours: compare whether a column is higher with all than with its own perspective alone.",
        ("DICE", "P-ACC", "rubric", "PSNR", "SSIM"),
        tuple(
            (
                " + ".join(row.trained_on) or "nothing",
                (
                    f"{row.dice:.3f}",
                    f"{row.p_acc:.3f}",
                    f"{row.rubric:.1f}",
                    f"{row.psnr:.1f}",
                    f"{row.ssim:.3f}",
                ),
            )
            for row in MIEDB_ABLATION
        ),
    )
    counts = {arm.name: own_samples(arm, int(config.train.get("batch", 0))) for arm in plan}
    about = [
        "Means are over the samples of all seeds together; 95 % intervals draw whole patients. Gains are "
        "over the input, for a white hole over the hole filled with the mean of the rest.",
        *(f"{labels[name]}: {text}." for name, text in counts.items()),
    ]
    pairs = [
        (name, other, column)
        for column in columns
        for name, other in ((ALL, column.perspective), (f"{ALL}-samples", column.perspective))
        if name in records and other in records
    ]
    results = Results(
        "Which perspective helps which", config.name, labels, records, columns, pairs, about, published
    )
    return write_results(results, out / "report")


def own_samples(arm: Arm, batch: int) -> str:
    """Say how many samples of each perspective an arm sees."""
    whole = sum(arm.shares.values())
    counts = {name: round(arm.steps * batch * share / whole) for name, share in arm.shares.items()}
    return f"{arm.steps} steps, " + ", ".join(
        f"{count:,} samples of {name}" for name, count in counts.items()
    )
