"""Modifications that the flow expert draws: tissue or a lesion, made up anew for every seed.

The network says where, as its residual would; the expert says what. It is left to the network, with the
reason, where the expert does not know such images or such a lesion.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import cv2
import numpy as np

from mie.core.hashing import stable_hash
from mie.editors.compact.compose import mostly_inside
from mie.editors.compact.places import lesion_region
from mie.errors import ConfigError
from mie.images.families import GREY, MARGIN, family_of
from mie.images.overlay import is_grey
from mie.perspectives.modification.experts import one_thread
from mie.perspectives.modification.inpainters.blend import BLEND, blend
from mie.perspectives.modification.lesions import VIEWS, body_of, dilated, equivalent_diameter, most_filled
from mie.records import Mask, Pixels
from mie.words import vocabulary

if TYPE_CHECKING:
    from mie.editors.base import Request
    from mie.editors.compact.compose import Composed
    from mie.editors.compact.understanding import Question
    from mie.perspectives.modification.inpainters.flow import FlowInpainter

# The kinds of modification that the expert draws unless the user says otherwise (docs/reference/compact.md).
PREFERRED: Final = frozenset({"addition", "simulation", "removal", "inpainting"})
_GREYEST: Final = "mri"  # stands in for a grey family that is not known
# Words for the tissue of one family: "fill the white area with healthy skin".
_TISSUES: Final = {"skin": "dermoscopy", "mucosa": "endoscopy", "retina": "fundus"}


class Drawn(NamedTuple):
    image: Pixels
    changed: Mask
    meta: dict[str, Any]
    note: str | None = None


# (request, question, what the network made of them) -> what is drawn instead, or why nothing is.
Drawer = Callable[["Request", "Question", "Composed"], "Drawn | str"]


def drawer(kinds: frozenset[str]) -> Drawer:
    """Return what draws modifications of these kinds; of others the network's edit stays, without a word."""

    def draw(request: Request, asked: Question, composed: Composed) -> Drawn | str:
        if asked.parse.operation not in kinds:
            return ""
        family, note = family_in(asked, request.image, composed.hole), None
        if family is None and _any_grey(asked, request.image, composed.hole):
            family, note = _GREYEST, f"drawn as in {_GREYEST.upper()}: the modality was not given"
        if family is None:
            return "drawn by the network: to be drawn by the flow expert, the modality must be known"
        try:
            expert = _expert(family)
        except ConfigError as error:
            return f"drawn by the network: {error.reason}"
        with one_thread():  # elsewhere the sums would be in another order, and the pixels others
            drawn = _DRAW[asked.parse.operation](expert, family, request, asked, composed)
        return drawn if note is None or isinstance(drawn, str) else drawn._replace(note=note)

    return draw


@lru_cache(maxsize=8)
def _expert(family: str) -> FlowInpainter:
    import torch  # noqa: F401 (so that `one_thread` finds it)

    from mie.perspectives.modification.inpainters.flow import open_flow

    return open_flow(None, {}, family)


def family_in(asked: Question, image: Pixels, hole: Mask | None) -> str | None:
    """Return the family of an image: by the modality that is given or named, or else by what is asked for.

    None where the words leave several, unless only one of them has images as grey or colourful as this one.
    """
    if asked.modality is not None:
        return family_of(asked.modality)
    known = vocabulary().targets
    named = [family_of(m) for target in asked.parse.targets for m in known[target.name].modalities]
    if not asked.parse.targets:
        words = (asked.text or "").lower().replace(".", " ").replace(",", " ").split()
        named = [_TISSUES[word] for word in words if word in _TISSUES]
    families = {family for family in named if family is not None}
    if len(families) > 1:
        grey = _has_no_colour(image, hole)
        families = {family for family in families if (family in GREY) == grey}
    return families.pop() if len(families) == 1 else None


def _any_grey(asked: Question, image: Pixels, hole: Mask | None) -> bool:
    """Whether healthy tissue of a grey image is asked for: there the surroundings tell more than the family.

    Fills by the experts of the other grey families are as good (docs/reference/compact.md).
    """
    return asked.modality is None and asked.parse.operation == "inpainting" and _has_no_colour(image, hole)


def _has_no_colour(image: Pixels, hole: Mask | None) -> bool:
    return is_grey(image if hole is None or hole.all() else image[~hole][None])


def _seed(request: Request) -> int:
    """31 bits from the request alone: the same attempt at the same edit gives the same pixels."""
    return stable_hash("draw", request.seed, request.instruction) >> 33


def _lesion(expert: FlowInpainter, asked: Question) -> tuple[str, str | None] | str:
    """The expert's name of the lesion and a note, where that is a more general one; or why there is none."""
    if len(asked.parse.targets) != 1:
        return "drawn by the network: the flow expert draws one kind of lesion at a time"
    (target,) = asked.parse.targets
    names, known = [target.name], vocabulary().targets
    for name in names:  # it grows: nearest first
        if name in expert.targets:
            return name, None if name == target.name else f"drawn as {name}, the nearest that was learnt"
        names += known[name].parents if name in known else ()
    learnt = ", ".join(expert.targets)
    return f"drawn by the network: the flow expert has not learnt {target.name} here, but {learnt}"


def _added(
    expert: FlowInpainter, family: str, request: Request, asked: Question, composed: Composed
) -> Drawn | str:
    lesion = _lesion(expert, asked)
    if isinstance(lesion, str):
        return lesion
    name, note = lesion
    seed = _seed(request)
    body = body_of(request.image, family)
    region = lesion_region(request.image, body, composed.changed, expert.extent(name), asked, family, seed)
    if region is None:
        return "drawn by the network: no place is large enough for the lesion"
    return _painted(expert, request, name, note, region, None)


def _simulated(
    expert: FlowInpainter, family: str, request: Request, asked: Question, composed: Composed
) -> Drawn | str:
    hole = _white(request.image, composed)
    lesion = _lesion(expert, asked) if hole is not None else _NO_HOLE
    if isinstance(lesion, str) or hole is None:
        return str(lesion)
    return _painted(expert, request, *lesion, _inner(hole, family), hole)


def _painted(
    expert: FlowInpainter, request: Request, name: str, note: str | None, region: Mask, hole: Mask | None
) -> Drawn:
    seed = _seed(request)
    image, drawn = expert.paint(request.image, region, name, seed=seed, hole=hole)
    return Drawn(image, drawn, {"drawn": {"by": expert.name, "lesion": name, "seed": seed}}, note)


def _inpainted(
    expert: FlowInpainter, family: str, request: Request, asked: Question, composed: Composed
) -> Drawn | str:
    hole = _white(request.image, composed)
    return _NO_HOLE if hole is None else _filled(expert, family, request, hole)


def _removed(
    expert: FlowInpainter, family: str, request: Request, asked: Question, composed: Composed
) -> Drawn | str:
    if not composed.changed.any():
        return ""  # the network found nothing, and says so
    body = body_of(request.image, family)
    hole, _ = dilated(composed.changed, _GROWTH)
    if family in VIEWS:
        hole &= body | composed.changed
    share = float(hole.sum()) / float(body.sum())
    if share > most_filled(family) or hole.all():
        return f"drawn by the network: the area is {share:.0%} of the body, too much to be drawn anew"
    return _filled(expert, family, request, hole)


def _filled(expert: FlowInpainter, family: str, request: Request, hole: Mask) -> Drawn:
    seed = _seed(request)
    filled = expert.fill(request.image, hole, seed=seed)
    image = blend(BLEND[family], request.image, filled, hole)
    return Drawn(image, hole, {"drawn": {"by": expert.name, "lesion": None, "seed": seed}})


_GROWTH: Final = (0.0, 3)  # share of the diameter, and pixels: the network's gate was trained on wide holes
_WHITE: Final = 255
_NO_HOLE: Final = "drawn by the network: no white area was found"
_DRAW: Final = {"addition": _added, "simulation": _simulated, "removal": _removed, "inpainting": _inpainted}


def _white(image: Pixels, composed: Composed) -> Mask | None:
    """The white areas that the network would fill, each to its rim; None without any.

    Its gate tells small holes beside a large one from bone and highlights, which are white too.
    """
    hole = mostly_inside((image == _WHITE).all(axis=2), composed.changed)
    return hole if hole.any() and not hole.all() else None


def _inner(hole: Mask, family: str) -> Mask:
    """Each part of a hole without its margin: recipes leave one around a lesion, and blank out both."""
    share, least = MARGIN[family]
    count, labels, stats, _ = cv2.connectedComponentsWithStats(hole.astype(np.uint8), connectivity=8)
    depth = cv2.distanceTransform(np.pad(hole, 1).astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    depth = depth[1:-1, 1:-1]
    margins = np.zeros(count, np.float32)
    for at in range(1, count):
        left, top, width, height, area = (int(value) for value in stats[at])
        box = slice(top, top + height), slice(left, left + width)
        deepest = float(depth[box][labels[box] == at].max())
        wide = share / (1 + 2 * share) * equivalent_diameter(float(area))
        margins[at] = min(max(least, wide), deepest / 2)  # of a narrow part the middle stays
    return np.asarray(hole & (depth > margins[labels]))
