"""A question about one or more medical images, with its key and how the key was computed.

A question that cannot be scored fairly cannot be constructed: a key outside the options, two equal options, a
number without a tolerance or a question without an image raise `MieError` here, before anything is stored.
"""

from __future__ import annotations

import hashlib
import json
import math
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, NamedTuple

from mie.core.hashing import canonical
from mie.errors import ImageError, MieError
from mie.images.hashes import pixel_digest
from mie.images.limits import DEFAULT_LIMITS, Limits
from mie.images.png import decode_png, encode_png
from mie.images.raster import check_header, raster_format, read_raster
from mie.records import Pixels
from mie.vocabulary import SPLITS, UNKNOWN

KINDS: Final = ("closed", "open", "number", "point", "box")
# "reviewed": people accepted it. "written": a language model wrote it; it counts only once it is reviewed.
# "blind": a text-only answerer got it right. "counterfactual": an image shows tissue that was painted in.
FLAGS: Final = ("reviewed", "written", "blind", "counterfactual")
LETTERS: Final = string.ascii_uppercase
_MOST_OPTIONS: Final = 10
_MOST_IMAGES: Final = 64

# The clinical phases of OmniBrainBench, in the order of a patient's way through the clinic.
PHASES: Final[dict[str, str]] = {
    "AIA": "anatomical and imaging assessment",
    "LIL": "lesion identification and localisation",
    "DSCR": "diagnostic synthesis and causal reasoning",
    "PJRF": "prognostic judgment and risk forecasting",
    "TCM": "therapeutic cycle management",
}


class Task(NamedTuple):
    """One of the fifteen tasks."""

    code: str
    name: str
    phase: str


TASKS: Final[dict[str, Task]] = {
    task.code: task
    for task in (
        Task("ASI", "anatomical structure identification", "AIA"),
        Task("IMI", "imaging modality identification", "AIA"),
        Task("AFU", "anatomical function understanding", "AIA"),
        Task("AS", "abnormal screening", "LIL"),
        Task("LFD", "lesion feature description", "LIL"),
        Task("LL", "lesion localisation", "LIL"),
        Task("DDR", "disease diagnosis reasoning", "DSCR"),
        Task("PMC", "pathophysiological mechanism correlation", "DSCR"),
        Task("RS", "risk stratification", "PJRF"),
        Task("PFA", "prognostic factor analysis", "PJRF"),
        Task("CSP", "clinical sign prediction", "PJRF"),
        Task("DRP", "drug response prediction", "PJRF"),
        Task("PA", "preoperative assessment", "TCM"),
        Task("TPS", "treatment plan selection", "TCM"),
        Task("POA", "postoperative outcome assessment", "TCM"),
    )
}


def phase_of(task: str) -> str:
    """The phase that a task belongs to; "unknown" for the task of an import that does not say."""
    return TASKS[task].phase if task in TASKS else UNKNOWN


class QuestionImage:
    """An image file in memory. It is decoded, within limits, when its pixels are first asked for."""

    def __init__(self, data: bytes, path: str = "") -> None:
        self.data = data
        self.path = path

    @classmethod
    def of(cls, pixels: Pixels, path: str = "") -> QuestionImage:
        """The pixels as PNG, `(H, W)` or `(H, W, 3)` uint8."""
        image = cls(encode_png(pixels), path)
        image.__dict__["digest"] = pixel_digest(pixels).hex()
        return image

    @property
    def format(self) -> str:
        """The file's format ("PNG", "JPEG"), told by its first bytes."""
        kind = raster_format(self.data[:12])
        if kind is None:
            found = f"a file that begins with {self.data[:8]!r}"
            raise ImageError("not a picture that we know", where=self.path or None, found=found)
        return kind

    @property
    def size(self) -> tuple[int, int]:
        """(height, width), from the header alone."""
        return check_header(self.data, where=self.path or None)

    @cached_property
    def pixels(self) -> Pixels:
        """The image, `(H, W, 3) uint8` RGB (a mask: `(H, W) uint8`)."""
        return self.decoded()

    def decoded(self, limits: Limits = DEFAULT_LIMITS) -> Pixels:
        """The pixels, not kept in memory afterwards. `ImageError` for a damaged or too large file."""
        if self.format == "PNG":
            pixels = _plain_png(self.data, limits)
            if pixels is not None:
                return pixels
        return read_raster(self.data, where=self.path or None, limits=limits).pixels

    @cached_property
    def digest(self) -> str:
        """Hash of the decoded pixels, in hexadecimal: independent of how the file packs them."""
        return pixel_digest(self.decoded()).hex()

    def __repr__(self) -> str:
        return f"QuestionImage({self.path!r}, {len(self.data):,} bytes)"


def _plain_png(data: bytes, limits: Limits) -> Pixels | None:
    """The pixels of an 8-bit grey or RGB PNG, as ours are; None for any other kind of PNG."""
    depth, colour = data[24:25], data[25:26]
    return decode_png(data, limits=limits) if depth == b"\x08" and colour in (b"\0", b"\2") else None


@dataclass(frozen=True, slots=True)
class QuestionMask:
    """What is marked on one of the images: evidence for the key, never shown to an answerer."""

    image: int  # which of the images, from 0
    target: str
    mask: QuestionImage = field(repr=False)  # `(H, W) uint8`, 0 outside


@dataclass(frozen=True, slots=True)
class Question:
    """One question. `answer` is text for every kind, so that all kinds travel in one column.

    - closed: the text of the right option, word for word; `letter` is its letter.
    - open: the reference answer.
    - number: a decimal number; `number` within `tolerance` (in `unit`) of it is right.
    - point: "[x, y]" in fractions of width and height; a distance of `tolerance` in these fractions is right.
    - box: "[left, top, right, bottom]" likewise; an overlap (IoU) of at least `tolerance` is right.
    """

    id: str
    kind: str
    text: str
    answer: str
    images: tuple[QuestionImage, ...] = field(repr=False)
    options: tuple[str, ...] = ()
    tolerance: float | None = None
    unit: str = ""
    task: str = UNKNOWN
    modality: str = UNKNOWN
    submodality: str = ""  # the sequence, stain or view: "FLAIR"; empty where it is not known
    anatomy: str = UNKNOWN
    template: str = ""  # what made it; empty for an import
    source: str = UNKNOWN
    case_id: str = ""
    patient_id: str | None = None  # of the image that the answer is about
    split: str = "test"
    evidence: Mapping[str, Any] = field(default_factory=dict)  # JSON: how the answer was computed
    masks: tuple[QuestionMask, ...] = field(default=(), repr=False)
    seed: int = 0
    license: str = ""
    flags: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        for problem, expected, found in _problems(self):
            raise MieError(problem, where=f"question {self.id}", expected=expected, found=found)

    @property
    def phase(self) -> str:
        """The clinical phase of its task."""
        return phase_of(self.task)

    @property
    def letter(self) -> str:
        """The letter of the right option; empty for a question without options."""
        return LETTERS[self.options.index(self.answer)] if self.kind == "closed" else ""

    @property
    def number(self) -> float:
        """The key of a number question."""
        return float(self.answer)

    @property
    def place(self) -> tuple[float, ...]:
        """The key of a point (x, y) or box (left, top, right, bottom) question, in fractions."""
        return tuple(float(value) for value in json.loads(self.answer))

    @property
    def counts(self) -> bool:
        """Whether an answer may be scored: what a language model wrote counts once people accepted it."""
        return "written" not in self.flags or "reviewed" in self.flags

    @property
    def digest(self) -> str:
        """SHA-256 over every field but the flags, and the decoded pixels of images and masks.

        Flags say what people and baselines found out later: the question, and answers to it, stay the same.
        """
        return question_digest(self)


def question_id(*parts: Any) -> str:
    """Sixteen hexadecimal digits that name what the parts say."""
    return hashlib.sha256(canonical(["question", *parts]).encode()).hexdigest()[:16]


def question_digest(question: Question) -> str:
    """SHA-256 over every field but the flags, and the digests of the pixels."""
    fields = {name: getattr(question, name) for name in TEXT_FIELDS if name != "flags"}
    fields["evidence"] = dict(question.evidence)
    fields["images"] = [image.digest for image in question.images]
    fields["masks"] = [[mask.image, mask.target, mask.mask.digest] for mask in question.masks]
    return hashlib.sha256(canonical(fields).encode()).hexdigest()


# Every field but the pictures and the evidence.
TEXT_FIELDS: Final = (
    *("id", "kind", "text", "options", "answer", "tolerance", "unit", "task", "phase", "modality"),
    *("submodality", "anatomy", "template", "source", "case_id", "patient_id", "split", "seed", "license"),
    "flags",
)


def _problems(question: Question) -> list[tuple[str, object, object]]:
    """(what is wrong, expected, found); empty for a sound question."""
    found: list[tuple[str, object, object]] = []
    if question.kind not in KINDS:
        return [("unknown kind of question", ", ".join(KINDS), question.kind)]
    if not question.id or not question.text.strip():
        found.append(("a question needs an id and a text", "text", repr(question.text)[:80]))
    if not 1 <= len(question.images) <= _MOST_IMAGES:
        found.append(("a question is about images", f"1 to {_MOST_IMAGES} images", len(question.images)))
    if not question.answer.strip():
        found.append(("the question has no answer", "a key", repr(question.answer)))
    if question.task not in TASKS and question.task != UNKNOWN:
        found.append(("unknown task", ", ".join(TASKS), question.task))
    if question.split not in SPLITS:
        found.append(("unknown split", ", ".join(SPLITS), question.split))
    if strange := sorted(set(question.flags) - set(FLAGS)):
        found.append(("unknown flag", ", ".join(FLAGS), ", ".join(strange)))
    if any(not 0 <= mask.image < len(question.images) for mask in question.masks):
        found.append(("a mask belongs to no image", f"0 to {len(question.images) - 1}", "another number"))
    return found or _KEY_PROBLEMS[question.kind](question)


def _closed_problems(question: Question) -> list[tuple[str, object, object]]:
    options = question.options
    if not 2 <= len(options) <= _MOST_OPTIONS:
        return [("a closed question has options", f"2 to {_MOST_OPTIONS}", len(options))]
    if not all(option.strip() for option in options):
        return [("an option is empty", "text in every option", list(options))]
    plain = [" ".join(option.split()).casefold() for option in options]
    if twice := sorted({one for one in plain if plain.count(one) > 1}):
        return [("two options are equal", "options that differ", ", ".join(twice)[:200])]
    if question.answer not in options:
        return [("the key is not among the options", list(options), question.answer)]
    return []


def _open_problems(question: Question) -> list[tuple[str, object, object]]:
    return [("only a closed question has options", "none", len(question.options))] if question.options else []


def _number_problems(question: Question) -> list[tuple[str, object, object]]:
    try:
        value = float(question.answer)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        return [("the key is not a number", "a decimal number", question.answer)]
    tolerance = question.tolerance
    if tolerance is None or not math.isfinite(tolerance) or tolerance < 0:
        return [("a number needs a tolerance", "0 or more, in its unit", tolerance)]
    return _open_problems(question)


def _place_problems(question: Question) -> list[tuple[str, object, object]]:
    length = 2 if question.kind == "point" else 4
    try:
        values: Sequence[Any] = json.loads(question.answer)
        sound = len(values) == length and all(0 <= float(value) <= 1 for value in values)
        sound = sound and (length == 2 or (values[0] < values[2] and values[1] < values[3]))
    except (ValueError, TypeError):
        sound = False
    if not sound:
        expected = "[x, y]" if length == 2 else "[left, top, right, bottom]"
        return [("the key is not a place", f"{expected} in fractions of width and height", question.answer)]
    if question.tolerance is None or not 0 < question.tolerance <= 1:
        return [("a place needs a tolerance", "above 0, at most 1", question.tolerance)]
    return _open_problems(question)


_KEY_PROBLEMS: Final = {
    "closed": _closed_problems,
    "open": _open_problems,
    "number": _number_problems,
    "point": _place_problems,
    "box": _place_problems,
}
