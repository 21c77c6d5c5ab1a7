"""The functions behind `import mie`: each takes paths, arrays or the objects of another, and returns one.

They add nothing that the command cannot do; they only convert what a notebook has at hand.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mie.core.registry import unknown_name
from mie.errors import ConfigError, ImageError
from mie.images.read import read_labels, read_picture
from mie.records import Mask, Picture, Pixels, Sample
from mie.vocabulary import COLOURS, MODALITIES, OPACITY, TARGET_KINDS, UNKNOWN

if TYPE_CHECKING:
    import pandas as pd

    from mie.datasets.build import Progress as BuildProgress
    from mie.datasets.dataset import Dataset
    from mie.datasets.recipe import RecipeConfig
    from mie.editors.base import Edited, EditFunction, Editor
    from mie.privacy.gate import Policy
    from mie.scoring.statistics.compare import Comparison

Location: TypeAlias = str | os.PathLike[str]
# An image as a notebook has it: a file, or pixels.
ImageLike: TypeAlias = Location | NDArray[Any]


def build(
    recipe: Location | Mapping[str, Any] | RecipeConfig,
    folder: Location,
    *,
    limit: int | None = None,
    workers: int | None = None,
    engine: str = "local",
    overwrite: bool = False,
    allow_remote: bool = False,
    progress: Callable[[BuildProgress], None] = lambda _: None,
) -> Dataset:
    """Build a recipe's dataset. An interrupted build resumes; a finished one is opened as it is.

    Args:
        recipe: A YAML file, or the same as a dictionary. Relative roots in a file start at the file's folder,
            those in a dictionary at the working directory.
        folder: The dataset's folder: new, or one with this very dataset.
        limit: At most this many images or volumes of each data set.
        workers: Processes; one per core by default. Scripts that use several need the usual
            `if __name__ == "__main__":`.
        engine: "local" or "ray".
        overwrite: Replace a dataset of another recipe.
        allow_remote: A judge that the recipe names may be on another machine.
        progress: Called as the build moves on.

    """
    from mie.datasets.build import build as build_dataset
    from mie.datasets.dataset import Dataset
    from mie.datasets.recipe import RecipeConfig, parse_recipe, read_recipe

    if isinstance(recipe, RecipeConfig):
        config = recipe
    elif isinstance(recipe, Mapping):
        config = parse_recipe(recipe, where="the recipe", base=Path())
    else:
        config = read_recipe(Path(recipe))
    build_dataset(
        config,
        Path(folder),
        engine=engine,
        workers=workers,
        limit=limit,
        overwrite=overwrite,
        allow_remote=allow_remote,
        progress=progress,
    )
    return Dataset(folder)


def triplet(
    image: ImageLike,
    mask: ImageLike,
    target: str,
    *,
    modality: str,
    colour: str | None = None,
    kind: str = "anatomy",
    plural: bool = False,
    anatomy: str = UNKNOWN,
    instruction: str | None = None,
    opacity: float = OPACITY,
    seed: int = 0,
) -> Sample:
    """Make a perception triplet: the image, an instruction, and the image with the region painted.

    The same arguments always give the same triplet. No gate is applied.

    Args:
        image: A file, or `(H, W)` or `(H, W, 3) uint8` pixels.
        mask: A file or an array `(H, W)`; every value but 0 is inside the region.
        target: What the region shows, as a clinician says it: "optic disc".
        modality: One of `mie.vocabulary.MODALITIES`: "CT", "MRI", "fundus", ...
        colour: "red", "green" or "blue"; drawn from the content by default.
        kind: "anatomy" or "lesion": which phrasings fit.
        plural: Whether the target's name is plural ("lungs").
        anatomy: The part of the body.
        instruction: Your own words; drawn from the phrasings by default.
        opacity: Of the overlay.
        seed: Another seed draws another colour and phrasing.

    """
    from mie.images.overlay import paint
    from mie.perspectives.perception.phrasings import ask_for_one, describe
    from mie.perspectives.perception.samples import Perception
    from mie.records import Case, Target

    for noun, value, names in (
        ("modality", modality, MODALITIES),
        ("colour", colour, COLOURS),
        ("kind of target", kind, TARGET_KINDS),
    ):
        if value is not None and value not in names:
            raise unknown_name(noun, value, names)
    if not 0.5 < opacity <= 1:
        raise ConfigError("the opacity is out of range", expected="above 0.5, at most 1", found=opacity)
    pixels = as_pixels(image)
    region = _region(mask, pixels)
    painted = Target(target, kind, plural)
    case = Case(
        source="mie.triplet",
        case_id=Path(image).name if isinstance(image, str | os.PathLike) else "array",
        image=pixels,
        modality=modality,
        anatomy=anatomy,
        masks={target: region},
        targets={target: painted},
    )
    # Samples of the test split keep the image's own size.
    sample = next(iter(Perception(opacity=opacity).samples(case, "test", seed)))
    assert isinstance(sample, Sample)  # noqa: S101 (the case has a mask)
    if colour is not None and colour != sample.colour:
        sample = replace(
            sample,
            colour=colour,
            target_image=paint(pixels, region, colour, opacity),
            prompt=ask_for_one(sample.prompt_template, painted, colour, modality),
            description=describe([(painted, colour)], opacity),
            params={**sample.params, "classes": [{"target": target, "colour": colour}]},
        )
    return sample if instruction is None else replace(sample, prompt=instruction, prompt_template=instruction)


def compare(
    run_a: Location,
    run_b: Location,
    *,
    metric: str | None = None,
    benchmark: str = "miedb",
    variant: str = "paper",
) -> pd.DataFrame:
    """Compare two scored runs on the samples that both have: one row per metric, differences are a - b.

    Args:
        run_a: A scored run, or its folder.
        run_b: Another one on the same dataset.
        metric: One metric, such as "dice@1"; by default every metric that both runs have.
        benchmark: Whose scores.
        variant: Of the benchmark.

    """
    import pandas as pd

    from mie.scoring.results import Results
    from mie.scoring.statistics.compare import compare_runs

    first, second = (Results.open(Path(run), benchmark, variant) for run in (run_a, run_b))
    metrics = [key for key in first.keys if key in second] if metric is None else [metric]
    rows = []
    for key in metrics:
        (comparison,) = compare_runs([first.path, second.path], key)
        rows.append(_row(comparison))
    return pd.DataFrame(rows)


def edit(
    image: ImageLike,
    instruction: str,
    editor: str | Editor | EditFunction = "compact",
    *,
    seed: int = 0,
    policy: Policy | None = None,
    references: Sequence[ImageLike] = (),
    privacy_log: Location | None = None,
) -> Edited:
    """Edit one image. The result has `.image` and `.meta`; NumPy and Matplotlib take it as an array.

    Args:
        image: A file (picture or DICOM), or `(H, W)` or `(H, W, 3) uint8` pixels.
        instruction: What to change.
        editor: A spec, an `Editor` or a function, as for `mie.run`.
        seed: For editors that draw.
        policy: What may leave this machine, for an editor on another one: `Policy(allow_remote=True)`.
        references: Further images that the instruction speaks of, for editors that take several.
        privacy_log: A file to which what left, was redacted or was refused is appended.

    """
    (edited,) = edit_slices(
        [as_pixels(image)],
        instruction,
        editor,
        seed=seed,
        policy=policy,
        references=references,
        privacy_log=privacy_log,
    )
    return edited


def edit_slices(
    images: Sequence[Pixels],
    instruction: str,
    editor: str | Editor | EditFunction,
    *,
    seed: int = 0,
    policy: Policy | None = None,
    references: Sequence[ImageLike] = (),
    privacy_log: Location | None = None,
) -> list[Edited]:
    """Edit several images, such as the slices of a volume, with one instruction and one seed.

    The first image that cannot be edited raises its error. Arguments as for `edit`.
    """
    from mie.editors.base import EditError, Request, edit_all, opened
    from mie.editors.outputs import check_output
    from mie.privacy.gate import Gate, Policy

    others = [as_pixels(reference) for reference in references]
    several = len(images) > 1
    with opened(editor) as (editing, _):
        sent = [pixels.copy() for pixels in images]
        if editing.destination is not None:
            log = None if privacy_log is None else Path(privacy_log)
            with closing(Gate(policy or Policy(), editing.destination, log)) as gate:
                gate.check_consent()
                gate.check_statement(None)
                sent = [
                    gate.release(pixels, f"image {n}" if several else "the image")
                    for n, pixels in enumerate(sent, start=1)
                ]
                others = [gate.release(other, f"reference {n}") for n, other in enumerate(others, start=1)]
        requests = [Request(pixels, instruction, seed, references=others) for pixels in sent]
        size = max(1, editing.batch_size)
        outcomes = [
            outcome
            for start in range(0, len(requests), size)
            for outcome in edit_all(editing, requests[start : start + size])
        ]
    edited = []
    for pixels, outcome in zip(images, outcomes, strict=True):
        if isinstance(outcome, EditError):
            raise outcome
        edited.append(check_output(outcome, (pixels.shape[0], pixels.shape[1])))
    return edited


def read_image(path: Location) -> Picture:
    """Read a picture or DICOM file; a volume is refused with what to do instead."""
    from mie.images.volume_files import is_volume

    path = Path(path)
    if is_volume(path.name):
        raise ImageError(
            "this is a volume, and an editor takes one picture",
            where=path,
            expected="a picture or DICOM file",
            found="a NIfTI, NRRD or MetaImage file",
            fix="`mie edit VOLUME ... -o OUT.nii.gz` edits all its slices; or save one slice as PNG",
        )
    return read_picture(path)


def as_pixels(image: ImageLike) -> Pixels:
    """Read a file, or check an array: `(H, W, 3) uint8`."""
    if isinstance(image, str | os.PathLike):
        return read_image(image).pixels
    pixels = np.asarray(image)
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise ImageError(
            "not an image",
            expected="(H, W) or (H, W, 3) uint8 pixels, or a file",
            found=f"{pixels.shape} {pixels.dtype}",
            fix="choose a window, scale it to 0..255 and convert with .astype('uint8')",
        )
    return np.ascontiguousarray(pixels if pixels.ndim == 3 else np.stack([pixels] * 3, axis=2))


def _region(mask: ImageLike, image: Pixels) -> Mask:
    values = read_labels(Path(mask)) if isinstance(mask, str | os.PathLike) else np.asarray(mask)
    if values.shape != image.shape[:2]:
        raise ImageError("mask and image differ in size", expected=image.shape[:2], found=values.shape)
    region: Mask = np.ascontiguousarray(values != 0)
    if not region.any():
        raise ImageError("the mask is empty", expected="some values that are not 0", found="0 everywhere")
    return region


def _row(comparison: Comparison) -> dict[str, Any]:
    """A comparison as columns of a table, with the interval as two."""
    row = {name: getattr(comparison, name) for name in comparison.__slots__}
    low, high = row.pop("ci95")
    return {**row, "low": low, "high": high}
