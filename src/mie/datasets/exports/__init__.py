"""Datasets in the layouts that others read.

>>> FORMATS.names()
['folder', 'imgedit', 'miedb', 'omni-iie', 'omnigen2', 'omnigen2-turns', 'sharegpt', 'webdataset']
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from mie.core.documents import plural
from mie.core.registry import Registry, unknown_name
from mie.datasets.dataset import Dataset
from mie.datasets.exports.target import ExportFolder, Row, claimed
from mie.datasets.names import Names
from mie.datasets.schema import row_errors
from mie.errors import ConfigError, MieError
from mie.images.png import decode_png, encode_png
from mie.privacy.gate import LOG, Finding, Gate, Policy
from mie.privacy.identifiers import name_reason
from mie.vocabulary import SPLITS

# Each takes rows in dataset order (so the rows of a split stand together) and the folder to fill.
FORMATS: Final[Registry[Callable[[Iterable[Row], ExportFolder], None]]] = Registry(
    "export format",
    {
        "folder": "mie.datasets.exports.layouts:write_folder",
        "imgedit": "mie.datasets.exports.imported:write_imgedit",
        "miedb": "mie.datasets.exports.miedb:write",
        "omni-iie": "mie.datasets.exports.imported:write_omni_iie",
        "omnigen2": "mie.datasets.exports.layouts:write_omnigen2",
        "omnigen2-turns": "mie.datasets.exports.conversations:write_omnigen2_turns",
        "sharegpt": "mie.datasets.exports.conversations:write_sharegpt",
        "webdataset": "mie.datasets.exports.layouts:write_webdataset",
    },
    group="mie.exports",
)


def export(
    dataset: Dataset,
    folder: Path,
    format: str,
    *,
    split: str | None = None,
    public: Policy | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> int:
    """Write the dataset, or one split of it, to `folder`; returns the number of samples.

    PNG files are copied from the shards as they are. `folder` must be new, or hold the same export (whole or
    interrupted), which is then written again to the same bytes. `progress` gets (done, total). `public`: the
    export is for others, so the gate applies; its log lies beside the folder, not in it.
    """
    write = FORMATS[format]
    if split is not None and split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    counts = dataset.info["counts"]["by_split"]
    total = sum(counts.values()) if split is None else counts.get(split, 0)
    if not total:
        raise MieError(
            "there is nothing to export",
            where=dataset.folder,
            expected="samples" if split is None else f"samples in the split {split!r}",
            found=", ".join(f"{name}: {n}" for name, n in counts.items()) or "an empty dataset",
        )
    if dataset.has_references:
        raise MieError(
            "this layout has no place for reference images",
            where=format,
            found=f"{plural(dataset.info.get('references', 0), 'sample')} with further images",
            fix="share the dataset's own folder, which `datasets`, DuckDB and Polars open",
        )
    gate = None
    if public is not None:
        if format in ("omnigen2", "omnigen2-turns"):
            raise ConfigError("this layout holds absolute paths", where=format, fix="use another format")
        if format in ("imgedit", "omni-iie"):
            raise ConfigError("this layout holds files as they came", where=format, fix="use another format")
        gate = Gate(public, "a public export", Path(folder).with_name(f"{Path(folder).name}.{LOG}"))
        gate.check_statement(dataset.info)
        findings = [one for row in dataset.rows(split) for one in row_findings(row, gate)]
        if public.redact:  # names become pseudonyms
            findings = [one for one in findings if one.kind != "name"]
        gate.check(findings)
    with claimed(Path(folder), dataset, format, split) as out, row_errors(dataset.folder):
        rows = _whole(dataset, split, total, progress or (lambda done, total: None))
        if gate is None:
            write(rows, out)
        else:
            write((_public_row(row, gate) for row in rows), out)
            gate.close()
    return int(total)


def row_findings(row: Row, gate: Gate) -> list[Finding]:
    """What may identify somebody in a row: text in its images, names in its columns."""
    found = []
    for column in ("case_id", "patient_id"):
        reason = name_reason(row[column]) if row[column] else None
        if reason is not None:
            found.append(Finding(row["id"], "name", f"{column}: {reason}"))
    for column in ("input", "target_image"):
        if row[column] is not None:
            found += gate.look(decode_png(row[column]["bytes"]), f"{row['id']} ({column})")
    return found


def _public_row(row: dict[str, Any], gate: Gate) -> dict[str, Any]:
    """The row as others may have it."""
    out = dict(row)
    if gate.policy.redact:
        names = Names()
        for column in ("case_id", "patient_id"):
            if row[column] and name_reason(row[column]) is not None:
                out[column] = (
                    names.patient(row[column])
                    if column == "patient_id"
                    else names.case(row["source"], row[column])
                )
    for column in ("input", "target_image"):
        if row[column] is not None:
            pixels = decode_png(row[column]["bytes"])
            sent = gate.release(pixels, f"{row['id']} ({column})")
            if sent is not pixels and (sent != pixels).any():
                out[column] = {**row[column], "bytes": encode_png(sent)}
    return out


def _whole(
    dataset: Dataset, split: str | None, total: int, progress: Callable[[int, int], None]
) -> Iterator[dict[str, Any]]:
    done = 0
    for row in dataset.rows(split):
        yield row
        done += 1
        progress(done, total)
    if done != total:
        raise MieError(
            "the dataset is not whole",
            where=dataset.folder,
            expected=plural(total, "sample"),
            found=done,
            fix="`mie verify` says what is missing",
        )


__all__ = ["FORMATS", "export", "row_findings"]
