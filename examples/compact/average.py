"""The mean of several checkpoints' averaged weights, as one weights file of the compact editor.

    python examples/compact/average.py OUT/checkpoints/step-004000 OUT/checkpoints/step-010000 -o FILE

The network's shape is that of OUT/weights.safetensors.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mie.editors.compact.weights import load_weights, save_weights
from mie.training.checkpoint import read_ema


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    states = [read_ema(folder) for folder in args.checkpoints]
    mean = {name: sum(state[name] for state in states) / len(states) for name in states[0]}
    _, config, _ = load_weights(args.checkpoints[0].parent.parent / "weights.safetensors")
    save_weights(args.output, mean, config, {"mean_of": [folder.name for folder in args.checkpoints]})


if __name__ == "__main__":
    main()
