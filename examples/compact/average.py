"""The averaged weights of a checkpoint, or the mean of several, as a weights file of the compact editor.

    python examples/compact/average.py OUT/checkpoints/step-006000 OUT/checkpoints/step-007000 -o FILE

OUT is a folder of `mie train`, complete or not.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from mie.errors import ConfigError
from mie.networks.weights import fit
from mie.training.checkpoints import read_ema
from mie.training.config import parse_config
from mie.training.folder import TrainingFolder, without_folders
from mie.training.trainee import make_trainee


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("checkpoints", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    args = parser.parse_args()
    out = args.checkpoints[0].resolve().parents[1]
    info = TrainingFolder(out).info()
    if info is None:
        raise ConfigError("not a training's folder", where=out, expected="train.json", found="none")
    states = [read_ema(folder) for folder in args.checkpoints]
    mean = {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}
    config = info["config"]
    # The trunk's weights are in the checkpoints; those to start from also say what shape the network has.
    shape = {**config["model"], "trunk": None}
    trainee = make_trainee(parse_config({**config, "model": shape}))
    trainee.check()  # reads the packs, whose wordings go into the file
    model = trainee.model().eval()
    fit(model, mean, args.checkpoints[0])
    facts = {
        "mean_of": [folder.name for folder in args.checkpoints],
        "config": without_folders(config),
        "data_digests": info["decisive"]["data_digests"],
        "versions": info["versions"],
    }
    trainee.save(model, args.output, facts)


if __name__ == "__main__":
    main()
