"""Layouts of plain files: a folder with a table, OmniGen2's training list, and WebDataset's tar files."""

from __future__ import annotations

import csv
import io
import tarfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from itertools import groupby
from typing import Final

from mie.core.csv_cells import safe_cell
from mie.core.files import atomic_path
from mie.core.hashing import file_stem
from mie.datasets.exports.target import ExportFolder, Row, fields, json_line, png
from mie.datasets.schema import SCHEMA

_FOLDERS: Final = {"input": "input", "target_image": "target", "mask": "mask"}  # column -> folder
_MEMBERS: Final = {"input": "input.png", "target_image": "target.png", "mask": "mask.png"}
TAR_BYTES: Final = 10**9  # at most, unless a single sample is larger


def write_folder(rows: Iterable[Row], out: ExportFolder) -> None:
    """`input/`, `target/` and `mask/`, with `samples.jsonl` (all fields) and `samples.csv`.

    All splits together; the column `split` tells them apart. Image columns hold paths.
    """
    with out.text("samples.jsonl") as lines, out.text("samples.csv") as sheet:
        table = csv.DictWriter(sheet, SCHEMA.names, lineterminator="\n")
        table.writeheader()
        for row in rows:
            files: dict[str, str | None] = {}
            for column, folder in _FOLDERS.items():
                data = png(row, column)
                files[column] = None if data is None else f"{folder}/{file_stem(row['id'])}.png"
                if data is not None:
                    out.put(f"{folder}/{file_stem(row['id'])}.png", data)
            body = {**fields(row), **files}
            lines.write(json_line({name: body[name] for name in SCHEMA.names}))
            # As in the shards: `params` as JSON text. A list becomes words with spaces between.
            cells = {**row, **files, "parents": " ".join(row["parents"] or ())}
            table.writerow({name: safe_cell(cell) for name, cell in cells.items()})


def write_omnigen2(rows: Iterable[Row], out: ExportFolder) -> None:
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


def write_webdataset(rows: Iterable[Row], out: ExportFolder) -> None:
    """`{split}-00000.tar`, ... with `<id>.input.png`, `<id>.target.png`, `<id>.mask.png` and `<id>.json`.

    The files of a sample stand together, sorted by name. Equal datasets give equal bytes: no time, no owner.
    """
    for split, group in groupby(rows, key=lambda row: str(row["split"])):
        with ExitStack() as stack:
            number, size = 0, TAR_BYTES
            for row in group:
                members = sorted(_members(row))
                wanted = sum(_blocks(data) for _, data in members)
                if size + wanted > TAR_BYTES:
                    stack.close()
                    path = out.root / f"{split}-{number:05d}.tar"
                    temporary = stack.enter_context(atomic_path(path))
                    tar = stack.enter_context(tarfile.open(temporary, "w", format=tarfile.USTAR_FORMAT))
                    number, size = number + 1, 0
                for name, data in members:
                    header = tarfile.TarInfo(name)  # mtime, uid and gid are 0, owner names empty
                    header.size = len(data)
                    tar.addfile(header, io.BytesIO(data))
                size += wanted


def _members(row: Row) -> Iterator[tuple[str, bytes]]:
    key = file_stem(row["id"])
    for column, extension in _MEMBERS.items():
        data = png(row, column)
        if data is not None:
            yield f"{key}.{extension}", data
    yield f"{key}.json", json_line(fields(row)).encode()


def _blocks(data: bytes) -> int:
    """A member's bytes in the tar: a header and the content in whole blocks."""
    return tarfile.BLOCKSIZE + -(-len(data) // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
