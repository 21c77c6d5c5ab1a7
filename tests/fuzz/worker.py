"""One process that reads generated files, one after the other, and says what each should not have done."""

from __future__ import annotations

import json
import logging
import mmap
import os
import random
import resource
import struct
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from mie.datasets.recipe import read_recipe
from mie.datasets.verify import _check_shard
from mie.editors.runs import read_edits
from mie.errors import MieError
from mie.images.dicom_series import read_series
from mie.images.read import read_labels, read_picture
from mie.images.volumes import read_volume
from mie.networks import weights
from mie.networks.unet import NetConfig, UNet
from mie.sources.catalog import Entry
from mie.sources.medsegbench import MedSegBenchSource, _open
from tests.fuzz.corpus import seeds
from tests.fuzz.mutations import mutate

MEMORY: Final = 5 * 2**29  # bytes that the process may hold at most: 2.5 GiB
ADDRESSES: Final = 16 * 2**30  # so that a fault does not take the machine with it
SHARD: Final = "train-00000-of-00001.parquet"
NPZ: Final = Entry(
    name="set",
    title="set",
    modality="ultrasound",
    anatomy="breast",
    license={"name": "CC0-1.0", "use": "open"},
    layout={"kind": "medsegbench", "files": "set_{size}.npz"},
    targets=[{"name": "lesion", "kind": "lesion", "value": 1}],
)


def _picture(path: Path) -> None:
    try:
        read_picture(path)
    finally:
        read_labels(path)


def _dicom(path: Path) -> None:
    try:
        read_picture(path)
    finally:
        read_series([path])


def _volume(path: Path) -> None:
    try:
        read_volume(path)
    finally:
        read_volume(path, labels=True)


def _npz(path: Path) -> None:
    _open.cache_clear()
    source = MedSegBenchSource(NPZ, path.parent)
    for unit in source.scan():
        if hasattr(unit, "files"):
            list(source.load(unit))


def _weights(path: Path) -> None:
    file = weights.load(path, format="unet 1")
    weights.build(lambda: UNet(NetConfig.from_json(file.config)), file, path)


# Format -> (the file's name, how it is read).
FORMATS: Final[dict[str, tuple[str, Callable[[Path], Any]]]] = {
    **{kind: (f"a.{kind}", _picture) for kind in ("png", "jpeg", "tiff", "webp", "gif", "bmp")},
    "dicom": ("a.dcm", _dicom),
    **{kind: (f"a.{kind}", _volume) for kind in ("nii", "nii.gz", "nrrd", "mha")},
    "npz": ("set_1.npz", _npz),
    "parquet": (SHARD, _check_shard),
    "safetensors": ("a.safetensors", _weights),
    "jsonl": ("edits.jsonl", read_edits),
    "yaml": ("recipe.yaml", read_recipe),
}
KINDS: Final = tuple(FORMATS)


def case(seed: int, number: int, corpus: dict[str, list[bytes]]) -> tuple[str, bytes]:
    """The format and the bytes of a case: the same in every process."""
    draw = random.Random(f"{seed}:{number}")
    kind = KINDS[number % len(KINDS)]
    others = corpus[draw.choice(KINDS)]
    return kind, mutate(kind, draw.choice(corpus[kind]), others, draw)


class Watch:
    """Which files are opened while a case is read."""

    def __init__(self, folder: Path) -> None:
        here = Path(__file__).resolve().parents[2]
        roots = {folder, here, Path(sys.prefix), Path(sys.base_prefix), Path("/proc"), Path("/sys")}
        roots.add(Path(os.devnull))  # given to the process that decodes what no header bounds
        self._roots = tuple(os.path.realpath(root) + "/" for root in roots)
        self.active = False
        self.outside: list[str] = []
        sys.addaudithook(self._look)

    def _look(self, event: str, arguments: tuple[Any, ...]) -> None:
        if event != "open" or not self.active or isinstance(arguments[0], int) or arguments[0] is None:
            return
        path = os.path.realpath(os.fsdecode(arguments[0]))
        if not (path + "/").startswith(self._roots):
            self.outside.append(path)


def main() -> None:
    seed, first, last, folder, board = *map(int, sys.argv[1:4]), Path(sys.argv[4]), sys.argv[5]
    warnings.simplefilter("ignore")
    logging.disable()
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESSES, ADDRESSES))
    corpus = seeds(folder)
    (folder / "secret").write_bytes(b"S" * 1000)
    inner = folder / "case"
    inner.mkdir(exist_ok=True)
    tempfile.tempdir = str(inner)
    watch = Watch(inner)
    with Path(board).open("r+b") as file:
        number_now = mmap.mmap(file.fileno(), 8)
    for number in range(first, last):
        kind, data = case(seed, number, corpus)
        name, read = FORMATS[kind]
        path = inner / name
        path.write_bytes(data)
        struct.pack_into("<q", number_now, 0, number)
        fault = None
        watch.outside.clear()
        watch.active = True
        try:
            read(path)
        except MieError:
            pass
        except BaseException as error:
            fault = f"{type(error).__name__}: {error}\n{traceback.format_exc()[-3000:]}"
        finally:
            watch.active = False
        if watch.outside:
            fault = f"opened {watch.outside}"
        if resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 > MEMORY:
            fault = "took more memory than allowed"
        if fault is not None:
            print(json.dumps({"case": number, "fault": fault}), flush=True)
            if fault.startswith("took"):
                sys.exit(3)  # the peak is never forgotten: the next cases need a new process
        path.unlink()
    print(json.dumps({"done": last - first}), flush=True)


if __name__ == "__main__":
    main()
