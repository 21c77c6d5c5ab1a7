"""The mean of two checkpoints' averaged weights, as one weights file of the compact editor.

python examples/compact/average.py OUT/checkpoints/step-004000 OUT/checkpoints/step-010000 -o FILE
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mie.editors.compact.network import NetConfig
from mie.editors.compact.weights import save_weights
from mie.training.checkpoint import read_ema


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoints", nargs=2, type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    first, second = (read_ema(folder) for folder in args.checkpoints)
    mean = {name: (first[name] + second[name]) / 2 for name in first}
    meta = {"mean_of": [folder.name for folder in args.checkpoints]}
    save_weights(args.output, mean, NetConfig(), meta)


if __name__ == "__main__":
    main()
