"""Where an added lesion lies and how large it is: by the words of the instruction and the network's gate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.core.hashing import generator
from mie.editors.compact.understanding import RADIOLOGICAL
from mie.images.families import family_of
from mie.perspectives.modification.health import allowed_area, outlined
from mie.records import Mask, Pixels
from mie.words import vocabulary

if TYPE_CHECKING:
    from mie.editors.compact.understanding import Question

# Words of a place, as the parser folds them -> the direction: rows grow downwards.
_VERTICAL: Final = {
    **dict.fromkeys(("upper", "top", "superior", "oberer", "obere", "oberen", "superieur", "superieure"), -1),
    **dict.fromkeys(("lower", "bottom", "inferior", "unterer", "untere", "unteren"), 1),
    **dict.fromkeys(("inferieur", "inferieure", "下"), 1),
    "上": -1,
}
# In an axial slice; in a sagittal one they are sides. So they count only where nothing else is known.
_AXIAL: Final = {"anterior": -1, "ventral": -1, "posterior": 1, "dorsal": 1}
_SIDES: Final = {"left": -1, "right": 1}
_CENTRAL: Final = frozenset(("center", "middle", "central", "midline"))
_MIDDLE: Final = 0.2  # of half the extent: as recipes name places (modification/lesions.py)
_RIM: Final = 0.6  # of a round view's radius, beyond which a lesion lies near its edge
_HOUR: Final = 30.0  # degrees
# Diameter over the side of a square as large as the body, from and to; the words are those of recipes.
_SIZES: Final = {"tiny": (0.02, 0.05), "small": (0.05, 0.13), "medium": (0.13, 0.28), "large": (0.28, 0.5)}
_SAME_SIZE: Final = {
    "little": "small", "medium-sized": "medium", "big": "large", "huge": "large", "微小": "tiny",
    "小": "small",
    **dict.fromkeys(("klein", "kleiner", "kleinen", "kleines", "kleine", "petit", "petite"), "small"),
    **dict.fromkeys(("pequeño", "pequeña"), "small"),
    **dict.fromkeys(("groß", "großer", "großen", "große", "grand", "grande", "大"), "large"),
}  # fmt: skip
_LENGTH: Final = 1.2  # of a lesion, in diameters of a disc of its area
_MOST: Final = 0.6  # of the image's shorter side: a longer lesion leaves nothing to lie in
_DARK: Final = 8  # grey level of what is no tissue, where it reaches the edge of the image
_SMOOTH: Final = 5  # pixels: noise does not make tissue of it
_NEAR: Final = 0.7  # lengths around the centre that hold the lesion
_DEEP: Final = 0.5  # of the depth of an area's innermost pixel: a centre lies deeper
_TRIES: Final = 4  # centres that are tried


def lesion_region(
    image: Pixels,
    body: Mask,
    gate: Mask,
    extents: tuple[float, float],
    asked: Question,
    family: str,
    seed: int,
) -> Mask | None:
    """Return the outline of a lesion, wholly inside the body; None where no place is known or large enough.

    Its centre lies in the `gate` `(H, W)`, the network's area, as far as the words of a place agree, and
    where they say otherwise. Its length is between `extents`, shares of the image's longer side, and as the
    words of a size say. Place, outline and length differ with the seed.
    """
    random = generator(seed)
    allowed = allowed_area(image, _tissue(image, body), None)
    centres = _innermost(_centres(allowed, gate, asked, body, family))
    rows, columns = np.nonzero(centres)
    if not len(rows):
        return None
    low, high = _lengths(extents, asked.parse.attributes.get("size"), body)
    for _ in range(_TRIES):
        length = low * (high / low) ** random.random()
        at = int(random.integers(len(rows)))
        centre = int(rows[at]), int(columns[at])
        near = np.zeros(body.shape, np.uint8)
        cv2.circle(near, centre[::-1], max(4, round(_NEAR * length)), 1, cv2.FILLED)
        region = outlined(random, length, centre, allowed & near.astype(np.bool_))
        if region is not None:
            return region
    return None


def _tissue(image: Pixels, body: Mask) -> Mask:
    """The body without the black that reaches in from the edge: between two breasts, beside a fan."""
    dark = (cv2.blur(image.max(axis=2), (_SMOOTH, _SMOOTH)) <= _DARK).astype(np.uint8)
    _, labels = cv2.connectedComponents(np.pad(dark, 1, constant_values=1), connectivity=4)
    inside: Mask = (labels != labels[0, 0])[1:-1, 1:-1]
    return body & inside


def _lengths(extents: tuple[float, float], word: str | None, body: Mask) -> tuple[float, float]:
    """The shortest and the longest length in pixels; a word never leads beyond what was learnt."""
    low, high = (share * max(body.shape) for share in extents)
    high = max(low, min(high, _MOST * min(body.shape)))
    size = _SIZES.get(_SAME_SIZE.get(word or "", word or ""))
    if size is None:
        return low, high
    least, most = (_LENGTH * share * float(np.sqrt(body.sum())) for share in size)
    return float(np.clip(least, low, high)), float(np.clip(most, low, high))


def _innermost(area: Mask) -> Mask:
    """The pixels deep inside an area: a gate has ragged rims and specks."""
    depth = cv2.distanceTransform(area.astype(np.uint8), cv2.DIST_L2, cv2.DIST_MASK_PRECISE)
    return np.asarray(area & (depth >= _DEEP * depth.max()))


def _centres(allowed: Mask, gate: Mask, asked: Question, body: Mask, family: str) -> Mask:
    said = str(asked.parse.attributes.get("place", "")).split()
    own = (asked.text or "").lower()
    sure = _place(said, own, body, family)
    inside = gate & allowed
    if sure is None and inside.any():
        return inside
    if sure is not None:
        for area in (sure & inside, sure & allowed):
            if area.any():
                return area
    vague = _place(said, own, body, family, {**_VERTICAL, **_AXIAL})
    return np.zeros_like(allowed) if vague is None else vague & allowed


def _place(
    said: list[str], text: str, body: Mask, family: str, rows: Mapping[str, int] = _VERTICAL
) -> Mask | None:
    """Where the words of a place lead; None where they say nothing of a picture's sides."""
    image_sides = "of the image" in text or "quadrant" in said
    down, right = _offsets(np.ones_like(body) if image_sides else body)
    if "o'clock" in said and said.index("o'clock") > 0 and said[said.index("o'clock") - 1].isdigit():
        return _clock(int(said[said.index("o'clock") - 1]), text, down, right)
    vertical = next((rows[word] for word in said if word in rows), 0)
    senses = (sense for word in said for sense in vocabulary().senses.get((word,), ()))
    side = next((_SIDES[s.value] for s in senses if s.kind == "side" and s.value in _SIDES), 0)
    if not image_sides and family in {family_of(name) for name in RADIOLOGICAL}:
        side = -side  # the patient's: radiology hangs them mirrored
    central = bool(_CENTRAL & set(said))
    if not vertical and not side and not central:
        return None
    area = np.ones_like(body)
    for offset, direction in ((down, vertical), (right, side)):
        if direction:
            area &= offset * direction > _MIDDLE
        elif central:
            area &= np.abs(offset) < _MIDDLE
    return area


def _clock(hour: int, text: str, down: NDArray[np.float64], right: NDArray[np.float64]) -> Mask:
    far = np.hypot(down, right)
    angle = np.degrees(np.arctan2(right, -down)) - _HOUR * hour
    sector = np.abs((angle + 180) % 360 - 180) < _HOUR / 2
    ring = far > _RIM if "near the edge" in text else far > _MIDDLE
    return np.asarray(sector & ring)


def _offsets(body: Mask) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """How far down and right of the middle of the body's box each pixel lies, in half extents."""
    rows, columns = (np.asarray(grid) for grid in np.indices(body.shape))
    down, right = (np.flatnonzero(body.any(axis=axis)) for axis in (1, 0))
    return _share(rows, int(down[0]), int(down[-1])), _share(columns, int(right[0]), int(right[-1]))


def _share(at: NDArray[np.int_], first: int, last: int) -> NDArray[np.float64]:
    return np.asarray((at - (first + last) / 2) / max(1.0, (last - first) / 2))
