"""What a review is about: a dataset and runs on it, and the images of an item as PNG."""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeAlias

import numpy as np
from sqlalchemy import Row, select

from mie.core.files import inside
from mie.core.hashing import canonical
from mie.datasets.dataset import Dataset
from mie.datasets.parquet import ShardFile
from mie.datasets.volumes import most_telling, volume_slices
from mie.editors.runs import Run, output_name
from mie.errors import ConfigError, MieError
from mie.images.limits import Limits, check_pixels
from mie.images.png import decode_png, encode_png, png_size
from mie.images.resize import resize_image, resize_labels
from mie.records import Pixels
from mie.review.api import ApiError
from mie.review.database import Database, masks, runs
from mie.review.masks import propose_masks

if TYPE_CHECKING:
    from mie.review.question_material import QuestionMaterial

Place: TypeAlias = tuple[str, int, int]  # shard, row group, row


class Stack(NamedTuple):
    """The slices of a volume: where each is stored, and its sample; and which one shows most."""

    slices: list[tuple[Place, str]]
    first: Place


INDEXED: Final = (
    "id", "sha256", "perspective", "task", "target", "modality", "anatomy", "source", "split",
    "group", "turn", "colour",
)  # fmt: skip
_COLUMNS: Final = {"input": "input", "reference": "target_image", "mask": "mask"}
_TURN: Final = re.compile(r"turn(\d{1,3})-(input|reference|output)")
_SLICE: Final = re.compile(r"slice(\d{1,5})-([a-z0-9-]+)")
_CACHE_BYTES: Final = 96 * 2**20
_LIMITS: Final = Limits(max_pixels=250_000_000)


@dataclass(frozen=True, slots=True)
class Entry:
    """One sample without its images, and where its row is stored."""

    fields: dict[str, Any]
    place: Place


def stored_row(
    shards: Mapping[str, Path], place: Sequence[Any], columns: Sequence[str], folder: Path
) -> dict[str, Any]:
    """Read some columns of the row at `place`."""
    shard, group, at = place
    path = shards.get(shard)
    if path is None:
        raise MieError("a shard is missing", where=folder, expected=shard)
    with ShardFile(path) as file:
        table = file.read_row_group(group, columns=list(columns), use_threads=False)
    return dict(table.slice(at, 1).to_pylist()[0])


class Material:
    """A dataset and named runs on exactly this dataset. Rows and files are read when they are needed."""

    kinds = ("inspect", "mask", "rank", "questions", "grade")
    noun = "sample"

    def __init__(self, dataset: Dataset, runs: dict[str, Run]) -> None:
        self.dataset = dataset
        self.runs = runs
        self._shards: dict[str, Path] = {path.name: path for path in dataset.shards()}

    @classmethod
    def open(cls, folders: Sequence[Path]) -> Material:
        """Open a dataset, runs, or both. Runs alone imply their dataset."""
        datasets = [Dataset(p) for p in folders if not (p / "run.json").is_file()]
        if len(datasets) > 1:
            names = ", ".join(str(d.folder) for d in datasets)
            raise ConfigError("more than one dataset to review", expected="one dataset", found=names)
        runs: dict[str, Run] = {}
        for folder in (p for p in folders if (p / "run.json").is_file()):
            name = folder.resolve().name
            if name in runs:
                raise ConfigError("two runs have the same name", found=name, fix="rename one of the folders")
            runs[name] = Run.open(folder)
        dataset = datasets[0] if datasets else next(iter(runs.values())).dataset()
        for run in runs.values():
            digest = run.info["dataset"]["digest"]
            if digest != dataset.digest:
                raise MieError(
                    "the run belongs to another dataset",
                    where=run.folder,
                    expected=f"digest {dataset.digest[:16]}",
                    found=f"digest {digest[:16]}",
                )
        return cls(dataset, runs)

    def entries(self, kind: str) -> Iterator[Entry]:
        """Yield every sample in dataset order, without its images; the same for each kind of work."""
        for name, path in self._shards.items():
            with ShardFile(path) as file:
                rows = file.read(columns=list(INDEXED)).to_pylist()
                sizes = [file.metadata.row_group(g).num_rows for g in range(file.num_row_groups)]
            places = ((name, group, at) for group, size in enumerate(sizes) for at in range(size))
            for row, place in zip(rows, places, strict=True):
                yield Entry(row, place)

    def row(self, place: Sequence[Any], columns: Sequence[str]) -> dict[str, Any]:
        """Read some columns of one row."""
        return stored_row(self._shards, place, columns, self.dataset.folder)

    @cached_property
    def volumes(self) -> dict[Place, Stack]:
        """Each slice of a whole volume, by where its row is stored -> all slices of the volume, in order."""
        found: dict[Place, Stack] = {}
        for slices in volume_slices(self.dataset).values():
            shown = most_telling(slices)
            stack = Stack(
                [((one.shard.name, one.group, one.row), one.id) for one in slices],
                (shown.shard.name, shown.group, shown.row),
            )
            found.update({place: stack for place, _ in stack.slices})
        return found

    def outputs(self, run: str) -> dict[str, str]:
        """Return sample id -> SHA-256 of the first attempt's output, for the edits that succeeded."""
        edits = self.runs[run].edits().values()
        return {e.sample_id: str(e.sha256) for e in edits if e.attempt == 0 and e.state == "done"}

    def output(self, run: str, sample_id: str, sha256: str) -> bytes:
        """Read an output; an error if it lies outside the run's folder or has changed."""
        folder = self.runs[run].folder
        data = inside(folder, folder, output_name(sample_id, 0)).read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise MieError("an output has changed since its run", where=folder, expected=sha256)
        return data

    def fingerprint(self, run: str) -> str:
        """Return a digest that identifies the run, wherever its folder is."""
        info = self.runs[run].info
        known = {"dataset": info["dataset"]["digest"], "editor": info["editor"]["spec"]}
        return hashlib.sha256(canonical([run, known, info["config"]]).encode()).hexdigest()


class ItemImages:
    """The images of an item as PNG, at display size, cached in memory.

    Raters must not learn which run made an output or which mask is the dataset's own. So the names of outputs
    and proposed masks are keyed hashes, and an item of one kind offers only the images of that kind.
    """

    def __init__(self, database: Database, material: Material | QuestionMaterial) -> None:
        self._database = database
        self._material = material
        self._cache = _Cache()
        self._made: dict[int, dict[str, str]] = {}  # run -> sample -> SHA-256 of its output
        self._secret = bytes.fromhex(database.value("secret") or "")
        with database.read() as connection:
            self._run_names = {row.id: row.name for row in connection.execute(select(runs))}

    def token(self, item_id: int, choice: int | str) -> str:
        """Return the name of an output or mask in a URL: the same for all raters, another for each item."""
        text = f"{item_id}:{choice}".encode()
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()[:24]

    def png(self, kind: str, item: Row[Any], name: str, side: int | None) -> bytes:
        """Return an image of an item, at most `side` pixels long."""
        full = self._cache.get((item.id, item.version, name), lambda: self._full(kind, item, name))
        if side is None or max(png_size(full)) <= side:
            return full
        is_mask = name == "mask" or name.startswith(("proposal-", "upload-"))
        resize = resize_labels if is_mask else resize_image
        return self._cache.get((item.id, item.version, name, side), lambda: _shrunk(full, side, resize))

    def continues(self, item: Row[Any]) -> bool:
        """Whether the turns of a conversation started from the run's own outputs."""
        run = self._material.runs[self._run_names[item.outputs[0][0]]]
        return str(run.info["config"].get("turns", "forced")) == "free"

    def remember(self, item: Row[Any], name: str, png: bytes) -> None:
        """Cache an image that was read together with something else."""
        self._cache.get((item.id, item.version, name), lambda: png)

    def proposal_names(self, item: Row[Any]) -> list[str]:
        """Return the names of the masks that a rater can choose from, in the dataset's order."""
        names = self._cache.get(
            (item.id, item.version, "proposals"), lambda: ",".join(self._proposals(item)).encode()
        )
        return names.decode().split(",")

    def proposal(self, item: Row[Any], name: str) -> bytes:
        """Return the mask that raters can choose, by its own name."""
        return self._proposals(item)[name]

    def upload(self, item_id: int, sha256: str) -> bytes:
        """Return a repaired mask."""
        with self._database.read() as connection:
            png = connection.scalar(
                select(masks.c.png).where(masks.c.sha256 == sha256, masks.c.item_id == item_id)
            )
        if png is None:
            raise _no_such_image()
        return bytes(png)

    def _full(self, kind: str, item: Row[Any], name: str) -> bytes:
        what, _, rest = name.partition("-")
        if not isinstance(self._material, Material):
            if what == "image" and rest.isdecimal():
                return self._material.image(item.places[0], int(rest))
            raise _no_such_image()
        if match := _SLICE.fullmatch(name):
            return self._slice(kind, item, int(match[1]), match[2])
        if name in _COLUMNS and not (kind == "mask" and name != "input"):  # they show the dataset's mask
            return self._stored(item.places[0], _COLUMNS[name])
        if kind == "mask" and what == "proposal":
            for choice, png in self._proposals(item).items():
                if hmac.compare_digest(self.token(item.id, choice), rest):
                    return png
        elif kind == "mask" and what == "upload":
            return self.upload(item.id, rest)
        elif kind == "rank" and what == "output":
            for run_id, sample_id, sha256 in item.outputs:
                if hmac.compare_digest(self.token(item.id, run_id), rest):
                    return self._output(run_id, sample_id, sha256)
        elif kind == "questions" and (match := _TURN.fullmatch(name)):
            turn = int(match[1])
            if turn < len(item.places) and match[2] == "output":
                return self._output(*item.outputs[turn])
            if turn < len(item.places):
                return self._stored(item.places[turn], _COLUMNS[match[2]])
        raise _no_such_image()

    def _slice(self, kind: str, item: Row[Any], at: int, name: str) -> bytes:
        """An image of another slice of the item's volume, under the same rules as those of its own."""
        stack = self._material.volumes.get(tuple(item.places[0]))
        if kind not in ("inspect", "rank") or stack is None or at >= len(stack.slices):
            raise _no_such_image()
        place, sample_id = stack.slices[at]
        what, _, rest = name.partition("-")
        if name in _COLUMNS:
            return self._stored(place, _COLUMNS[name])
        if kind == "rank" and what == "output":
            for run_id, _, _ in item.outputs:
                if hmac.compare_digest(self.token(item.id, run_id), rest):
                    made = self._outputs_of(run_id)
                    if sample_id in made:
                        return self._output(run_id, sample_id, made[sample_id])
        raise _no_such_image()

    def _outputs_of(self, run_id: int) -> dict[str, str]:
        assert isinstance(self._material, Material)  # noqa: S101
        if run_id not in self._made:
            self._made[run_id] = self._material.outputs(self._run_names[run_id])
        return self._made[run_id]

    def _stored(self, place: Any, column: str) -> bytes:
        assert isinstance(self._material, Material)  # noqa: S101
        stored = self._material.row(place, [column])[column]
        if stored is None:
            raise _no_such_image()
        return bytes(stored["bytes"])

    def _output(self, run_id: int, sample_id: str, sha256: str) -> bytes:
        assert isinstance(self._material, Material)  # noqa: S101
        try:
            return self._material.output(self._run_names[run_id], sample_id, sha256)
        except (MieError, KeyError, OSError):
            raise ApiError(404, "unknown", "this output is missing or has changed") from None

    def _proposals(self, item: Row[Any]) -> dict[str, bytes]:
        row = self._material.row(item.places[0], ["input", "mask"])
        mask = None if row["mask"] is None else decode_png(row["mask"]["bytes"])
        derived: dict[str, Pixels] = {}
        if item.outputs and mask is not None:  # proposed regions beside the dataset's own mask
            derived = {"source": np.where(mask > 127, np.uint8(255), np.uint8(0))}
        elif mask is not None:
            derived = propose_masks(mask, decode_png(row["input"]["bytes"]))
        pngs = {name: encode_png(each) for name, each in derived.items()}
        pngs |= {name: self.upload(item.id, sha256) for name, _, sha256 in item.outputs}
        for name, png in pngs.items():
            self.remember(item, f"proposal-{self.token(item.id, name)}", png)
        return pngs


class _Cache:
    """The most recently used bytes, up to a total size."""

    def __init__(self, limit: int = _CACHE_BYTES) -> None:
        self._limit = limit
        self._entries: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[Any, ...], load: Callable[[], bytes]) -> bytes:
        with self._lock:
            if key in self._entries:
                self._entries.move_to_end(key)
                return self._entries[key]
        data = load()  # outside the lock: two threads may load the same, but none waits
        with self._lock:
            if key not in self._entries:
                self._entries[key] = data
                self._bytes += len(data)
            while self._bytes > self._limit and len(self._entries) > 1:
                self._bytes -= len(self._entries.popitem(last=False)[1])
        return data


def _shrunk(data: bytes, side: int, resize: Callable[[Pixels, tuple[int, int]], Pixels]) -> bytes:
    height, width = png_size(data)
    check_pixels(height, width, where="an image", limits=_LIMITS)
    scale = side / max(height, width)
    size = max(1, round(height * scale)), max(1, round(width * scale))
    return encode_png(resize(decode_png(data), size))


def _no_such_image() -> ApiError:
    return ApiError(404, "unknown", "there is no such image")
