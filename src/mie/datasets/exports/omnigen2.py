"""The training list of OmniGen2: one JSONL per split, absolute paths, and the PNG files beside it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

from mie.core.hashing import file_stem
from mie.datasets.exports.target import ExportFolder, Row, json_line


def write(rows: Iterable[Row], out: ExportFolder) -> None:
    """`{split}.jsonl`, `input/` and `output/`. The list holds absolute paths, as the trainer wants them."""
    root = out.root.resolve()
    for split, group in groupby(rows, key=lambda row: str(row["split"])):
        with out.text(f"{split}.jsonl") as lines:
            for row in group:
                name = f"{file_stem(row['id'])}.png"
                out.put(f"input/{name}", row["input"]["bytes"])
                out.put(f"output/{name}", row["target_image"]["bytes"])
                line = {
                    "input_images": [str(root / "input" / name)],
                    "output_image": str(root / "output" / name),
                    "instruction": row["prompt"],
                    "task_type": "edit",
                }
                lines.write(json_line(line))
