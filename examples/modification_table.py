"""What a modification dataset holds, by modality: pairs, who checked them, what was refused.

    python examples/modification_table.py DATASET [--second]

The tables of examples/modification.md. "Checked" counts pairs with a detector that is trusted for the
lesion's name. With --second, what a detector that is not trusted says of checked pairs: those that are find
nothing in any of them after removal.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from functools import cache
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from mie.core.documents import markdown_table
from mie.datasets.dataset import Dataset, StoredSample
from mie.errors import ConfigError
from mie.perspectives.modification.counterfactual import HIT
from mie.perspectives.modification.detectors import Detector, Inspector, found_within, make_detector
from mie.records import Mask, Pixels

GATES = ("area", "border", "detector", "texture", "seam", "place")
CHECKERS = ("compact", "region", "compact and region")
HEAD = [
    "modality",
    "pairs",
    "of them from health",
    "checked by a trusted detector: `compact` / `region` / both",
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
    parser.add_argument("--second", action="store_true", help="ask the other detector too (some minutes)")
    given = parser.parse_args()
    if given.second:
        second(Dataset(given.dataset))
        return
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
                who = " and ".join([detector["name"], *detector.get("others", ())])
                count[f"checked by {who}"] += 1
    rows = []
    for modality, of in facts.items():
        count = counts[modality]
        rows.append([
            modality,
            count["pairs"],
            count["from_health"],
            " / ".join(str(count[f"checked by {who}"]) for who in CHECKERS),
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


OTHER = {"compact": "region", "region": "compact"}


def second(dataset: Dataset) -> None:
    """What the other detector finds where a lesion was, of pairs that one checked alone, and in the mirrored
    place of the image with the lesion, if none is marked there.
    """
    counts: dict[tuple[str, str], Counter[str]] = {}
    for sample in track(dataset, "asking", total=len(dataset), console=Console(stderr=True)):
        asked = sample.params["detector"]
        if sample.task != "removal" or not asked["trusted"] or sample.params.get("from_health"):
            continue
        detector = None if "others" in asked else opened(OTHER[asked["name"]], sample.params["family"])
        if detector is None:
            continue
        count = counts.setdefault((sample.modality, detector.name), Counter())
        area = np.asarray(sample.mask) > 0
        count["pairs"] += 1
        count["before"] += found(detector, sample.input, area, sample)
        count["after"] += found(detector, sample.target_image, area, sample)
        mirrored = area[:, ::-1]
        if not (area & mirrored).any():
            count["mirrored"] += 1
            count["elsewhere"] += found(detector, sample.input, mirrored, sample)
    head = ("modality", "asked", "pairs", "lesion found before", "found after", "found in the mirrored place")
    rows = [
        (
            modality,
            f"`{name}`",
            *(str(count[key]) for key in ("pairs", "before", "after")),
            f"{count['elsewhere']} of {count['mirrored']}",
        )
        for (modality, name), count in sorted(counts.items())
    ]
    print(markdown_table(head, rows))


@cache
def opened(name: str, family: str) -> Detector | Inspector | None:
    try:
        return make_detector(name, family=family)
    except ConfigError:  # it does not know such images
        return None


def found(detector: Detector | Inspector, image: Pixels, area: Mask, sample: StoredSample) -> bool:
    """As the gate counts it: a tenth of the lesion's pixels, anywhere in the area."""
    pixels = int(found_within(detector, image, area).mask.sum())
    return pixels >= HIT * int(sample.params["lesion_pixels"])


def share(count: dict[str, int] | None) -> str:
    return f"{count['yes']} of {count['of']}" if count and count["of"] else "no detector"


if __name__ == "__main__":
    main()
