"""Transformation: the whole image becomes another one, by real pairs or by the physics of imaging."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

import numpy as np
from pydantic import Field, model_validator

from mie.errors import ConfigError
from mie.images.windows import find_ct_window
from mie.perspectives.perspective import (
    BuildFacts,
    Card,
    Gate,
    GateConfig,
    Perspective,
    PerspectiveConfig,
    Problem,
    Recipe,
    SourceFacts,
)
from mie.perspectives.transformation.targets import TARGETS, check_pairing, find_target
from mie.records import Sample


class TransformationConfig(PerspectiveConfig):
    """Image to image: denoising, artifact removal, modality transfer, contrast and resolution."""

    kind: Literal["transformation"] = "transformation"
    targets: tuple[str, ...] = Field(tuple(TARGETS), min_length=1)
    per_case: int | None = Field(2, ge=1, description="at most this many simulated samples of one image")
    windows: tuple[str, ...] = Field((), description="CT windows; none: those that suit the anatomy")
    severity: dict[str, dict[str, Any]] = Field({}, description="by target: what is not to be drawn")
    # Not named `register`: that is a method of every pydantic model.
    registering: bool = Field(False, alias="register", description="bring pairs onto each other first")

    @model_validator(mode="after")
    def _known(self) -> TransformationConfig:
        for name in self.windows:
            find_ct_window(name)
        for key in (*self.targets, *self.severity):
            find_target(key)
        for key, fixed in self.severity.items():
            target = TARGETS[key]
            if target.effect is None:
                raise ConfigError(f"{key} has no severity", expected="a simulated target")
            # Drawn once, so that a severity out of range stops the build before it begins.
            target.simulator().draw(np.random.default_rng(0), **{**target.fixed, **fixed})
        return self


def _samples(config: TransformationConfig, build: BuildFacts) -> Recipe:
    from mie.perspectives.transformation.samples import Transformation

    return Transformation(**config.model_dump(exclude={"kind", "wordings"}), bins=build.bins)


def _gates(_: Any, limits: GateConfig) -> Sequence[Gate]:
    from mie.perspectives.perspective import TrivialGate
    from mie.perspectives.transformation.samples import PairGate

    return TrivialGate.of(limits), PairGate(limits.max_shift)


def _prove(sample: Sample) -> list[Problem]:
    from mie.perspectives.transformation.samples import prove

    return prove(sample)


def _check(_: Any, sources: Sequence[SourceFacts]) -> None:
    for source in sources:
        if source.pairing is not None:
            check_pairing(source.pairing, source.name)


PERSPECTIVE: Final = Perspective(
    name="transformation",
    tasks=("denoising", "artifact removal", "modality transfer", "contrast"),
    edit="image",
    config=TransformationConfig,
    samples=_samples,
    gates=_gates,
    prove=_prove,
    check=_check,
    metrics=("psnr", "ssim"),
    card=Card(
        gates={
            "units": "the target needs Hounsfield units, and the image has none",
            "identical": "input and target image are the same to the eye",
            "misaligned": "the two images of a pair do not lie on each other",
        }
    ),
)
