"""Run folders with scores written by hand, and ratings for them."""

import json
from pathlib import Path

from tests.scoring.statistics.files import GROUP

HEADER = {"protocol": "miedb", "variant": "paper", "version": 1, "dataset_digest": "d" * 64, "attempts": 1}


def write_scored_run(
    folder: Path, samples, *, editor="", protocol="miedb", variant="paper", **header
) -> Path:
    """`samples`: id -> {metric: value, or None for unscored}; ids `p3-…` belong to patient p3."""
    metrics = list(dict.fromkeys(name for values in samples.values() for name in values))
    lines = [{**HEADER, "protocol": protocol, "variant": variant, "metrics": metrics, **header}]
    for name, values in samples.items():
        scored = {key: value for key, value in values.items() if value is not None}
        unscored = {key: "no reason" for key, value in values.items() if value is None}
        lines.append(
            {
                "id": name,
                "group": GROUP,
                "patient": name.partition("-")[0] if name.startswith("p") else None,
                "case": name,
                "applies": list(values),
                "attempts": [{"k": 0, "metrics": scored, "unscored": unscored}],
            }
        )
    (folder / "scores").mkdir(parents=True, exist_ok=True)
    (folder / "run.json").write_text(
        json.dumps({"schema_version": 1, "editor": {"name": editor or folder.name, "spec": editor}})
    )
    path = folder / f"scores/{protocol}.{variant}.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


def write_ratings(path: Path, ratings, kind="rank") -> Path:
    """`ratings`: (sample, rater) -> {model: rank or score}."""
    rows = [
        {"sample_id": sample, "rater": rater, "run": model, kind: value}
        for (sample, rater), given in ratings.items()
        for model, value in given.items()
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path
