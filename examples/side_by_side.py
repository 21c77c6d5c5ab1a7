"""Several trainings at once on one GPU, each scored when it is done.

    python examples/side_by_side.py CONFIGS/*.yaml -o RUNS --packs PACK... [--left-out]

Small trainings leave most of a large GPU idle; eight of them fill it. Each gets RUNS/NAME (the folder of
`mie train`), RUNS/NAME.scores.json and RUNS/NAME.log. The same command goes on after an interruption:
finished trainings and scores stay.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

SCORE = Path(__file__).parent / "score_pack.py"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("configs", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--packs", nargs="+", required=True, help="evaluation packs (mie pack --split test)")
    parser.add_argument("--left-out", action="store_true", help="score the sources that each left out")
    parser.add_argument("--device", help="cpu or cuda")
    options = parser.parse_args()

    options.output.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(len(options.configs)) as pool:
        codes = list(pool.map(lambda config: one(config, options), options.configs))
    failed = [str(config) for config, code in zip(options.configs, codes, strict=True) if code]
    if failed:
        raise SystemExit(f"failed: {', '.join(failed)}; see their logs in {options.output}")


def one(config: Path, options: argparse.Namespace) -> int:
    """Train and score; the first exit code that is not zero."""
    run = options.output / config.stem
    device = ["--device", options.device] if options.device else []
    commands = [[sys.executable, "-m", "mie", "train", str(config), "-o", str(run), *device]]
    scores = options.output / f"{config.stem}.scores.json"
    if not scores.exists():
        left_out = ["--left-out"] if options.left_out else []
        scored = [str(run), *options.packs, "-o", str(scores), *left_out, *device]
        commands.append([sys.executable, str(SCORE), *scored])
    # One thread each: the processes share the cores already.
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    with (options.output / f"{config.stem}.log").open("a") as log:
        for command in commands:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, env=environment).returncode
            if code:
                return code
    print(f"{config.stem}: done", flush=True)
    return 0


if __name__ == "__main__":
    main()
