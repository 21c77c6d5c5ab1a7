"""The four kinds of work, and what an answer of each looks like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

KINDS: Final[dict[str, str]] = {
    "inspect": "Inspect triplets",
    "mask": "Choose or repair a mask",
    "rank": "Rank the outputs of several models",
    "questions": "Answer questions on several turns",
}
Kind: TypeAlias = Literal["inspect", "mask", "rank", "questions"]

CRITERIA: Final = ("accuracy", "preservation", "quality")
REASONS: Final = (
    "wrong region",
    "wrong instruction",
    "artefact",
    "poor image quality",
    "identifiable patient",
    "other",
)
QUESTIONS: Final[dict[str, str]] = {
    "content_memory": "Does every turn still respect what was asked for in earlier turns?",
    "understanding": "Does each turn change what its words refer to, where they refer to an earlier turn?",
    "backtracking": "Where a turn asks to go back, is the earlier state there again?",
}


def _sound(text: str) -> str:
    if "\0" in text:
        raise ValueError("holds a NUL character")  # PostgreSQL has no place for it
    return text


Words: TypeAlias = Annotated[str, AfterValidator(_sound)]
Criterion: TypeAlias = Literal["accuracy", "preservation", "quality"]
Label: TypeAlias = Annotated[str, Field(pattern=r"^[A-Z]$")]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    comment: Words = Field("", max_length=2000)


class Inspection(_Answer):
    kind: Literal["inspect"]
    decision: Literal["accept", "reject", "flag"]
    reason: Words | None = Field(None, min_length=1, max_length=200)
    scores: dict[Criterion, Annotated[int, Field(ge=1, le=5, strict=True)]] = {}

    @model_validator(mode="after")
    def _reasoned(self) -> Inspection:
        if self.decision == "reject" and self.reason is None:
            raise ValueError("a rejection needs a reason")
        return self


class MaskChoice(_Answer):
    kind: Literal["mask"]
    choice: Literal[
        "source", "eroded", "dilated", "thresholded", "region-1", "region-2", "region-3", "repaired", "none"
    ]
    mask: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None

    @model_validator(mode="after")
    def _uploaded(self) -> MaskChoice:
        if (self.choice == "repaired") != (self.mask is not None):
            raise ValueError("a repaired mask, and only that, names an upload")
        return self


class Ranking(_Answer):
    """Best first; labels that share a group are tied."""

    kind: Literal["rank"]
    rankings: dict[Criterion, Annotated[list[list[Label]], Field(max_length=26)]]

    @model_validator(mode="after")
    def _complete(self) -> Ranking:
        for criterion in CRITERIA:
            groups = self.rankings.get(criterion)
            if not groups or not all(groups):
                raise ValueError(f"no complete ranking for {criterion}")
        return self


class Replies(_Answer):
    kind: Literal["questions"]
    answers: dict[
        Literal["content_memory", "understanding", "backtracking"], Literal["yes", "no", "not_applicable"]
    ]


Answer: TypeAlias = Annotated[Inspection | MaskChoice | Ranking | Replies, Field(discriminator="kind")]


def verdict(payload: Mapping[str, Any]) -> str:
    """An answer in a few words; for an inspection the decision and nothing else."""
    match payload["kind"]:
        case "inspect":
            return str(payload["decision"])
        case "mask":
            return str(payload["choice"])
        case "rank":
            return "ranked"
        case _:
            return ", ".join(f"{k}: {v}" for k, v in sorted(payload["answers"].items()))


def comparable(payload: Mapping[str, Any]) -> Any:
    """The part of an answer that two raters can agree on: no comment, no order of display."""
    match payload["kind"]:
        case "inspect":
            return payload["decision"]
        case "mask":
            return [payload["choice"], payload["mask"]]
        case "rank":
            return {name: [sorted(group) for group in r] for name, r in payload["rankings"].items()}
        case _:
            return payload["answers"]


def relabelled(
    rankings: Mapping[str, Sequence[Sequence[Any]]], names: Mapping[Any, Any]
) -> dict[str, list[list[Any]]]:
    """The same rankings with other names in them: labels for run ids, or the way back."""
    return {c: [sorted(names[name] for name in group) for group in groups] for c, groups in rankings.items()}
