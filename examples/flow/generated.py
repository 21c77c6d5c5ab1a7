"""Does it help to train on generated lesions? Segmenters with and without them, on the same patients.

    python examples/flow/generated.py train PACK SYNTHETIC -o OUT --trunk FILE [--families ct mri] [--seeds 2]
    python examples/flow/generated.py table OUT TEST

PACK is a pack of perception, SYNTHETIC the folder that `examples/compact/synthetic.py` made from it, TEST a
pack of the test split. Three trainings for each family and seed: on real images; with a drawn lesion beside
every real one; with drawn lesions and with healed images as negative examples. Only images with one kind of
lesion count, in all of them: a segmenter takes every lesion for the same class, and in a drawn or healed
image another lesion would be unmarked. Same network, steps and batch. The table has DICE on test patients at
the threshold that validation chose, by the size of the lesion, with 95% intervals over patients.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from mie.core.documents import markdown_table
from mie.networks.unet import mask_of, probabilities
from mie.perspectives.modification.detectors.compact import load_detector
from mie.perspectives.modification.detectors.quality import count
from mie.scoring.statistics.intervals import mean_interval
from mie.training.pack import Pack, as_rgb, part_of, read_pack, write_pack
from mie.training.segmenter import MarkedImage, RowFilter, marked_images

FAMILIES = ("ct", "mri", "xray")
PARTS = {"real": (), "drawn": ("drawn",), "both": ("drawn", "healed")}
SIZES = ("small", "middle", "large")
AT_ONCE = 8


def single(pack: Pack) -> set[str]:
    """The ids of lesion rows that are alone in their image."""
    rows: dict[int, list[str]] = {}
    for row in pack.rows:
        if row.task == "lesion":
            rows.setdefault(row.input, []).append(row.id)
    return {ids[0] for ids in rows.values() if len(ids) == 1}


def write_packs(pack: Path, synthetic: Path, out: Path) -> None:
    real = read_pack(pack)
    kept = single(real)
    write_pack(out / "packs" / "real", part_of(real, lambda row: row.id in kept))
    for name in ("drawn", "healed"):
        more = read_pack(synthetic / name)
        # Their ids are those of the real rows with a word behind.
        write_pack(out / "packs" / name, part_of(more, lambda row: row.id.rpartition("-")[0] in kept))


def config(family: str, part: str, seed: int, out: Path, given: argparse.Namespace) -> dict[str, Any]:
    trunk = {"trunk": str(given.trunk.resolve())} if given.trunk else {"encoder": "none"}
    return {
        "name": f"{family}-{part}-{seed}",
        "trainee": "segmenter",
        "seed": seed,
        "steps": given.steps,
        "batch": given.batch,
        "optimizer": {"lr": 1.5e-3, "weight_decay": 0.05, "warmup": given.steps // 10, "floor": 0.02},
        "ema": 0.995,
        "precision": given.precision,
        "checkpoint": {"every": given.steps, "keep": 1},
        "validate": {"every": given.steps},
        "log_every": 100,
        "data": {
            "packs": [str((out / "packs" / name).resolve()) for name in ("real", *PARTS[part])],
            "family": family,
            "pairs": part == "both",
            "side": given.side,
        },
        "model": trunk,
    }


def train(given: argparse.Namespace) -> None:
    out: Path = given.output
    write_packs(given.pack, given.synthetic, out)
    jobs = []
    for seed in range(1, given.seeds + 1):
        for family in given.families:
            for part in PARTS:
                body = config(family, part, seed, out, given)
                path = out / f"{body['name']}.yaml"
                path.write_text(yaml.safe_dump(body, sort_keys=False))
                jobs.append((path, out / "runs" / body["name"]))

    def one(job: tuple[Path, Path]) -> int:
        command = [sys.executable, "-m", "mie", "train", str(job[0]), "-o", str(job[1])]
        with job[0].with_suffix(".log").open("a") as log:
            code = subprocess.run(command, stdout=log, stderr=subprocess.STDOUT).returncode
        print(f"{job[1].name}: {'done' if code == 0 else f'failed, see {job[0].stem}.log'}", flush=True)
        return code

    with ThreadPoolExecutor(AT_ONCE) as pool:
        if any(pool.map(one, jobs)):
            raise SystemExit("some trainings failed")


def dice(run: Path, images: list[MarkedImage]) -> list[float]:
    network, meta = load_detector(run / "weights.safetensors")
    scores = []
    for one in images:
        probability = probabilities(network, as_rgb(one.image), network.config.side, torch.device("cpu"))
        value = count(mask_of(probability, meta["threshold"], network.config.side), one.mask).dice
        assert value is not None  # every image has a lesion
        scores.append(value)
    return scores


def table(given: argparse.Namespace) -> None:
    test = read_pack(given.test)
    alone = part_of(test, lambda row, kept=single(test): row.id in kept)
    lines = []
    for family in FAMILIES:
        runs = {
            part: sorted(given.runs.glob(f"runs/{family}-{part}-*/weights.safetensors")) for part in PARTS
        }
        if not all(runs.values()):
            print(f"{family}: skipped, not all of {', '.join(PARTS)} were trained")
            continue
        images = [one for one in marked_images([alone], RowFilter("lesion", family)) if one.mask.any()]
        scores = {
            part: np.mean([dice(path.parent, images) for path in paths], axis=0)
            for part, paths in runs.items()
        }
        area = np.array([one.mask.mean() for one in images])
        bounds = np.quantile(area, [1 / 3, 2 / 3])
        size = np.searchsorted(bounds, area)
        patients = [one.patient for one in images]
        for label, at in [("all", np.ones(len(images), bool))] + [
            (f"{name} ({100 * area[size == k].min():.1f} to {100 * area[size == k].max():.1f}%)", size == k)
            for k, name in enumerate(SIZES)
        ]:
            some = [patient for patient, there in zip(patients, at, strict=True) if there]
            cells = [f"{scores['real'][at].mean():.3f}"]
            for part in ("drawn", "both"):
                gap = mean_interval((scores[part] - scores["real"])[at], some)
                shown = "" if gap.low is None else f" ({gap.low:+.3f} to {gap.high:+.3f})"
                cells.append(f"{gap.value:+.3f}{shown}")
            lines.append([family, label, f"{int(at.sum())} ({len(set(some))})", *cells])
    head = ["family", "lesion", "images (patients)", "real", "with drawn", "with drawn and healed"]
    print(markdown_table(head, lines))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    training = verbs.add_parser("train")
    training.set_defaults(verb=train)
    training.add_argument("pack", type=Path)
    training.add_argument("synthetic", type=Path)
    training.add_argument("-o", "--output", type=Path, required=True)
    training.add_argument("--trunk", type=Path)
    training.add_argument("--families", nargs="+", default=list(FAMILIES))
    training.add_argument("--seeds", type=int, default=2)
    training.add_argument("--steps", type=int, default=1000)
    training.add_argument("--batch", type=int, default=32)
    training.add_argument("--side", type=int, default=256)
    training.add_argument("--precision", default="bf16")
    tables = verbs.add_parser("table")
    tables.set_defaults(verb=table)
    tables.add_argument("runs", type=Path)
    tables.add_argument("test", type=Path)
    given = parser.parse_args()
    given.verb(given)


if __name__ == "__main__":
    main()
