"""A compact editor on evaluation packs: every row's figures, as one JSON document.

    python examples/score_pack.py WEIGHTS PACK... -o scores.json
    python examples/score_pack.py identity PACK... -o scores.json        # the input itself, to compare with
    python examples/score_pack.py RUN PACK... --left-out -o scores.json

Make the packs with `mie pack --split test`. RUN is a folder of `mie train`. With `--left-out`, all rows of
the data sets that RUN has never seen: give its training pack too; rows of sources that it left out, or that
have no training rows, are scored.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mie.core.files import atomic_write
from mie.training.compact import data_set_of
from mie.training.compact_validation import compact_edit, evaluate
from mie.training.pack import Pack, Row, read_pack

Rows = list[tuple[Pack, Row]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("editor", help="a weights file, a folder of `mie train`, or identity")
    parser.add_argument("packs", nargs="+", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--left-out", action="store_true", help="all rows of the sources that were left out")
    parser.add_argument("--unseen", action="store_true", help="each row again in a wording never trained on")
    parser.add_argument("--flip", action="store_true", help="also look at every image mirrored")
    parser.add_argument("--device", default="auto")
    options = parser.parse_args()

    packs = [read_pack(path) for path in options.packs]
    rows = [(pack, row) for pack in packs for row in pack.rows]
    facts: dict[str, Any] = {"editor": options.editor, "packs": [pack.facts["digest"] for pack in packs]}
    if options.editor == "identity":
        edit = lambda requests: [request.image for request in requests]
    else:
        given = Path(options.editor)
        if given.is_dir():
            info = json.loads((given / "train.json").read_text(encoding="utf-8"))
            facts |= {
                "editor": given.name,
                "config": info["config"],
                "data": info["decisive"]["data_digests"],
            }
            given = given / "weights.safetensors"
        edit = compact_edit(given, device=options.device, flip=options.flip)
    if options.left_out:
        rows, facts["trained_elsewhere"] = left_out(rows, info["config"]["data"])
    records = evaluate(rows, edit, unseen=options.unseen)
    atomic_write(options.output, json.dumps({**facts, "records": records}) + "\n")
    print(f"{options.output}: {len(records)} scored edits of {len(rows)} rows")


def left_out(rows: Rows, data: Mapping[str, Any]) -> tuple[Rows, list[str]]:
    """The rows that a training never saw, and their "modality/target" that other sources taught it."""
    left_out = {data_set_of(name) for name in data["leave_out"]}
    taught = [row for _, row in rows if row.fold == "train" and data_set_of(row.source) not in left_out]
    seen = {data_set_of(row.source) for row in taught}
    unseen = [
        (p, r) for p, r in rows if data_set_of(r.source) not in seen and r.perspective in data["shares"]
    ]
    names = {(row.modality, name) for row in taught for name in row.target.split(", ")}
    known = {
        f"{row.modality}/{row.target}"
        for _, row in unseen
        if all((row.modality, name) in names for name in row.target.split(", "))
    }
    return unseen, sorted(known)


if __name__ == "__main__":
    main()
