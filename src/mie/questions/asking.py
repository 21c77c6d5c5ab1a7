"""A question as a model is asked it: the words, the options in some order, the images.

One run asks a question in several passes: as it stands (`seen`), without its images (`blind`), and with its
options rotated (`order1`, `order2`, ...), so that every option stands at another letter.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from mie.errors import ImageError
from mie.images.resize import fitted_size, resize_image
from mie.judges import Draft, Image, Prompt, PromptSet, load_prompt
from mie.judges import Question as Ask
from mie.questions.record import LETTERS, Question, QuestionImage
from mie.records import Pixels

FORMS: Final = ("direct", "reasoning")
LONGEST_SIDE: Final = 1280  # larger images are scaled down, as the benchmark's own script does
_BOXED: Final = r'Think step by step, then end with this line: Final Answer: "\boxed{<%s>}"'
_FRACTIONS: Final = "in fractions of the image's width and height from its top left corner"
# What a question asks for: kind -> (direct, what stands in the box at the end of a chain of reasoning).
_REQUESTS: Final = {
    "closed": ("Answer with the option's letter from the given choices directly.", "letter"),
    "open": ("Answer concisely, in a few words.", "concise answer"),
    "number": ("Answer with one number{unit} and nothing else.", "number{unit}"),
    "point": (f"Answer with one point (x, y), {_FRACTIONS}, and nothing else.", "(x, y)"),
    "box": (f"Answer with one box [left, top, right, bottom], {_FRACTIONS}, and nothing else.", "the box"),
}


@dataclass(frozen=True, slots=True)
class Pass:
    """One way of asking a question."""

    name: str
    blind: bool = False  # without images
    rotation: int = 0  # of the options

    def applies(self, kind: str, options: int) -> bool:
        """Rotated options are for questions with options; a whole turn is the first order again."""
        return not self.rotation or (kind == "closed" and self.rotation % options != 0)


SEEN: Final = Pass("seen")


def passes(*, blind: bool = False, orders: int = 0) -> tuple[Pass, ...]:
    """The passes of a run: `seen` first."""
    rotated = (Pass(f"order{turn}", rotation=turn) for turn in range(1, orders + 1))
    return (SEEN, *([Pass("blind", blind=True)] if blind else []), *rotated)


def rotated(count: int, turn: int) -> list[int]:
    """Which option stands at each place.

    >>> rotated(4, 1)
    [1, 2, 3, 0]
    """
    return [(at + turn) % count for at in range(count)]


def words_of(kind: str, text: str, options: Sequence[str], unit: str, prompt: Prompt, form: str) -> str:
    """The user's text: the question, its options in the order given, and what is asked for."""
    direct, boxed = (
        part.format(unit=f" in {unit}" if unit else "") if kind == "number" else part
        for part in _REQUESTS[kind]
    )
    lines = "".join(f"{LETTERS[at]}. {option}\n" for at, option in enumerate(options))
    return prompt.fill(
        question=text,
        options=f"Options:\n{lines}" if options else "",
        request=direct if form == "direct" else _BOXED % boxed,
    )


def prompt_of(form: str, prompts: PromptSet) -> Prompt:
    return prompts.of(load_prompt(f"vqa_{form}", 1))


def drafts(
    questions: Iterable[Question], ways: Sequence[Pass], form: str, prompts: PromptSet, *, withhold: bool
) -> Iterator[Draft]:
    """A draft for each question and pass, keyed `<id>:<pass>`; `withhold` asks without any image."""
    prompt = prompt_of(form, prompts)
    shown: list[_Shown] = []
    for question in questions:
        # Questions about one image stand next to each other: it is decoded for the first of them.
        shown = [
            next((one for one in shown if one.data == image.data), _Shown(image)) for image in question.images
        ]
        for way in ways:
            if not way.applies(question.kind, len(question.options)):
                continue
            order = rotated(len(question.options), way.rotation)
            options = [question.options[at] for at in order]
            text = words_of(question.kind, question.text, options, question.unit, prompt, form)
            blind = way.blind or withhold
            make = partial(_ask, prompt, text, () if blind else tuple(shown))
            sizes = _sizes(() if blind else question.images)
            yield Draft(f"{question.id}:{way.name}", make, prompt, sizes, len(text))


class _Shown:
    """An image as it is sent. Decoded when it is first asked for, and once, whatever thread asks."""

    def __init__(self, image: QuestionImage) -> None:
        self.data = image.data
        self._image = image
        self._sent: Image | None = None
        self._lock = threading.Lock()

    def image(self) -> Image:
        with self._lock:
            if self._sent is None:
                if not self.data:
                    raise ImageError("an image of the question is missing")
                self._sent = Image(_fitted(self._image.decoded()))
                self._sent.digest  # noqa: B018 (computed here, in a thread, and cached)
            return self._sent


def _ask(prompt: Prompt, text: str, images: Sequence[_Shown]) -> Ask:
    return Ask(prompt, (*(one.image() for one in images), text), _as_it_is)


def _as_it_is(reply: str) -> str:
    """Replies are read when they are scored, so that a run is paid once and scored in any way."""
    return reply


def _sizes(images: Sequence[QuestionImage]) -> tuple[tuple[int, int], ...]:
    """Of what is sent; nothing where an image cannot be read, which `_ask` finds out."""
    try:
        return tuple(_size(*image.size) for image in images if image.data)
    except ImageError:
        return ()


def _fitted(pixels: Pixels) -> Pixels:
    return resize_image(pixels, _size(pixels.shape[0], pixels.shape[1]))


def _size(height: int, width: int) -> tuple[int, int]:
    return (height, width) if max(height, width) <= LONGEST_SIDE else fitted_size(height, width, LONGEST_SIDE)
