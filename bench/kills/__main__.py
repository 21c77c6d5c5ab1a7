"""Kill every long command of `mie` anywhere, and make its disk fail; print what did not end as it should.

python -m bench.kills --kills 1000 --seed 1          the table below, and kills.json
python -m bench.kills --verb train --case 17         one case again, with its faults in full

A case starts one command, lets up to four faults come, and then runs it undisturbed. The kinds of faults and
what must follow from each stand in `harness.py`. Commands are forked from a process that did the imports,
with the injector `faults.c` in it, which sees the system calls themselves. It needs Linux and a C compiler.
Random moments repeat only as well as the machine's timing does. Power cuts are not simulated: what was
written but not synced survives SIGKILL.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from bench.kills.harness import Harness, Outcome, harness
from bench.kills.review import review_case


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--kills", type=int, default=1000, help="stop after so many faults that came")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--verb", action="append", help="only this command; repeatable")
    parser.add_argument("--case", type=int, help="only the case of this seed")
    parser.add_argument("--minutes", type=float, default=1e9, help="stop after so many minutes")
    parser.add_argument("--json", type=Path, help="write every case to this file")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="kills-") as folder, harness(Path(folder)) as one:
        outcomes = list(_outcomes(one, options))
    if options.json:
        options.json.write_text(json.dumps([outcome.document() for outcome in outcomes], indent=1))
    _show(outcomes)
    return int(any(outcome.failures for outcome in outcomes))


def _outcomes(one: Harness, options: argparse.Namespace):  # type: ignore[no-untyped-def]
    shares = {**{verb.name: verb.share for verb in one.verbs.values()}, "review": 3}
    names = options.verb or list(shares)
    draw = random.Random(options.seed)
    until = time.monotonic() + 60 * options.minutes
    came = 0
    seeds = itertools.count(options.seed * 1_000_000) if options.case is None else [options.case]
    for seed in seeds:
        name = draw.choices(names, [shares[name] for name in names])[0]
        outcome = review_case(one, seed) if name == "review" else one.case(one.verbs[name], seed)
        came += len(outcome.kinds)
        _tell(outcome, came)
        yield outcome
        if came >= options.kills or time.monotonic() > until:
            return


def _tell(outcome: Outcome, came: int) -> None:
    faults = ", ".join(f"{kind} at {where}" for kind, where in zip(outcome.kinds, outcome.where, strict=True))
    print(
        f"{came:5d} {outcome.verb} {outcome.seed}: {faults or 'no fault came'}", file=sys.stderr, flush=True
    )
    for failure in outcome.failures:
        print(f"      FAILED {failure}", file=sys.stderr, flush=True)


def _show(outcomes: list[Outcome]) -> None:
    kinds = sorted({kind for outcome in outcomes for kind in outcome.kinds})
    head = ["command", "cases", *kinds, "faults", "failed"]
    rows = []
    for name in [*dict.fromkeys(outcome.verb for outcome in outcomes), "all"]:
        chosen = [outcome for outcome in outcomes if name in (outcome.verb, "all")]
        counts = Counter(kind for outcome in chosen for kind in outcome.kinds)
        failed = sum(bool(outcome.failures) for outcome in chosen)
        rows.append([name, len(chosen), *(counts[kind] for kind in kinds), counts.total(), failed])
    widths = [max(len(str(row[at])) for row in [head, *rows]) for at in range(len(head))]
    for row in [head, *rows]:
        print("  ".join(str(cell).rjust(width) for cell, width in zip(row, widths, strict=True)))
    for outcome in outcomes:
        if outcome.failures:
            again = f'python -m bench.kills --verb "{outcome.verb}" --case {outcome.seed}'
            print(f"{again}: {outcome.failures[0][:300]}")


if __name__ == "__main__":
    sys.exit(main())
