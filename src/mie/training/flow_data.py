"""What the flow expert learns from: the images of packs with their lesions, and places that are healthy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.core.hashing import generator, stable_hash
from mie.editors.compact.kinds import EditKind
from mie.errors import ConfigError
from mie.images.families import FAMILIES, GREY, family_of
from mie.perspectives.modification.inpainters.holes import LesionShapes
from mie.records import Mask
from mie.training.flow_crops import CANVAS, OUTSIDE, FlowData
from mie.training.pack import Pack, as_rgb

_DARK: Final = 12  # grey levels: the air around a body is darker
_CLEAR: Final = 9  # pixels around a lesion that are not healthy either
_POINTS: Final = 64  # places for holes, of each image
_SMALLEST: Final = 12  # pixels of a lesion that can be drawn
_PARTS: Final = 6  # lesions of one name in one image
_SHAPES: Final = 1024
_SHAPE: Final = 64  # side of an outline


class Lesion(NamedTuple):
    """A connected lesion: its image, its label there, its target, and where it lies."""

    image: int
    label: int
    target: int
    row: float
    column: float
    extent: float


def lesion_names(packs: Sequence[Pack], fold: str, least: int) -> tuple[str, ...]:
    """Names of lesions that at least so many rows show."""
    count: dict[str, int] = {}
    for row in (row for pack in packs for row in pack.rows if _lesion(row) and row.fold == fold):
        count[row.target] = count.get(row.target, 0) + 1
    return tuple(sorted(name for name, number in count.items() if number >= least))


def flow_data(packs: Sequence[Pack], fold: str, targets: Sequence[str], seed: int) -> FlowData:
    """The fold's images of a known family, each once, with its lesions.

    A lesion whose name is not among the targets is marked, so that it does not pass for healthy.
    """
    numbers = {name: at for at, name in enumerate(targets)}
    names = ("images", "labels", "sizes", "families", "sources", "patients", "points")
    parts: dict[str, list[Any]] = {name: [] for name in names}
    lesions: list[Lesion] = []
    outlines: list[Mask] = []
    for pack in packs:
        rows: dict[int, list[Any]] = {}
        for row in pack.rows:
            if row.kind is EditKind.OVERLAY and row.fold == fold and family_of(row.modality) is not None:
                rows.setdefault(row.input, []).append(row)
        for place, shown in rows.items():
            family = str(family_of(shown[0].modality))
            image = as_rgb(pack.images[place])
            height, width = image.shape[:2]
            if max(height, width) > CANVAS:
                raise ConfigError(
                    "an image is too large for the flow expert",
                    expected=f"at most {CANVAS} pixels a side",
                    found=f"{width}x{height}",
                    fix=f"pack with --longest {CANVAS}",
                )
            if family in GREY:
                image = np.repeat(image.mean(2, keepdims=True).round().astype(np.uint8), 3, axis=2)
            labels = np.full((CANVAS, CANVAS), OUTSIDE, np.uint8)
            labels[:height, :width] = 0
            for label, row in enumerate((row for row in shown if _lesion(row)), 1):
                mask = pack.masks[row.mask] > 0
                labels[:height, :width][mask] = label
                outlines.append(mask)
                if row.target in numbers:
                    lesions += _components(mask, len(parts["images"]), label, numbers[row.target])
            name = f"{shown[0].source}/{place}"
            parts["images"].append(_canvas(image))
            parts["labels"].append(labels)
            parts["sizes"].append((height, width))
            parts["families"].append(FAMILIES.index(family))
            parts["sources"].append(shown[0].source)
            parts["patients"].append(shown[0].patient_id or name)
            parts["points"].append(
                _healthy(image, labels[:height, :width] > 0, stable_hash("flow", seed, name))
            )
    if not parts["images"]:
        raise ConfigError("no images of a known family", where="data.packs", found=f"fold {fold}")
    if not lesions:
        raise ConfigError("no lesions of a known name", where="data.packs", found=f"fold {fold}")
    return FlowData(
        images=np.stack(parts["images"]),
        labels=np.stack(parts["labels"]),
        sizes=np.array(parts["sizes"], np.int64),
        families=np.array(parts["families"], np.int64),
        sources=np.array(parts["sources"]),
        patients=np.array(parts["patients"]),
        points=np.stack(parts["points"]),
        lesions=np.array(lesions, np.float32),
        shapes=_outlines(outlines, seed),
    )


def lesion_extents(data: FlowData, targets: Sequence[str]) -> dict[str, dict[str, tuple[float, float]]]:
    """How long lesions are, by family and name: the middle 80%, as shares of the image's longer side."""
    shares: dict[str, dict[str, list[float]]] = {}
    for image, _, target, _, _, extent in data.lesions.tolist():
        family, longer = FAMILIES[data.families[int(image)]], float(data.sizes[int(image)].max())
        shares.setdefault(family, {}).setdefault(targets[int(target)], []).append(extent / longer)
    return {
        family: {name: _middle(found) for name, found in sorted(shares[family].items())} for family in shares
    }


def _middle(shares: Sequence[float]) -> tuple[float, float]:
    low, high = np.quantile(shares, (0.1, 0.9))
    return round(float(low), 4), round(float(high), 4)


def _lesion(row: Any) -> bool:
    return bool(row.kind is EditKind.OVERLAY and row.task == "lesion" and row.mask is not None)


def _canvas(image: NDArray[np.uint8]) -> NDArray[np.uint8]:
    edges = (0, CANVAS - image.shape[0], 0, CANVAS - image.shape[1])
    return np.asarray(cv2.copyMakeBorder(image, *edges, cv2.BORDER_CONSTANT), np.uint8).transpose(2, 0, 1)


def _components(mask: Mask, image: int, label: int, target: int) -> list[Lesion]:
    """Lesions a few pixels apart count as one."""
    near = cv2.dilate(mask.astype(np.uint8), np.ones((7, 7), np.uint8))
    count, parts = cv2.connectedComponents(near)
    lesions = []
    for part in range(1, count):
        rows, columns = np.nonzero(mask & (parts == part))
        if len(rows) < _SMALLEST:
            continue
        extent = max(np.ptp(rows), np.ptp(columns)) + 1
        middle = ((rows.min() + rows.max() + 1) / 2, (columns.min() + columns.max() + 1) / 2)
        place = (float(middle[0]), float(middle[1]), float(extent))
        lesions.append((len(rows), Lesion(image, label, target, *place)))
    lesions.sort(key=lambda item: -item[0])
    return [lesion for _, lesion in lesions[:_PARTS]]


def _healthy(image: NDArray[np.uint8], lesion: Mask, seed: int) -> NDArray[np.float32]:
    """Places inside the body and clear of lesions; NaN where there are none."""
    level = cv2.GaussianBlur(image.mean(axis=2).astype(np.float32), (0, 0), 4)
    clear = cv2.dilate(lesion.astype(np.uint8), np.ones((2 * _CLEAR + 1,) * 2, np.uint8)) == 0
    places = np.argwhere((level > _DARK) & clear)
    if len(places) < _POINTS:
        return np.full((_POINTS, 2), np.nan, np.float32)
    chosen = generator(seed).choice(len(places), _POINTS, replace=False)
    return places[chosen].astype(np.float32) + 0.5


def _outlines(masks: Sequence[Mask], seed: int) -> NDArray[np.bool_]:
    shapes = [shape for shape in LesionShapes.from_masks(masks).shapes if min(shape.crop.shape) >= 6]
    if not shapes:
        raise ConfigError("no lesion lies whole inside its image", where="data.packs")
    order = generator(stable_hash("outlines", seed)).permutation(len(shapes))[:_SHAPES]
    squares = np.zeros((len(order), _SHAPE, _SHAPE), np.bool_)
    for at, number in enumerate(order):
        crop = shapes[number].crop
        scale = _SHAPE / max(crop.shape)
        height, width = (max(1, round(side * scale)) for side in crop.shape)
        small = cv2.resize(crop.astype(np.float32), (width, height), interpolation=cv2.INTER_LINEAR) > 0.5
        top, left = (_SHAPE - height) // 2, (_SHAPE - width) // 2
        squares[at, top : top + height, left : left + width] = small
    return squares
