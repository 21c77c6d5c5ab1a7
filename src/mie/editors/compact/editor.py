"""The editor `compact`: image and instruction in, image out, on a laptop and without a network."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from scipy.special import expit

from mie.editors.base import Edited, EditError, Editor, Request, Turn
from mie.editors.compact.compose import Composed, modified, overlay, restored
from mie.editors.compact.shipped import file_digest, shipped_weights
from mie.editors.compact.views import STRIDE, View, back, look, views
from mie.errors import ConfigError
from mie.records import Pixels, Values

if TYPE_CHECKING:
    from mie.editors.compact.inference import Asked, Inference, Maps

_UNDERSTOOD: Final = 0.6  # probability of a perspective, below which an instruction is not followed
_PRESENT: Final = 0.5
_LARGEST: Final = 2048  # the option `size`
_NEEDS: Final = ("torch", "safetensors", "transformers")


class Compact(Editor):
    """A small network that paints, restores and transfers by instruction.

    `compact` uses the weights that ship with the package, `compact:PATH` those of a file. `size` forces the
    longer side that the network works at (0: chosen by `views`).
    """

    batch_size = 8
    deterministic = True

    def __init__(
        self, weights: str | None = None, *, size: int = 0, device: str = "auto", precision: str = "auto"
    ) -> None:
        missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"the compact editor needs {', '.join(missing)}", fix="pip install 'mie[models]'"
            )
        if size != 0 and not STRIDE <= size <= _LARGEST:
            raise ConfigError("no size to work at", expected=f"0, or {STRIDE} to {_LARGEST}", found=size)
        if precision not in ("auto", "fp32", "bf16"):
            raise ConfigError("no such precision", expected="auto, fp32 or bf16", found=precision)
        self.weights = shipped_weights() if weights is None else Path(weights).expanduser()
        if not self.weights.is_file():
            raise ConfigError("no such weights file", where=self.weights)
        self._size, self._device, self._precision = size, device, precision

    def about(self) -> dict[str, Any]:
        return {"weights_sha256": file_digest(self.weights)}

    @cached_property
    def _inference(self) -> Inference:
        from mie.editors.compact.inference import Inference

        return Inference(self.weights, self._device, self._precision)

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        return self._edited([Request(image, instruction, seed)])[0]

    def edit_batch(self, requests: Sequence[Request]) -> Sequence[Edited | EditError]:
        try:
            return self._edited(requests)
        except Exception:  # one of them, or too many at once: one by one each has its own reason
            return super().edit_batch(requests)

    def _edited(self, requests: Sequence[Request]) -> list[Edited]:
        asked = [self._inference.read(request.instruction) for request in requests]
        seen = self._seen(requests, asked)
        return [_edited(*one) for one in zip([r.image for r in requests], asked, seen, strict=True)]

    def _seen(self, requests: Sequence[Request], asked: Sequence[Asked]) -> list[list[tuple[View, Maps]]]:
        """Every view of every request that is understood, those of one size through the network together."""
        groups: dict[tuple[int, ...], list[tuple[int, View]]] = {}
        for at, (request, said) in enumerate(zip(requests, asked, strict=True)):
            if said.probability < _UNDERSTOOD:
                continue
            height, width = request.image.shape[:2]
            for longer in views(height, width, said.perspective, self._size):
                view = look(request.image, longer)
                groups.setdefault(view.pixels.shape, []).append((at, view))
        found: list[list[tuple[View, Maps]]] = [[] for _ in requests]
        for group in groups.values():
            maps = self._inference.run([view.pixels for _, view in group], [asked[at] for at, _ in group])
            for (at, view), one in zip(group, maps, strict=True):
                found[at].append((view, one))
        return found


def _edited(image: Pixels, asked: Asked, seen: Sequence[tuple[View, Maps]]) -> Edited:
    """The image by what the network saw, and how sure it is.

    Confidence, from 0 to 1, is the probability that the instruction was understood, for perception times the
    probability that what it asks for is in the image, times how decided the painted pixels are (mean of
    |2p - 1|; 0 where nothing was painted).
    """
    meta: dict[str, Any] = {"perspective": asked.perspective, "understood": round(asked.probability, 4)}
    if not seen:
        meta |= {"confidence": 0.0, "note": "the instruction was not understood; the image is unchanged"}
        return Edited(image, meta)
    presence = float(np.mean([maps.presence for _, maps in seen]))
    composed = _composed(image, asked.perspective, seen)
    share = float(composed.changed.mean())
    meta |= {"views": [list(view.size) for view, _ in seen], "presence": round(presence, 4)}
    confidence = asked.probability
    if asked.perspective == "perception":
        confidence *= presence * composed.certainty
        meta["painted"] = round(share, 6)
        if share == 0:
            meta["note"] = "nothing was found to paint; the image is unchanged"
        elif presence < _PRESENT:
            meta["note"] = "what is asked for may not be in this image"
    else:
        meta["changed"] = round(share, 6)
        if share == 0:
            meta["note"] = "nothing was found to change; the image is unchanged"
    return Edited(composed.image, {**meta, "confidence": round(confidence, 4)})


def _composed(image: Pixels, perspective: str, seen: Sequence[tuple[View, Maps]]) -> Composed:
    height, width = image.shape[:2]
    if perspective == "perception":
        return overlay(image, (_probability(seen, colour, (height, width)) for colour in range(3)))
    ((view, maps),) = seen
    residual = (back(channel, view.size, (height, width)) for channel in maps.residual)
    return (restored if perspective == "transformation" else modified)(image, residual)


def _probability(seen: Sequence[tuple[View, Maps]], colour: int, size: tuple[int, int]) -> Values:
    """`(H, W)`: the mean over the views. Logits are scaled, not masks: thin structures survive."""
    mean: Values = np.zeros(size, np.float32)
    for view, maps in seen:
        mean += expit(back(maps.overlay[colour], view.size, size))
    mean /= len(seen)
    return mean
