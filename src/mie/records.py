"""What flows through the packages: Unit -> Case -> Sample, and Rejection for what was not kept.

Plain frozen dataclasses, so that every package can import them, also on a bare GPU machine.
Pixels are `(H, W, 3) uint8` RGB; masks are `(H, W) bool`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Pixels: TypeAlias = NDArray[np.uint8]
Mask: TypeAlias = NDArray[np.bool_]
# Measured values before any window, float32 (H, W): Hounsfield units where `units` says "HU".
Values: TypeAlias = NDArray[np.float32]
# One thing that was done to a file to get 8-bit pixels, e.g. {"step": "window", "low": -160, "high": 240}.
Step: TypeAlias = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Target:
    """A structure or lesion, named as a clinician says it."""

    name: str
    kind: str  # vocabulary.TARGET_KINDS
    plural: bool = False


@dataclass(frozen=True, slots=True)
class Picture:
    """Decoded pixels and the steps that led to them."""

    pixels: Pixels
    steps: tuple[Step, ...] = ()
    spacing: tuple[float, float] | None = None  # (row, column) millimetres
    values: Values | None = None  # CT in Hounsfield units, where the file holds them


@dataclass(frozen=True, slots=True)
class Pairing:
    """What the second image of a place is to the first."""

    target: str  # the transformation that leads from one to the other: "ct_mri"
    image: str = ""  # what the first image is called in a sentence: "CT", "T1-weighted MRI"
    pair: str = ""
    modality: str | None = None  # the pair's, where it differs
    both: bool = False  # the way back makes sense too


@dataclass(frozen=True, slots=True)
class Unit:
    """What a source lists before any pixel is read: one image, one volume, a run of array rows.

    `key` names it inside its data set and never changes; `files` are paths relative to the data
    set's root by role ("image", "pair", "mask:<target>" or "masks").
    """

    key: str
    files: Mapping[str, tuple[str, ...]]
    patient_id: str | None = None
    split: str | None = None
    rows: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One image with what its data set knows about it."""

    source: str
    case_id: str
    image: Pixels
    modality: str
    anatomy: str
    masks: Mapping[str, Mask] = field(default_factory=dict)
    targets: Mapping[str, Target] = field(default_factory=dict)
    pair: Pixels | None = None
    pair_steps: tuple[Step, ...] = ()
    pairing: Pairing | None = None
    values: Values | None = None  # before the window, same size as `image`
    units: str | None = None  # of `values`: "HU"
    hu_range: tuple[float, float] | None = None  # what grey 0 and 255 of an 8-bit CT stand for, about
    patient_id: str | None = None
    split: str | None = None
    spacing: tuple[float, float] | None = None
    license: str = ""
    steps: tuple[Step, ...] = ()


@dataclass(frozen=True, slots=True)
class Reference:
    """A further input image of a sample: one that its instruction speaks of, or half of a demonstration.

    A demonstration is a "before" and the "after" that follows it; `text` of the first is its instruction.
    """

    image: Pixels = field(repr=False)
    role: str = "reference"  # vocabulary.REFERENCE_ROLES
    text: str = ""


@dataclass(frozen=True, slots=True)
class Sample:
    """One triplet (input, instruction, target image) and enough to rebuild it."""

    id: str
    perspective: str
    task: str
    target: str
    modality: str
    anatomy: str
    prompt: str
    prompt_template: str
    description: str
    input: Pixels = field(repr=False)
    target_image: Pixels = field(repr=False)
    mask: Pixels | None = field(
        repr=False
    )  # (H, W) uint8; class k of n has value round(255 k / n), 0 is background
    colour: str | None  # "red"; for several classes "red,green"
    split: str
    bin: int | None
    source: str
    case_id: str
    patient_id: str | None
    recipe: str
    recipe_version: int
    params: Mapping[str, Any]
    seed: int
    license: str = ""
    group: str | None = None
    turn: int | None = None
    parents: tuple[str, ...] = ()
    references: tuple[Reference, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejection:
    """Something that did not become a sample: who refused it, why, and the numbers behind it."""

    source: str
    where: str  # file or case
    gate: str  # "source", "image", "area", "duplicate", "leak", ...
    reason: str
    target: str | None = None
    numbers: Mapping[str, Any] = field(default_factory=dict)
    perspective: str | None = None  # said where a dataset has several


@dataclass(frozen=True, slots=True)
class Edit:
    """One attempt of an editor at one sample: a line of `edits.jsonl`."""

    sample_id: str
    attempt: int
    seed: int
    state: str  # "done", "failed" or "refused"
    seconds: float
    path: str | None = None  # relative to the run's folder
    sha256: str | None = None
    size: tuple[int, int] | None = None  # (height, width)
    reason: str | None = None
    meta: Mapping[str, Any] = field(default_factory=dict)
