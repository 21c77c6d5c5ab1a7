"""Pictures that differ in a part only, as a modification's do: one stored whole, the others as that part."""

from __future__ import annotations

import cv2
import numpy as np

from mie.errors import MieError
from mie.records import Pixels
from mie.training.pack import Pack, as_rgb, one_channel_if_grey


def shared_bases(pack: Pack) -> dict[int, int]:
    """Image -> the image that it shares all but an area with, by the rows of modifications.

    The two of a row are of one picture, and so are those of rows that share one of them (lesion,
    counterfactual, and both with a hole). The first, or one that perception paints on, is stored whole.
    """
    leader: dict[int, int] = {}

    def lead(place: int) -> int:
        while leader.setdefault(place, place) != place:
            place = leader[place]
        return place

    painted = {row.input for row in pack.rows if row.perspective == "perception"}
    for row in pack.rows:
        if row.perspective != "modification" or row.goal is None:
            continue
        if pack.images[row.input].shape != pack.images[row.goal].shape:
            continue
        first, second = sorted((lead(row.input), lead(row.goal)), key=lambda at: (at not in painted, at))
        leader[second] = first
    return {place: lead(place) for place in leader if lead(place) != place}


def encode_part(picture: Pixels, base: Pixels) -> bytes:
    """A PNG whose alpha is 255 where the picture differs from its base; nothing is kept elsewhere."""
    rgb, other = as_rgb(picture), as_rgb(base)
    differs = (rgb != other).any(2)
    shown = np.dstack([np.where(differs[..., None], rgb[..., ::-1], 0), 255 * differs]).astype(np.uint8)
    done, data = cv2.imencode(".png", shown, [cv2.IMWRITE_PNG_COMPRESSION, 9])
    if not done:
        raise MieError("a picture of the pack cannot be encoded", found=picture.shape)
    return data.tobytes()


def with_part(base: Pixels, part: Pixels) -> Pixels:
    """`part (H, W, 4)` over its base; grey where the base is, since only pictures of one shape share."""
    rgb = np.where(part[..., 3:] > 0, part[..., :3], as_rgb(base))
    return one_channel_if_grey(rgb) if base.ndim == 2 else rgb
