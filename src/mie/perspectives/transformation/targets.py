"""The seventeen targets of transformation, in four families.

A target comes from a simulator (`effect`, applied to a clean image), from real pairs (a data set whose
`pairing` names it), or from Hounsfield units (`ct_window`).
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from mie.core.registry import unknown_name
from mie.errors import ConfigError
from mie.records import Pairing


@dataclass(frozen=True, slots=True)
class TransformTarget:
    """One target. `name` is how a clinician says it, `key` how recipes and catalogue entries do."""

    key: str
    name: str
    task: str  # its family, a task of vocabulary.TASKS["transformation"]
    modalities: tuple[str, ...]  # of the images it applies to
    needs: str  # in words, for rejections and docs
    effect: str | None = None  # "module:class" of its simulator
    fixed: Mapping[str, Any] = field(default_factory=dict)  # what makes this target of the effect
    domain: str = "grey"  # what the simulator works on: "HU", "magnitude", "grey", "colour"
    variants: tuple[Mapping[str, Any], ...] = ({},)  # one sample each: super-resolution by 2 and by 4

    def simulator(self) -> Any:
        """The effect's class. Imported here, so that a list of targets costs nothing."""
        assert self.effect is not None  # noqa: S101 (the caller asked for simulated targets)
        module, name = self.effect.split(":")
        return getattr(importlib.import_module(module), name)


_HU = "CT in Hounsfield units, or 8-bit CT with `hu_range`"
_MRI = "a clean MRI slice"
_PAIRS = "a data set of real pairs, with `pairing`"

_ALL = (
    TransformTarget(
        "low_dose_ct_soft", "low-dose CT noise, soft kernel", "denoising", ("CT",), _HU,
        "mie.perspectives.transformation.physics.ct_dose:LowDose", {"kernel": "hann"}, "HU",
    ),
    TransformTarget(
        "low_dose_ct_sharp", "low-dose CT noise, sharp kernel", "denoising", ("CT",), _HU,
        "mie.perspectives.transformation.physics.ct_dose:LowDose", {"kernel": "ramp"}, "HU",
    ),
    TransformTarget(
        "mri_noise", "MRI noise", "denoising", ("MRI",), _MRI,
        "mie.perspectives.transformation.physics.mri:RicianNoise", domain="magnitude",
    ),
    TransformTarget(
        "ultrasound_speckle", "ultrasound speckle", "denoising", ("ultrasound",), "a B-mode image",
        "mie.perspectives.transformation.physics.speckle:Speckle", {"modality": "ultrasound"},
    ),
    TransformTarget(
        "oct_speckle", "OCT speckle", "denoising", ("OCT",), "an averaged B-scan, or pairs",
        "mie.perspectives.transformation.physics.speckle:Speckle", {"modality": "OCT", "centre": "display"},
    ),
    TransformTarget(
        "ct_metal", "CT metal artifact", "artifact removal", ("CT",), f"{_HU}, or pairs",
        "mie.perspectives.transformation.physics.ct_metal:MetalArtifact", domain="HU",
    ),
    TransformTarget(
        "ct_sparse_view", "CT sparse-view streaks", "artifact removal", ("CT",), _HU,
        "mie.perspectives.transformation.physics.ct_dose:SparseView", domain="HU",
    ),
    TransformTarget(
        "mri_motion", "MRI motion artifact", "artifact removal", ("MRI",), _MRI,
        "mie.perspectives.transformation.physics.mri_motion:Motion", domain="magnitude",
    ),
    TransformTarget(
        "mri_bias_field", "MRI bias field", "artifact removal", ("MRI",), _MRI,
        "mie.perspectives.transformation.physics.mri:BiasField", domain="magnitude",
    ),
    TransformTarget(
        "mri_undersampling", "MRI undersampling artifact", "artifact removal", ("MRI",), _MRI,
        "mie.perspectives.transformation.physics.mri:Undersampling", domain="magnitude",
    ),
    TransformTarget(
        "dermoscopy_artifacts", "dermoscopy overlay artifacts", "artifact removal", ("dermoscopy",),
        "a dermoscopic image, or pairs",
        "mie.perspectives.transformation.physics.dermoscopy:SkinArtifacts", domain="colour",
    ),
    TransformTarget("ct_mri", "CT and MRI", "modality transfer", ("CT", "MRI"), _PAIRS),
    TransformTarget("mri_sequence", "MRI sequence", "modality transfer", ("MRI",), _PAIRS),
    TransformTarget("mri_pet", "MRI to PET", "modality transfer", ("MRI",), _PAIRS),
    TransformTarget(
        "ct_window", "CT window", "contrast", ("CT",),
        "CT in Hounsfield units (an 8-bit picture has lost them)",
    ),
    TransformTarget("ct_phase", "CT contrast phase", "contrast", ("CT",), f"{_PAIRS}: phases of one study"),
    TransformTarget(
        "super_resolution", "super-resolution", "contrast", ("MRI",), _MRI,
        "mie.perspectives.transformation.physics.resolution:LowResolution", domain="magnitude",
        variants=({"factor": 2}, {"factor": 4}),
    ),
)  # fmt: skip
TARGETS: Final[dict[str, TransformTarget]] = {target.key: target for target in _ALL}


def check_pairing(pairing: Pairing, where: object) -> None:
    """A pairing leads to a target we know, and names its two sides where phrasings do."""
    target = find_target(pairing.target)
    if target.effect is None and not (pairing.image and pairing.pair):
        raise ConfigError(
            f"a pairing for {target.key} names its two sides",
            where=where,
            expected="pairing: {target: ..., image: CT, pair: MRI}",
        )


def find_target(key: str) -> TransformTarget:
    if key in TARGETS:
        return TARGETS[key]
    raise unknown_name("transformation target", key, TARGETS)
