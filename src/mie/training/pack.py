"""A pack, which is what training reads: images and masks stored once, and rows that point to them.

A row says which image goes in, what should come out (a goal image, or a mask to paint; for an edit of an area
the goal, and the mask of what changes), and which `Instruction` asks for it. Nothing is letterboxed,
augmented or painted yet. On disk it is small enough to carry to another machine, and not read there if a byte
is wrong:

```text
PACK/
  images.parquet, masks.parquet   encoded pictures and how many channels each has; one that differs from
                                  another only in a part (`base`) holds that part
  rows.parquet                    one line per row
  asks.json                       the instructions, in all wordings
  pack.json                       facts, counts, versions, SHA-256 of each file; written last
```
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import mie
from mie.core.files import atomic_path, atomic_write, digest, folder_lock
from mie.core.hashing import canonical
from mie.datasets.engine import cores
from mie.editors.compact.kinds import EDIT_KINDS, EditKind
from mie.errors import MieError
from mie.images.png import encode_png
from mie.records import Pixels

TRAIN, VALIDATION = "train", "validation"
VERSION: Final = 2
_READABLE: Final = (1, 2)  # version 1 has no `base`
_FILES: Final = ("images.parquet", "masks.parquet", "rows.parquet", "asks.json")
_LOSSLESS: Final = 101  # OpenCV: a WebP quality above 100
_GROUP: Final = 64
_PICTURES: Final = pa.schema([("bytes", pa.binary()), ("channels", pa.int8()), ("base", pa.int32())])


@dataclass(frozen=True, slots=True)
class Wording:
    """One sentence, the template it was made from, and the colour of class 1..n that it names."""

    prompt: str
    template: str
    colours: tuple[str, ...] = ()  # empty where nothing is painted


@dataclass(frozen=True, slots=True)
class Instruction:
    """One thing that can be asked for, in several wordings; those `held_out` are never trained on."""

    key: str  # "perception/lesion/skin lesion/dermoscopy", "transformation/mri_motion/MRI/brain"
    wordings: tuple[Wording, ...]
    held_out: tuple[Wording, ...] = ()


@dataclass(frozen=True, slots=True)
class Row:
    """One training sample. Numbers are places in the pack's lists."""

    id: str
    perspective: str
    task: str
    target: str
    key: str | None  # a transformation's target key
    modality: str
    anatomy: str
    source: str
    patient_id: str | None
    license: str
    fold: str  # TRAIN or VALIDATION; no patient is in both
    input: int
    goal: int | None  # the wanted image; None where regions are painted
    mask: int | None  # the classes to paint, or 1 where the image changes
    classes: int  # how many classes the mask holds
    instruction: int
    # What a new simulation of this pair needs (`mie.training.simulate`); None where there can be none.
    simulate: Mapping[str, Any] | None = None

    @property
    def kind(self) -> EditKind:
        return EDIT_KINDS[self.perspective]


_TYPES: Final = {"int": pa.int32(), "int | None": pa.int32()}
_IN_FILES: Final = {"instruction": "ask"}  # fields that rows.parquet knows by another name
_ROWS: Final = pa.schema(
    [(_IN_FILES.get(f.name, f.name), _TYPES.get(str(f.type), pa.string())) for f in fields(Row)]
)


@dataclass(slots=True)
class Pack:
    images: list[Pixels]  # uint8, (H, W) where the image is grey, else (H, W, 3) RGB
    masks: list[Pixels]  # uint8 (H, W), 0 is background, 1..n the classes
    rows: list[Row]
    instructions: list[Instruction]
    facts: dict[str, Any]  # which datasets, with their digests, and how they were packed


def part_of(pack: Pack, keep: Callable[[Row], bool]) -> Pack:
    """Keep the rows that `keep` accepts, and the images, masks and instructions that they need.

    Arrays are shared.
    """
    rows = [row for row in pack.rows if keep(row)]
    shown = _renumbered(place for row in rows for place in (row.input, row.goal))
    masks = _renumbered(row.mask for row in rows)
    instructions = _renumbered(row.instruction for row in rows)
    return Pack(
        [pack.images[place] for place in shown],
        [pack.masks[place] for place in masks],
        [
            replace(
                row,
                input=shown[row.input],
                goal=None if row.goal is None else shown[row.goal],
                mask=None if row.mask is None else masks[row.mask],
                instruction=instructions[row.instruction],
            )
            for row in rows
        ],
        [pack.instructions[place] for place in instructions],
        pack.facts,
    )


def _renumbered(places: Iterable[int | None]) -> dict[int, int]:
    """Map old places to new ones, in order of first use."""
    used = dict.fromkeys(place for place in places if place is not None)
    return {place: at for at, place in enumerate(used)}


def join_packs(packs: Sequence[Pack]) -> Pack:
    """Join packs in order; what two of them have in common is there twice."""
    joined = Pack([], [], [], [], {"packs": [pack.facts for pack in packs]})
    for pack in packs:
        images, masks = len(joined.images), len(joined.masks)
        instructions = len(joined.instructions)
        joined.images += pack.images
        joined.masks += pack.masks
        joined.instructions += pack.instructions
        joined.rows += [
            replace(
                row,
                input=row.input + images,
                goal=None if row.goal is None else row.goal + images,
                mask=None if row.mask is None else row.mask + masks,
                instruction=row.instruction + instructions,
            )
            for row in pack.rows
        ]
    return joined


def one_channel_if_grey(image: Pixels) -> Pixels:
    """`(H, W)` where the three channels are equal."""
    if image.ndim == 3 and (image[..., 0] == image[..., 1]).all() and (image[..., 1] == image[..., 2]).all():
        return np.ascontiguousarray(image[..., 0])
    return image


def as_rgb(image: Pixels) -> Pixels:
    """`(H, W, 3)` of an image of the pack."""
    return np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else image


def shared_bases(pack: Pack) -> dict[int, int]:
    """Map an image to the one that it shares all but an area with, by the rows that edit an area.

    The two of a row are of one picture, and so are those of rows that share one of them (lesion,
    counterfactual, and both with a hole). The first, or one that is painted on, is stored whole.
    """
    leader: dict[int, int] = {}

    def lead(place: int) -> int:
        while leader.setdefault(place, place) != place:
            place = leader[place]
        return place

    painted = {row.input for row in pack.rows if row.kind is EditKind.OVERLAY}
    for row in pack.rows:
        if row.kind is not EditKind.AREA or row.goal is None:
            continue
        if pack.images[row.input].shape != pack.images[row.goal].shape:
            continue
        first, second = sorted((lead(row.input), lead(row.goal)), key=lambda at: (at not in painted, at))
        leader[second] = first
    return {place: lead(place) for place in leader if lead(place) != place}


def encode_part(picture: Pixels, base: Pixels) -> bytes:
    """A PNG whose alpha is 255 where the picture differs from its base; nothing is kept elsewhere."""
    rgb, other = as_rgb(picture), as_rgb(base)
    differs = (rgb != other).any(2)
    shown = np.dstack([np.where(differs[..., None], rgb[..., ::-1], 0), 255 * differs]).astype(np.uint8)
    done, data = cv2.imencode(".png", shown, [cv2.IMWRITE_PNG_COMPRESSION, 9])
    if not done:
        raise MieError("a picture of the pack cannot be encoded", found=picture.shape)
    return data.tobytes()


def with_part(base: Pixels, part: Pixels) -> Pixels:
    """`part (H, W, 4)` over its base; grey where the base is, since only pictures of one shape share."""
    rgb = np.where(part[..., 3:] > 0, part[..., :3], as_rgb(base))
    return one_channel_if_grey(rgb) if base.ndim == 2 else rgb


def write_pack(
    path: Path,
    pack: Pack,
    *,
    lossy: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Any]:
    """Write the pack to a new folder and return what `pack.json` says.

    `lossy` is the WebP quality (1..100) of images that are only painted on or edited in an area. Images of
    other pairs, and masks, are exact: lossless WebP or our PNG, whichever is smaller. Images that differ only
    in an area are stored once whole; the others store that area, exactly, so that outside it they stay the
    same even where the whole one is lossy.
    """
    refuse_occupied(path)
    paired = {
        place
        for row in pack.rows
        if row.kind is EditKind.IMAGE and row.goal is not None
        for place in (row.input, row.goal)
    }
    qualities = [_LOSSLESS if lossy is None or at in paired else lossy for at in range(len(pack.images))]
    bases = shared_bases(pack)
    total = len(pack.images) + len(pack.masks)
    with folder_lock(path):
        refuse_occupied(path)
        pictures: tuple[tuple[str, list[Pixels], list[int], dict[int, int]], ...] = (
            ("images.parquet", pack.images, qualities, bases),
            ("masks.parquet", pack.masks, [_LOSSLESS] * len(pack.masks), {}),
        )
        done = 0
        for name, arrays, wanted, base in pictures:
            for count in _write_pictures(path / name, arrays, wanted, base):
                done += count
                progress(done, total)
        rows = [_stored_row(row) for row in pack.rows]
        with atomic_path(path / "rows.parquet") as temporary:
            pq.write_table(pa.Table.from_pylist(rows, schema=_ROWS), temporary, compression="zstd")
        instructions = [asdict(instruction) for instruction in pack.instructions]
        text = json.dumps(instructions, ensure_ascii=False, separators=(",", ":"))
        atomic_write(path / "asks.json", text)
        files = {name: digest(path / name) for name in _FILES}
        info = {
            "version": VERSION,
            "mie": mie.__version__,
            "digest": hashlib.sha256(canonical(files).encode()).hexdigest(),
            "lossy": lossy,
            "counts": {
                **{name: len(getattr(pack, name)) for name in ("images", "masks", "rows")},
                "asks": len(pack.instructions),
                "prompts": len({wording.prompt for one in pack.instructions for wording in one.wordings}),
            },
            "facts": pack.facts,
            "files": files,
        }
        atomic_write(path / "pack.json", json.dumps(info, indent=2, ensure_ascii=False) + "\n")
    return info


def read_pack(path: Path, *, workers: int | None = None) -> Pack:
    """Read a pack: every file is checked against its SHA-256, pictures are decoded by `workers` threads."""
    path = Path(path)
    info = _read_info(path)
    for name, expected in info["files"].items():
        sha256 = digest(path / name) if (path / name).is_file() else "no such file"
        if sha256 != expected:
            raise MieError(
                "a file of the pack is damaged",
                where=path / name,
                expected=f"SHA-256 {expected[:16]}...",
                found=sha256 if sha256 == "no such file" else f"{sha256[:16]}...",
                fix="copy the pack again, or make it again with `mie pack`",
            )
    instructions = json.loads((path / "asks.json").read_text(encoding="utf-8"))
    return Pack(
        images=_read_pictures(path / "images.parquet", workers),
        masks=_read_pictures(path / "masks.parquet", workers),
        rows=[_read_row(row) for row in pq.read_table(path / "rows.parquet").to_pylist()],
        instructions=[
            Instruction(one["key"], _wordings(one["wordings"]), _wordings(one["held_out"]))
            for one in instructions
        ],
        facts={**info["facts"], "digest": info["digest"]},
    )


def _stored_row(row: Row) -> dict[str, Any]:
    body = {_IN_FILES.get(name, name): value for name, value in asdict(row).items()}
    return {**body, "simulate": row.simulate and canonical(row.simulate)}


def _read_row(body: Mapping[str, Any]) -> Row:
    values = {f.name: body[_IN_FILES.get(f.name, f.name)] for f in fields(Row)}
    return Row(**{**values, "simulate": values["simulate"] and json.loads(values["simulate"])})


def _wordings(items: Sequence[Mapping[str, Any]]) -> tuple[Wording, ...]:
    return tuple(Wording(w["prompt"], w["template"], tuple(w["colours"])) for w in items)


def _read_info(path: Path) -> dict[str, Any]:
    try:
        info: dict[str, Any] = json.loads((path / "pack.json").read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise MieError(
            "no finished pack here",
            where=path,
            expected="a folder with pack.json",
            fix="make it with `mie pack`",
        ) from None
    except ValueError as error:
        raise MieError("pack.json is not valid JSON", where=path / "pack.json", found=error) from None
    if info.get("version") not in _READABLE or set(info.get("files", ())) != set(_FILES):
        raise MieError(
            "pack of another version",
            where=path / "pack.json",
            expected=f"version {VERSION} with {', '.join(_FILES)}",
            found=f"version {info.get('version')}",
            fix="make it again with `mie pack`",
        )
    return info


def _write_pictures(
    path: Path, pictures: Sequence[Pixels], qualities: Sequence[int], bases: Mapping[int, int]
) -> Iterator[int]:
    """Write in groups, and yield how many pictures each had; the file appears at the end."""
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, _PICTURES, compression="none", use_dictionary=False) as writer,
        ThreadPoolExecutor(cores()) as pool,
    ):
        for start in range(0, len(pictures), _GROUP):
            some = range(start, min(start + _GROUP, len(pictures)))
            whole = [pictures[bases[at]] if at in bases else None for at in some]
            shown = [pictures[at] for at in some]
            columns = [
                pa.array(pool.map(_encode, shown, [qualities[at] for at in some], whole), pa.binary()),
                pa.array([1 if picture.ndim == 2 else 3 for picture in shown], pa.int8()),
                pa.array([bases.get(at) for at in some], pa.int32()),
            ]
            writer.write_table(pa.Table.from_arrays(columns, schema=_PICTURES))
            yield len(columns[0])


def _read_pictures(path: Path, workers: int | None) -> list[Pixels]:
    table = pq.read_table(path)
    bases = table.column("base").to_pylist() if "base" in table.column_names else [None] * len(table)
    stored = [table.column(name).to_pylist() for name in ("bytes", "channels")]
    with ThreadPoolExecutor(workers or cores()) as pool:
        pictures = list(pool.map(_decode, *stored, bases))
        for at, base in enumerate(bases):
            if base is not None:
                pictures[at] = with_part(pictures[base], pictures[at])
        return pictures


def _encode(picture: Pixels, quality: int, base: Pixels | None = None) -> bytes:
    if base is not None:
        return encode_part(picture, base)
    shown = picture if picture.ndim == 2 else cv2.cvtColor(picture, cv2.COLOR_RGB2BGR)
    done, data = cv2.imencode(".webp", shown, [cv2.IMWRITE_WEBP_QUALITY, quality])
    webp = data.tobytes() if done else b""
    if webp and quality != _LOSSLESS:
        return webp
    # WebP ends at 16,383 pixels a side; what OpenCV calls lossless is, for pictures without transparency.
    png = encode_png(picture)
    return webp if webp and len(webp) < len(png) else png


def _decode(data: bytes, channels: int, base: int | None = None) -> Pixels:
    how = cv2.IMREAD_GRAYSCALE if channels == 1 else cv2.IMREAD_COLOR
    picture = cv2.imdecode(np.frombuffer(data, np.uint8), cv2.IMREAD_UNCHANGED if base is not None else how)
    if picture is None:
        raise MieError("a picture of the pack cannot be decoded", found=f"{len(data)} bytes")
    if base is not None:
        return np.asarray(cv2.cvtColor(picture, cv2.COLOR_BGRA2RGBA), np.uint8)
    return picture if channels == 1 else cv2.cvtColor(picture, cv2.COLOR_BGR2RGB)


def refuse_occupied(path: Path) -> None:
    """Raise unless the folder is new, or `mie pack` was interrupted in it."""
    if not path.exists():
        return
    inside = {p.name for p in path.iterdir()} if path.is_dir() else {"a file"}
    foreign = {name for name in inside - {*_FILES, ".lock"} if not name.endswith(".tmp")}
    if foreign:
        raise MieError(
            "the output folder is taken",
            where=path,
            expected="a new folder",
            found="a finished pack" if "pack.json" in foreign else ", ".join(sorted(foreign)[:5]),
            fix="choose another folder",
        )
