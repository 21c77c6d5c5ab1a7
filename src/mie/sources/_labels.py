"""Label volumes to regions: which voxels of a mask file belong to which target."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mie.errors import ConfigError, MieError
from mie.images.volume import Volume, read_volume, same_geometry
from mie.records import Unit
from mie.sources._slices import Region
from mie.sources.catalog import Entry, TargetEntry
from mie.sources.markings import marked, unexpected


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

    The file must lie on the image's grid, and hold no value that is neither 0, nor a target's, nor ignored.
    """
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
    apart = same_geometry(image, labels)
    if apart is not None:
        raise MieError(
            "mask and image do not lie on each other",
            where=path,
            expected="the image's shape, spacing and position",
            found=apart,
            fix="resample the mask to the image",
        )
    if not soft:
        _check_values(labels.data, targets, entry, path)
    found = {target.name: Region.of(marked(labels.data, target)) for target in targets}
    return {name: region for name, region in found.items() if region is not None}


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
