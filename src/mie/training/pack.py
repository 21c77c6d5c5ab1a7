"""What is trained on: images and masks stored once, rows that point to them, and all that can be asked for.

A row says which image goes in, what should come out (a goal image, or a mask to paint; for a modification the
goal, and the mask of what changes), and which `Ask` puts it into words. Nothing is letterboxed, augmented or
painted yet.
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
from mie.core.files import atomic_path, atomic_write, folder_lock
from mie.core.hashing import canonical
from mie.datasets.engine import cores
from mie.errors import MieError
from mie.images.png import encode_png
from mie.records import Pixels

TRAIN, VALIDATION = "train", "validation"


@dataclass(frozen=True, slots=True)
class Wording:
    """One sentence, the template it was made from, and the colour of class 1..n that it names."""

    prompt: str
    template: str
    colours: tuple[str, ...] = ()  # empty where nothing is painted


@dataclass(frozen=True, slots=True)
class Ask:
    """One thing that can be asked for, said in several ways. `held_out` ways are never trained on."""

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
    goal: int | None  # transformation and modification: the wanted image
    mask: int | None  # perception: the classes to paint; modification: 1 where the image changes
    classes: int  # how many classes the mask holds
    ask: int
    # What a fresh simulation of this pair needs (`mie.training.simulate`); None where there can be none.
    simulate: Mapping[str, Any] | None = None


@dataclass(slots=True)
class Pack:
    images: list[Pixels]  # uint8, (H, W) where the image is grey, else (H, W, 3) RGB
    masks: list[Pixels]  # uint8 (H, W), 0 is background, 1..n the classes
    rows: list[Row]
    asks: list[Ask]
    facts: dict[str, Any]  # which datasets, with their digests, and how they were packed


def part_of(pack: Pack, keep: Callable[[Row], bool]) -> Pack:
    """The rows that `keep` likes, with only the images, masks and asks that they need; arrays are shared."""
    rows = [row for row in pack.rows if keep(row)]
    shown = _renumbered(place for row in rows for place in (row.input, row.goal))
    masks = _renumbered(row.mask for row in rows)
    asks = _renumbered(row.ask for row in rows)
    return Pack(
        [pack.images[place] for place in shown],
        [pack.masks[place] for place in masks],
        [
            replace(
                row,
                input=shown[row.input],
                goal=None if row.goal is None else shown[row.goal],
                mask=None if row.mask is None else masks[row.mask],
                ask=asks[row.ask],
            )
            for row in rows
        ],
        [pack.asks[place] for place in asks],
        pack.facts,
    )


def _renumbered(places: Iterable[int | None]) -> dict[int, int]:
    """Old place -> new place, in order of first use."""
    used = dict.fromkeys(place for place in places if place is not None)
    return {place: at for at, place in enumerate(used)}


def join_packs(packs: Sequence[Pack]) -> Pack:
    """Several packs as one, in order; what two of them hold in common is there twice."""
    joined = Pack([], [], [], [], {"packs": [pack.facts for pack in packs]})
    for pack in packs:
        images, masks, asks = len(joined.images), len(joined.masks), len(joined.asks)
        joined.images += pack.images
        joined.masks += pack.masks
        joined.asks += pack.asks
        joined.rows += [
            replace(
                row,
                input=row.input + images,
                goal=None if row.goal is None else row.goal + images,
                mask=None if row.mask is None else row.mask + masks,
                ask=row.ask + asks,
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


# Pictures that differ in a part only, as a modification's do: one stored whole, the others as that part.


def shared_bases(pack: Pack) -> dict[int, int]:
    """Image -> the image that it shares all but an area with, by the rows of modifications.

    The two of a row are of one picture, and so are those of rows that share one of them (lesion,
    counterfactual, and both with a hole). The first, or one that perception paints on, is stored whole.
    """
    leader: dict[int, int] = {}

    def lead(place: int) -> int:
        while leader.setdefault(place, place) != place:
            place = leader[place]
        return place

    painted = {row.input for row in pack.rows if row.perspective == "perception"}
    for row in pack.rows:
        if row.perspective != "modification" or row.goal is None:
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


# A pack on disk: small enough to carry to another machine, and refused there if a byte is wrong.
#
# PACK/
#   images.parquet, masks.parquet   encoded pictures and how many channels each has; one that differs from
#                                   another in a part only (`base`) holds that part
#   rows.parquet                    one line per row
#   asks.json                       what can be asked for, in all wordings
#   pack.json                       facts, counts, versions, SHA-256 of each file; written last

VERSION: Final = 2
_READABLE: Final = (1, 2)  # version 1 has no `base`
_FILES: Final = ("images.parquet", "masks.parquet", "rows.parquet", "asks.json")
_LOSSLESS: Final = 101  # OpenCV: a WebP quality above 100
_ROWS_PER_GROUP: Final = 64
_PICTURES: Final = pa.schema([("bytes", pa.binary()), ("channels", pa.int8()), ("base", pa.int32())])
_KINDS: Final = {"int": pa.int32(), "int | None": pa.int32()}
_ROWS: Final = pa.schema([(f.name, _KINDS.get(str(f.type), pa.string())) for f in fields(Row)])


def write_pack(
    path: Path,
    pack: Pack,
    *,
    lossy: int | None = None,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> dict[str, Any]:
    """Write the pack to a new folder and return what `pack.json` says.

    `lossy` is the WebP quality (1..100) of images that are only ever painted on or modified. Images of pairs,
    and masks, are exact: by lossless WebP or our PNG, whichever is smaller. The images of a modification
    differ in a small area: one of them is stored whole and the others as that area, exact, so that outside it
    they stay the same also where the whole one is lossy.
    """
    refuse_occupied(path)
    paired = {
        place
        for row in pack.rows
        if row.perspective == "transformation" and row.goal is not None
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
        rows = [{**asdict(row), "simulate": row.simulate and canonical(row.simulate)} for row in pack.rows]
        with atomic_path(path / "rows.parquet") as temporary:
            pq.write_table(pa.Table.from_pylist(rows, schema=_ROWS), temporary, compression="zstd")
        asks = [asdict(ask) for ask in pack.asks]
        atomic_write(path / "asks.json", json.dumps(asks, ensure_ascii=False, separators=(",", ":")))
        files = {name: _sha256(path / name) for name in _FILES}
        info = {
            "version": VERSION,
            "mie": mie.__version__,
            "digest": hashlib.sha256(canonical(files).encode()).hexdigest(),
            "lossy": lossy,
            "counts": {
                **{name: len(getattr(pack, name)) for name in ("images", "masks", "rows", "asks")},
                "prompts": len({wording.prompt for ask in pack.asks for wording in ask.wordings}),
            },
            "facts": pack.facts,
            "files": files,
        }
        atomic_write(path / "pack.json", json.dumps(info, indent=2, ensure_ascii=False) + "\n")
    return info


def read_pack(path: Path, *, workers: int | None = None) -> Pack:
    """The pack, every file checked against its SHA-256, pictures decoded by `workers` threads (all cores)."""
    path = Path(path)
    info = _read_info(path)
    for name, expected in info["files"].items():
        found = _sha256(path / name) if (path / name).is_file() else "no such file"
        if found != expected:
            raise MieError(
                "a file of the pack is damaged",
                where=path / name,
                expected=f"SHA-256 {expected[:16]}...",
                found=found if found == "no such file" else f"{found[:16]}...",
                fix="copy the pack again, or make it again with `mie pack`",
            )
    asks = json.loads((path / "asks.json").read_text(encoding="utf-8"))
    return Pack(
        images=_read_pictures(path / "images.parquet", workers),
        masks=_read_pictures(path / "masks.parquet", workers),
        rows=[
            Row(**{**row, "simulate": row["simulate"] and json.loads(row["simulate"])})
            for row in pq.read_table(path / "rows.parquet").to_pylist()
        ],
        asks=[Ask(ask["key"], _wordings(ask["wordings"]), _wordings(ask["held_out"])) for ask in asks],
        facts={**info["facts"], "digest": info["digest"]},
    )


def _wordings(said: Sequence[dict[str, Any]]) -> tuple[Wording, ...]:
    return tuple(Wording(w["prompt"], w["template"], tuple(w["colours"])) for w in said)


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
    """Writes while it is asked how far it has come; the file appears at the end."""
    with (
        atomic_path(path) as temporary,
        pq.ParquetWriter(temporary, _PICTURES, compression="none", use_dictionary=False) as writer,
        ThreadPoolExecutor(cores()) as pool,
    ):
        for start in range(0, len(pictures), _ROWS_PER_GROUP):
            some = range(start, min(start + _ROWS_PER_GROUP, len(pictures)))
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


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def refuse_occupied(path: Path) -> None:
    """Only a new folder, or one where `mie pack` was interrupted."""
    if not path.exists():
        return
    inside = {p.name for p in path.iterdir()} if path.is_dir() else {"a file"}
    strange = {name for name in inside - {*_FILES, ".lock"} if not name.endswith(".tmp")}
    if strange:
        raise MieError(
            "the output folder is taken",
            where=path,
            expected="a new folder",
            found="a finished pack" if "pack.json" in strange else ", ".join(sorted(strange)[:5]),
            fix="choose another folder",
        )
