"""Memory of a build must not grow with the source: peak of the command and its workers, small against large.

python bench/memory.py [--small 1000] [--large 20000]
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.sources import write_sources

# kB that a sample may add. It leaves its place in the plan and its index (ids, hash, thumbnail), about 2 kB;
# its images, here 74 kB, must go. A ratio of peaks would say less: it grew when the command itself became
# half as large.
LIMIT = 4.0


def peak(count: int, folder: Path) -> tuple[float, float]:
    """(MB of the largest process, seconds) of `mie build` over `count` small images."""
    recipe = folder / f"{count}.yaml"
    recipe.write_text(yaml.safe_dump(write_sources(folder / f"source{count}", count, 96)))
    script = (
        "import resource, subprocess, sys\n"
        "command = [sys.executable, '-m', 'mie', *sys.argv[1:]]\n"
        "done = subprocess.run(command, capture_output=True, text=True)\n"
        "assert done.returncode == 0, done.stderr\n"
        "print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)\n"
    )
    command = [
        sys.executable,
        "-c",
        script,
        "build",
        str(recipe),
        "-o",
        str(folder / f"d{count}"),
        "--no-stats",
    ]
    start = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    # Linux counts kilobytes; the children's figure is that of the largest one.
    return int(done.stdout) / 1024, time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--small", type=int, default=1000)
    parser.add_argument("--large", type=int, default=20000)
    options = parser.parse_args()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    peaks = {}
    with tempfile.TemporaryDirectory(prefix="mie-bench-") as folder:
        for count in (options.small, options.large):
            peaks[count], seconds = peak(count, Path(folder))
            print(f"{count:6d} samples of 96x96: largest process {peaks[count]:6.0f} MB, {seconds:6.1f} s")
    growth = 1024 * (peaks[options.large] - peaks[options.small]) / (options.large - options.small)
    print(f"growth {growth:.1f} kB a sample (limit {LIMIT})")
    if growth > LIMIT:
        sys.exit("memory grows with the source")


if __name__ == "__main__":
    main()
