"""`mie run` with a pipeline of diffusers beside a bare loop over the same pipeline, and its memory.

    python -m bench.large_editors [--part overhead|memory] [--edits 10000] [--rounds 9]

The pipeline is tiny, with random weights: an edit takes a fraction of a second, and what we add weighs most.

Overhead: bare loops and runs of a tiny FLUX Kontext take turns, since other work on the machine slows down
both. Each round gives one ratio of processor time, all threads together; it counts what overlaps with the
model too. The bare loop decodes and writes nothing. The run of an editor that does nothing shows what
reading, encoding, syncing and the journal cost by themselves. On a busy machine these ratios scatter by ten
percent. So each run also says what it spends outside of the pipeline's own call, of what it spends inside:
both are of the same moments. The bare loop spends something outside too (it draws noise and rounds), which is
not ours. For this the model gets one thread.

Memory: a run of a tiny InstructPix2Pix, one step an edit. What the process holds is given as it is, and after
the allocator was told to return what is free: glibc keeps freed memory for later, and Python keeps up to
2,000 tuples of each length, so the first number wanders. A leak would raise the second.

Bars: a run takes at most 3% more processor time than the bare loop, as measured beside the calls of both;
memory after the last edit is that after the first tenth.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
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

ATTEMPTS = 5  # so that what a run does once weighs little


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


@contextmanager
def inside(pipe: Any) -> Iterator[list[float]]:
    """Seconds of the processor that each call of the pipeline takes in its own thread."""
    kind, spent = type(pipe), []
    call = kind.__call__

    def watched(self: Any, *values: Any, **options: Any) -> Any:
        began = time.thread_time()
        try:
            return call(self, *values, **options)
        finally:
            spent.append(time.thread_time() - began)

    kind.__call__ = watched
    try:
        yield spent
    finally:
        kind.__call__ = call


def run(dataset: Path, editor: Any, folder: Path) -> None:
    run_editor(dataset, editor, folder, attempts=ATTEMPTS)


def overhead(folder: Path, pipeline: Path, rounds: int, size: int, steps: int) -> None:
    dataset = make_dataset(folder / "data", 20, size)
    todo = {sample.id: list(range(ATTEMPTS)) for sample in Dataset(dataset)}
    work: list[Any] = list(sample_requests(Dataset(dataset), None, todo, needs_target=False))
    editor: Any = open_editor(f"diffusers:{pipeline},steps={steps}")
    bare(editor.pipe, work, steps)  # warm up
    run(dataset, editor, folder / "warm")
    ratios, loops, empty, outside, more = [], [], [], [], []
    for number in range(rounds):
        with inside(editor.pipe) as spent:
            loops.append(timed(lambda: bare(editor.pipe, work, steps))[1])
            plain = loops[-1] / sum(spent)
        with inside(editor.pipe) as spent:
            used = timed(lambda n=number: run(dataset, editor, folder / f"run-{n}"))[1]
        ratios.append(used / loops[-1])
        outside.append(used / sum(spent) - 1)
        more.append(used / sum(spent) / plain - 1)
        empty.append(timed(lambda n=number: run(dataset, "identity", folder / f"empty-{n}"))[1])
    middle, count = statistics.median(loops), len(work)
    print(
        f"{size} px, {steps} steps, {rounds} rounds of {count} edits: bare {1000 * middle / count:.1f} ms of "
        f"the processor an edit (spread {(max(loops) - min(loops)) / middle:.0%}); mie run "
        f"{statistics.median(ratios):.3f} times (rounds {' '.join(f'{one:.3f}' for one in sorted(ratios))})"
    )
    print(
        f"  outside of the pipeline's call: {statistics.median(outside):.1%} of what it takes "
        f"(rounds {' '.join(f'{one:.1%}' for one in sorted(outside))}); "
        f"{statistics.median(more):.1%} more than the bare loop "
        f"(rounds {' '.join(f'{one:.1%}' for one in sorted(more))})"
    )
    added = statistics.median(empty) / len(work)
    print(
        f"  a run of the editor identity: {1000 * added:.2f} ms of the processor an edit, "
        f"{added * len(work) / middle:.1%} of bare"
    )


def memory(folder: Path, pipeline: Path, edits: int) -> None:
    dataset = make_dataset(folder / "data", 10, 64)
    libc = ctypes.CDLL("libc.so.6")

    def resident() -> float:
        return int(Path("/proc/self/statm").read_text().split()[1]) * 4096 / 2**20

    def note(at: Progress) -> None:
        if at.done % (edits // 20) == 0:
            held = resident()
            gc.collect()
            libc.malloc_trim(0)
            print(f"{at.done:,} edits: {held:.0f} MB, {resident():.0f} MB without what is free", flush=True)

    editor = open_editor(f"diffusers:{pipeline},steps=1")
    run_editor(dataset, editor, folder / "run", attempts=edits // 10, progress=note)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--part", choices=("overhead", "memory"))
    parser.add_argument("--edits", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=9)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if asked.part in (None, "overhead"):
            torch.set_num_threads(1)
            pipeline = write_pipeline("FluxKontextPipeline", folder / "kontext")
            overhead(folder / "small", pipeline, asked.rounds, 64, 10)
            overhead(folder / "large", pipeline, asked.rounds, 128, 10)
        if asked.part in (None, "memory"):
            pipeline = write_pipeline("StableDiffusionInstructPix2PixPipeline", folder / "pix2pix")
            memory(folder / "memory", pipeline, asked.edits)


if __name__ == "__main__":
    main()
