"""Time and memory of what looks at all samples at once, for 10^4, 10^5 and 10^6 of them.

python bench/scale.py [--counts 10000 100000 1000000] [--stages plan leaks ...] [--folder FOLDER]

Samples are those of a small real build, repeated with other names, patients and thumbnails; images are 32
pixels wide. Each stage runs in a process of its own, whose processor time and largest memory are measured.
`--draw --counts` measures nothing and makes table and plot of docs/reference/scale.md from what is known.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent))

PAGE = Path(__file__).parent.parent / "docs/reference/scale.md"
STAGES = {
    "plan": "plan: list two files for each image, cut into parts",
    "near": "near-duplicates: training against test",
    "leaks": "leak check: duplicates, patients, images across splits",
    "merge": "merge two halves, after their shards were proved",
    "stats": "`mie stats`: every row, masks decoded",
    "card": "data card",
    "score": "scores of 4 metrics: means, groups, intervals",
}
# What must be written first.
NEEDS = {
    "plan": ("files",),
    "leaks": ("index",),
    **dict.fromkeys(("merge", "stats", "card"), ("index", "shards")),
    "score": ("scores",),
}
SHARD = 1000  # rows


def basis() -> np.ndarray:
    """Waves `(63, 256)` whose weight falls with their frequency, as in pictures."""
    import cv2

    waves = []
    for k in range(1, 64):
        one = np.zeros((16, 16), np.float32)
        one[k // 8, k % 8] = 1 / (1 + math.hypot(k // 8, k % 8))
        waves.append(cv2.idct(one).ravel())
    return np.stack(waves)


def traces(count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Hashes and thumbnails of pictures that do not exist, as `mie.images.hashes.perceptual` makes them."""
    draw, waves = np.random.default_rng(seed), basis()
    weights = draw.normal(size=(count, 63)).astype(np.float32)
    pictures = weights @ waves
    pictures -= pictures.min(axis=1, keepdims=True)
    thumbs = (pictures * (255 / pictures.max(axis=1, keepdims=True))).astype(np.uint8)
    low = weights * np.abs(waves).max(axis=1)
    bits = np.concatenate([np.zeros((count, 1), bool), low > np.sort(low, axis=1)[:, 31:32]], axis=1)
    return np.packbits(bits, axis=1).view(">u8").ravel().astype(np.uint64), thumbs


def base(folder: Path) -> tuple[Any, Any]:
    """A small real build and its rows, which are repeated."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from bench.sources import write_sources
    from mie.datasets.build import build
    from mie.datasets.dataset import Dataset
    from mie.datasets.recipe import parse_recipe
    from mie.datasets.schema import SCHEMA

    if not (folder / "small").exists():
        config = parse_recipe(write_sources(folder / "source", 64, 32), where="bench", base=folder)
        build(config, folder / "small", workers=1)
    small = Dataset(folder / "small")
    return small, pa.concat_tables([pq.read_table(path) for path in small.shards()]).cast(SCHEMA)


def layout(count: int) -> list[tuple[str, str, range, str]]:
    """(dataset, split, numbers of the samples, name) of each shard, in the order of the datasets."""
    found = []
    for half, name in enumerate("ab"):
        own = range(half * count // 2, (half + 1) * count // 2)
        for split, first, last in (("train", 0.0, 0.8), ("val", 0.8, 0.9), ("test", 0.9, 1.0)):
            part = own[int(first * len(own)) : int(last * len(own))]
            pieces = [part[at : at + SHARD] for at in range(0, len(part), SHARD)]
            for number, chosen in enumerate(pieces):
                found.append((name, split, chosen, f"{split}-{number:05d}-of-{len(pieces):05d}.parquet"))
    return found


def index(folder: Path, count: int) -> None:
    """The index of each part of a merge, which is all that samples are compared by."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from mie.datasets.part import INDEX_SCHEMA, part_path

    rows = base(folder)[1].select(INDEX_SCHEMA.names[:12])
    (folder / "index").mkdir()
    for number, (_, split, chosen, _) in enumerate(layout(count)):
        hashes, thumbs = traces(len(chosen), chosen[0])
        table = _table(rows.take([n % len(rows) for n in chosen]), split, chosen)
        digests = [f"{n:064x}".encode() for n in chosen]
        own: dict[str, Any] = {name: table.column(name) for name in INDEX_SCHEMA.names[:12]}
        own |= {"content": digests, "hash": hashes, "thumb": [one.tobytes() for one in thumbs]}
        own |= {"pixels": [[d[:16], d[16:32], d[32:48]] for d in digests]}
        own |= {"goal_hash": [None] * len(chosen), "goal_thumb": [None] * len(chosen)}
        own |= {"references": [0] * len(chosen), "volume": [None] * len(chosen)}
        columns = {name: own[name] for name in INDEX_SCHEMA.names}
        path = part_path(folder / "index", number, "index")
        pq.write_table(pa.table(columns, schema=INDEX_SCHEMA), path)


def shards(folder: Path, count: int) -> None:
    """Two datasets of half the samples each, and a merge of them whose shards are proved (`index`)."""
    import pyarrow.parquet as pq

    from mie.core.files import atomic_write
    from mie.datasets import merge, schema
    from mie.datasets.card import data_card
    from mie.datasets.dataset import Dataset, write_info
    from mie.datasets.finish import claim_parts, link
    from mie.datasets.part import part_path

    small, rows = base(folder)
    for name in "ab":
        (folder / name / "data").mkdir(parents=True)
        info = {**small.info, "name": name, "digest": name * 64}
        info["counts"] = {**info["counts"], "samples": count // 2}
        write_info(folder / name, info)
        atomic_write(folder / name / "README.md", data_card(info))
        shutil.copy(folder / "small/rejected.parquet", folder / name)
    every = []
    for name, split, chosen, file in layout(count):
        table = _table(rows.take([n % len(rows) for n in chosen]), split, chosen)
        every.append(folder / name / "data" / file)
        pq.write_table(table, every[-1], row_group_size=schema.ROWS_PER_GROUP, compression="zstd")
    opened = [Dataset(folder / name) for name in "ab"]
    assert every == [path for dataset in opened for path in dataset.shards()]
    recipe = merge._recipe(opened, None, first=False)
    (folder / "merged").mkdir()
    parts = claim_parts(folder / "merged", merge._fingerprint(recipe, every))
    for number, (path, (_, split, _, _)) in enumerate(zip(every, layout(count), strict=True)):
        link(part_path(folder / "index", number, "index"), part_path(parts, number, "index"))
        link(path, part_path(parts, number, split))


def files(folder: Path, count: int) -> None:
    """Empty files: a plan looks at their names, sizes and times."""
    for kind in ("images", "masks"):
        (folder / "files" / kind).mkdir(parents=True)
        for n in range(count):
            (folder / "files" / kind / f"{n:07d}.png").touch()


def _table(table: Any, split: str, chosen: range) -> Any:
    """Rows under other names: four samples of each patient."""
    new = {
        "id": [f"{n:016x}" for n in chosen],
        "split": [split] * len(chosen),
        "case_id": [f"case {n:016x}" for n in chosen],
        "patient_id": [f"patient {n // 4:012x} {split}" for n in chosen],
        "sha256": [f"{n:064x}" for n in chosen],
    }
    for name, values in new.items():
        table = table.set_column(table.schema.get_field_index(name), table.schema.field(name), [values])
    return table


def scores(folder: Path, count: int) -> None:
    """A file of scores."""
    from mie.scoring.scores import GROUP_KEYS

    names = ["dice", "p_acc", "b_psnr", "b_ssim"]
    header = {"protocol": "miedb", "variant": "paper", "attempts": 1, "metrics": names, "groups": []}
    draw = np.random.default_rng(0)
    with (folder / "scores.jsonl").open("w") as file:
        file.write(json.dumps(header) + "\n")
        for n in range(count):
            group = {key: f"{key} {n % (7 + at)}" for at, key in enumerate(GROUP_KEYS)}
            group["perspective"] = "perception"
            metrics = dict(zip(names, draw.random(4).round(6).tolist(), strict=True))
            line = {"id": f"{n:016x}", "group": group, "patient": f"p{n // 4}", "case": f"case {n}"}
            line |= {"applies": names, "attempts": [{"k": 0, "metrics": metrics, "unscored": {}}]}
            file.write(json.dumps(line) + "\n")


def plan(folder: Path, count: int) -> None:
    from mie.datasets.plan import make_plan
    from mie.datasets.recipe import parse_recipe

    config = parse_recipe(_recipe(folder / "files"), where="bench", base=folder)
    assert make_plan(config).units == count


def _recipe(root: Path) -> dict[str, Any]:
    source = {"name": "bench", "root": str(root), "title": "Bench", "modality": "fundus", "anatomy": "retina"}
    source |= {"license": {"name": "CC0-1.0", "use": "open"}}
    source |= {"layout": {"kind": "folder", "images": "images/{id}.png", "masks": "masks/{id}.png"}}
    source |= {"targets": [{"name": "disc", "kind": "anatomy", "value": 255}]}
    return {"name": "bench", "seed": 0, "sources": [source]}


def near(folder: Path, count: int) -> None:
    from mie.images.hashes import near_pairs

    made = [traces(min(50_000, count - start), start) for start in range(0, count, 50_000)]
    hashes, thumbs = (np.concatenate(column) for column in zip(*made, strict=True))
    made.clear()
    train, test = slice(0, int(0.8 * count)), slice(int(0.9 * count), count)
    begin()
    near_pairs(hashes[train], thumbs[train], hashes[test], thumbs[test])


def leaks(folder: Path, count: int) -> None:
    from mie.datasets.finish import compare

    found = compare(folder / "index", range(len(layout(count))), several=True)
    assert len(found.parts) == count


def merge(folder: Path, count: int) -> None:
    from mie.datasets.merge import merge_datasets

    info = merge_datasets([folder / "a", folder / "b"], folder / "merged").info
    assert info["counts"]["samples"] == count, info["counts"]


def stats(folder: Path, count: int) -> None:
    from mie.datasets.dataset import Dataset
    from mie.datasets.stats import dataset_stats

    assert dataset_stats(Dataset(folder / "merged")).samples == count


def card(folder: Path, count: int) -> None:
    from mie.datasets.card import data_card
    from mie.datasets.dataset import Dataset

    assert f"{count:,}" in data_card(Dataset(folder / "merged").info)


def score(folder: Path, count: int) -> None:
    from mie.scoring.benchmarks import BENCHMARKS
    from mie.scoring.score import _document

    assert _document(BENCHMARKS["miedb"], folder / "scores.jsonl", "bench")["n_samples"] == count


_begun = 0.0


def begin() -> None:
    """Processor time counts from here; what came before made the data."""
    global _begun
    _begun = time.process_time()


def measure(stage: str, folder: Path, count: int) -> None:
    import mie.datasets.build
    import mie.scoring.score  # noqa: F401 (imports are no part of the stage)

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start = time.perf_counter()
    begin()
    globals()[stage](folder, count)
    seconds = time.process_time() - _begun
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    found = {"stage": stage, "count": count, "seconds": round(seconds, 3)}
    found |= {"wall": round(time.perf_counter() - start, 1), "peak_mb": round(peak / 1024)}
    print(json.dumps({**found, "imports_mb": round(before / 1024)}))


def draw(results: list[dict[str, Any]]) -> None:
    """The table between the marks of the page, and the plot beside it."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    counts = sorted({one["count"] for one in results})
    by = {(one["stage"], one["count"]): one for one in results}
    figure, axes = pyplot.subplots(1, 2, figsize=(10, 4.2), layout="constrained")
    lines = ["| stage | " + " | ".join(f"{n:,}" for n in counts) + " | growth |"]
    lines.append("| --- |" + " ---: |" * (len(counts) + 1))
    for stage, title in STAGES.items():
        there = [by[stage, n] for n in counts if (stage, n) in by]
        if not there:
            continue
        for axis, key in zip(axes, ("seconds", "peak_mb"), strict=True):
            axis.plot([r["count"] for r in there], [r[key] for r in there], marker="o", label=stage)
        shown = [by.get((stage, n)) for n in counts]
        cells = [f"{one['seconds']:.2f} s, {one['peak_mb']:,} MB" if one else "not measured" for one in shown]
        growth = ""
        if len(there) > 1 and there[-1]["seconds"] > 0.05:
            first, last = there[-2:]
            power = math.log(last["seconds"] / first["seconds"]) / math.log(last["count"] / first["count"])
            growth = f"n^{power:.2f}"
        lines.append(f"| {title} | " + " | ".join(cells) + f" | {growth} |")
    limit = 4 * 1024
    axes[1].axhline(limit, color="grey", linestyle=":", label="4 GiB")
    ends = np.array([counts[0], counts[-1]])
    axes[0].plot(ends, 0.02 * ends / ends[0], color="grey", linestyle=":", label="linear")
    for axis, label in zip(axes, ("processor seconds", "largest memory, MB"), strict=True):
        axis.set(xscale="log", yscale="log", xlabel="samples", ylabel=label)
        axis.grid(alpha=0.3)
    axes[1].set_ylim(100, 8192)
    handles = {h.get_label(): h for axis in axes for h in axis.get_lines()}
    figure.legend(handles.values(), handles.keys(), loc="outside right center", fontsize=9)
    figure.savefig(PAGE.parent.parent / "images/scale.png", dpi=110)
    before, _, rest = PAGE.read_text().partition("<!-- table -->\n")
    _, _, after = rest.partition("<!-- end of table -->\n")
    table = "\n".join(lines)
    PAGE.write_text(f"{before}<!-- table -->\n\n{table}\n\n<!-- end of table -->\n{after}")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--counts", type=int, nargs="*", default=[10_000, 100_000, 1_000_000])
    parser.add_argument("--stages", nargs="+", default=list(STAGES), choices=list(STAGES))
    parser.add_argument("--folder", type=Path, help="for the samples; removed at the end")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_suffix(".json"))
    parser.add_argument("--draw", action="store_true")
    parser.add_argument("--one", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        stage, folder, count = options.one
        if stage in STAGES:
            measure(stage, Path(folder), int(count))
        else:
            globals()[stage](Path(folder), int(count))
        return
    results = json.loads(options.results.read_text()) if options.results.exists() else []
    for count in options.counts:
        with tempfile.TemporaryDirectory(prefix="mie-scale-", dir=options.folder) as folder:
            steps = dict.fromkeys(step for stage in options.stages for step in (*NEEDS.get(stage, ()), stage))
            for stage in steps:
                command = [sys.executable, __file__, "--one", stage, folder, str(count)]
                done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
                if stage in STAGES:
                    print(done.stdout, end="", flush=True)
                    one = json.loads(done.stdout.splitlines()[-1])
                    results = [r for r in results if (r["stage"], r["count"]) != (stage, count)]
                    results.append(one)
                    options.results.write_text(json.dumps(results, indent=1) + "\n")
    if options.draw:
        draw(results)


if __name__ == "__main__":
    main()
