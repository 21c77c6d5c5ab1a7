"""Modification: a lesion is taken out of an image, and the pair becomes four kinds of triplets.

| task | input | target image |
| --- | --- | --- |
| removal | with lesion (L) | healthy (H) |
| addition | H | L |
| inpainting | white hole | H |
| simulation | white hole | L |

Outside the mask, which is the filled area, the images of a pair are equal to the pixel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Final, Literal

from pydantic import Field, field_validator, model_validator

from mie.core.registry import unknown_name
from mie.core.spec import parse_spec
from mie.perspectives.modification.detectors import DETECTORS
from mie.perspectives.modification.inpainters import INPAINTERS
from mie.perspectives.perspective import (
    BuildFacts,
    Card,
    Gate,
    GateConfig,
    Perspective,
    PerspectiveConfig,
    Problem,
    Recipe,
    Rows,
    StrictModel,
    Weights,
)
from mie.records import Refusal, Sample

TASKS: Final = ("removal", "addition", "inpainting", "simulation")


class LimitsConfig(StrictModel):
    """Lesions that cannot be removed believably."""

    min_pixels: int = Field(24, ge=1, description="of the lesion, at the stored size")
    max_fraction: float | None = Field(None, gt=0, lt=1, description="of the body in the picture, filled")
    inside: float = Field(0.5, ge=0, le=1, description="share of the lesion that lies inside the body")


class BoundsConfig(StrictModel):
    """How far a fill may be from its surroundings."""

    mean_shift: float = Field(45.0, gt=0, description="grey levels")
    variance_ratio: tuple[float, float] = Field((0.05, 4.0), description="lowest and highest")
    gradient_distance: float = Field(0.4, gt=0, le=1)
    spectrum_distance: float = Field(3.0, gt=0)
    seam: float = Field(0.5, gt=0)

    @field_validator("variance_ratio")
    @classmethod
    def _around_one(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not 0 < value[0] < 1 < value[1]:
            raise ValueError("the lowest ratio lies between 0 and 1, the highest above 1")
        return value


class ModificationConfig(PerspectiveConfig):
    """Lesions taken out of images by an inpainting expert, checked, as four kinds of triplets."""

    kind: Literal["modification"] = "modification"
    kinds: tuple[Literal["removal", "addition", "inpainting", "simulation"], ...] = Field(TASKS, min_length=1)
    inpainter: str | Annotated[tuple[str, ...], Field(min_length=1)] = ("compact", "exemplar")
    candidates: int = Field(4, ge=1, le=64)
    blend: Literal["none", "feather", "poisson", "laplacian"] | None = None
    margin: float | None = Field(None, ge=0, le=1, description="share of a lesion's diameter")
    per_case: int | None = Field(1, ge=1, description="at most this many pairs of one image")
    allow_nearest: bool = False
    detector: str | None = "compact"
    detector_required: bool = False
    min_sensitivity: float = Field(0.5, ge=0, le=1, description="below it a detector is not trusted")
    judge: str | None = None
    limits: LimitsConfig = LimitsConfig()
    bounds: BoundsConfig = BoundsConfig()

    @model_validator(mode="after")
    def _known(self) -> ModificationConfig:
        for noun, spec, known in (
            *(("inpainter", spec, INPAINTERS.names()) for spec in self.inpainters),
            ("detector", self.detector, DETECTORS.names()),
        ):
            name = None if spec is None else parse_spec(spec, noun=noun).name
            if name is not None and name not in known:
                raise unknown_name(noun, name, known)
        if self.judge is not None:
            parse_spec(self.judge, noun="judge")
        return self

    @property
    def inpainters(self) -> tuple[str, ...]:
        """A recipe names one inpainter, or several that take turns."""
        return (self.inpainter,) if isinstance(self.inpainter, str) else self.inpainter


def _samples(config: ModificationConfig, build: BuildFacts) -> Recipe:
    from mie.perspectives.modification.counterfactual import Bounds
    from mie.perspectives.modification.experts import open_part_judge
    from mie.perspectives.modification.lesions import LesionLimits
    from mie.perspectives.modification.samples import Modification

    options = config.model_dump(exclude={"kind", "judge", "limits", "bounds"})
    return Modification(
        **options,
        judge=open_part_judge(config.judge, build),
        case_name=build.case_name,
        limits=LesionLimits(**config.limits.model_dump()),
        bounds=Bounds(**config.bounds.model_dump()),
        bins=build.bins,
    )


def _prepare(config: ModificationConfig, build: BuildFacts) -> Weights:
    from mie.perspectives.modification.experts import check_judge, learnt_weights

    check_judge(config.judge, build)
    return learnt_weights(config, {source.modality for source in build.sources})


def _gates(_: Any, limits: GateConfig) -> Sequence[Gate]:
    from mie.perspectives.gates import TrivialGate
    from mie.perspectives.modification.samples import background_gate

    return TrivialGate.of(limits), background_gate


def _prove(sample: Sample) -> list[Problem]:
    from mie.perspectives.modification.samples import prove

    return prove(sample)


def _prove_together(rows: Rows) -> list[Problem]:
    from mie.perspectives.modification.samples import prove_pairs

    return prove_pairs(rows)


def _facts(rows: Rows, refusals: Iterable[Refusal], modalities: Mapping[str, str]) -> Mapping[str, Any]:
    from mie.perspectives.modification.card import pair_facts

    return pair_facts(rows, refusals, modalities)


def _section(facts: Mapping[str, Any]) -> str:
    from mie.perspectives.modification.card import counterfactual_pairs

    return counterfactual_pairs(facts)


PERSPECTIVE: Final = Perspective(
    name="modification",
    tasks=TASKS,
    edit="area",
    config=ModificationConfig,
    samples=_samples,
    gates=_gates,
    prove=_prove,
    prove_together=_prove_together,
    prepare=_prepare,
    facts=_facts,
    metrics=("changed_psnr", "changed_ssim", "unchanged_psnr", "unchanged_ssim", "rubric"),
    card=Card(
        making=" A lesion and a margin around it are filled by an inpainting expert that cannot see what was "
        "there, several times; the fill that is nearest to its surroundings is kept. Outside the mask "
        "input and target image are equal to the pixel.",
        details=tuple((f"`{key}`", key) for key in ("inpainter", "candidates", "detector", "judge")),
        gates={
            "expert": "there is no inpainting expert for the modality",
            "border": "the lesion touches the edge of the image",
            "outside": "the lesion does not lie inside the body",
            "texture": "the fill does not look like its surroundings: brightness, variance, gradients or "
            "spectrum",
            "seam": "the outline of the filled area shows",
            "detector": "a lesion detector misses the lesion before, or finds it after; "
            "or none can be trusted",
            "judge": "a language model saw the lesion, or the fill",
            "background": "something outside the filled area changed, or nothing inside it",
        },
        title="Counterfactual pairs",
        section=_section,
    ),
)
