"""From a mask file's values or colours to one boolean mask per target, with nothing left unexplained."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.core import scratch
from mie.errors import ConfigError, ImageError, MieError
from mie.records import Mask, Unit
from mie.sources.catalog import Entry, TargetEntry

if TYPE_CHECKING:  # a folder of pictures must not pay for the import of volume readers
    from mie.images.volumes import Volume
    from mie.sources.slices import Region

Labels = NDArray[Any]
_MOST_OUTSIDE: Final = 0.05  # of a target's voxels, beyond the image: the borders of two grids differ


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


# Label volumes to regions: which voxels of a mask file belong to which target.


def marked_regions(
    entry: Entry, unit: Unit, read: Callable[[str, tuple[TargetEntry, ...]], Mapping[str, Region]]
) -> dict[str, Region] | None:
    """What all mask files of a unit mark, through `read(path, targets)`; None when it has no mask files.

    A target that is marked in several files is all of them together.
    """
    if unit.files.keys() <= {"image", "pair"}:
        return None
    regions: dict[str, Region] = {}
    for role, paths in unit.files.items():
        targets = entry.targets_of(role)
        for path in paths if targets else ():
            for name, region in read(path, targets).items():
                regions[name] = regions[name] | region if name in regions else region
    # In the entry's order, whatever the order of the files.
    return {target.name: regions[target.name] for target in entry.targets if target.name in regions}


def label_regions(
    path: Path, image: Volume, targets: Sequence[TargetEntry], entry: Entry
) -> dict[str, Region]:
    """The regions that one mask file marks for `targets`, those that mark nothing left out.

    The file must hold no value that is neither 0, nor a target's, nor ignored. On another grid it is brought
    onto the image's by what the headers say, and the regions record it.
    """
    from mie.images.volumes import read_volume, same_geometry
    from mie.sources.slices import Region

    for target in targets:
        if target.colour is not None:
            raise ConfigError(
                "a volume has no colours",
                where=f"{entry.name}: target {target.name!r}",
                expected="value, nonzero, above or below",
                found="colour",
            )
    # With a threshold every value means something, also the fractions of a soft mask.
    soft = any(t.above is not None or t.below is not None for t in targets)
    labels = read_volume(path, labels=not soft)
    if not soft:
        _check_values(labels.data, targets, entry, path)
    found = {target.name: Region.of(_marked_voxels(labels.data, target)) for target in targets}
    present = {name: region for name, region in found.items() if region is not None}
    apart = same_geometry(image, labels)
    if apart is None:
        return present
    return {name: _on_grid(region, labels, image, name, apart, path) for name, region in present.items()}


def _marked_voxels(values: Labels, target: TargetEntry) -> Mask:
    """`marked`, of a volume that need not fit in memory."""
    mask = scratch.zeros(values.shape, np.bool_, order="F")
    for at in scratch.blocks(mask):
        mask[at] = marked(values[at], target)
    return mask


def _on_grid(region: Region, labels: Volume, image: Volume, name: str, apart: str, path: Path) -> Region:
    """A target's region on the image's grid; `MieError` where the headers cannot be right.

    Another position or spacing at the same shape is an error in a header far more often than another grid.
    """
    from mie.images.volumes import Volume, resampled
    from mie.sources.slices import Region

    whole = scratch.zeros(labels.data.shape, np.uint8, order="F")
    whole[tuple(slice(s, s + n) for s, n in zip(region.start, region.inside.shape, strict=True))] = (
        region.inside
    )
    own = Volume(whole, labels.spacing, labels.affine)
    to_image = np.linalg.inv(image.affine) @ labels.affine
    voxels = there = 0
    for z in range(region.inside.shape[2]):
        places = np.argwhere(region.inside[:, :, z : z + 1]) + np.add(region.start, (0, 0, z))
        at = np.rint(places @ to_image[:3, :3].T + to_image[:3, 3])
        voxels += len(places)
        there += int(((at >= 0) & (at < image.data.shape)).all(axis=1).sum())
    outside = 1 - there / voxels
    if labels.data.shape == image.data.shape or outside > _MOST_OUTSIDE:
        raise MieError(
            "mask and image do not lie on each other",
            where=path,
            expected="the image's grid, or another one that covers the same place",
            found=f"{apart}; {outside:.0%} of {name!r} lies outside the image",
            fix="correct the header that is wrong, or resample the mask to the image",
        )
    moved = resampled(own, image, labels=True, where=path)
    on_image = Region.of(moved.data.view(np.bool_))
    if on_image is None:
        raise MieError(
            "a target is lost on the image's grid",
            where=path,
            expected=f"voxels of {name!r} at the centres of the image's",
            found=f"{voxels:,} voxels of {_size(labels)} mm between voxels of {_size(image)} mm",
            fix="draw the mask on the image's grid",
        )
    millilitres = [
        round(count * float(np.prod(volume.spacing)) / 1000, 4)
        for count, volume in ((voxels, labels), (int(on_image.inside.sum()), image))
    ]
    step = {**moved.steps[-1], "step": "resample mask", "reason": apart, "target": name, "ml": millilitres}
    return replace(on_image, steps=(step,))


def _size(volume: Volume) -> str:
    return " x ".join(f"{mm:.3g}" for mm in volume.spacing)


def _check_values(labels: NDArray[Any], targets: Sequence[TargetEntry], entry: Entry, path: Path) -> None:
    if any(target.nonzero for target in targets):
        return
    known = {0, *(value for target in targets for value in target.values)}
    ignored = {value for value in entry.ignore if isinstance(value, int)}
    strange = {v: n for v, n in value_counts(labels).items() if v not in known | ignored}
    if strange:
        error = unexpected({str(v): n for v, n in strange.items()}, [str(v) for v in sorted(known | ignored)])
        error.where = str(path)
        raise error


def value_counts(labels: NDArray[Any]) -> dict[int, int]:
    """How many voxels each value has; `labels` are integers."""
    if labels.min() < 0 or labels.max() > 65535:
        values, counts = np.unique(labels, return_counts=True)
        return dict(zip(values.tolist(), counts.tolist(), strict=True))
    # Counting is far quicker than sorting; slice by slice, because bincount works on a 64-bit copy.
    totals = np.zeros(int(labels.max()) + 1, np.int64)
    for index in range(labels.shape[2]):
        totals += np.bincount(labels[:, :, index].ravel(), minlength=totals.size)
    return {int(value): int(totals[value]) for value in np.flatnonzero(totals)}
