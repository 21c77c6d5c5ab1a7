"""`mie score` end to end against a plain script: one image at a time, cv2 and scikit-image.

Both start from 512x512 PNG on disk and end with a JSON document, start-up included. The plain script reads
every file once per metric, as the released ones do. The floor decodes every image once with cv2, on as many
processes as `mie score` uses. One of `--transformation` pairs is scored by PSNR and SSIM of whole images, the
others by DICE, B-PSNR and B-SSIM. `mie score` also measures guarded DICE and drift, and draws intervals.

    python bench/score.py [--pairs 400] [--transformation 4]
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import cv2
import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

TARGET = 15
# The command itself; exit code 3 says that something is unscored, which may be.
SCORE = """
import sys
from mie.cli import main
sys.argv = ["mie", "score", sys.argv[1], "--json"]
try:
    main()
except SystemExit as end:
    sys.exit(end.code if end.code not in (None, 3) else 0)
"""


def write_run(root: Path, count: int, every: int, size: int = 512) -> None:
    """A dataset, a run whose outputs paint a region a little beside the right one, and all of it as PNG."""
    from bench.sources import write_sources
    from mie.datasets.dataset import Dataset
    from mie.datasets.write import write_dataset
    from mie.images.overlay import paint
    from mie.images.png import encode_png
    from mie.records import Sample

    write_sources(root / "source", count, size)
    for name in ("input", "target", "run/outputs"):
        (root / name).mkdir(parents=True)
    edits, plain = [], []
    noise = np.random.default_rng(0).integers(-3, 4, (size, size, 3))

    def samples() -> Iterator[Sample]:
        for n, path in enumerate(sorted((root / "source/images").iterdir())):
            image = cv2.imread(str(path))[..., ::-1].copy()
            mask = cv2.imread(str(root / "source/masks" / path.name), 0) > 0
            whole = n % every == 0
            target = cv2.GaussianBlur(image, (3, 3), 0) if whole else paint(image, mask, "green")
            moved = image if whole else paint(image, np.roll(mask, 8, 1), "green")
            output = np.clip(moved + np.roll(noise, n, 0), 0, 255).astype(np.uint8)
            name = f"{n:016x}"
            for kind, pixels in (("input", image), ("target", target)):
                (root / kind / f"{name}.png").write_bytes(encode_png(pixels))
            (root / "run/outputs" / f"{name}_0.png").write_bytes(encode_png(output))
            edits.append({"sample_id": name, "attempt": 0, "seed": n, "state": "done", "seconds": 0.0})
            edits[-1]["path"] = f"outputs/{name}_0.png"
            plain.append([name, whole])
            yield Sample(
                id=name,
                perspective="transformation" if whole else "perception",
                task="denoising" if whole else "lesion",
                target="lesion",
                modality="fundus",
                anatomy="retina",
                prompt="Mark the lesion in green.",
                prompt_template="",
                description="",
                input=image,
                target_image=target,
                mask=None if whole else mask.astype(np.uint8) * 255,
                colour=None if whole else "green",
                split="test",
                bin=None,
                source="bench",
                case_id=name,
                patient_id=f"p{n // 4}",
                recipe="bench",
                recipe_version=1,
                params={},
                seed=0,
            )

    write_dataset(
        samples(),
        root / "dataset",
        name="bench",
        description="",
        recipe={},
        licenses={"bench": {"name": "CC0-1.0", "use": "open", "basis": "stated"}},
        deidentified=True,
    )
    dataset = Dataset(root / "dataset")
    info = {
        "schema_version": 1,
        "status": "complete",
        "dataset": {
            "path": str(dataset.folder),
            "relative_path": "../dataset",
            "name": dataset.name,
            "digest": dataset.digest,
            "samples": len(dataset),
        },
        "editor": {"spec": "bench", "name": "bench", "meta": {}},
        "config": {"attempts": 1, "split": None, "limit": None},
        "versions": {},
        "counts": {"edits": count, "done": count, "failed": 0},
        "timings": {},
        "environment": {},
    }
    (root / "run/run.json").write_text(json.dumps(info))
    (root / "run/edits.jsonl").write_text("".join(json.dumps(edit) + "\n" for edit in edits))
    (root / "plain.json").write_text(json.dumps(plain))


def read(root: Path, kind: str, name: str) -> np.ndarray:
    return cv2.cvtColor(cv2.imread(str(root / kind / f"{name}.png")), cv2.COLOR_BGR2RGB)


def deblend(image: np.ndarray, output: np.ndarray) -> np.ndarray:
    towards = np.array([0, 255, 0]) - image.astype(np.float64)
    shift = output.astype(np.float64) - image
    return np.clip((shift * towards).sum(2) / ((towards**2).sum(2) + 1e-6), 0, 1) > 0.5


def plain_script(root: Path) -> dict[str, float]:
    """What people write: a loop over images for each metric."""
    from skimage.metrics import peak_signal_noise_ratio, structural_similarity

    pairs = json.loads((root / "plain.json").read_text())
    painted = [name for name, whole in pairs if not whole]
    out: dict[str, list[float]] = {key: [] for key in ("dice", "b_psnr", "b_ssim", "psnr", "ssim")}
    for name in painted:
        image, target, output = (read(root, k, n) for k, n in _files(name))
        x, y = deblend(image, output), deblend(image, target)
        out["dice"].append((2 * (x & y).sum() + 1e-6) / (x.sum() + y.sum() + 1e-6))
    for name in painted:
        image, target, output = (read(root, k, n) for k, n in _files(name))
        outside = ~deblend(image, target)
        error = ((target.astype(np.float64) - output) ** 2)[outside].mean()
        out["b_psnr"].append(min(10 * np.log10(255**2 / error), 100) if error else 100)
    for name in painted:
        image, target, output = (read(root, k, n) for k, n in _files(name))
        _, values = structural_similarity(target, output, channel_axis=2, full=True)
        free = cv2.erode((~deblend(image, target)).astype(np.uint8), np.ones((7, 7)))[3:-3, 3:-3] > 0
        out["b_ssim"].append(values[3:-3, 3:-3][free].mean())
    for metric, function in (("psnr", peak_signal_noise_ratio), ("ssim", structural_similarity)):
        for name in (name for name, whole in pairs if whole):
            _, target, output = (read(root, k, n) for k, n in _files(name))
            options = {"channel_axis": 2} if metric == "ssim" else {}
            out[metric].append(function(target, output, **options))
    return {key: float(np.mean(values)) for key, values in out.items() if values}


def _files(name: str) -> list[tuple[str, str]]:
    return [("input", name), ("target", name), ("run/outputs", f"{name}_0")]


def decode_all(root: Path) -> float:
    """Seconds to decode every image once on all cores, a process for each core, start-up left out."""
    from concurrent.futures import ProcessPoolExecutor
    from multiprocessing import get_context

    names = [name for name, _ in json.loads((root / "plain.json").read_text())]
    paths = [str(root / k / f"{n}.png") for name in names for k, n in _files(name)]
    cores = len(os.sched_getaffinity(0))
    with ProcessPoolExecutor(cores, get_context("spawn")) as pool:
        list(pool.map(_decode, [paths[:1]] * cores))
        start = time.perf_counter()
        list(pool.map(_decode, [paths[n : n + 48] for n in range(0, len(paths), 48)]))
        return time.perf_counter() - start


def _decode(paths: list[str]) -> None:
    cv2.setNumThreads(1)
    for path in paths:
        cv2.imdecode(np.frombuffer(Path(path).read_bytes(), np.uint8), cv2.IMREAD_UNCHANGED)


def timed(*words: str) -> tuple[float, float, str]:
    """Seconds on the clock, seconds of processor time, and what was printed."""
    start, used = time.perf_counter(), _processor()
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, check=True)
    return time.perf_counter() - start, _processor() - used, done.stdout


def _processor() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=400)
    parser.add_argument("--transformation", type=int, default=4, help="one of so many pairs")
    parser.add_argument("--plain", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.plain:
        print(json.dumps(plain_script(options.plain)))
        return
    with tempfile.TemporaryDirectory(prefix="mie-bench-") as folder:
        root = Path(folder)
        write_run(root, options.pairs, options.transformation)
        timed("-c", SCORE, str(root / "run"))  # the first ever compiles the kernels
        ours, ours_cpu, printed = timed("-c", SCORE, str(root / "run"))
        floor = decode_all(root)
        plain, plain_cpu, expected = timed(__file__, "--plain", str(root))
    found = json.loads(printed)["groups"][0]["metrics"]
    for name, value in json.loads(expected).items():
        if abs(found[f"{name}@1"]["mean"] - value) > 1e-9:
            sys.exit(f"{name}: {found[f'{name}@1']['mean']} is not {value}")
    pairs, cores = options.pairs, len(os.sched_getaffinity(0))
    print(f"{pairs} pairs of 512x512 PNG, {cores} cores, start-up included; ms a pair")
    print(f"plain script  {1e3 * plain / pairs:7.2f}     ({1e3 * plain_cpu / pairs:.2f} of processor time)")
    print(f"mie score     {1e3 * ours / pairs:7.2f}     ({1e3 * ours_cpu / pairs:.2f} of processor time)")
    print(f"cv2 decoding  {1e3 * floor / pairs:7.2f}     three files on all cores, start-up left out")
    print(f"speed-up      {plain / ours:7.1f}     (target {TARGET}, stretch 25), the same means to 1e-9")
    print(f"over the floor{ours / floor:7.2f}")
    # On a machine that others use too, the clock is unfair to whoever needs two cores.
    print(f"by processor time, on {cores} free cores: {plain_cpu / (ours_cpu / cores):.1f}")
    if plain / ours < TARGET:
        sys.exit("mie score is slower than it should be")


if __name__ == "__main__":
    main()
