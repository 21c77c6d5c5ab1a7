"""A volume edited slice by slice by any editor of pictures, and put together on the volume's own grid.

Every slice is shown through one grey window and edited with one seed. Where the instruction asks to mark
something, the result is a label volume: paint is read back from the edited slices. Otherwise it is a volume
of the source's values: what the editor changed in grey levels is added in the source's units, so a voxel that
was not changed keeps its value, also where the window cut it off. Where such a voxel was changed, what lies
beyond the window goes as the change grows: what is painted over air or metal must not stay air or metal.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.core.files import atomic_write
from mie.editors.base import Edited
from mie.errors import ConfigError, ImageError
from mie.images.dicom_seg import SegmentName, seg_bytes
from mie.images.dicom_series import Series
from mie.images.dicom_write import SeriesWriter
from mie.images.overlay import deblend
from mie.images.resize import resize_labels, resize_to
from mie.images.slabs import NIFTI_OUT, NiftiWriter, Slabs
from mie.images.slice_consistency import ThroughPlane
from mie.images.volume_files import is_volume
from mie.images.volumes import square_pixels
from mie.images.windows import WINDOWS, apply_window, find_ct_window
from mie.records import Pixels
from mie.vocabulary import COLOURS
from mie.words import parse, vocabulary

_REPLACED: Final = 32  # grey levels: a change by so many leaves nothing of what lay beyond the window
SLAB: Final = 16  # slices that are edited together, and in memory at a time
DICOM_SEG: Final = ".dcm"
# Edits a slab's slices, each `(H, W, 3) uint8`, in their order.
EditSlices = Callable[[Sequence[Pixels]], Sequence[Edited]]


@dataclass(frozen=True)
class Marked:
    """What an instruction asks to mark: the colour of each label, in the order of the labels 1, 2, ..."""

    colours: tuple[str, ...]
    names: tuple[SegmentName, ...]


@dataclass
class VolumeEdit:
    """What was done to a volume."""

    output: Path
    shape: tuple[int, ...]
    plane: str
    slices: int
    window: Mapping[str, Any]
    labels: dict[str, int] = field(default_factory=dict)  # name -> value in the label volume
    voxels: dict[str, int] = field(default_factory=dict)  # name -> how many are marked
    changed_voxels: int | None = None
    through_plane: Mapping[str, Any] = field(default_factory=dict)
    steps: tuple[Mapping[str, Any], ...] = ()
    meta: list[Mapping[str, Any]] = field(
        default_factory=list
    )  # what the editor said, where it said anything


def is_volume_edit(image: Path, output: Path, *, series: bool = False) -> bool:
    """A volume file; or a folder that is one `series`, or whose edit is one file."""
    one_file = output.name.lower().endswith((*NIFTI_OUT, DICOM_SEG))
    return is_volume(image.name) or (image.is_dir() and (one_file or series))


def marked_by(instruction: str, modality: str | None) -> Marked | None:
    """What the instruction asks to mark; None where it asks for another image."""
    asked = parse(instruction, modality)
    if asked.operation != "perception":
        return None
    known = vocabulary().targets
    names: dict[str, list[str]] = {}
    lesions: dict[str, bool] = {}
    for target in asked.targets:
        if target.colour in COLOURS:
            side = f"{target.side} " if target.side else ""
            names.setdefault(target.colour, []).append(side + target.name)
            entry = known.get(target.name)
            lesions[target.colour] = entry is not None and entry.kind == "lesion"
    if not names:
        # A structure nobody knows, or no colour said: any of the three counts, by its own label.
        return Marked(tuple(COLOURS), tuple(SegmentName(colour) for colour in COLOURS))
    colours = tuple(names)
    return Marked(colours, tuple(SegmentName(", ".join(names[c]), lesions[c]) for c in colours))


def window_from(text: str) -> dict[str, Any]:
    """`lung`, or `-160,240`: the values that become black and white."""
    if text in WINDOWS:
        chosen = find_ct_window(text)
        return {"step": "window", "low": chosen.low, "high": chosen.high, "from": chosen.name}
    low, _, high = text.partition(",")
    try:
        numbers = float(low), float(high)
    except ValueError:
        numbers = (0.0, 0.0)
    if not numbers[0] < numbers[1] or not np.isfinite(numbers).all():
        raise ConfigError(
            "no such window", expected=f"{', '.join(WINDOWS)}, or LOW,HIGH such as -160,240", found=text
        )
    return {"step": "window", "low": numbers[0], "high": numbers[1], "from": "given"}


def check_formats(source: Path | Series, output: Path, marked: Marked | None) -> None:
    """Refuse an output that cannot hold the edit, before anything is edited."""
    name = output.name.lower()
    if name.endswith(NIFTI_OUT):
        return
    if not output.suffix and isinstance(source, Series):
        if marked is None and not output.exists():
            return
        raise ConfigError(
            "a series of DICOM files is written for an edited image, into a new folder",
            where=output,
            found="a folder that exists" if marked is None else "an instruction that marks something",
            fix="choose another folder" if marked is None else "choose a .dcm output for DICOM-SEG",
        )
    if not name.endswith(DICOM_SEG):
        raise ConfigError(
            "an edited volume is written as NIfTI, as DICOM-SEG where something is marked, or as a series",
            expected="a name that ends in .nii.gz, .nii or .dcm; for a DICOM series also a new folder",
            found=output,
        )
    if marked is None:
        raise ConfigError(
            "DICOM-SEG holds what is marked, and this instruction asks for another image",
            where=output,
            fix="choose a .nii.gz output, or a folder with --series; or say what to mark and in which colour",
        )
    if not isinstance(source, Series):
        raise ConfigError(
            "DICOM-SEG needs the series that it was drawn on",
            where=source,
            expected="a folder with one DICOM series",
            fix="choose a .nii.gz output",
        )


def edit_volume(
    slabs: Slabs,
    edit_slices: EditSlices,
    output: Path,
    *,
    window: Mapping[str, Any],
    marked: Marked | None,
    series: Series | None = None,
    made_by: str = "mie",
    about: str = "",
    slab: int = SLAB,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> VolumeEdit:
    """Edit every slice and write the volume to `output`: NIfTI, DICOM-SEG of `series`, or a new series.

    `about` tells this edit from others of the same series.
    """
    result = VolumeEdit(
        output, slabs.stored.shape, slabs.plane, slabs.count, dict(window), steps=slabs.stored.steps
    )
    through = ThroughPlane(labels=marked is not None)
    work = _Slices(slabs, edit_slices, window, marked, through, result)
    progress(0, slabs.count)
    if marked is not None:
        result.labels = {name.label: at for at, name in enumerate(marked.names, start=1)}
        result.voxels = dict.fromkeys(result.labels, 0)
    if output.name.lower().endswith(DICOM_SEG):
        assert series is not None  # noqa: S101 (`check_formats` has looked)
        assert marked is not None  # noqa: S101
        labels = np.zeros(slabs.stored.shape, np.uint8)
        for start, values in slabs.slabs(slab):
            labels[:, :, start : start + values.shape[2]] = work.edited(start, values)
            progress(start + values.shape[2], slabs.count)
        if slabs.axes != (0, 1, 2):
            labels = labels.transpose([slabs.axes.index(axis) for axis in range(3)])
        atomic_write(output, seg_bytes(series, labels, marked.names, made_by))
    else:
        kind = np.dtype(np.uint8) if marked is not None else _kind(slabs)
        names = ", ".join(f"{value}={name}" for name, value in result.labels.items())
        writing: NiftiWriter | SeriesWriter
        if series is not None and not output.suffix:
            writing = SeriesWriter(output, slabs, series, made_by, about)
        else:
            writing = NiftiWriter(output, slabs, kind, f"{made_by}{': ' if names else ''}{names}")
        with writing as writer:
            for start, values in slabs.slabs(slab):
                writer.write(work.edited(start, values).astype(kind, copy=False))
                progress(start + values.shape[2], slabs.count)
    result.through_plane = through.summary()
    return result


def _kind(slabs: Slabs) -> np.dtype[Any]:
    """The source's own type where it holds plain integers, else float32."""
    header = slabs.header
    if header is not None and header.get_data_dtype().kind in "iu":
        slope, inter = header.get_slope_inter()
        if slope in (None, 1) and inter in (None, 0):
            return np.dtype(header.get_data_dtype().newbyteorder("="))
    return np.dtype(np.float32)


@dataclass
class _Slices:
    slabs: Slabs
    edit_slices: EditSlices
    window: Mapping[str, Any]
    marked: Marked | None
    through: ThroughPlane
    result: VolumeEdit

    def edited(self, start: int, values: NDArray[Any]) -> NDArray[Any]:
        """The slab after the edit: labels, or values in the source's units."""
        spacing = self.slabs.spacing
        sources = self.slabs.shown(values)
        shown = [square_pixels(apply_window(s, self.window), spacing, is_mask=False) for s in sources]
        inputs = [np.repeat(grey[..., None], 3, axis=2) for grey in shown]
        edits = self.edit_slices(inputs)
        if len(edits) != len(inputs):
            raise ImageError("the editor lost slices", expected=len(inputs), found=len(edits))
        out = np.zeros(values.shape, np.uint8) if self.marked else values.astype(np.float32)
        for at, target in enumerate(self.slabs.shown(out)):
            pixels = resize_to(edits[at].image, (inputs[at].shape[0], inputs[at].shape[1]))
            if edits[at].meta:
                self.result.meta.append({"slice": start + at, **edits[at].meta})
            if self.marked is not None:
                labels = self._labels(inputs[at], pixels)
                self.through.add(shown[at], labels)
                target[...] = resize_labels(labels, (target.shape[0], target.shape[1]))
                for name, value in self.result.labels.items():
                    self.result.voxels[name] += int((target == value).sum())
            else:
                grey = cv2.cvtColor(pixels, cv2.COLOR_RGB2GRAY)
                self.through.add(shown[at], grey)
                target[...] = self._values(sources[at], shown[at], grey)
        if self.marked is None:
            # Rounded where the source holds whole numbers, before the type cuts them off.
            kind = _kind(self.slabs)
            if kind.kind in "iu":
                bounds = np.iinfo(kind)
                out = np.clip(np.rint(out), bounds.min, bounds.max)
            changed = int((out != values).sum())
            self.result.changed_voxels = (self.result.changed_voxels or 0) + changed
        return out

    def _labels(self, image: Pixels, output: Pixels) -> NDArray[np.uint8]:
        assert self.marked is not None  # noqa: S101 (for the type checker)
        labels = np.zeros(image.shape[:2], np.uint8)
        for value, colour in enumerate(self.marked.colours, start=1):
            labels[deblend(image, output, colour)] = value
        return labels

    def _values(
        self, values: NDArray[Any], shown: NDArray[np.uint8], edited: NDArray[np.uint8]
    ) -> NDArray[np.float32]:
        change = edited.astype(np.float32) - shown
        if change.shape != values.shape:
            size = values.shape[::-1]
            change = np.asarray(cv2.resize(change, size, interpolation=cv2.INTER_LINEAR), np.float32)
        change[np.abs(change) < 0.5] = 0  # rounding, not an edit
        low, high = float(self.window["low"]), float(self.window["high"])
        inside = np.clip(values, low, high, dtype=np.float32)
        beyond = (values - inside) * np.maximum(0, 1 - np.abs(change) / _REPLACED)
        moved = inside + beyond + change * ((high - low) / 255)
        return np.where(change == 0, values, moved).astype(np.float32)
