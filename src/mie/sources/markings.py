"""From a mask file's values or colours to one boolean mask per target, with nothing left unexplained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.errors import ImageError
from mie.records import Mask
from mie.sources.catalog import Entry, TargetEntry

Labels = NDArray[Any]


def uses_colours(targets: tuple[TargetEntry, ...]) -> bool:
    return any(t.colour is not None for t in targets)


def masks_of(labels: Labels, targets: tuple[TargetEntry, ...], entry: Entry) -> dict[str, Mask]:
    """The masks of the targets that are present. `labels` is `(...)` integers or `(..., 3) uint8` colours."""
    if uses_colours(targets):
        codes = _packed(labels)
        known = {t.name: tuple(_code(c) for c in t.colours) for t in targets}
        ignored = tuple(_code(c) for c in entry.ignore if isinstance(c, tuple))
        colours = True
    else:
        codes = labels
        known = {t.name: t.values for t in targets}
        ignored = tuple(c for c in entry.ignore if isinstance(c, int))
        colours = False
    if any(t.nonzero or t.above is not None or t.below is not None for t in targets):
        masks = {t.name: marked(codes, t) for t in targets}
    else:
        expected = sorted({0, *ignored, *(c for cs in known.values() for c in cs)})
        codes = _snapped(codes, expected, colours) if entry.snap else codes
        is_code = {code: codes == code for code in expected}
        # Equal counts mean that every pixel is explained: much cheaper than looking for strangers.
        if sum(int(np.count_nonzero(m)) for m in is_code.values()) != codes.size:
            _refuse_unexpected(codes, expected, colours)
        masks = {name: _union([is_code[c] for c in cs]) for name, cs in known.items()}
    shaped = {t.name: _shaped(masks[t.name], t) for t in targets if masks[t.name].any()}
    return {name: mask for name, mask in shaped.items() if mask.any()}


def _shaped(mask: Mask, target: TargetEntry) -> Mask:
    if target.filled:
        mask = _filled(mask)
    if target.opened:
        square = np.ones((target.opened, target.opened), np.uint8)
        mask = cv2.morphologyEx(mask.astype(np.uint8), cv2.MORPH_OPEN, square) > 0
    return mask


def _filled(outline: Mask) -> Mask:
    """An outline `(H, W)` with what it encloses. One that encloses nothing would pass for a thin target."""
    beyond = np.pad(outline.astype(np.uint8), 1)
    cv2.floodFill(beyond, None, (0, 0), 2)  # through sides, not corners: an outline may run diagonally
    whole: Mask = beyond[1:-1, 1:-1] != 2
    if np.array_equal(whole, outline):
        raise ImageError("the outline in the mask is not closed", fix="leave the image out, or close it")
    return whole


def _union(masks: list[Mask]) -> Mask:
    return masks[0] if len(masks) == 1 else np.logical_or.reduce(masks)


def marked(values: Labels, target: TargetEntry) -> Mask:
    """Where `values` mark the target (one that is not marked by colour)."""
    if target.nonzero:
        return np.asarray(values != 0)
    if target.above is not None:
        return np.asarray(values > target.above)
    if target.below is not None:
        return np.asarray(values < target.below)
    return _union([np.asarray(values == value) for value in target.values])


def _packed(colours: Labels) -> Labels:
    """(..., 3) uint8 -> (...) int32 codes 0xRRGGBB."""
    if colours.shape[-1] != 3 or colours.ndim < 3:
        raise ImageError("mask is not in colour", expected="(H, W, 3)", found=colours.shape)
    wide = colours.astype(np.int32)
    return np.asarray((wide[..., 0] << 16) | (wide[..., 1] << 8) | wide[..., 2])


def _code(colour: tuple[int, int, int]) -> int:
    return (colour[0] << 16) | (colour[1] << 8) | colour[2]


def _channels(codes: NDArray[Any]) -> NDArray[np.int64]:
    codes = codes.astype(np.int64)
    return np.stack([codes >> 16, (codes >> 8) & 255, codes & 255], axis=-1)


def _snapped(codes: Labels, expected: list[int], colours: bool) -> Labels:
    """Each pixel at the nearest expected value; JPEG leaves values around the true ones."""
    found, back = np.unique(codes, return_inverse=True)
    targets = np.array(expected)
    if colours:
        apart = ((_channels(found)[:, None] - _channels(targets)[None]) ** 2).sum(-1)
    else:
        apart = np.abs(found.astype(np.int64)[:, None] - targets[None])
    return np.asarray(targets[apart.argmin(axis=1)][back].reshape(codes.shape))


def _refuse_unexpected(codes: Labels, expected: list[int], colours: bool) -> NoReturn:
    values, counts = np.unique(codes[~np.isin(codes, expected)], return_counts=True)
    strange = {_name(v, colours): int(n) for v, n in zip(values, counts, strict=True)}
    raise unexpected(strange, [_name(e, colours) for e in expected])


def unexpected(strange: Mapping[str, int], expected: Sequence[str]) -> ImageError:
    """The error for mask values that nobody has named, most frequent first."""
    most = sorted(strange.items(), key=lambda item: -item[1])
    shown = ", ".join(f"{name} on {count} px" for name, count in most[:5])
    return ImageError(
        "mask has values that the data set's entry does not name",
        expected=", ".join(expected),
        found=shown + (f" and {len(most) - 5} more" if len(most) > 5 else ""),
        fix="name them as targets, list them under `ignore`, or, for compression noise, set `snap: true`",
    )


def _name(code: int, colours: bool) -> str:
    return str(tuple(int(c) for c in _channels(np.array([code]))[0])) if colours else str(int(code))
