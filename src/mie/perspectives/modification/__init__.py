"""Modification: a lesion is taken out of an image, and the pair becomes four kinds of triplets.

| task | input | target image |
| --- | --- | --- |
| removal | with lesion (L) | healthy (H) |
| addition | H | L |
| inpainting | white hole | H |
| simulation | white hole | L |

With `health:` a recipe also paints lesions into images that show none: then H is real and L is drawn.
Outside the mask, which is the filled area, the images of a pair are equal to the pixel. `dataset.json` and
the data card count the pairs by modality, from the `params` of kept samples and the numbers of rejections.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Final, Literal

from pydantic import (
    Field,
    SerializerFunctionWrapHandler,
    field_validator,
    model_serializer,
    model_validator,
)

from mie.core.documents import markdown_cell, markdown_table
from mie.core.registry import unknown_name
from mie.core.spec import parse_spec
from mie.perspectives.modification.counterfactual import HIT, shares_left
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
    SourceFacts,
    StrictModel,
    Weights,
)
from mie.records import Rejection, Sample

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


class HealthConfig(StrictModel):
    """A kind of lesion that is painted into those images of a data set that show none."""

    source: str = Field(description="the data set; only its images without a marked lesion are used")
    lesion: str = Field(description="as the painter names it")
    inside: str | None = Field(None, description="the mask that it must lie in; the whole body by default")


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
    detector: str | Annotated[tuple[str, ...], Field(min_length=1)] | None = Field(
        "compact", description="one, or several: those that are trusted for a lesion's name are asked"
    )
    detector_required: bool = False
    min_sensitivity: float = Field(0.5, ge=0, le=1, description="below it a detector is not trusted")
    judge: str | None = None
    health: tuple[HealthConfig, ...] = Field((), description="lesions that are painted into healthy images")
    painter: str = Field("flow", description="the inpainter that paints them")
    limits: LimitsConfig = LimitsConfig()
    bounds: BoundsConfig = BoundsConfig()

    @model_serializer(mode="wrap")
    def _without_the_default(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As written before the keys existed: a recipe without them is the same recipe as ever."""
        body: dict[str, Any] = handler(self)
        keys = ("wordings",) if self.health else ("wordings", "health", "painter")
        return {
            key: value
            for key, value in body.items()
            if key not in keys or (key == "wordings" and self.wordings != "plain")
        }

    @model_validator(mode="after")
    def _known(self) -> ModificationConfig:
        for noun, spec, known in (
            *(("inpainter", spec, INPAINTERS.names()) for spec in (*self.inpainters, self.painter)),
            *(("detector", spec, DETECTORS.names()) for spec in self.detectors),
        ):
            name = parse_spec(spec, noun=noun).name
            if name not in known:
                raise unknown_name(noun, name, known)
        if self.judge is not None:
            parse_spec(self.judge, noun="judge")
        return self

    @property
    def detectors(self) -> tuple[str, ...]:
        """A recipe names none, one, or several."""
        return (
            ()
            if self.detector is None
            else (self.detector,)
            if isinstance(self.detector, str)
            else self.detector
        )

    @property
    def inpainters(self) -> tuple[str, ...]:
        """A recipe names one inpainter, or several that take turns."""
        return (self.inpainter,) if isinstance(self.inpainter, str) else self.inpainter


def _samples(config: ModificationConfig, build: BuildFacts) -> Recipe:
    from mie.perspectives.modification.counterfactual import Bounds
    from mie.perspectives.modification.experts import open_part_judge
    from mie.perspectives.modification.lesions import LesionLimits
    from mie.perspectives.modification.samples import Modification

    options = config.model_dump(exclude={"kind", "wordings", "judge", "limits", "bounds"})
    # Written always: the serializer leaves out what is default.
    options["health"] = tuple(one.model_dump() for one in config.health)
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
    modality = {source.name: source.modality for source in build.sources}
    healthy = [(modality[one.source], one.lesion) for one in config.health]
    return learnt_weights(config, set(modality.values()), healthy)


def _check(config: ModificationConfig, sources: Sequence[SourceFacts]) -> None:
    names = [source.name for source in sources]
    for one in config.health:
        if one.source not in names:
            raise unknown_name("data set of the recipe, under recipe.health,", one.source, names)


def _gates(_: Any, limits: GateConfig) -> Sequence[Gate]:
    from mie.perspectives.modification.proof import background_gate
    from mie.perspectives.perspective import TrivialGate

    return TrivialGate.of(limits), background_gate


def _prove(sample: Sample) -> list[Problem]:
    from mie.perspectives.modification.proof import prove

    return prove(sample)


def _prove_together(rows: Rows) -> list[Problem]:
    from mie.perspectives.modification.proof import prove_pairs

    return prove_pairs(rows)


def _facts(rows: Rows, rejections: Iterable[Rejection], modalities: Mapping[str, str]) -> Mapping[str, Any]:
    from mie.perspectives.modification import pair_facts

    return pair_facts(rows, rejections, modalities)


def _section(facts: Mapping[str, Any]) -> str:
    from mie.perspectives.modification import counterfactual_pairs

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
    check=_check,
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
            "volume": "whole volumes: the lesion is in one slice only",
            "flicker": "whole volumes: the fill changes from slice to slice more than the tissue around it",
            "detector": "a lesion detector misses the lesion before, or finds it after; "
            "or none can be trusted",
            "judge": "a language model saw the lesion, or the fill",
            "place": "from health: no place inside the organ is large enough, or the organ is not marked",
            "faint": "from health: the painted lesion can hardly be seen",
            "background": "something outside the filled area changed, or nothing inside it",
        },
        title="Counterfactual pairs",
        section=_section,
    ),
)


# Refusals of single samples, not of pairs: a pair has up to four.
_OF_SAMPLES = ("duplicate", "leak", "background")


@dataclass
class _Modality:
    pairs: int = 0
    inpainters: Counter[str] = field(default_factory=Counter)  # pairs by whose fill was kept
    refused: Counter[str] = field(default_factory=Counter)
    # Kept pairs without a trusted detector, by reason.
    unchecked: Counter[str] = field(default_factory=Counter)
    detectors: dict[str, Any] = field(default_factory=dict)  # name -> quality
    also_asked: Counter[str] = field(default_factory=Counter)  # kept pairs by the further detectors' names
    seen: list[tuple[bool, bool]] = field(default_factory=list)  # lesion found, patient held out
    left: list[bool] = field(default_factory=list)
    seams: list[float] = field(default_factory=list)
    from_health: int = 0  # kept pairs whose lesion was painted

    def add(self, facts: Mapping[str, Any], *, kept: bool) -> None:
        self.from_health += bool(kept and facts.get("from_health"))
        detector = facts.get("detector")
        if detector is not None and detector["name"] is not None:
            self.detectors[detector["name"]] = detector["quality"]
        if facts.get("lesion_seen") is not None:
            self.seen.append((facts["lesion_seen"]["share"] >= HIT, bool(facts.get("held_out"))))
        tried = facts.get("candidates")
        if tried:
            chosen = tried[facts["kept"]]
            if shares := shares_left(chosen):
                self.left.append(max(share for _, share in shares) >= HIT)
            if kept and chosen["seam"] is not None:
                self.seams.append(chosen["seam"])
        if kept and detector is not None:
            self.also_asked.update(detector.get("others", ()))
            if not detector["trusted"]:
                self.unchecked[detector["reason"]] += 1

    def as_json(self) -> dict[str, Any]:
        held_out = [hit for hit, held in self.seen if held]
        return {
            "pairs": self.pairs,
            **({"from_health": self.from_health} if self.from_health else {}),
            "inpainters": dict(sorted(self.inpainters.items())),
            "refused": dict(sorted(self.refused.items())),
            "detectors": dict(sorted(self.detectors.items())),
            **({"also_asked": dict(sorted(self.also_asked.items()))} if self.also_asked else {}),
            "not_checked": dict(sorted(self.unchecked.items())),
            "lesion_found": _rate([hit for hit, _ in self.seen]),
            "lesion_found_held_out": _rate(held_out),
            "lesion_left": _rate(self.left),
            "seam": None if not self.seams else round(math.fsum(self.seams) / len(self.seams), 4),
        }


def pair_facts(
    rows: Iterable[Mapping[str, Any]], rejections: Iterable[Rejection], modalities: Mapping[str, str]
) -> dict[str, Any]:
    """By modality, from the rows that were kept. `modalities` maps each data set to its own."""
    found: dict[str, _Modality] = {}
    pairs: set[str] = set()
    for row in rows:
        if row["group"] in pairs:
            continue
        pairs.add(row["group"])
        of = found.setdefault(row["modality"], _Modality())
        of.pairs += 1
        params = json.loads(row["params"])
        of.inpainters[params["inpainter"]] += 1
        of.add(params, kept=True)
    for rejection in rejections:
        if rejection.gate in _OF_SAMPLES or rejection.source not in modalities:
            continue
        of = found.setdefault(modalities[rejection.source], _Modality())
        of.refused[rejection.gate] += 1
        of.add(rejection.numbers, kept=False)
    return {name: of.as_json() for name, of in sorted(found.items())}


def _rate(hits: list[bool]) -> dict[str, int]:
    return {"yes": sum(hits), "of": len(hits)}


def counterfactual_pairs(facts: Mapping[str, Any]) -> str:
    """The data card's section: what was accepted, and what the gates are worth. `facts` are by modality."""
    sections = [
        "A pair is one image with a lesion and its counterpart without. Refused are pairs that could not be "
        "made, or did not pass a gate; lesion-free images (gate `empty`) do not count.",
        markdown_table(
            ("modality", "pairs", "filled by", "refused", "accepted", "refused by gate", "mean seam energy"),
            _accepted(facts),
        ),
        "What an independent lesion detector found: in the images with the lesion (of all, and of patients "
        "that it never learnt from), and in the filled area of the counterparts, those refused for it "
        "included. A lesion counts as found where a tenth of its area is.",
        markdown_table(
            ("modality", "lesion found", "of held-out patients", "found again after removal"), _found(facts)
        ),
        "How good the detectors are, on held-out patients:",
        markdown_table(
            ("modality", "detector", "sensitivity", "false positives an image", "measured on"),
            _quality(facts),
        ),
    ]
    also_asked = [
        f"{name} {markdown_cell(detector)} ({n:,} of {of['pairs']:,} pairs)"
        for name, of in facts.items()
        for detector, n in of.get("also_asked", {}).items()
    ]
    if also_asked:
        sections.append(
            "**Further detectors**, which must find nothing after removal either: "
            + ", ".join(also_asked)
            + "."
        )
    painted = {name: of["from_health"] for name, of in facts.items() if "from_health" in of}
    drawn = (
        "**Synthetic pixels.** The lesion is real, and the tissue in its place is drawn (`synthetic: tissue` "
        "in `params`)."
    )
    if painted:
        drawn += (
            " In the pairs that begin with an image without a lesion, the healthy image is real, and the "
            "lesion is drawn by a network (`from_health`, `synthetic: lesion`): "
            + ", ".join(f"{name} {n:,}" for name, n in painted.items())
            + "."
        )
    sections.append(drawn)
    unchecked = _unchecked(facts)
    if unchecked:
        sections.append("**Not checked by a detector that can be trusted:**\n\n" + "\n".join(unchecked))
    return "\n\n".join(sections)


def _accepted(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, of in facts.items():
        gates = {gate: n for gate, n in of["refused"].items() if gate != "empty"}
        refused = sum(gates.values())
        tried = of["pairs"] + refused
        share = f"{of['pairs'] / tried:.0%}" if tried else "none tried"
        by_gate = ", ".join(f"`{gate}` {n:,}" for gate, n in gates.items())
        by = ", ".join(f"{markdown_cell(name)} {n:,}" for name, n in of["inpainters"].items())
        rows.append((name, f"{of['pairs']:,}", by, f"{refused:,}", share, by_gate, _number(of["seam"])))
    return rows


def _found(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    keys = ("lesion_found", "lesion_found_held_out", "lesion_left")
    return [(name, *(_rate_text(of[key]) for key in keys)) for name, of in facts.items()]


def _quality(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, of in facts.items():
        for detector, quality in of["detectors"].items() or [("none", None)]:
            if quality is None:
                rows.append((name, markdown_cell(detector), *["not measured"] * 3))
                continue
            measured = ", ".join(
                f"{quality[key]:,} {said}"
                for key, said in (
                    ("patients", "patients"),
                    ("images", "images with lesions"),
                    ("healthy", "without"),
                    ("lesions", "lesions"),
                    ("places", "healthy places"),
                )
                if quality.get(key) is not None
            )
            alarms = _number(quality.get("false_positives_per_image"))
            if "false_alarms" in quality:  # of a detector that does not search
                alarms = f"{quality['false_alarms']:.0%} of healthy places"
            numbers = (_number(quality.get("sensitivity")), alarms)
            rows.append((name, markdown_cell(detector), *numbers, measured or "not stated"))
    return rows


def _unchecked(facts: Mapping[str, Any]) -> list[str]:
    return [
        f"- {name}: {n:,} of {of['pairs']:,} pairs ({markdown_cell(reason)})"
        for name, of in facts.items()
        for reason, n in of["not_checked"].items()
    ]


def _rate_text(found: Mapping[str, int]) -> str:
    return f"{found['yes']:,} of {found['of']:,}" if found["of"] else "not looked"


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f}"
