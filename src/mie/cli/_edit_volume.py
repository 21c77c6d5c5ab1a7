"""`mie edit` of a volume: its slices by any editor, and back on the volume's grid."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from mie.cli._signals import end_in_order

if TYPE_CHECKING:
    from mie.editors.base import Edited
    from mie.editors.volumes import VolumeEdit
    from mie.images.dicom_series import Series
    from mie.images.slabs import Slabs
    from mie.privacy.gate import Policy
    from mie.records import Pixels


@dataclass(frozen=True)
class VolumeOptions:
    """The options of `mie edit` that a volume uses."""

    modality: str | None
    plane: str | None
    window: str | None
    seed: int
    overwrite: bool
    json: bool


def edit_volume_file(
    image: Path, instruction: str, editor: str, output: Path, options: VolumeOptions, policy: Policy
) -> None:
    """Edit a volume file, or the DICOM series in a folder, and say what was done."""
    from mie.api import edit_slices
    from mie.cli._show import print_json, progress_bar
    from mie.core.files import make_folder, remove_scratch
    from mie.core.spec import parse_spec
    from mie.editors.base import open_editor
    from mie.editors.runs import plain
    from mie.editors.volumes import check_formats, edit_volume, marked_by, window_from
    from mie.errors import ConfigError
    from mie.privacy.gate import LOG

    if output.exists() and not options.overwrite:
        raise ConfigError("the output exists already", where=output, fix="give --overwrite to replace it")
    end_in_order()
    spec = parse_spec(editor)
    series = _series(image) if image.is_dir() else None
    modality = options.modality or (None if series is None else _modality(series))
    marked = marked_by(instruction, modality)
    check_formats(image if series is None else series, output, marked)
    given = None if options.window is None else window_from(options.window)
    hounsfield = None if modality is None else modality == "CT"
    started = time.perf_counter()
    remove_scratch(make_folder(output.parent), output.name)  # of a command that was killed
    if given is None:
        with _opened(image, series, options.plane) as slabs:
            given = slabs.window(hounsfield=hounsfield, where=image)
    with (
        _opened(image, series, options.plane) as slabs,
        open_editor(spec) as editing,
        progress_bar("editing") as bar,
    ):

        def edit_all(images: Sequence[Pixels]) -> list[Edited]:
            return edit_slices(
                images,
                instruction,
                editing,
                seed=options.seed,
                policy=policy,
                privacy_log=output.with_name(f"{output.name}.{LOG}"),
            )

        name = editing.marked_as(spec.name)
        made_by = f"SYNTHETIC {name}" if editing.generative and marked is None else name
        done = edit_volume(
            slabs,
            edit_all,
            output,
            window=given,
            marked=marked,
            series=series,
            made_by=made_by,
            about=f"{instruction}, seed {options.seed}",
            progress=lambda at, total: bar(at, total, "slices"),
        )
        affine = slabs.stored.affine.tolist()
        thickness = slabs.thickness
    document = _document(done) | {
        "editor": str(spec.masked()),
        "seed": options.seed,
        "seconds": round(time.perf_counter() - started, 2),
        "affine": affine,
        "slice_mm": round(thickness, 4),
    }
    if options.json:
        print_json(plain(document))
        return
    typer.echo(_said(done, document))


@contextmanager
def _opened(image: Path, series: Series | None, plane: str | None) -> Iterator[Slabs]:
    from mie.images.slabs import open_slabs

    with open_slabs(image if series is None else series, plane) as slabs:
        yield slabs


def _series(folder: Path) -> Series:
    from mie.errors import ImageError
    from mie.images.dicom_series import open_series
    from mie.images.read import picture_kind

    files = [path for path in sorted(folder.iterdir()) if path.is_file() and picture_kind(path) == "DICOM"]
    if not files:
        raise ImageError("no DICOM file in this folder", where=folder, expected="the files of one series")
    return open_series(files)


def _modality(series: Series) -> str | None:
    """CT or MRI where the files say so."""
    from mie.images.dicom import read_header

    names = {"CT": "CT", "MR": "MRI", "PT": "PET"}
    return names.get(str(read_header(series.files[0], ["Modality"]).get("Modality", "")))


def _document(done: VolumeEdit) -> dict[str, Any]:
    body: dict[str, Any] = {
        "output": str(done.output),
        "shape": list(done.shape),
        "plane": done.plane,
        "slices": done.slices,
        "window": done.window,
        "through_plane": done.through_plane,
        "steps": [dict(step) for step in done.steps],
        "meta": done.meta,
    }
    if done.labels:
        return body | {"labels": done.labels, "voxels": done.voxels}
    return body | {"changed_voxels": done.changed_voxels}


def _said(done: VolumeEdit, document: dict[str, Any]) -> str:
    from mie.cli._show import plural

    size = " x ".join(map(str, done.shape))
    slices = plural(done.slices, f"{done.plane} slice")
    lines = [f"{done.output}: {size} voxels, {slices}, {document['seconds']:.1f} s"]
    for name, value in done.labels.items():
        lines.append(f"  label {value}, {name}: {done.voxels[name]:,} voxels")
    if not done.labels:
        lines.append(f"  {done.changed_voxels or 0:,} voxels changed")
    found = done.through_plane
    if found["mean"] is not None:
        what = (
            "DICE of neighbouring slices" if done.labels else "change from slice to slice, against the input"
        )
        lines.append(f"  {what}: mean {found['mean']:.3f}, lowest {found['lowest']:.3f}")
    if found["gaps"]:
        some = ", ".join(map(str, found["gaps"][:8]))
        lines.append(f"  nothing is marked in slices between marked ones: {some}")
    for step in done.steps:
        if step["step"] in ("oblique", "gantry tilt"):
            lines.append(f"  {step['step']}: {step['degrees']} degrees; not resampled")
        if step["step"] == "orientation" and step.get("found") == "missing":
            lines.append(f"  the file has no orientation; {step['assumed']} was assumed")
    return "\n".join(lines)
