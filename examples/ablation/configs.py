"""The training files of the ablation: perception, modification, transformation or all, two seeds each.

    python examples/ablation/configs.py -o CONFIGS --pack PACK [--trunk FILE] [--steps 700] [--batch 32]

One network, one optimizer, the same number of steps and images in each: only the shares differ.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import yaml

SHARES: dict[str, dict[str, float]] = {
    "P": {"perception": 1},
    "M": {"modification": 1},
    "T": {"transformation": 1},
    "all": {"perception": 0.5, "modification": 0.2, "transformation": 0.3},
}


def config(
    name: str, shares: dict[str, float], seed: int, pack: str, trunk: str | None, steps: int, batch: int
) -> dict[str, Any]:
    return {
        "name": name,
        "trainee": "compact",
        "seed": seed,
        "steps": steps,
        "batch": batch,
        "optimizer": {"lr": 8.0e-4, "weight_decay": 0.05, "warmup": min(100, steps // 5), "floor": 0.01},
        "ema": 0.995,
        "precision": "bf16",
        # Eight cold compilations on shared cores would take longer than they save.
        "compile": False,
        "checkpoint": {"every": steps, "keep": 1},
        "validate": {"every": steps},
        "log_every": 50,
        "data": {
            "packs": [pack],
            "shares": shares,
            "holes": 0.4 if "modification" in shares else 0.0,
            "merge": True,
            "validate_rows": 100,
        },
        "model": {"trunk": trunk, "change": True},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--trunk", type=Path)
    parser.add_argument("--steps", type=int, default=700)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    options = parser.parse_args()

    options.output.mkdir(parents=True, exist_ok=True)
    trunk = str(options.trunk.resolve()) if options.trunk else None
    for kind, shares in SHARES.items():
        for seed in options.seeds:
            name = f"{kind}-{seed}"
            body = config(
                name, shares, seed, str(options.pack.resolve()), trunk, options.steps, options.batch
            )
            (options.output / f"{name}.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    print(f"{options.output}: {len(SHARES) * len(options.seeds)} files")


if __name__ == "__main__":
    main()
