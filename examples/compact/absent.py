"""What an editor paints when it is asked for what is not there.

    python examples/compact/absent.py PERCEPTION MODIFICATION [--editor compact] [--samples 200] [-o FILE]

Samples of the test splits of two datasets. Asked for: what is there; what only pictures of another modality
show; things that no data set marks; a lesion that is there, and the same request without it: where an
inpainter removed it, by its name (`flow` also made the negative examples of training), and, where a lesion
was painted into an image without one, that image itself. How often and how much is painted, and at which
`confidence`: what is painted at one half or more where nothing is to be painted, is invented.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.progress import track

from mie.core.files import atomic_write
from mie.datasets.dataset import Dataset
from mie.editors.base import open_editor
from mie.records import Pixels, Sample

UNKNOWN = ("patella", "pacemaker lead", "appendix", "cochlea", "wedding ring", "tooth root", "thyroid")
SURE = 0.5
Asked = tuple[str, Pixels, str]  # what kind of request, the image, the instruction


def requests(perception: Dataset, modification: Dataset, count: int) -> Iterator[Asked]:
    rng = np.random.default_rng(1)
    marked = [s for s in perception.samples("test") if s.perspective == "perception" and s.task != "holistic"]
    samples = _some(marked, count, rng)
    names = {sample.modality: set[str]() for sample in samples}
    for sample in samples:
        names[sample.modality].add(sample.target)
    for at, sample in enumerate(samples):
        yield "there", sample.input, sample.prompt
        others = [other for other in samples if other.target not in names[sample.modality]]
        if others:
            yield "of another modality", sample.input, others[int(rng.integers(len(others)))].prompt
        yield "unknown", sample.input, f"Highlight the {UNKNOWN[at % len(UNKNOWN)]} in RED."
    for sample in _some([s for s in modification.samples("test") if s.task == "removal"], count, rng):
        prompt = f"Highlight the {sample.target} in RED."
        if sample.params.get("from_health"):
            yield "a lesion, painted", sample.input, prompt
            yield "the same image, untouched", sample.target_image, prompt
        else:
            yield "a lesion", sample.input, prompt
            yield f"a lesion removed by {sample.params['inpainter']}", sample.target_image, prompt


def _some(samples: list[Sample], count: int, rng: np.random.Generator) -> list[Sample]:
    return [samples[at] for at in sorted(rng.permutation(len(samples))[:count])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("perception", type=Path)
    parser.add_argument("modification", type=Path)
    parser.add_argument("--editor", default="compact")
    parser.add_argument("--samples", type=int, default=200)
    parser.add_argument("-o", "--output", type=Path)
    options = parser.parse_args()
    edits: dict[str, list[tuple[float, float]]] = {}
    editor = open_editor(options.editor)
    asked = list(requests(Dataset(options.perception), Dataset(options.modification), options.samples))
    for kind, image, prompt in track(asked, "editing", console=Console(stderr=True)):
        edited = editor.edit(image, prompt, seed=0, history=())
        painted = float((edited.image != image).any(2).mean())
        edits.setdefault(kind, []).append((painted, float(edited.meta["confidence"])))
    rows = [row(kind, values) for kind, values in edits.items()]
    print("| asked for | images | painted | median share | median confidence | painted, sure |")
    print("| --- | --- | --- | --- | --- | --- |")
    for line in rows:
        print("| " + " | ".join(_shown(value) for value in line.values()) + " |")
    if options.output:
        atomic_write(options.output, json.dumps(rows, indent=1).encode())


def row(kind: str, values: list[tuple[float, float]]) -> dict[str, Any]:
    painted, confidence = np.array(values).T
    some = painted > 0
    return {
        "asked for": kind,
        "images": len(values),
        "painted": float(some.mean()),
        "median share": float(np.median(painted[some])) if some.any() else 0.0,
        "median confidence": float(np.median(confidence)),
        "painted, sure": float((some & (confidence >= SURE)).mean()),
    }


def _shown(value: str | float) -> str:
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
