"""Perception: the named region is painted on the image, so the right answer is known to the pixel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal

from pydantic import Field

from mie.perspectives.perspective import (
    BuildFacts,
    Card,
    Gate,
    GateConfig,
    Perspective,
    PerspectiveConfig,
    Problem,
    Recipe,
)
from mie.records import Sample
from mie.vocabulary import OPACITY

TASKS: Final = ("structure", "lesion", "holistic")


class PerceptionConfig(PerspectiveConfig):
    """Paint the ground-truth region: structures, lesions, and all classes together."""

    kind: Literal["perception"] = "perception"
    tasks: tuple[Literal["structure", "lesion", "holistic"], ...] = TASKS
    opacity: float = Field(OPACITY, gt=0.5, le=1)


def _samples(config: PerceptionConfig, build: BuildFacts) -> Recipe:
    from mie.perspectives.perception.samples import Perception

    return Perception(tasks=config.tasks, opacity=config.opacity, bins=build.bins)


def _gates(_: Any, limits: GateConfig) -> Sequence[Gate]:
    from mie.perspectives.perception.samples import proof_gate, visible_gate
    from mie.perspectives.perspective import TrivialGate

    return TrivialGate.of(limits), visible_gate, proof_gate


def _prove(sample: Sample) -> list[Problem]:
    from mie.perspectives.perception.samples import prove

    return prove(sample)


PERSPECTIVE: Final = Perspective(
    name="perception",
    tasks=TASKS,
    edit="overlay",
    config=PerceptionConfig,
    samples=_samples,
    gates=_gates,
    prove=_prove,
    metrics=("dice", "dice_guarded", "p_acc", "b_psnr", "b_ssim", "class_dice"),
    card=Card(
        summary="; the annotated region is painted on the input, so the right answer is known to the pixel",
        making=" The region is painted after scaling, so that the blend is exact: inside it, output = "
        "(1 - opacity) × input + opacity × colour; outside it, output = input.",
        settings=(("overlay opacity", "opacity"),),
        gates={"proof": "reading the painted region back from the target image does not give the mask"},
    ),
)
