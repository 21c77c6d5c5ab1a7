"""The editor that knows the answer: the ceiling of every table, and a check of every metric."""

from __future__ import annotations

from collections.abc import Sequence

from mie.editors.base import Edited, EditError, Editor, Request, Turn
from mie.records import Pixels


class Oracle(Editor):
    """Gives the sample's target image. Whatever a protocol measures must then be perfect."""

    deterministic = True
    thread_safe = True
    workers = None
    needs_target = True

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        raise EditError("the oracle needs a sample of a dataset", fix="use it with `mie run`")

    def edit_request(self, request: Request) -> Edited:
        if request.sample is None or request.sample.target_image is None:
            return super().edit_request(request)
        return Edited(request.sample.target_image)
