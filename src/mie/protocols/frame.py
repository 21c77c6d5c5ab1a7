"""A run's scores as a table for pandas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mie.errors import MieError

if TYPE_CHECKING:
    import pandas as pd  # type: ignore[import-untyped, unused-ignore]


def read_scores(run_folder: Path | str, protocol: str = "miedb", variant: str = "paper") -> pd.DataFrame:
    """One row for each sample and attempt: who it is, its metrics, why some have no number.

    Columns: `id`, `perspective`, `task`, `modality`, `anatomy`, `target`, `source`, `patient`, `k`, one for
    each metric (nan where it does not apply or was not scored), `class_dice_red` and the like, `unscored`
    (the reasons as text, "" where there are none), and `drift_dx`, `drift_dy`, `drift_scale`,
    `drift_response`, `drift_flag` where it was measured.
    """
    import pandas as pd

    path = Path(run_folder) / "scores" / f"{protocol}.{variant}.jsonl"
    if not path.is_file():
        raise MieError(
            "this run has no such scores",
            where=path,
            fix=f"run `mie score {run_folder} --protocol {protocol} --variant {variant}` first",
        )
    with path.open(encoding="utf-8") as file:
        header = json.loads(file.readline())
        rows = [row for line in file for row in _rows(json.loads(line))]
    frame = pd.DataFrame(rows)
    for name in header["metrics"]:
        if name in frame:
            frame[name] = frame[name].astype("float64")  # "inf" is text in the file
    return frame


def _rows(line: dict[str, Any]) -> list[dict[str, Any]]:
    who = {"id": line["id"], **line["group"], "patient": line["patient"]}
    return [
        {
            **who,
            "k": attempt["k"],
            **attempt["metrics"],
            **{f"class_dice_{colour}": value for colour, value in attempt.get("classes", {}).items()},
            "unscored": "; ".join(f"{name}: {reason}" for name, reason in attempt["unscored"].items()),
            **{f"drift_{name}": value for name, value in attempt.get("drift", {}).items()},
        }
        for attempt in line["attempts"]
    ]
