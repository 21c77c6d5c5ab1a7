"""The compact editor on a CPU: seconds of an edit and peak memory, beside OpenCV's non-local means.

    python bench/compact.py [--weights FILE]

Bars: a 256x256 edit takes at most 0.15 s on two cores, and less than 1 GiB of memory.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time

from skimage import data

from mie.editors import open_editor
from mie.images.resize import resize_image

REPEATS = 9
ASKED = {"perception": "Highlight the retinal vessels in green.", "transformation": "Reduce the noise."}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--weights", help="a weights file; the shipped one by default")
    given = parser.parse_args().weights
    name = "compact" if given is None else f"compact:{given}"
    image = resize_image(data.retina(), (256, 256))
    classical = open_editor("nlm")
    for precision in ("auto", "fp32"):
        editor = open_editor(f"{name},precision={precision}")
        for asked in ASKED.values():
            editor.edit(image, asked, seed=0, history=())  # weights, encoder, kernels
        for kind, asked in ASKED.items():
            ours, theirs = [], []
            for _ in range(REPEATS):
                ours.append(_seconds(lambda e=editor, a=asked: e.edit(image, a, seed=0, history=())))
                theirs.append(_seconds(lambda: classical.edit(image, "", seed=0, history=())))
            mine, other = statistics.median(ours), statistics.median(theirs)
            print(f"{kind}, {precision}: {mine:.3f} s, {mine / other:.1f} times nlm's {other:.3f} s")
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    print(f"peak memory: {peak:.2f} GiB")


def _seconds(work: object) -> float:
    started = time.perf_counter()
    work()  # type: ignore[operator]
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
