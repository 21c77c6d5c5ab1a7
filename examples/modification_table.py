"""What a modification dataset holds, by modality: pairs, who checked them, what was refused.

    python examples/modification_table.py DATASET

The table of examples/modification.md. "Checked" counts pairs whose detector is trusted for the lesion's name.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from pathlib import Path

from mie.core.documents import markdown_table
from mie.datasets.dataset import Dataset

GATES = ("area", "border", "detector", "texture", "seam", "place")
HEAD = [
    "modality",
    "pairs",
    "of them from health",
    "checked by a trusted detector: `compact` / `region`",
    "by `compact` / `flow` / `exemplar`",
    f"refused: {', '.join(GATES)}",
    "lesion found before",
    "in the test split",
    "still found after",
    "seam",
]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("dataset", type=Path)
    given = parser.parse_args()
    facts = json.loads((given.dataset / "dataset.json").read_text(encoding="utf-8"))["modification"]
    # Counted from the samples: a pair may pass its gates and leave the dataset later, as a near-duplicate.
    counts: dict[str, Counter[str]] = {}
    for sample in Dataset(given.dataset):
        if sample.task == "removal":
            params, count = sample.params, counts.setdefault(sample.modality, Counter())
            detector = params.get("detector") or {}
            count["pairs"] += 1
            count["from_health"] += bool(params.get("from_health"))
            count[params["inpainter"]] += 1
            if detector.get("trusted"):
                count["checked"] += 1
                count[f"checked by {detector['name']}"] += 1
    rows = []
    for modality, of in facts.items():
        count = counts[modality]
        rows.append([
            modality,
            count["pairs"],
            count["from_health"],
            f"{count['checked by compact']} / {count['checked by region']}",
            " / ".join(str(count[name]) for name in ("compact", "flow", "exemplar")),
            ", ".join(str(of["refused"].get(gate, 0)) for gate in GATES),
            *(share(of.get(key)) for key in ("lesion_found", "lesion_found_held_out", "lesion_left")),
            f"{of['seam']:.2f}",
        ])  # fmt: skip
    print(markdown_table(HEAD, [[str(cell) for cell in row] for row in rows]))
    pairs, health, checked = (
        sum(count[key] for count in counts.values()) for key in ("pairs", "from_health", "checked")
    )
    print(f"\n{pairs:,} pairs, {health} of them from health; {checked:,} ({checked / pairs:.0%}) checked")


def share(count: dict[str, int] | None) -> str:
    return f"{count['yes']} of {count['of']}" if count and count["of"] else "no detector"


if __name__ == "__main__":
    main()
