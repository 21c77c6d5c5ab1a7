"""Files of scores written by hand."""

import json
from pathlib import Path

GROUP = dict.fromkeys(("perspective", "task", "modality", "anatomy", "target", "source"), "x")


def attempt(k, value=None, reason="no output"):
    if value is None:
        return {"k": k, "metrics": {}, "unscored": {"*": reason}}
    if isinstance(value, str) and value != "inf":
        return {"k": k, "metrics": {}, "unscored": {"dice": value}}
    return {"k": k, "metrics": {"dice": value}, "unscored": {}}


def write_scores(path: Path, samples, *, variant="paper", patients=None, digest="d" * 64) -> Path:
    """`samples`: id -> values of its attempts; None is no output, text is the reason of an unscored DICE."""
    attempts = max(len(values) for values in samples.values())
    header = {
        "protocol": "miedb",
        "variant": variant,
        "dataset_digest": digest,
        "edits_sha256": "",
        "mie": "0",
    }
    lines = [{**header, "attempts": attempts, "metrics": ["dice", "psnr"]}]
    for at, (name, values) in enumerate(samples.items()):
        lines.append(
            {
                "id": name,
                "group": GROUP,
                "patient": None if patients is None else patients[at],
                "case": name,
                "applies": ["dice"],
                "attempts": [attempt(k, value) for k, value in enumerate(values)],
            }
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path
