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
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

import mie
from mie.core.files import atomic_path, atomic_write, digest, folder_lock, read_regular
from mie.core.hashing import canonical
from mie.datasets.schema import read_table
from mie.editors.compact.kinds import EDIT_KINDS, EditKind
from mie.errors import MieError
from mie.records import Pixels
from mie.training.pack_pictures import (
    LOSSLESS,
    decoded,
    refuse_larger_than_memory,
    stored_pictures,
    write_pictures,
)
from mie.training.pack_pictures import (
    as_rgb as as_rgb,
)
from mie.training.pack_pictures import (
    one_channel_if_grey as one_channel_if_grey,
)

TRAIN, VALIDATION = "train", "validation"
VERSION: Final = 2
_READABLE: Final = (1, 2)  # version 1 has no `base`
_FILES: Final = ("images.parquet", "masks.parquet", "rows.parquet", "asks.json")
_MOST_TEXT: Final = 2**28  # bytes of a JSON file


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
    qualities = [LOSSLESS if lossy is None or at in paired else lossy for at in range(len(pack.images))]
    bases = shared_bases(pack)
    total = len(pack.images) + len(pack.masks)
    with folder_lock(path):
        refuse_occupied(path)
        pictures: tuple[tuple[str, list[Pixels], list[int], dict[int, int]], ...] = (
            ("images.parquet", pack.images, qualities, bases),
            ("masks.parquet", pack.masks, [LOSSLESS] * len(pack.masks), {}),
        )
        done = 0
        for name, arrays, wanted, base in pictures:
            for count in write_pictures(path / name, arrays, wanted, base):
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
    """Read a pack: every file is checked against its SHA-256, pictures are decoded by `workers` threads.

    A stranger's pack has a stranger's checksums. So no picture is decoded before its header was looked at,
    and none at all where together they would not fit into this machine's memory.
    """
    path = Path(path)
    info = _read_info(path)
    with _pack_errors(path):
        return _read_checked(path, info, workers)


@contextmanager
def _pack_errors(path: Path) -> Iterator[None]:
    """Turn what a file that is none of ours raises, anywhere on its way, into a `MieError`."""
    try:
        yield
    except MieError:
        raise
    except (
        *(pa.ArrowException, OSError, MemoryError, RecursionError),
        *(ValueError, TypeError, AttributeError, LookupError),
    ) as error:
        raise MieError(
            "the pack cannot be read",
            where=path,
            found=f"{type(error).__name__}: {error}"[:300],
            fix="make it again with `mie pack`",
        ) from error


def _read_checked(path: Path, info: Mapping[str, Any], workers: int | None) -> Pack:
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
    instructions = json.loads(_text(path / "asks.json"))
    stored = {name: stored_pictures(path / f"{name}.parquet") for name in ("images", "masks")}
    refuse_larger_than_memory(path, [picture for pictures in stored.values() for picture in pictures])
    pack = Pack(
        images=decoded(stored["images"], workers),
        masks=decoded(stored["masks"], workers),
        rows=[_read_row(row) for row in read_table(path / "rows.parquet").to_pylist()],
        instructions=[
            Instruction(one["key"], _wordings(one["wordings"]), _wordings(one["held_out"]))
            for one in instructions
        ],
        facts={**info["facts"], "digest": info["digest"]},
    )
    for row in pack.rows:
        _check_row(row, pack, path / "rows.parquet")
    return pack


def _text(path: Path) -> str:
    data = read_regular(path, _MOST_TEXT)
    if len(data) > _MOST_TEXT:
        raise MieError("the file is too large", where=path, expected=f"at most {_MOST_TEXT:,} bytes")
    return data.decode()


def _check_row(row: Row, pack: Pack, where: Path) -> None:
    """Raise where a row points to what is not there, or pairs what has not one size."""
    places = (
        ("input", row.input, pack.images),
        ("goal", row.goal, pack.images),
        ("mask", row.mask, pack.masks),
        ("ask", row.instruction, pack.instructions),
    )
    for name, place, there in places:
        needed = name in ("input", "ask")
        if (place is None and needed) or (place is not None and not 0 <= place < len(there)):
            raise MieError(
                f"row {row.id} points to what is not there",
                where=where,
                expected=f"{name} below {len(there)}",
                found=place,
            )
    size = pack.images[row.input].shape[:2]
    others = [pack.images[row.goal]] if row.goal is not None else []
    others += [pack.masks[row.mask]] if row.mask is not None else []
    if row.perspective not in EDIT_KINDS or any(other.shape[:2] != size for other in others):
        raise MieError(
            f"row {row.id} is none of ours",
            where=where,
            expected=f"{' or '.join(EDIT_KINDS)}, and pictures of one size",
            found=f"{row.perspective}, {[other.shape[:2] for other in others]} beside {size}",
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
        info = json.loads(_text(path / "pack.json"))
    except FileNotFoundError:
        raise MieError(
            "no finished pack here",
            where=path,
            expected="a folder with pack.json",
            fix="make it with `mie pack`",
        ) from None
    except (ValueError, RecursionError, OSError) as error:
        raise MieError("pack.json is not valid JSON", where=path / "pack.json", found=error) from None
    body: dict[str, Any] = info if isinstance(info, dict) else {}
    files = body.get("files")
    if body.get("version") not in _READABLE or not isinstance(files, dict) or files.keys() != set(_FILES):
        raise MieError(
            "pack of another version",
            where=path / "pack.json",
            expected=f"version {VERSION} with {', '.join(_FILES)}",
            found=f"version {body.get('version')}",
            fix="make it again with `mie pack`",
        )
    return body


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
