"""Dialogue: conversations about one image, whose right image is known after every turn.

A sample is one turn. Its input is the truth of the turn before, its target image the truth after it, and its
mask holds every target of the conversation. `params` hold the operation and the states before and after.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from pydantic import Field, model_validator

from mie.perspectives.modification import ModificationConfig
from mie.perspectives.perspective import (
    PERSPECTIVES,
    BuildFacts,
    Card,
    Gate,
    GateConfig,
    Perspective,
    PerspectiveConfig,
    Problem,
    Recipe,
    Rows,
    Weights,
)
from mie.perspectives.transformation import TransformationConfig
from mie.records import Rejection, Sample

TASKS: Final = ("memory", "understanding", "backtracking", "no-op", "chain", "scale")
Family = Literal["memory", "understanding", "backtracking", "no-op", "chain", "scale"]


class DialogueConfig(PerspectiveConfig):
    """Conversations of 2 to 16 turns in six families, each turn with its true image."""

    kind: Literal["dialogue"] = "dialogue"
    families: tuple[Family, ...] = Field(TASKS, min_length=1)
    per_case: int = Field(2, ge=1, le=6, description="families drawn for each image")
    bases: float = Field(0.25, ge=0, le=1, description="share of conversations that change the image itself")
    transformation: TransformationConfig | None = Field(
        TransformationConfig(per_case=1), description="for degraded images and CT windows; null: none"
    )
    modification: ModificationConfig | None = Field(
        None, description="for lesions that are removed and put back; null: none"
    )

    @model_validator(mode="after")
    def _plain(self) -> DialogueConfig:
        if self.wordings == "wide":
            raise ValueError("a conversation has no wide wordings: a turn rests on the words of others")
        return self


def _samples(config: DialogueConfig, build: BuildFacts) -> Recipe:
    from mie.perspectives.dialogue.bases import Sources
    from mie.perspectives.dialogue.samples import Dialogue

    def recipe(of: PerspectiveConfig | None) -> Recipe | None:
        return None if of is None or not config.bases else PERSPECTIVES[of.kind].samples(of, build)

    removal = config.modification and config.modification.model_copy(update={"kinds": ("removal",)})
    sources = Sources(config.bases, recipe(config.transformation), recipe(removal))
    return Dialogue(config.families, config.per_case, build.bins, sources=sources)


def _prepare(config: DialogueConfig, build: BuildFacts) -> Weights | None:
    if config.modification is None or not config.bases:
        return None
    return PERSPECTIVES["modification"].prepare(config.modification, build)


def _gates(_: Any, limits: GateConfig) -> Sequence[Gate]:
    from mie.perspectives.dialogue.samples import TargetGate

    return (TargetGate(limits),)


def _prove(sample: Sample) -> list[Problem]:
    from mie.perspectives.dialogue.proof import prove

    return prove(sample)


def _prove_group(samples: Sequence[Sample]) -> list[Problem]:
    from mie.perspectives.dialogue.proof import prove_group

    return prove_group(samples)


def _facts(rows: Rows, rejections: Iterable[Rejection], modalities: Mapping[str, str]) -> Mapping[str, Any]:
    """Conversations by family and by modality, and how many have each length."""
    lengths: Counter[str] = Counter()
    families: dict[str, Counter[str]] = {}
    for row in rows:
        lengths[row["group"]] += 1
        if row["turn"] == 1:
            families.setdefault(row["modality"], Counter())[row["task"]] += 1
    return {
        "conversations": len(lengths),
        "by_length": {str(n): count for n, count in sorted(Counter(lengths.values()).items())},
        "by_modality": {name: dict(sorted(found.items())) for name, found in sorted(families.items())},
    }


def _section(facts: Mapping[str, Any]) -> str:
    from mie.core.documents import markdown_table

    turns = sum(int(n) * count for n, count in facts["by_length"].items())
    head = (
        f"{facts['conversations']:,} conversations, {turns / max(1, facts['conversations']):.1f} turns on "
        "average. The true image of every turn is rendered from the first image and the state of the "
        "conversation; `mie verify` replays each one and compares every pixel."
    )
    rows = [
        (name, *(f"{found.get(task, 0):,}" for task in TASKS), f"{sum(found.values()):,}")
        for name, found in facts["by_modality"].items()
    ]
    return f"{head}\n\n{markdown_table(('modality', *TASKS, 'all'), rows)}"


PERSPECTIVE: Final = Perspective(
    name="dialogue",
    tasks=TASKS,
    edit="image",
    config=DialogueConfig,
    samples=_samples,
    gates=_gates,
    prove=_prove,
    prove_group=_prove_group,
    prepare=_prepare,
    facts=_facts,
    metrics=("psnr", "ssim"),
    card=Card(
        summary="; each sample is one turn of a conversation about an image, with the true image after it",
        making=" The input of a turn is the truth of the turn before. Overlays are painted after scaling, at "
        "60% opacity; where two meet, the smaller region lies on top.",
        settings=(("families", "families"), ("families per image", "per_case")),
        gates={"targets": "no target is large enough, visible, and apart from the others"},
        title="Conversations",
        section=_section,
    ),
)
