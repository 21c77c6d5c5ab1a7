"""`mie run` with a pipeline of diffusers beside a bare loop over the same pipeline, and its memory.

    python -m bench.large_editors [--edits 5000] [--rounds 7]

The pipeline is a tiny FLUX Kontext with random weights, so an edit takes a fraction of a second and what we
add weighs most. Bare loops and runs take turns, since other work on the machine slows down both; the spread
of the bare loop says how much the ratio is worth. On a busy machine the ratio of processor time is the
steadier one; it counts what overlaps with the model too. The bare loop decodes and writes nothing. The run of
an editor that does nothing shows what reading, encoding, syncing and the journal cost by themselves.

Bars: a run takes at most 3% longer than the bare loop; memory after the last edit is that after the first
tenth.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.recipe import parse_recipe
from mie.editors import open_editor
from mie.editors.requests import sample_requests
from mie.editors.run import Progress, run_editor
from tests.conftest import folder_source, write_folder
from tests.editors.large.tiny_pipelines import write_pipeline

ATTEMPTS = 3


def make_dataset(folder: Path, count: int, size: int) -> Path:
    """Samples for the test split, whose images keep their size."""
    source = folder_source(write_folder(folder / "source", count, size=size))
    recipe = {"name": "bench", "sources": [source], "split": {"test": 1.0}}
    build(parse_recipe(recipe, where="bench", base=Path()), folder / "dataset", workers=1)
    return folder / "dataset"


def bare(pipe: Any, work: list[Any], steps: int) -> None:
    """Only call the pipeline, with the arguments that the editor passes."""
    for request in work:
        height, width = request.image.shape[:2]
        values = pipe(
            image=Image.fromarray(request.image),
            prompt=request.instruction,
            num_inference_steps=steps,
            guidance_scale=3.5,
            height=height,
            width=width,
            max_area=height * width,
            _auto_resize=False,
            generator=torch.Generator("cpu").manual_seed(request.seed),
            output_type="np",
        ).images[0]
        np.rint(values * 255).astype(np.uint8)


def timed(work: Callable[[], object]) -> tuple[float, float]:
    """Seconds on the clock and of the processor, in all threads."""
    started, used = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - started, time.process_time() - used


def run(dataset: Path, editor: Any, folder: Path) -> None:
    run_editor(dataset, editor, folder, attempts=ATTEMPTS)


def overhead(folder: Path, pipeline: Path, rounds: int, size: int, steps: int) -> None:
    dataset = make_dataset(folder / "data", 20, size)
    todo = {sample.id: list(range(ATTEMPTS)) for sample in Dataset(dataset)}
    work: list[Any] = list(sample_requests(Dataset(dataset), None, todo, needs_target=False))
    editor: Any = open_editor(f"diffusers:{pipeline},steps={steps}")
    bare(editor.pipe, work, steps)  # warm up
    loops, runs, empty = [], [], []
    for number in range(rounds):
        loops.append(timed(lambda: bare(editor.pipe, work, steps)))
        runs.append(timed(lambda n=number: run(dataset, editor, folder / f"run-{n}")))
        empty.append(timed(lambda n=number: run(dataset, "identity", folder / f"empty-{n}")))
    print(f"{size} px, {steps} steps, {rounds} rounds of {len(work)} edits:")
    for name, at in (("clock", 0), ("processor", 1)):
        mine, other = [run[at] for run in runs], [loop[at] for loop in loops]
        middle = statistics.median(other)
        print(
            f"  {name}: bare {1000 * middle / len(work):.1f} ms an edit (spread "
            f"{(max(other) - min(other)) / middle:.0%}), mie run "
            f"{statistics.median(mine) / middle:.3f} times, "
            f"best of each {min(mine) / min(other):.3f}"
        )
    added = statistics.median(used for _, used in empty) / len(work)
    share = added / (statistics.median(used for _, used in loops) / len(work))
    print(
        f"  a run of the editor identity: {1000 * added:.2f} ms of the processor an edit, {share:.1%} of bare"
    )


def memory(folder: Path, pipeline: Path, edits: int) -> None:
    dataset = make_dataset(folder / "data", 10, 64)
    resident: dict[int, float] = {}

    def note(at: Progress) -> None:
        if at.done in (edits // 10, edits // 2, edits):
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            resident[at.done] = pages * 4096 / 2**20

    editor = open_editor(f"diffusers:{pipeline},steps=1")
    run_editor(dataset, editor, folder / "run", attempts=edits // 10, progress=note)
    print("resident: " + ", ".join(f"{mb:.0f} MB after {done:,} edits" for done, mb in resident.items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--edits", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=7)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pipeline = write_pipeline("FluxKontextPipeline", folder / "pipeline")
        overhead(folder / "small", pipeline, asked.rounds, 64, 10)
        overhead(folder / "large", pipeline, asked.rounds, 256, 10)
        memory(folder / "memory", pipeline, asked.edits)


if __name__ == "__main__":
    main()
