"""A lesion kept out of modification but kept in perception: can it be edited by who has only seen it marked?

Three trainings of equal length: with everything (`seen`), without the lesion in modification (`held out`),
and without it anywhere (`absent`). All are measured on the test samples of modification that show the
lesion. The runs are ordinary ones: a judge and people can be asked about them with `mie score` and `mie
review`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Final

from mie.datasets.dataset import Dataset, StoredSample
from mie.errors import ConfigError
from mie.experiments.arms import Arm, Arms, Note
from mie.experiments.config import HoldoutConfig
from mie.experiments.results import Column, Results, untrained, write_results
from mie.images.families import family_of
from mie.records import Pixels

SEEN: Final = "seen"
HELD_OUT: Final = "held-out"
ABSENT: Final = "absent"
_LABELS: Final = {
    "none": "nothing (the input)",
    SEEN: "everything",
    HELD_OUT: "without the lesion in {}",
    ABSENT: "without the lesion anywhere",
}


def arms_of(config: HoldoutConfig) -> list[Arm]:
    steps = config.train.get("steps")
    if not isinstance(steps, int) or steps < 1:
        raise ConfigError(
            "no number of steps", where="train.steps", expected="a whole number from 1", found=steps
        )
    for key in ("out_of", "kept_in"):
        if getattr(config, key) not in config.datasets:
            raise ConfigError(
                f"no dataset of {getattr(config, key)}", where=key, expected=", ".join(config.datasets)
            )
    left_out = [{"perspective": name, "target": config.lesion} for name in (config.out_of, config.kept_in)]
    shares = dict.fromkeys(config.datasets, 1.0)
    plan: tuple[tuple[str, list[dict[str, str]]], ...] = (
        (SEEN, []),
        (HELD_OUT, left_out[:1]),
        (ABSENT, left_out),
    )
    labels = {name: text.format(config.out_of) for name, text in _LABELS.items()}
    return [
        Arm(name, shares, steps, seed, without, labels[name])
        for seed in config.seeds
        for name, without in plan
    ]


def run_holdout(config: HoldoutConfig, out: Path, *, device: str | None = None, note: Note = print) -> Path:
    """Train, edit, measure; return the report's page."""
    plan = arms_of(config)
    _refuse_unknown(config)
    extra = None if config.detector is None else detected(config.detector)
    arms = Arms(config, out, device, note, extra)
    records: dict[str, list[list[dict[str, Any]]]] = {
        "none": [_grouped(untrained(config, arms.datasets, extra), config)]
    }
    labels = {"none": _LABELS["none"]}
    for arm in plan:
        note(f"{arm.folder}: trained on {arm.label}")
        records.setdefault(arm.name, []).append(_grouped(arms.finished(arm), config))
        labels[arm.name] = arm.label
    columns = _columns(config, records)
    pairs = [
        (first, second, column)
        for column in columns
        for first, second in ((HELD_OUT, ABSENT), (HELD_OUT, SEEN), (HELD_OUT, "none"))
    ]
    runs = out / "arms" / f"{HELD_OUT}-{config.seeds[0]}" / config.out_of
    about = [
        f"The lesion is {config.lesion!r}. Every arm is trained for {config.train['steps']} steps on equal "
        f"shares of {' and '.join(config.datasets)}. Gains are in the edited area, over the input; for a "
        "hole over the hole filled with the mean of the rest.",
        "Detector: "
        + (config.detector or "none was given; set `detector`")
        + ". What it finds is not the truth: "
        "its own quality is in the reference of detectors.",
        f"A judge: `mie score {runs} --judge SPEC`, for each arm. People: `mie review`, with the arms' runs.",
        "Published: MieDB-100k shows pictures of a lesion that was held out of modification, and no figure.",
    ]
    results = Results("A lesion held out", config.name, labels, records, columns, pairs, about)
    return write_results(results, out / "report")


def _columns(config: HoldoutConfig, records: Mapping[str, Any]) -> list[Column]:
    there = {
        (record["perspective"], metric)
        for seeds in records.values()
        for some in seeds
        for record in some
        for metric in record["scores"]
    }
    lesion, out_of, kept_in = config.lesion, config.out_of, config.kept_in
    wanted = [
        Column(f"{out_of} of {lesion}", "psnr", "dB in the area", 2),
        Column(f"{out_of} of {lesion}", "gain_db", "gain, dB", 2),
        Column(f"{out_of} of {lesion}", "b_psnr", "dB outside it", 1),
        *(
            Column(f"{task} of {lesion}", "detected", "share in which a lesion is found", 2)
            for task in sorted({name.partition(" of ")[0] for name, metric in there if metric == "detected"})
        ),
        Column(f"{out_of} of others", "gain_db", "gain, dB", 2),
        Column(f"{kept_in} of {lesion}", "dice", "DICE", 3),
    ]
    return [column for column in wanted if (column.perspective, column.metric) in there]


def _grouped(records: list[dict[str, Any]], config: HoldoutConfig) -> list[dict[str, Any]]:
    """Return the records by what the table tells apart: the lesion and others; removal and addition, too."""
    grouped = []
    for record in records:
        what = config.lesion if record["target"] == config.lesion else "others"
        grouped.append({**record, "perspective": f"{record['perspective']} of {what}"})
        if "detected" in record["scores"]:
            found = {"detected": record["scores"]["detected"]}
            grouped.append({**record, "perspective": f"{record['task']} of {what}", "scores": found})
    return grouped


def detected(spec: str) -> Callable[[StoredSample, Pixels], dict[str, float]]:
    """Return a function that looks for a lesion in the edited area of an edit, for modification alone."""
    from mie.perspectives.modification.detectors import found_within, make_detector
    from mie.perspectives.modification.prepared import NAME as MODIFICATION

    open_detector = cache(lambda family: make_detector(spec, family=family))

    def look(sample: StoredSample, output: Pixels) -> dict[str, float]:
        family = family_of(sample.modality)
        if sample.perspective != MODIFICATION or sample.mask is None or family is None:
            return {}
        inside = sample.mask > 0
        if output.shape[:2] != inside.shape:
            return {}
        return {"detected": float(found_within(open_detector(family), output, inside).mask.any())}

    return look


def _refuse_unknown(config: HoldoutConfig) -> None:
    """The lesion must be in all that it is kept in, left out of, and measured on."""
    for perspective in (config.out_of, config.kept_in):
        dataset = Dataset(config.path(config.datasets[perspective]))
        for split in ("train", config.test.split):
            if not len(dataset.filter(perspective=perspective, target=config.lesion, split=split)):
                targets = sorted(set(dataset.table(["target"], split)["target"]))
                raise ConfigError(
                    f"no {perspective} of {config.lesion!r} in the {split} split",
                    where="lesion",
                    expected=", ".join(targets[:8]) or "samples",
                    found=str(dataset.folder),
                )
