"""`python -m bench.proof`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import bench.proof
from bench.proof.compare import differences
from bench.proof.parts import PARTS, Parts


def record(path: Path, parts: list[str], work: Path, recipes: list[str]) -> None:
    made = Parts(work, recipes)
    for name in parts:
        started = time.monotonic()
        found = PARTS[name](made)
        # Read and written after each part: a long recording that is stopped keeps what it has, and another
        # one may add its parts meanwhile.
        recorded: dict[str, Any] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
        recorded[name] = {**recorded.get(name, {}), **found} if name == "examples" else found
        path.write_text(json.dumps(recorded, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{name}: {time.monotonic() - started:.0f} s", flush=True)


def compare(first: Path, second: Path, parts: list[str] | None, ignore: str | None) -> int:
    one, two = (json.loads(path.read_text(encoding="utf-8")) for path in (first, second))
    total = 0
    for part in parts or dict.fromkeys((*one, *two)):
        if part not in one and part not in two:
            print(f"{part}: not recorded")
            total += 1
            continue
        found = differences({part: one.get(part)}, {part: two.get(part)}, ignore)
        for place, before, after in found:
            print(f"{place}\n  - {before}\n  + {after}")
        print(f"{part}: {len(found)} differences", flush=True)
        total += len(found)
    return 1 if total else 0


def main() -> None:
    form = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser("bench.proof", description=bench.proof.__doc__, formatter_class=form)
    verbs = parser.add_subparsers(dest="verb", required=True)
    recording = verbs.add_parser("record", help="run the commands and write what they give")
    recording.add_argument("output", type=Path, help="a JSON file; parts that it holds are kept")
    recording.add_argument("--parts", nargs="+", choices=PARTS, default=[*PARTS], metavar="PART")
    recording.add_argument("--work", type=Path, help="keep datasets and runs in this folder")
    about = "of the part `examples` these alone, such as quickstart; the others stay as recorded"
    recording.add_argument("--recipes", nargs="+", default=[], metavar="NAME", help=about)
    comparing = verbs.add_parser("compare", help="print every difference; exit code 1 if there is one")
    comparing.add_argument("first", type=Path)
    comparing.add_argument("second", type=Path)
    comparing.add_argument("--parts", nargs="+", choices=PARTS, metavar="PART")
    comparing.add_argument("--ignore", help="a regular expression: places that it finds are left out")
    options = parser.parse_args()
    if options.verb == "compare":
        sys.exit(compare(options.first, options.second, options.parts, options.ignore))
    if options.work is not None:
        record(options.output, options.parts, options.work, options.recipes)
    else:
        with tempfile.TemporaryDirectory(prefix="mie-proof-") as folder:
            record(options.output, options.parts, Path(folder), options.recipes)


if __name__ == "__main__":
    main()
