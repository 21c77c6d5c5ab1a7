"""What importers share: files and fields that somebody else may have written, checked before use.

`sample_from` reads back what an export of ours wrote; `foreign_sample` makes a sample of a record of somebody
else's benchmark. The plain folder (`samples.jsonl` with the files that it names) is read here too.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
from PIL import Image

from mie.core.files import inside
from mie.core.hashing import canonical
from mie.core.registry import Registry
from mie.datasets.exports.target import MARKER
from mie.datasets.schema import IMAGE_COLUMNS, SCHEMA, sample_digest
from mie.errors import ConfigError, ImageError, MieError
from mie.images.hashes import pixel_digest
from mie.images.read import read_labels, read_picture
from mie.perspectives import PERSPECTIVES, Perspective
from mie.records import Picture, Pixels, Rejection, Sample, Step
from mie.vocabulary import COLOURS, LICENSE_USES, SPLITS, UNKNOWN

_TEXT_COLUMNS: Final = [name for name in SCHEMA.names if name not in (*IMAGE_COLUMNS, "params", "sha256")]
_KNOWN: Final[dict[str, Collection[str] | Registry[Perspective]]] = {
    "perspective": PERSPECTIVES,
    "split": SPLITS,
    "colour": tuple(COLOURS),
}
_NULLABLE: Final = ("colour", "bin", "patient_id", "group", "turn")


@dataclass(frozen=True, slots=True)
class Incoming:
    """A folder that is being imported: `outcomes` come in dataset order, `total` of them."""

    outcomes: Iterator[Sample | Rejection]
    total: int
    notes: Mapping[str, Any] = field(default_factory=dict)
    licenses: Mapping[str, Mapping[str, str]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Origin:
    """What is known of the dataset that a folder was exported from."""

    name: str
    description: str = ""
    licenses: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    recipe: Mapping[str, Any] | None = None


def read_origin(folder: Path, format: str) -> Origin | None:
    """What an export says of itself; None for a folder that `mie export` did not write."""
    if not folder.is_dir():
        raise MieError("no such folder", where=folder, fix="check the path")
    path = folder / MARKER
    if not path.exists():
        return None
    body = load_json(inside(folder, folder, MARKER).read_bytes(), where=path)
    if not isinstance(body, dict) or not isinstance(body.get("name"), str):
        raise MieError("not the mark of an export", where=path, fix="remove the file to import without it")
    if body.get("format") != format:
        raise ConfigError("export of another format", where=folder, expected=format, found=body.get("format"))
    if body.get("complete") is not True:
        raise MieError("unfinished export", where=folder, fix="run the same `mie export` again to finish it")
    recipe, licenses = body.get("recipe"), body.get("licenses")
    return Origin(
        name=body["name"],
        description=str(body.get("description") or ""),
        licenses=_terms(licenses) if isinstance(licenses, dict) else {},
        recipe=recipe if isinstance(recipe, dict) else None,
    )


def _terms(licenses: Mapping[str, Any]) -> dict[str, dict[str, str]]:
    found = {}
    for source, terms in licenses.items():
        if isinstance(terms, dict) and terms.get("use") in LICENSE_USES:
            found[source] = {key: str(terms.get(key, "")) for key in ("name", "use", "basis")}
    return found


def load_json(data: bytes, *, where: object) -> Any:
    """Decoded JSON; `MieError` for anything else."""
    try:
        return json.loads(data.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:
        raise MieError("not valid JSON", where=where, found=error) from None


def storable(value: object) -> dict[str, Any]:
    """The value, if it is a JSON object whose text can be stored.

    JSON can spell half of a surrogate pair, which UTF-8 cannot hold.
    """
    if not isinstance(value, dict):
        raise MieError("not a record", expected="a JSON object", found=type(value).__name__)
    try:
        canonical(value).encode()
    except (ValueError, RecursionError) as error:
        raise MieError("record cannot be stored", expected="text in Unicode", found=error) from None
    return value


def picture(root: Path, base: Path, text: object) -> Picture:
    """The image file `base / text`, which must lie inside `root`."""
    path = inside(root, base, text)
    try:
        return read_picture(path)
    except MieError as error:
        raise ImageError(error.what, where=text, expected=error.expected, found=error.found) from None


def mask(root: Path, base: Path, text: object) -> Pixels:
    """The mask file `base / text`: `(H, W) uint8`."""
    path = inside(root, base, text)
    try:
        values = read_labels(path)
    except MieError as error:
        raise ImageError(error.what, where=text, expected=error.expected, found=error.found) from None
    if values.dtype != "uint8":
        raise ImageError("mask is not 8-bit grey", where=text, found=values.dtype)
    return values


def check_sizes(input_: Pixels, target_image: Pixels, mask_: Pixels | None) -> None:
    for what, pixels in (("output", target_image), ("mask", mask_)):
        if pixels is not None and pixels.shape[:2] != input_.shape[:2]:
            raise ImageError(f"input and {what} differ in size", expected=_size(input_), found=_size(pixels))


def _size(pixels: Pixels) -> str:
    return f"{pixels.shape[1]}x{pixels.shape[0]}"


def sample_from(
    body: Mapping[str, Any],
    *,
    input: Pixels,
    target_image: Pixels,
    mask: Pixels | None,
) -> Sample:
    """The sample that an export wrote as JSON. One that was changed since says so in `params`."""
    check_sizes(input, target_image, mask)
    values = {name: _value(body, name) for name in _TEXT_COLUMNS}
    values["parents"] = tuple(values["parents"])
    params = body.get("params")
    if not isinstance(params, dict):
        raise MieError("field 'params' is not usable", expected="an object", found=repr(params)[:80])
    sample = Sample(**values, params=params, input=input, target_image=target_image, mask=mask)
    known = body.get("sha256")
    if not isinstance(known, str) or known == sample_digest(sample):
        return sample
    return replace(sample, params={**params, "edited_from": known})


def _value(body: Mapping[str, Any], name: str) -> Any:
    value: Any = body.get(name)
    kind = SCHEMA.field(name).type
    if value is None and name in _NULLABLE:
        return None
    if pa.types.is_string(kind):
        sound = isinstance(value, str) and (bool(value) or name != "id")
    elif pa.types.is_integer(kind):
        limit = 2 ** (kind.bit_width - 1)
        sound = isinstance(value, int) and not isinstance(value, bool) and -limit <= value < limit
    else:
        sound = isinstance(value, list) and all(isinstance(item, str) for item in value)
    known = _KNOWN.get(name)
    if sound and known is not None:
        words = value.split(",") if name == "colour" else [value]
        sound = all(word in known for word in words)
    if not sound:
        expected = ", ".join(known) if known is not None else str(kind)
        raise MieError(f"field {name!r} is not usable", expected=expected, found=repr(value)[:80])
    return value


def rejection(source: str, where: str, error: MieError) -> Rejection:
    """Gate `image` for a file that is not what it should be, `source` for a record."""
    place = where if error.where is None else f"{where} ({error.where})"
    return Rejection(source, place, "image" if isinstance(error, ImageError) else "source", error.reason)


VERSION: Final = 1
LICENSE: Final = {"name": "not stated", "use": "unknown", "basis": "stated"}


def fitted(picture: Picture, size: tuple[int, int], how: Image.Resampling) -> tuple[Pixels, list[Step]]:
    """The pixels at (height, width), and the steps that led to them."""
    steps: list[Step] = [dict(step) for step in picture.steps]
    pixels = picture.pixels
    if pixels.shape[:2] == size:
        return pixels, steps
    steps.append({"step": "resize", "from": list(pixels.shape[:2]), "to": list(size), "how": how.name})
    return np.asarray(Image.fromarray(pixels).resize(size[::-1], how)), steps


def fitted_mask(mask: Pixels, size: tuple[int, int]) -> Pixels:
    if mask.shape == size:
        return mask
    return np.asarray(Image.fromarray(mask).resize(size[::-1], Image.Resampling.NEAREST))


def as_imported(
    folder: Path,
    format: str,
    place: tuple[str, str | int],
    record: Mapping[str, Any],
    images: Mapping[str, tuple[Path, bool]],
    others: Iterable[Path] = (),
) -> dict[str, Any]:
    """What `mie export -f FORMAT` needs to write a record back as it came; goes into `params["imported"]`.

    Args:
        folder: What is imported.
        format: The name of the importer.
        place: The record's list, and its key or number there.
        record: All of it.
        images: Column -> its file, and whether the column holds the file's very pixels.
        others: Files that no column holds as they are, such as two masks of which a sample has the union.

    """
    same = {name: _relative(folder, path) for name, (path, kept) in images.items() if kept}
    changed = [path for path, kept in images.values() if not kept]
    stored = {_relative(folder, path): path.read_bytes() for path in (*changed, *others)}
    return {
        "format": format,
        "list": place[0],
        "at": place[1],
        "record": dict(record),
        "images": same,
        "files": {name: base64.b64encode(data).decode("ascii") for name, data in stored.items()},
    }


def _relative(folder: Path, path: Path) -> str:
    return path.relative_to(folder).as_posix()


def foreign_sample(
    source: str,
    identity: object,
    *,
    prompt: str,
    input: Pixels,
    target_image: Pixels,
    params: Mapping[str, Any],
    case_id: str,
    mask: Pixels | None = None,
    anatomy: str = UNKNOWN,
    target: str = UNKNOWN,
    description: str = "",
    group: str | None = None,
    turn: int | None = None,
) -> Sample:
    """A modification sample of which nothing else is known. `identity` is the record: the id comes of it."""
    digests = [pixel_digest(image).hex() for image in (input, target_image)]
    digest = hashlib.sha256(canonical([source, VERSION, identity, digests]).encode()).hexdigest()
    return Sample(
        id=digest[:16],
        perspective="modification",
        task=UNKNOWN,
        target=target,
        modality=UNKNOWN,
        anatomy=anatomy,
        prompt=prompt,
        prompt_template="",
        description=description,
        input=input,
        target_image=target_image,
        mask=mask,
        colour=None,
        split="test",
        bin=None,
        source=source,
        case_id=case_id,
        patient_id=None,
        recipe=source,
        recipe_version=VERSION,
        params=params,
        seed=0,
        group=group,
        turn=turn,
    )


_LIST = "samples.jsonl"


def read(folder: Path) -> Incoming:
    """The samples in the order of their lines. `samples.csv` is for people and is not read."""
    if not (folder / _LIST).is_file():
        raise MieError("no list of samples here", where=folder, expected=_LIST, fix="check the path")
    path = inside(folder, folder, _LIST)
    with path.open("rb") as lines:
        total = sum(1 for line in lines if line.strip())
    if not total:
        raise MieError("no sample in the list", where=path, expected="one JSON object per line")
    return Incoming(_outcomes(folder, path), total)


def _outcomes(folder: Path, path: Path) -> Iterator[Sample | Rejection]:
    with path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield _sample(folder, line)
            except MieError as error:
                yield rejection("folder", f"{_LIST}:{number}", error)


def _sample(folder: Path, line: bytes) -> Sample:
    body = storable(load_json(line, where=None))
    region = body.get("mask")
    return sample_from(
        body,
        input=picture(folder, folder, body.get("input")).pixels,
        target_image=picture(folder, folder, body.get("target_image")).pixels,
        mask=None if region is None else mask(folder, folder, region),
    )
