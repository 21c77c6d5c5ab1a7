"""A pack with new simulations in it, made once for several trainings (their `data.fresh` stays 0).

python examples/fresh_pack.py PACK -o OUT --per-target 200
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mie.training.pack_files import read_pack, write_pack
from mie.training.simulate import add_pairs, fresh_pairs, wide_jobs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("pack", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--per-target", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()

    pack = read_pack(options.pack)
    jobs = wide_jobs(pack, options.per_target, seed=options.seed)
    grown = add_pairs(pack, fresh_pairs(pack, jobs=jobs, seed=options.seed))
    write_pack(options.output, grown, lossy=95)
    print(f"{options.output}: {len(grown.rows) - len(pack.rows)} new pairs")


if __name__ == "__main__":
    main()
