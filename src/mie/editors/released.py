"""What would leave with a dataset or a run: its images, and the names in its columns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from mie.datasets.dataset import Dataset
from mie.datasets.exports import row_findings
from mie.editors.runs import Run
from mie.images.png import decode_png
from mie.privacy.gate import Finding, Gate


def scan_dataset(folder: Path, gate: Gate, progress: Callable[[int, int], None]) -> tuple[int, list[Finding]]:
    """How many images were looked at, and what was found in them and in the columns."""
    dataset = Dataset(folder)
    findings: list[Finding] = []
    images = 0
    row: Mapping[str, Any]
    for done, row in enumerate(dataset.rows(), start=1):
        findings += row_findings(row, gate)
        images += 1 + (row["target_image"] is not None)
        progress(done, len(dataset))
    return images, findings


def scan_run(folder: Path, gate: Gate, progress: Callable[[int, int], None]) -> tuple[int, list[Finding]]:
    """The outputs of a run, which a judge would be shown beside the dataset's images."""
    run = Run.open(folder)
    outputs = sorted((run.folder / "outputs").glob("*.png"))
    findings: list[Finding] = []
    for done, path in enumerate(outputs, start=1):
        findings += gate.look(decode_png(path.read_bytes()), f"outputs/{path.name}")
        progress(done, len(outputs))
    return len(outputs), findings
