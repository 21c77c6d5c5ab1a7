"""The baseline that separates memory from editing: rules remember, another editor edits.

The sentences of a conversation become one full instruction ("Highlight the liver in red and the spleen in
blue."), which the editor carries out on the first image. What then fails is editing, not memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from mie.core.spec import parse_spec
from mie.editors.base import Edited, EditError, Editor, Request, Turn, edit_all, open_editor
from mie.images.overlay import deblend
from mie.images.resize import resize_to
from mie.perspectives.dialogue.state import Overlay
from mie.perspectives.dialogue.understanding import full_instructions, understood
from mie.records import Pixels


class Resolve(Editor):
    """Turns a conversation into one full instruction and lets EDITOR carry it out on the first image."""

    needs_original = True

    def __init__(self, editor: str) -> None:
        self._spec = parse_spec(editor)
        inner = self._inner = open_editor(self._spec)
        self.batch_size, self.deterministic = inner.batch_size, inner.deterministic
        self.native_sizes, self.workers = inner.native_sizes, inner.workers
        self.thread_safe = inner.thread_safe
        self.destination, self.generative, self.model = inner.destination, inner.generative, inner.model

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        outcome = self.edit_batch([Request(image, instruction, seed, history=history)])[0]
        if isinstance(outcome, EditError):
            raise outcome
        return outcome

    def edit_request(self, request: Request) -> Edited:
        outcome = self.edit_batch([request])[0]
        if isinstance(outcome, EditError):
            raise outcome
        return outcome

    def edit_batch(self, requests: Sequence[Request]) -> Sequence[Edited | EditError]:
        """Return one outcome per request. A changed image with overlays takes two edits in a row."""
        plans = [_resolved(request) for request in requests]
        outcomes: list[Edited | EditError] = [Edited(plan.image, plan.meta) for plan in plans]
        for step in range(max((len(plan.steps) for plan in plans), default=0)):
            asked: dict[int, Request] = {}
            for at, (request, plan, done) in enumerate(zip(requests, plans, outcomes, strict=True)):
                if step < len(plan.steps) and isinstance(done, Edited):
                    image, sentence = np.array(done.image), plan.steps[step]
                    asked[at] = replace(
                        request, image=image, instruction=sentence, history=(), origin=None, original=None
                    )
            for at, outcome in zip(asked, edit_all(self._inner, list(asked.values())), strict=True):
                if isinstance(outcome, Edited):
                    outcome = Edited(outcome.image, {**outcome.meta, **plans[at].meta})
                outcomes[at] = outcome
        return outcomes

    @property
    def needs_target(self) -> bool:  # type: ignore[override]
        return self._inner.needs_target

    @property
    def spent(self) -> float | None:  # type: ignore[override]
        return self._inner.spent

    def load(self) -> None:
        self._inner.load()

    def sends(self, request: Request) -> tuple[int, int]:
        return self._inner.sends(replace(request, history=()))

    def cost(self, edits: int) -> float | None:
        return self._inner.cost(edits)

    def keep_in(self, folder: Path) -> None:
        self._inner.keep_in(folder)

    def recorded(self, sample_id: str, attempt: int) -> None:
        self._inner.recorded(sample_id, attempt)

    def about(self) -> dict[str, Any]:
        return {"editor": str(self._spec.masked()), **self._inner.about()}

    def close(self) -> None:
        self._inner.close()


class _Plan(NamedTuple):
    """What is to be done to the first image of a conversation."""

    image: Pixels
    steps: list[str]
    notes: list[str]  # sentences that were not understood

    @property
    def meta(self) -> dict[str, Any]:
        return {"resolved": self.steps, **({"not_understood": self.notes} if self.notes else {})}


def _resolved(request: Request) -> _Plan:
    """All sentences so far as one; a first sentence that is not understood goes on as it stands."""
    first = request.image if request.original is None else request.original
    last = request.history[-1].image if request.history else first

    def larger(one: Overlay, other: Overlay) -> str | None:
        """By the paint that the image of the turn before shows."""
        shown = resize_to(last, (first.shape[0], first.shape[1]))
        areas = [int(deblend(first, shown, overlay.colour).sum()) for overlay in (one, other)]
        if one.colour == other.colour or areas[0] == areas[1]:
            return None
        return one.target if areas[0] > areas[1] else other.target

    sentences = [*(turn.instruction for turn in request.history), request.instruction]
    state, notes = understood(sentences, larger)
    steps = full_instructions(state)
    if len(sentences) == 1 and notes:
        steps = [request.instruction]
    return _Plan(first, steps, notes)
