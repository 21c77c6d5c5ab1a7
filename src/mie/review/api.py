"""What the API exchanges: the five kinds of work, the answers to each, and errors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal, TypeAlias

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

KINDS: Final[dict[str, str]] = {
    "inspect": "Inspect triplets",
    "mask": "Choose or repair a mask",
    "rank": "Rank the outputs of several models",
    "questions": "Answer questions on several turns",
    "grade": "Grade triplets, with zero tolerance",
}
Kind: TypeAlias = Literal["inspect", "mask", "rank", "questions", "grade"]

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
# Graded 1 (faulty) to 3 (without fault); a sample passes with 3 in all of them.
DIMENSIONS: Final[dict[str, str]] = {
    "instruction": "Is the change what the instruction asks for, all of it and nothing else?",
    "region": "Does the marked region cover what was changed, and only that?",
    "preservation": "Is everything else as it was?",
    "quality": "Is the result free of artefacts and plausible as a medical image?",
}
BEST_GRADE: Final = 3
# What a kind of work asks, by its own name.
ASKED: Final[dict[str, dict[str, str]]] = {"questions": QUESTIONS, "grade": DIMENSIONS}


class ApiError(Exception):
    """A request that the server rejects: an HTTP status, a code for programs and a sentence for people."""

    def __init__(self, status: int, code: str, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.headers = headers or {}

    def body(self) -> dict[str, dict[str, str]]:
        return {"error": {"code": self.code, "message": self.message}}


_STATUS_TEXT: Final = {
    400: "not JSON",
    401: "not logged in",
    403: "wrong CSRF token, Origin, Host or role",
    404: "does not exist, or is not yours",
    409: "conflicts with the current state",
    410: "the link has been used or has expired",
    413: "too large",
    415: "wrong media type",
    422: "invalid",
    429: "too many attempts",
}


class ErrorDetail(BaseModel):
    code: str
    message: str


class ErrorBody(BaseModel):
    """The body of every response to a rejected request."""

    error: ErrorDetail


def error_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the errors of a route for its OpenAPI description."""
    common = (400, 401, 403, 413, 422)
    return {
        status: {"model": ErrorBody, "description": _STATUS_TEXT[status]}
        for status in sorted({*common, *statuses})
    }


def _without_nul(text: str) -> str:
    if "\0" in text:
        raise ValueError("contains a NUL character")  # PostgreSQL cannot store it
    return text


Text: TypeAlias = Annotated[str, AfterValidator(_without_nul)]
Criterion: TypeAlias = Literal["accuracy", "preservation", "quality"]
Label: TypeAlias = Annotated[str, Field(pattern=r"^[A-Z]$")]


class _Answer(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    comment: Text = Field("", max_length=2000)


class Inspection(_Answer):
    kind: Literal["inspect"]
    decision: Literal["accept", "reject", "flag"]
    reason: Text | None = Field(None, min_length=1, max_length=200)
    scores: dict[Criterion, Annotated[int, Field(ge=1, le=5, strict=True)]] = {}

    @model_validator(mode="after")
    def _has_reason(self) -> Inspection:
        if self.decision == "reject" and self.reason is None:
            raise ValueError("a rejection needs a reason")
        return self


class MaskChoice(_Answer):
    """`choice` is one of the labels that this rater sees; the database stores the mask's own name."""

    kind: Literal["mask"]
    choice: Annotated[str, Field(pattern=r"^([A-Z]|repaired|none)$")]
    mask: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None

    @model_validator(mode="after")
    def _has_upload(self) -> MaskChoice:
        if (self.choice == "repaired") != (self.mask is not None):
            raise ValueError("only a repaired mask names an upload, and it must")
        return self


class Ranking(_Answer):
    """Best first; labels that share a group are tied."""

    kind: Literal["rank"]
    rankings: dict[Criterion, Annotated[list[list[Label]], Field(max_length=26)]]

    @model_validator(mode="after")
    def _is_complete(self) -> Ranking:
        for criterion in CRITERIA:
            groups = self.rankings.get(criterion)
            if not groups or not all(groups):
                raise ValueError(f"the ranking for {criterion} is incomplete")
        return self


class QuestionAnswers(_Answer):
    kind: Literal["questions"]
    answers: dict[
        Literal["content_memory", "understanding", "backtracking"], Literal["yes", "no", "not_applicable"]
    ]


class Grading(_Answer):
    """Four grades from 1 to 3."""

    kind: Literal["grade"]
    grades: dict[
        Literal["instruction", "region", "preservation", "quality"],
        Annotated[int, Field(ge=1, le=BEST_GRADE, strict=True)],
    ]

    @model_validator(mode="after")
    def _is_complete(self) -> Grading:
        if missing := DIMENSIONS.keys() - self.grades.keys():
            raise ValueError(f"grade all of {', '.join(DIMENSIONS)}; missing: {', '.join(sorted(missing))}")
        return self


Answer: TypeAlias = Annotated[
    Inspection | MaskChoice | Ranking | QuestionAnswers | Grading, Field(discriminator="kind")
]


def faults(payload: Mapping[str, Any]) -> list[str]:
    """Return the dimensions of a grading in which the sample is not without fault."""
    return [name for name in DIMENSIONS if payload["grades"][name] < BEST_GRADE]


def verdict(payload: Mapping[str, Any]) -> str:
    """Return a stored answer in a few words; for an inspection, the decision alone."""
    match payload["kind"]:
        case "inspect":
            return str(payload["decision"])
        case "mask":
            return str(payload["choice"])
        case "rank":
            return "ranked"
        case "grade":
            return f"faults: {', '.join(found)}" if (found := faults(payload)) else "pass"
        case _:
            return ", ".join(f"{k}: {v}" for k, v in sorted(payload["answers"].items()))


def comparable(payload: Mapping[str, Any]) -> Any:
    """Return the part of a stored answer on which two raters can agree: no comment, no display order."""
    match payload["kind"]:
        case "inspect":
            return payload["decision"]
        case "mask":
            return [payload["choice"], payload["mask"]]
        case "rank":
            return {name: [sorted(group) for group in r] for name, r in payload["rankings"].items()}
        case "grade":
            return "fault" if faults(payload) else "pass"
        case _:
            return payload["answers"]
