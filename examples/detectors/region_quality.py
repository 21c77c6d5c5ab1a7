"""Join a cross-validation of the region detector into the file that ships.

    python examples/detectors/region_quality.py FINAL PART... -o detector-region.safetensors

FINAL and PART are folders of `mie train`: region.yaml as it is, and with `data: {part: [k, n]}` instead of
`measured` for every k. Each lesion was looked at by the one network that had not seen its patient. Prints a
table of what goes into the file.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mie.core.documents import markdown_table
from mie.networks import weights
from mie.networks.region import FORMAT
from mie.perspectives.modification.detectors.region import Looked, region_quality
from mie.training.region import with_quality


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("final", type=Path)
    parser.add_argument("parts", type=Path, nargs="+")
    parser.add_argument("-o", "--output", type=Path, required=True)
    given = parser.parse_args()
    looked = []
    for folder in (given.final, *given.parts):
        meta = weights.load(folder / "weights.safetensors", format=FORMAT).meta
        looked += [Looked(*one[:5], tuple(one[5])) for one in meta["looked"]]
    with_quality(given.final / "weights.safetensors", given.output, looked)
    rows = []
    for family, found in region_quality(looked).items():
        for name, of in (("all", found), *found["targets"].items()):
            counts = (f"{of[key]:,}" for key in ("lesions", "images", "patients"))
            rows.append([family, name, *counts, f"{of['sensitivity']:.2f}"])
        rows[-len(found["targets"]) - 1].append(f"{found['false_alarms']:.2f} of {found['places']:,}")
    head = [
        "family",
        "target",
        "lesions",
        "images",
        "patients",
        "sensitivity",
        "healthy places called lesions",
    ]
    print(markdown_table(head, [row + [""] * (len(head) - len(row)) for row in rows]))


if __name__ == "__main__":
    main()
