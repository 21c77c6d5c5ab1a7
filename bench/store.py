"""How many rows a Parquet row group should hold: random access against size.

python bench/store.py
"""

from __future__ import annotations

import random
import sys
import tempfile
import time
from pathlib import Path

import pyarrow.parquet as pq

sys.path.insert(0, str(Path(__file__).parent.parent))

from bench.sources import write_sources
from mie.datasets import schema
from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.recipe import parse_recipe

ROWS = 192
DRAWS = 120


def main() -> None:
    with tempfile.TemporaryDirectory(prefix="mie-bench-") as folder:
        root = Path(folder)
        config = parse_recipe(write_sources(root / "source", ROWS, 512), where="bench", base=Path())
        build(config, root / "dataset", workers=2)
        rows = list(Dataset(root / "dataset").rows())
        print(f"{len(rows)} samples of 512x512; {DRAWS} random rows read from one shard, all image columns")
        for size in (1, 4, 16, 64, 192):
            path = root / f"{size}.parquet"
            schema.ROWS_PER_GROUP = size  # type: ignore[misc]
            with schema.ShardWriter(path) as writer:
                for row in rows:
                    writer.write(row)
            draw = random.Random(0)
            file = pq.ParquetFile(path)
            start = time.perf_counter()
            for _ in range(DRAWS):
                group, row = divmod(draw.randrange(len(rows)), size)
                file.read_row_group(group).slice(row, 1).to_pylist()
            rate = DRAWS / (time.perf_counter() - start)
            print(f"{size:4d} rows a group: {rate:7.0f} random rows/s   {path.stat().st_size / 1e6:7.1f} MB")


if __name__ == "__main__":
    main()
