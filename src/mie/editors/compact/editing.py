"""An edit from end to end: the views of an image, what the network says of them, and the image made of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from scipy.special import expit

from mie.editors.base import Edited, Request
from mie.editors.compact.compose import Composed, modified, overlay, restored
from mie.editors.compact.hole import find_hole
from mie.editors.compact.inference import Asked, Inference, Maps
from mie.editors.compact.views import View, back, look, views
from mie.records import Pixels, Values

_UNDERSTOOD: Final = 0.6  # below which an instruction is not followed
_PRESENT: Final = 0.5
_ABSENT: Final = 0.02  # probability that what is asked for is there, below which nothing is painted
_SMALLEST: Final = 256  # the longer side of the views that the network is trained on
_SIDED: Final = frozenset(("left", "right"))  # words that a mirror would make wrong


def edit_all(
    inference: Inference, requests: Sequence[Request], size: int = 0, flip: bool = False
) -> list[Edited]:
    """Every request edited; `size` forces the longer side to work at.

    With `flip` the network also sees each image mirrored, and the mean of both counts. Not where the
    instruction names a side, and not for modification, whose texture a mean would blur.
    """
    asked = [inference.read(request.instruction) for request in requests]
    seen = _seen(inference, requests, asked, size)
    if flip:
        _average_mirrored(inference, requests, asked, seen)
    return [_edited(*one) for one in zip([r.image for r in requests], asked, seen, strict=True)]


def _seen(
    inference: Inference, requests: Sequence[Request], asked: Sequence[Asked], size: int
) -> list[list[tuple[View, Maps]]]:
    """Every view of every request that is understood, those of one size through the network together."""
    groups: dict[tuple[int, ...], list[tuple[int, View]]] = {}
    for at, (request, said) in enumerate(zip(requests, asked, strict=True)):
        if said.understood < _UNDERSTOOD:
            continue
        height, width = request.image.shape[:2]
        for longer in views(height, width, said.perspective, size):
            view = look(request.image, longer)
            groups.setdefault(view.pixels.shape, []).append((at, view))
    found: list[list[tuple[View, Maps]]] = [[] for _ in requests]
    for group in groups.values():
        maps = inference.run([view.pixels for _, view in group], [asked[at] for at, _ in group])
        for (at, view), one in zip(group, maps, strict=True):
            found[at].append((view, one))
    return found


def _average_mirrored(
    inference: Inference,
    requests: Sequence[Request],
    asked: Sequence[Asked],
    seen: list[list[tuple[View, Maps]]],
) -> None:
    groups: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for at, (request, found) in enumerate(zip(requests, seen, strict=True)):
        words = "".join(c if c.isalpha() else " " for c in request.instruction.lower()).split()
        if asked[at].perspective == "modification" or _SIDED & set(words):
            continue
        for number, (view, _) in enumerate(found):
            groups.setdefault(view.pixels.shape, []).append((at, number))
    for group in groups.values():
        mirrored = [np.ascontiguousarray(seen[at][number][0].pixels[:, ::-1]) for at, number in group]
        for (at, number), other in zip(
            group, inference.run(mirrored, [asked[at] for at, _ in group]), strict=True
        ):
            view, maps = seen[at][number]
            mean = Maps(
                np.float32(0.5) * (maps.overlay + other.overlay[..., ::-1]),
                np.float32(0.5) * (maps.residual + other.residual[..., ::-1]),
                _presence((maps, other)),
                maps.change,
            )
            seen[at][number] = (view, mean)


def _edited(image: Pixels, asked: Asked, seen: Sequence[tuple[View, Maps]]) -> Edited:
    """The image by what the network saw, and how sure it is.

    Confidence, from 0 to 1, is how far the instruction was understood, for perception times the probability
    that what it asks for is in the image, times how decided the painted or modified pixels are (mean of
    |2p - 1|; 0 where there are none).
    """
    meta: dict[str, Any] = {"perspective": asked.perspective, "understood": round(asked.understood, 4)}
    if not seen:
        near = f" (the nearest known: {asked.taken_for!r})" if asked.taken_for else ""
        note = f"the instruction was not understood{near}; the image is unchanged"
        return Edited(image, {**meta, "confidence": 0.0, "note": note})
    if asked.taken_for:
        meta["taken_for"] = asked.taken_for
    presence = _presence([maps for _, maps in seen])
    absent = asked.perspective == "perception" and presence is not None and presence < _ABSENT
    composed = _unchanged(image) if absent else _composed(image, asked.perspective, seen)
    share = float(composed.changed.mean())
    meta["views"] = [list(view.size) for view, _ in seen]
    if presence is not None:
        meta["presence"] = round(presence, 4)
    confidence = asked.understood
    if asked.perspective == "perception" and presence is not None:
        confidence *= presence * composed.certainty
        meta["painted"] = round(share, 6)
        if absent:
            meta["note"] = "what is asked for was not found in this image; it is unchanged"
        elif share == 0:
            meta["note"] = "nothing was found to paint; the image is unchanged"
        elif presence < _PRESENT:
            meta["note"] = "what is asked for may not be in this image"
    else:
        confidence *= composed.certainty
        meta["changed"] = round(share, 6)
        if share == 0:
            meta["note"] = "nothing was found to change; the image is unchanged"
        elif asked.perspective == "transformation" and max(seen[0][0].size) < _SMALLEST:
            meta["note"] = f"small for this network (below {_SMALLEST} pixels): look closely"
    return Edited(composed.image, {**meta, "confidence": round(confidence, 4)})


def _unchanged(image: Pixels) -> Composed:
    return Composed(image, np.zeros(image.shape[:2], np.bool_), 0.0)


def _composed(image: Pixels, perspective: str, seen: Sequence[tuple[View, Maps]]) -> Composed:
    height, width = image.shape[:2]
    if perspective == "perception":
        return overlay(image, (_probability(seen, colour, (height, width)) for colour in range(3)))
    ((view, maps),) = seen
    residual = (back(channel, view.size, (height, width)) for channel in maps.residual)
    if perspective == "transformation":
        return restored(image, residual)
    gate = None if maps.change is None else expit(back(maps.change, view.size, (height, width)))
    return modified(image, residual, gate, find_hole(image))


def _presence(seen: Sequence[Maps]) -> float | None:
    """The mean over the views; None of a mender."""
    found = [maps.presence for maps in seen if maps.presence is not None]
    return float(np.mean(found)) if found else None


def _probability(seen: Sequence[tuple[View, Maps]], colour: int, size: tuple[int, int]) -> Values:
    """`(H, W)`: the mean over the views. Logits are scaled, not masks: thin structures survive."""
    mean: Values = np.zeros(size, np.float32)
    for view, maps in seen:
        mean += expit(back(maps.overlay[colour], view.size, size))
    mean /= len(seen)
    return mean
