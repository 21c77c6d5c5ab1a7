"""The rotation's table: each data set by the training that never saw it.

    python examples/rotation/table.py RUNS

DICE with 95% intervals over patients. `elsewhere` is the share of the rows whose target another data
set teaches under the same name; the macro means are over data sets, of all rows and of those rows alone. A
data set that no fold trains on is scored by all of them.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from mie.training.compact_validation import summary


def read(runs: Path) -> list[dict[str, Any]]:
    """The records of all folds, each with `elsewhere`."""
    records = []
    for path in sorted(runs.glob("*.scores.json")):
        scored = json.loads(path.read_text(encoding="utf-8"))
        known = set(scored["trained_elsewhere"])
        for record in scored["records"]:
            taught = f"{record['modality']}/{record['target']}" in known
            records.append({**record, "fold": path.name.removesuffix(".scores.json"), "elsewhere": taught})
    return records


def table(records: list[dict[str, Any]]) -> str:
    result = summary(records, "dice", by=lambda r: r["source"])
    taught = [r for r in records if r["elsewhere"]]
    lines = ["| data set | DICE | rows | patients | elsewhere |", "| --- | --- | --- | --- | --- |"]
    for source, one in result["groups"].items():
        mine = [r for r in records if r["source"] == source]
        share = sum(r["elsewhere"] for r in mine) / len(mine)
        lines.append(f"| {source} | {interval(one)} | {one['rows']} | {one['patients']} | {share:.0%} |")
    lines.append(f"| **macro, all rows** | {interval(result['macro'])} | {result['rows']} | | |")
    if taught:
        same = summary(taught, "dice", by=lambda r: r["source"])
        lines.append(
            f"| **macro, targets taught elsewhere** | {interval(same['macro'])} | {same['rows']} | | |"
        )
    if result["unscored"]:
        lines.append(f"\n{result['unscored']} rows unscored.")
    return "\n".join(lines)


def interval(value: dict[str, Any]) -> str:
    if value["low"] is None:
        return f"{value['mean']:.3f}"
    return f"{value['mean']:.3f} ({value['low']:.3f} to {value['high']:.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("runs", type=Path)
    options = parser.parse_args()
    records = read(options.runs)
    if not records:
        raise SystemExit(f"no NAME.scores.json in {options.runs}")
    print(table(records))


if __name__ == "__main__":
    main()
