"""What an editor paints when it is asked for what is not there.

    python examples/compact/absent.py PERCEPTION MODIFICATION [--editor compact] [--samples 200] [-o FILE]

Samples of the test splits of two datasets. Asked for: what is there; what only pictures of another modality
show; things that no data set marks; a lesion that is there, and the same request without it: where an
inpainter removed it, by its name (`flow` also made the negative examples of training), and, where a lesion
was painted into an image without one, that image itself. How often something is painted, with a 95% interval
over patients, how much, and at which `confidence`: what is painted at one half or more where nothing is to be
painted, is invented.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import track

from mie.core.files import atomic_write
from mie.datasets.dataset import Dataset
from mie.editors.base import open_editor
from mie.records import Pixels, Sample
from mie.scoring.clusters import clusters_of, patients_in_words
from mie.scoring.statistics.intervals import mean_interval

UNKNOWN = ("patella", "pacemaker lead", "appendix", "cochlea", "wedding ring", "tooth root", "thyroid")
SURE = 0.5
REMOVED = "a lesion removed by "


class Asked(NamedTuple):
    kind: str
    image: Pixels
    prompt: str
    sample: Sample


class Seen(NamedTuple):
    """What came of a request."""

    painted: float  # share of the image
    confidence: float
    patient: str | None
    case: str


def requests(perception: Dataset, modification: Dataset, count: int) -> Iterator[Asked]:
    rng = np.random.default_rng(1)
    marked = [s for s in perception.samples("test") if s.perspective == "perception" and s.task != "holistic"]
    samples = _some(marked, count, rng)
    names = {sample.modality: set[str]() for sample in samples}
    for sample in samples:
        names[sample.modality].add(sample.target)
    for at, sample in enumerate(samples):
        yield Asked("there", sample.input, sample.prompt, sample)
        others = [other for other in samples if other.target not in names[sample.modality]]
        if others:
            prompt = others[int(rng.integers(len(others)))].prompt
            yield Asked("of another modality", sample.input, prompt, sample)
        prompt = f"Highlight the {UNKNOWN[at % len(UNKNOWN)]} in RED."
        yield Asked("unknown", sample.input, prompt, sample)
    for sample in _some([s for s in modification.samples("test") if s.task == "removal"], count, rng):
        prompt = f"Highlight the {sample.target} in RED."
        if sample.params.get("from_health"):
            yield Asked("a lesion, painted", sample.input, prompt, sample)
            yield Asked("the same image, untouched", sample.target_image, prompt, sample)
        else:
            yield Asked("a lesion", sample.input, prompt, sample)
            yield Asked(REMOVED + sample.params["inpainter"], sample.target_image, prompt, sample)


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
    edits: dict[str, list[Seen]] = {}
    editor = open_editor(options.editor)
    asked = list(requests(Dataset(options.perception), Dataset(options.modification), options.samples))
    for kind, image, prompt, sample in track(asked, "editing", console=Console(stderr=True)):
        edited = editor.edit(image, prompt, seed=0, history=())
        painted = float((edited.image != image).any(2).mean())
        seen = Seen(painted, float(edited.meta["confidence"]), sample.patient_id, sample.case_id)
        edits.setdefault(kind, []).append(seen)
        if kind.startswith(REMOVED):
            edits.setdefault(f"{REMOVED}any of them", []).append(seen)
            edits.setdefault(f"{REMOVED}any of them, {sample.modality}", []).append(seen)
    rows = [row(kind, some) for kind, some in edits.items()]
    print("| asked for | images | patients | painted | median share | median confidence | painted, sure |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for line in rows:
        print("| " + " | ".join(_shown(value) for value in line.values()) + " |")
    if options.output:
        atomic_write(options.output, json.dumps(rows, indent=1).encode())


def row(kind: str, seen: Sequence[Seen]) -> dict[str, Any]:
    painted, confidence = (np.array([getattr(one, name) for one in seen]) for name in Seen._fields[:2])
    some = painted > 0
    clusters = clusters_of([one.patient for one in seen], [one.case for one in seen])
    often = mean_interval(some, clusters, bounds=(0, 1))
    return {
        "asked for": kind,
        "images": len(seen),
        "patients": patients_in_words(clusters.patients, clusters.unknown),
        "painted": [often.value] if often.reason else [often.value, often.low, often.high],
        "median share": float(np.median(painted[some])) if some.any() else 0.0,
        "median confidence": float(np.median(confidence)),
        "painted, sure": float((some & (confidence >= SURE)).mean()),
    }


def _shown(value: str | float | list[float]) -> str:
    if isinstance(value, list):
        share, *interval = (f"{number:.0%}" for number in value)
        return f"{share} ({' to '.join(interval)})" if interval else share
    return f"{value:.3f}" if isinstance(value, float) else str(value)


if __name__ == "__main__":
    main()
