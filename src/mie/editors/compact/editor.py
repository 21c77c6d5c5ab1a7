"""The editor `compact`: image and instruction in, image out, on a laptop and without a network.

The network sees an image at one or two sizes (`views`). Its maps come back to the image's own size, and what
is made of them depends on the kind of edit. Pixels that are not edited stay exactly as they were.
"""

from __future__ import annotations

import importlib.util
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import cv2
import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from mie.core.environment import install_hint
from mie.core.files import digest
from mie.core.registry import unknown_name
from mie.editors.base import Edited, EditError, Editor, Request, Turn
from mie.editors.compact.compose import Composed, modified, overlay, restored
from mie.editors.compact.consistency import agree, least_view
from mie.editors.compact.drawing import PREFERRED, Drawer, drawer
from mie.editors.compact.holes import find_hole
from mie.editors.compact.kinds import EditKind
from mie.editors.compact.understanding import (
    Part,
    Question,
    Seen,
    chosen_kind,
    kinds,
    of_kind,
    question,
)
from mie.errors import ConfigError
from mie.images.resize import fitted_size, resize_image
from mie.networks.shipped import COMPACT, FLOW, SHIPPED, shipped_targets, shipped_weights
from mie.records import Pixels, Values
from mie.vocabulary import MODALITIES
from mie.words import Parse, named_modality
from mie.words.wanted import MODIFICATIONS

if TYPE_CHECKING:  # it imports torch, without which this module must be able to say what is missing
    from mie.editors.compact.inference import Inference, Interpretation, Maps

STRIDE: Final = 32  # the network's: the sides of what it sees are multiples of it
_SMALL_VIEW: Final = 256  # the longer side of the views that the network is trained on
_LARGE_VIEW: Final = 512
_MOST_PIXELS: Final = 800 * 900  # at once: the network needs about 1 kB for each
_BOTH_FROM: Final = 384  # a longer side from which the large view shows more than the small one
_LARGEST: Final = 2048  # the option `size`
_UNDERSTOOD: Final = 0.6  # below which an instruction is not followed
_PRESENT: Final = 0.5
_ABSENT: Final = 0.4  # probability that what is asked for is there, below which nothing is painted
_SIDED: Final = frozenset(("left", "right"))  # words that a mirror would make wrong
_FIX: Final = "train with `mie train` and give the file's path, as in --editor compact:PATH"
_NEEDS: Final = ("torch", "safetensors", "transformers")
# The kinds of modification that the flow expert draws, by the option `draw`.
_DRAWN: Final = {"auto": PREFERRED, "flow": frozenset(MODIFICATIONS), "network": frozenset[str]()}


class View(NamedTuple):
    """An image as the network sees it: in the upper left corner, its last row and column repeated."""

    pixels: Pixels  # (H, W, 3), sides multiples of STRIDE
    size: tuple[int, int]  # (height, width) of the image inside it


def views(height: int, width: int, kind: EditKind, size: int = 0) -> tuple[int, ...]:
    """Return the longer sides to work at; `size` forces one.

    Regions to paint are looked at small, where the network sees the whole, and large images also large, where
    thin structures survive. The other edits change pixels, so they work at the image's own size as far as
    memory allows; a larger image is scaled down, and the change is scaled up.

    >>> views(300, 380, EditKind.OVERLAY), views(300, 384, EditKind.OVERLAY), views(300, 380, EditKind.IMAGE)
    ((256,), (256, 512), (380,))
    """
    longer = max(height, width)
    if size:
        return (size,)
    if kind is EditKind.OVERLAY:
        return (_SMALL_VIEW, _LARGE_VIEW) if longer >= _BOTH_FROM else (_SMALL_VIEW,)
    fit = min(1.0, math.sqrt(_MOST_PIXELS / (height * width)))
    return (int(longer * fit),)


def look(image: Pixels, longer: int) -> View:
    """`(H, W, 3)` with its longer side at `longer`, its edges repeated up to multiples of the stride."""
    size = fitted_size(image.shape[0], image.shape[1], longer)
    down, right = (-side % STRIDE for side in size)
    pixels = cv2.copyMakeBorder(resize_image(image, size), 0, down, 0, right, cv2.BORDER_REPLICATE)
    return View(np.asarray(pixels, np.uint8), size)


def back(values: NDArray[np.float32], view: tuple[int, int], size: tuple[int, int]) -> NDArray[np.float32]:
    """A map `(H, W)` of a view, without its border, at `size`: linear when growing, area when shrinking."""
    inner = np.ascontiguousarray(values[: view[0], : view[1]])
    if view == size:
        return inner
    how = cv2.INTER_AREA if size[0] * size[1] < view[0] * view[1] else cv2.INTER_LINEAR
    return np.asarray(cv2.resize(inner, size[::-1], interpolation=how), np.float32)


def edit_all(
    inference: Inference,
    requests: Sequence[Request],
    size: int = 0,
    flip: bool = False,
    questions: Sequence[Question] = (),
    draw: Drawer | None = None,
) -> list[Edited]:
    """Edit every request; `size` forces the longer side to work at. `questions` say what to paint of each.

    `draw` may draw the edit of an area instead of the network, which says where.

    With `flip` the network also sees each image mirrored, and the mean of both counts. Not where the
    instruction names a side, and not for edits of an area, whose texture a mean would blur.
    """
    instructions = [inference.interpret(request.instruction) for request in requests]
    asked: Sequence[Question | None] = questions or [None] * len(requests)
    images = [request.image for request in requests]
    sizes = [size or least_view(*one) for one in zip(images, asked, strict=True)]
    seen = _run_views(inference, requests, instructions, sizes)
    if flip:
        _average_mirrored(inference, requests, instructions, seen)
    every = zip(requests, instructions, seen, asked, strict=True)
    return [_edited(*one, draw) for one in every]


def _run_views(
    inference: Inference,
    requests: Sequence[Request],
    instructions: Sequence[Interpretation],
    sizes: list[int],
) -> list[list[tuple[View, Maps]]]:
    """Run every view of every request that is understood, those of one size through the network together."""
    groups: dict[tuple[int, ...], list[tuple[int, View]]] = {}
    for at, (request, instruction) in enumerate(zip(requests, instructions, strict=True)):
        if instruction.understood < _UNDERSTOOD:
            continue
        height, width = request.image.shape[:2]
        for longer in views(height, width, instruction.kind, sizes[at]):
            view = look(request.image, longer)
            groups.setdefault(view.pixels.shape, []).append((at, view))
    seen: list[list[tuple[View, Maps]]] = [[] for _ in requests]
    for group in groups.values():
        maps = inference.run([view.pixels for _, view in group], [instructions[at] for at, _ in group])
        for (at, view), one in zip(group, maps, strict=True):
            seen[at].append((view, one))
    return seen


def _average_mirrored(
    inference: Inference,
    requests: Sequence[Request],
    instructions: Sequence[Interpretation],
    seen: list[list[tuple[View, Maps]]],
) -> None:
    groups: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for at, request in enumerate(requests):
        words = "".join(c if c.isalpha() else " " for c in request.instruction.lower()).split()
        if instructions[at].kind is EditKind.AREA or _SIDED & set(words):
            continue
        for number, (view, _) in enumerate(seen[at]):
            groups.setdefault(view.pixels.shape, []).append((at, number))
    for group in groups.values():
        mirrored = [np.ascontiguousarray(seen[at][number][0].pixels[:, ::-1]) for at, number in group]
        maps_mirrored = inference.run(mirrored, [instructions[at] for at, _ in group])
        for (at, number), other in zip(group, maps_mirrored, strict=True):
            view, maps = seen[at][number]
            mean = maps._replace(
                overlay=np.float32(0.5) * (maps.overlay + other.overlay[..., ::-1]),
                residual=np.float32(0.5) * (maps.residual + other.residual[..., ::-1]),
                presence=_presence((maps, other)),
            )
            seen[at][number] = (view, mean)


def _edited(
    request: Request,
    instruction: Interpretation,
    seen: Sequence[tuple[View, Maps]],
    asked: Question | None,
    draw: Drawer | None,
) -> Edited:
    """Compose the edited image, and say how sure the network is.

    Confidence, from 0 to 1, is how far the instruction was understood, for an overlay times the probability
    that what it asks for is in the image, times how decided the painted or changed pixels are (mean of
    |2p - 1|; 0 where there are none).
    """
    image = request.image
    meta: dict[str, Any] = {
        "perspective": instruction.perspective,
        "understood": round(instruction.understood, 4),
    }
    if not seen:
        near = f" (the nearest known: {instruction.taken_for!r})" if instruction.taken_for else ""
        note = f"the instruction was not understood{near}; the image is unchanged"
        return Edited(image, {**meta, "confidence": 0.0, "note": note})
    if asked is not None and asked.perspective != instruction.perspective:
        note = f"read as {asked.parse.operation}, which the network does not confirm; the image is unchanged"
        return Edited(image, {**meta, "confidence": 0.0, "note": note})
    if instruction.taken_for:
        meta["taken_for"] = instruction.taken_for
    presence = _presence([maps for _, maps in seen])
    paints = instruction.kind is EditKind.OVERLAY
    absent = paints and presence is not None and presence < _ABSENT
    parts = asked.parts if asked is not None else ()
    composed = _unchanged(image) if absent else _COMPOSE[instruction.kind](image, seen, parts)
    agreed = agree(image, _residual(image, seen), asked) if instruction.kind is EditKind.IMAGE else None
    if agreed is not None:
        meta |= agreed.facts
        composed = Composed(agreed.image, (agreed.image != image).any(2))
    notes = [agreed.note] if agreed is not None else []
    if draw is not None and asked is not None and instruction.kind is EditKind.AREA:
        drawn = draw(request, asked, composed)
        if isinstance(drawn, str):
            notes.append(drawn)
        else:
            composed = composed._replace(image=drawn.image, changed=drawn.changed)
            meta |= drawn.meta
            notes.append(drawn.note or "")
    share = float(composed.changed.mean())
    meta["views"] = [list(view.size) for view, _ in seen]
    if presence is not None:
        meta["presence"] = round(presence, 4)
    confidence = instruction.understood
    if paints and presence is not None:
        confidence *= presence * composed.certainty
        meta["painted"] = round(share, 6)
        if absent:
            what = (
                f"no {asked.names} was" if asked is not None and asked.names else "what is asked for was not"
            )
            notes.append(f"{what} found in this image; presence {presence:.2f}")
        elif share == 0:
            notes.append("nothing was found to paint; the image is unchanged")
        elif presence < _PRESENT:
            notes.append("what is asked for may not be in this image")
    else:
        confidence *= composed.certainty
        meta["changed"] = round(share, 6)
        if share == 0:
            notes.append("nothing was found to change; the image is unchanged")
        elif instruction.kind is EditKind.IMAGE and max(seen[0][0].size) < _SMALL_VIEW:
            notes.append(f"small for this network (below {_SMALL_VIEW} pixels): look closely")
    if any(notes):
        meta["note"] = "; ".join(filter(None, notes))
    return Edited(composed.image, {**meta, "confidence": round(confidence, 4)})


def _unchanged(image: Pixels) -> Composed:
    return Composed(image, np.zeros(image.shape[:2], np.bool_), 0.0)


def _compose_overlay(
    image: Pixels, seen: Sequence[tuple[View, Maps]], parts: Sequence[Part] = ()
) -> Composed:
    height, width = image.shape[:2]
    return overlay(image, (_probability(seen, colour, (height, width)) for colour in range(3)), parts)


def _compose_image(image: Pixels, seen: Sequence[tuple[View, Maps]], _parts: Sequence[Part] = ()) -> Composed:
    return restored(image, _residual(image, seen))


def _compose_area(image: Pixels, seen: Sequence[tuple[View, Maps]], _parts: Sequence[Part] = ()) -> Composed:
    ((view, maps),) = seen
    height, width = image.shape[:2]
    gate = None if maps.change is None else expit(back(maps.change, view.size, (height, width)))
    return modified(image, _residual(image, seen), gate, find_hole(image))


_COMPOSE: Final = {
    EditKind.OVERLAY: _compose_overlay,
    EditKind.IMAGE: _compose_image,
    EditKind.AREA: _compose_area,
}


def _residual(image: Pixels, seen: Sequence[tuple[View, Maps]]) -> Iterator[Values]:
    ((view, maps),) = seen
    height, width = image.shape[:2]
    return (back(channel, view.size, (height, width)) for channel in maps.residual)


def _presence(seen: Sequence[Maps]) -> float | None:
    """Return the mean over the views; None where the network gives none."""
    values = [maps.presence for maps in seen if maps.presence is not None]
    return float(np.mean(values)) if values else None


def _probability(seen: Sequence[tuple[View, Maps]], colour: int, size: tuple[int, int]) -> Values:
    """`(H, W)`: the mean over the views. Logits are scaled, not masks: thin structures survive."""
    mean: Values = np.zeros(size, np.float32)
    for view, maps in seen:
        mean += expit(back(maps.overlay[colour], view.size, size))
    mean /= len(seen)
    return mean


class Compact(Editor):
    """A small network that paints, restores and transfers by instruction.

    `compact` uses the weights that ship with the package, `compact:PATH` those of a file. `size` forces the
    longer side that the network works at (0: chosen by `views`). `tta=flip` also shows it every image
    mirrored and takes the mean. `modality` (CT, MRI, ...) settles words that mean several things;
    `words=raw` hands every instruction to the network as it is written, without the parser's safeguards.
    `draw` says who draws modifications: `flow`, the flow expert, where it knows the image and the lesion,
    `network`, or `auto`, the better one for each kind.
    """

    batch_size = 8
    deterministic = True

    def __init__(
        self,
        weights: str | None = None,
        *,
        size: int = 0,
        device: str = "auto",
        precision: str = "auto",
        tta: str = "none",
        modality: str = "",
        words: str = "parsed",
        draw: str = "auto",
    ) -> None:
        missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(f"the compact editor needs {', '.join(missing)}", fix=install_hint("models"))
        if size != 0 and not STRIDE <= size <= _LARGEST:
            raise ConfigError("no size to work at", expected=f"0, or {STRIDE} to {_LARGEST}", found=size)
        if precision not in ("auto", "fp32", "bf16"):
            raise ConfigError("no such precision", expected="auto, fp32 or bf16", found=precision)
        if tta not in ("none", "flip"):
            raise ConfigError("no such test-time averaging", expected="none or flip", found=tta)
        if modality and modality not in MODALITIES:
            raise unknown_name("modality", modality, MODALITIES)
        if words not in ("parsed", "raw"):
            raise ConfigError("no such way of reading", expected="parsed or raw", found=words)
        if draw not in _DRAWN:
            raise ConfigError("nobody draws modifications so", expected="auto, flow or network", found=draw)
        self._drawn = _DRAWN[draw]
        self._modality, self._raw = modality or None, words == "raw"
        self._own_weights = weights is not None
        self.weights = shipped_weights(COMPACT, fix=_FIX) if weights is None else Path(weights).expanduser()
        if not self.weights.is_file():
            raise ConfigError("no such weights file", where=self.weights)
        self._size, self._device, self._precision = size, device, precision
        self._flip = tta == "flip"

    def about(self) -> dict[str, Any]:
        drawn = {"flow_sha256": SHIPPED[FLOW]} if self._drawn and not self._raw else {}
        return {"weights_sha256": digest(self.weights), **drawn}

    @cached_property
    def _inference(self) -> Inference:
        from mie.editors.compact.inference import Inference

        return Inference.load(self.weights, self._device, self._precision)

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        return self._edited([Request(image, instruction, seed)])[0]

    def edit_batch(self, requests: Sequence[Request]) -> Sequence[Edited | EditError]:
        try:
            return self._edited(requests)
        except Exception:  # one of them, or too many at once: one by one, each gets its own reason
            return super().edit_batch(requests)

    def _edited(self, requests: Sequence[Request]) -> list[Edited]:
        if self._raw:
            return edit_all(self._inference, requests, self._size, self._flip)
        questions = [self._question(request) for request in requests]
        followed = [at for at, asked in enumerate(questions) if asked.text is not None]
        edits = self._answers([requests[at] for at in followed], [questions[at] for at in followed])
        results = dict(zip(followed, edits, strict=True))
        return [
            _explained(results.get(at), request, asked, self._trained)
            for at, (request, asked) in enumerate(zip(requests, questions, strict=True))
        ]

    def _question(self, request: Request) -> Question:
        """What the network is asked: of the kinds that a general word stands for, the one seen best.

        Only with a modality: without one, kinds of other modalities would be seen in the image.
        """
        taught = self._trained if self._own_weights else ()
        asked = question(request.instruction, self._modality, self._own_weights, self._with_fallback, taught)
        asked = asked._replace(modality=self._modality or named_modality(request.instruction))
        names = None if self._modality is None else kinds(asked, self._trained)
        if names is None:
            return asked
        choices = [of_kind(asked, name, self._modality) for name in names]
        seen = [
            Seen(float(edited.meta.get("presence", 0.0)), float(edited.meta["confidence"]))
            for edited in self._answers([request] * len(choices), choices, _SMALL_VIEW)
        ]
        return chosen_kind(asked, choices, seen, _PRESENT)

    def _answers(
        self, requests: Sequence[Request], questions: Sequence[Question], size: int = 0
    ) -> list[Edited]:
        if not requests:
            return []  # without loading the network
        asked = [replace(r, instruction=q.text or "") for r, q in zip(requests, questions, strict=True)]
        draw = drawer(self._drawn) if self._drawn else None
        return edit_all(self._inference, asked, size or self._size, self._flip, questions, draw)

    def _with_fallback(self, instruction: str, modality: str | None) -> Parse:
        return self._inference.fallback.parse(instruction, modality)

    @cached_property
    def _trained(self) -> frozenset[str]:
        """What the weights were trained to paint, in the modality if given; empty if they do not say."""
        targets = (self._inference.targets or {}) if self._own_weights else shipped_targets()
        return frozenset(
            name for where, names in targets.items() for name in names if self._modality in (None, where)
        )


def _explained(edited: Edited | None, request: Request, asked: Question, trained: frozenset[str]) -> Edited:
    """The edit, or the unchanged image, with what the instruction was understood as."""
    meta = asked.meta(request.instruction, trained)
    if edited is None:
        meta |= {"perspective": None, "understood": 0.0, "confidence": 0.0}
        return Edited(request.image, {**meta, "note": asked.refusal})
    notes = [note for note in (edited.meta.get("note"), asked.parse.note, *asked.remarks(trained)) if note]
    return Edited(edited.image, {**edited.meta, **meta, **({"note": "; ".join(notes)} if notes else {})})
