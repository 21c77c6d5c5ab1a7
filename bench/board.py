"""`mie board` on the size of the published benchmark: 10 models x 3,485 samples x 3 attempts, already scored.

Score files are written as `mie score` writes them, with the rubric of a judge and its stamp in every line of
modification; the numbers are drawn, and there are no images. Measured is the whole command, start-up
included, in processor time (which a busy machine does not change) and wall time, beside a plain reading of
the same JSON lines.

    python bench/board.py [--models 10] [--samples 3485] [--attempts 3]
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

TARGET = 60.0
# Of the 3,485 samples of the published benchmark, roughly a third each.
SHARES = {"perception": 0.45, "modification": 0.25, "transformation": 0.30}
MODALITIES = ("CT", "MRI", "fundus", "X-ray", "ultrasound", "endoscopy", "dermoscopy", "OCT")
METRICS = {
    "perception": ("dice", "dice_guarded", "p_acc", "b_psnr", "b_ssim"),
    "modification": ("changed_psnr", "changed_ssim", "unchanged_psnr", "unchanged_ssim", "rubric"),
    "transformation": ("psnr", "ssim"),
}


def lines(samples: int, attempts: int, skill: float, seed: int) -> list[dict[str, Any]]:
    """A line for each sample of a run whose outputs are as good as `skill`, 0 to 1."""
    draw = np.random.default_rng(seed)
    found = []
    for at in range(samples):
        part = (at + 0.5) / samples
        perspective = next(
            name
            for name, end in zip(SHARES, np.cumsum(list(SHARES.values())), strict=True)
            if part < end + 1e-9
        )
        image = at % round(samples * 0.2)  # perception and modification share their images
        group = {
            "perspective": perspective,
            "task": {"perception": "lesion", "modification": "removal"}.get(perspective, "denoising"),
            "modality": MODALITIES[image % len(MODALITIES)],
            "anatomy": "part",
            "target": "lesion" if perspective != "transformation" else "noise",
            "source": f"source {image % 12}",
        }
        names = list(METRICS[perspective])
        if perspective == "modification":
            names += [f"rubric_{number}" for number in range(1, 9)]
        tries = []
        for k in range(attempts):
            good = float(np.clip(draw.normal(skill, 0.15), 0, 1))
            values = {name: _value(name, good) for name in names}
            body: dict[str, Any] = {"k": k, "metrics": values, "unscored": {}}
            body["drift"] = {"dx": 0.0, "dy": 0.0, "scale": 1.0, "response": 0.9, "flag": False}
            if perspective == "modification":
                body["judge"] = {"model": "judge", "prompt": "miedb_rubric@2", "repeats": 1, "spread": 0.0}
            tries.append(body)
        found.append(
            {
                "id": f"{at:016x}",
                "group": group,
                "patient": f"p{image // 2}",
                "case": f"c{image}",
                "applies": names,
                "attempts": tries,
            }
        )
    return found


def _value(name: str, good: float) -> float:
    if name.endswith("psnr"):
        return 10 + 30 * good
    if name == "p_acc":
        return float(good > 0.8)
    if name == "rubric":
        return 100 * good
    return 1 + 4 * good if name.startswith("rubric_") else good


def write_run(folder: Path, name: str, body: list[dict[str, Any]], attempts: int) -> None:
    """The folder of a scored run; its dataset and outputs are not there."""
    import hashlib

    from mie.scoring.benchmarks import BENCHMARKS
    from mie.scoring.score import summarise
    from mie.scoring.scores import (
        encode_line,
        read_score_table,
        scores_path,
        summary_path,
        write_scores_file,
        write_summary,
    )

    folder.mkdir(parents=True)
    (folder / "edits.jsonl").write_bytes(b"")
    info = {
        "schema_version": 1,
        "status": "complete",
        "dataset": {"path": "gone", "relative_path": "gone", "name": "benchmark", "digest": "d" * 64},
        "editor": {"spec": name, "name": name},
        "config": {"attempts": attempts, "split": None, "limit": None},
        "counts": {"done": len(body) * attempts, "samples": len(body)},
    }
    (folder / "run.json").write_text(json.dumps(info))
    judge = {
        "model": "judge",
        "provider": "local",
        "answered_by": ["judge"],
        "parameters": {"temperature": 0},
        "prompts": {"miedb_rubric@2": "0" * 64},
        "metrics": ["rubric"],
    }
    header = {
        "protocol": "miedb",
        "variant": "paper",
        "version": 1,
        "dataset_digest": "d" * 64,
        "edits_sha256": hashlib.sha256(b"").hexdigest(),
        "attempts": attempts,
        "metrics": list(dict.fromkeys(name for line in body for name in line["applies"])),
        "judge": judge,
    }
    path = scores_path(folder, "miedb", "paper")
    write_scores_file(path, header, (encode_line(line).encode() for line in body))
    table = read_score_table(path)
    document = {
        "protocol": "miedb",
        "variant": "paper",
        "n_samples": len(body),
        "groups": summarise(table, psnr_cap=BENCHMARKS["miedb"].psnr_cap),
        "judge": judge,
    }
    write_summary(summary_path(folder, "miedb", "paper"), document)


def write_ratings(path: Path, body: list[dict[str, Any]], names: list[str], most: int = 200) -> None:
    """Three raters' orders of all models on some samples of modification."""
    draw = np.random.default_rng(1)
    chosen = [line["id"] for line in body if line["group"]["perspective"] == "modification"][:most]
    rows = ["sample_id,rater,run,rank"]
    for sample in chosen:
        for rater in "ABC":
            order = np.argsort(draw.normal(np.arange(len(names)), 2.0))
            rows += [f"{sample},{rater},{names[at]},{rank}" for rank, at in enumerate(order, start=1)]
    path.write_text("\n".join(rows) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--samples", type=int, default=3485)
    parser.add_argument("--attempts", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="a new folder that keeps the runs and the board")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        names = [f"model-{n:02d}" for n in range(options.models)]
        for at, name in enumerate(names):
            body = lines(options.samples, options.attempts, 0.9 - 0.06 * at, at)
            write_run(root / name, name, body, options.attempts)
        write_ratings(root / "ratings.csv", body, names)
        start = time.perf_counter()
        for name in names:
            for line in (root / name / "scores/miedb.paper.jsonl").open():
                json.loads(line)
        plain = time.perf_counter() - start
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        start = time.perf_counter()
        command = [sys.executable, "-m", "mie", "board", *(str(root / name) for name in names)]
        command += ["--review", str(root / "ratings.csv"), "-o", str(root / "board")]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
        wall = time.perf_counter() - start
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        used = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        size = f"{options.models} models x {options.samples:,} samples x {options.attempts} attempts"
        print(f"{size}: {wall:.1f} s wall, {used:.1f} s of one processor, {after.ru_maxrss / 1024:.0f} MB")
        print(f"reading the same lines with json alone: {plain:.1f} s, ratio {wall / plain:.1f}")
        print(f"target {TARGET:.0f} s of one processor: {'met' if used < TARGET else 'missed'}")


if __name__ == "__main__":
    main()
