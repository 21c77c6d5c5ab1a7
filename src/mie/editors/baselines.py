"""The editor that does nothing: the floor of every table, and a perfect background."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

import cv2
import numpy as np
from numpy.typing import NDArray

from mie.editors.base import Edited, EditError, Editor, Request, Turn
from mie.images.overlay import is_grey, paint
from mie.images.resize import fitted_size, resize_image
from mie.perspectives.modification.inpainters.blend import closed
from mie.records import Mask, Pixels
from mie.vocabulary import COLOURS


class Identity(Editor):
    """Gives the input back."""

    deterministic = True
    thread_safe = True
    workers = None

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        return Edited(image)


# The editor that knows the answer: the ceiling of every table, and a check of every metric.


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


# How noisy an image is: the baselines set their strength by it.

_NORMAL: Final = 0.6745  # median of |x| for x of a standard normal distribution


def noise_level(image: Pixels) -> float:
    """The noise's standard deviation in grey levels, by Donoho's median of the finest diagonal details.

    Details of Haar's wavelet, (a - b - c + d) / 2 over 2x2 pixels, have the noise's own deviation. Flat
    blocks, the black around a scan, say nothing and are left out. Of the channels the noisiest counts.
    """
    height, width = image.shape[0] // 2 * 2, image.shape[1] // 2 * 2
    x = image[:height, :width].astype(np.float32)
    a, b, c, d = x[::2, ::2], x[1::2, ::2], x[::2, 1::2], x[1::2, 1::2]
    details, told = np.abs(a - b - c + d) / 2, (a != b) | (a != c) | (a != d)
    channels = [details[..., k][told[..., k]] for k in range(3)]
    return max((float(np.median(found)) / _NORMAL for found in channels if found.size), default=0.0)


# The bilateral filter: a mean of near pixels of a like grey, so that edges stay (Tomasi 1998).

_RANGE: Final = 2.0  # the range kernel's deviation over the noise's
_REACH: Final = 1.8  # pixels, the space kernel's deviation


class Bilateral(Editor):
    """A classical denoiser, whatever the instruction says; its strength follows the image's noise."""

    deterministic = True
    thread_safe = True
    workers = None

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        noise = noise_level(image)
        if noise == 0:
            return Edited(image, {"noise": 0.0})
        # OpenCV sums the channels' differences: three equal channels differ by three times as much as one.
        result = cv2.bilateralFilter(np.ascontiguousarray(image), 0, 3 * _RANGE * noise, _REACH)
        return Edited(np.asarray(result, np.uint8), {"noise": round(noise, 3)})


# Non-local means: a pixel becomes the mean of those whose surroundings look alike (Buades 2005).

# h over the noise's deviation. Colour is filtered in Lab, where the same noise is smaller.
_GREY: Final = 1.0
_COLOUR: Final = 0.6
_PATCH: Final = 5
_WINDOW: Final = 15


class NonLocalMeans(Editor):
    """A classical denoiser, whatever the instruction says; its strength follows the image's noise."""

    deterministic = True
    thread_safe = True
    workers = None

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        noise = noise_level(image)
        if noise == 0:
            return Edited(image, {"noise": 0.0})
        if is_grey(image):
            h, grey = _GREY * noise, np.ascontiguousarray(image[..., 0])
            grey = cv2.fastNlMeansDenoising(grey, None, h, _PATCH, _WINDOW)
            result = cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB)
        else:
            h = _COLOUR * noise
            bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
            result = cv2.fastNlMeansDenoisingColored(bgr, None, h, h, _PATCH, _WINDOW)
            result = cv2.cvtColor(result, cv2.COLOR_BGR2RGB)
        return Edited(np.asarray(result, np.uint8), {"noise": round(noise, 3)})


# A classical overlay: Otsu's threshold, its smaller side painted in the colour the instruction names.

_SMALLEST: Final = 0.001  # of the image; specks below are noise


class Otsu(Editor):
    """The baseline that any learned editor should beat: it reads the colour, and knows nothing of anatomy."""

    deterministic = True
    thread_safe = True
    workers = None

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        colour = named_colour(instruction)
        mask = smaller_side(image)
        return Edited(paint(image, mask, colour), {"region": float(mask.mean())})


def named_colour(instruction: str) -> str:
    """The first overlay colour that the instruction names."""
    named = re.search(r"\b(" + "|".join(COLOURS) + r")\b", instruction.casefold())
    if named is None:
        raise EditError("the instruction names no overlay colour", expected=" or ".join(COLOURS))
    return named[0]


def smaller_side(image: Pixels) -> Mask:
    """The smaller of Otsu's two classes of smoothed grey, without specks."""
    grey = cv2.GaussianBlur(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), (0, 0), 1.5)
    threshold, _ = cv2.threshold(grey, 0, 255, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    bright = grey > threshold
    side = bright if bright.mean() <= 0.5 else ~bright
    count, labels, found, _ = cv2.connectedComponentsWithStats(side.astype(np.uint8))
    large = np.flatnonzero(found[:, cv2.CC_STAT_AREA] >= _SMALLEST * side.size)
    return np.isin(labels, large[(large > 0) & (large < count)])


# Colour clustering: three clusters in Lab, the one least like the image's border is painted.

_CLUSTERS: Final = 3
_SAMPLE: Final = 160  # pixels of the longer side that the centres are found at
_ROUNDS: Final = (cv2.TERM_CRITERIA_EPS + cv2.TERM_CRITERIA_MAX_ITER, 30, 0.2)


class Kmeans(Editor):
    """A baseline that sees colour: it reads the overlay's, and knows nothing of anatomy."""

    deterministic = True
    thread_safe = True
    workers = None

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        colour = named_colour(instruction)
        mask = distinct_cluster(image)
        return Edited(paint(image, mask, colour), {"region": float(mask.mean())})


def distinct_cluster(image: Pixels) -> Mask:
    """`(H, W)`: the pixels of the cluster whose centre is farthest in Lab from the border's mean colour."""
    small = _lab(resize_image(image, fitted_size(image.shape[0], image.shape[1], _SAMPLE)))
    points = small.reshape(-1, 3)
    # By lightness to begin with, dark, middle and bright: OpenCV's random start would differ from run to run.
    start = np.empty(len(points), np.int32)
    start[np.argsort(points[:, 0], kind="stable")] = np.arange(len(points)) * _CLUSTERS // len(points)
    _, _, centres = cv2.kmeans(points, _CLUSTERS, start, _ROUNDS, 1, cv2.KMEANS_USE_INITIAL_LABELS)
    border = np.concatenate([small[0], small[-1], small[:, 0], small[:, -1]]).mean(0)
    chosen = int(np.linalg.norm(centres - border, axis=1).argmax())
    whole = _lab(cv2.GaussianBlur(image, (0, 0), 1.5))
    distances = np.stack([((whole - centre) ** 2).sum(2) for centre in centres])
    return np.asarray(distances.argmin(0) == chosen)


def _lab(image: Pixels) -> NDArray[np.float32]:
    return np.asarray(cv2.cvtColor(np.float32(image) / 255, cv2.COLOR_RGB2Lab), np.float32)


# Telea's filling: a white hole closes from its rim inwards, by fast marching (Telea 2004).

# of the image; smaller white areas are part of the picture
_RADIUS: Final = 5  # pixels that a pixel is filled from


class Telea(Editor):
    """Fills holes of pure white, whatever the instruction says; all other pixels stay."""

    deterministic = True
    thread_safe = True
    workers = None

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        hole = white_hole(image)
        if not hole.any():
            raise EditError(
                "the image has no hole to fill",
                expected=f"pure white areas of more than {_SMALLEST:.1%} of the image",
            )
        if hole.all():
            raise EditError("the hole covers the whole image: nothing to fill it from")
        filled = closed(image, hole, cv2.INPAINT_TELEA, _RADIUS)
        return Edited(np.where(hole[..., None], filled, image), {"hole": round(float(hole.mean()), 6)})


def white_hole(image: Pixels) -> Mask:
    """`(H, W)`: connected areas of exactly (255, 255, 255), larger than 0.1% of the image."""
    white = (image == 255).all(2)
    _, labels, found, _ = cv2.connectedComponentsWithStats(white.astype(np.uint8))
    large = found[:, cv2.CC_STAT_AREA] > _SMALLEST * white.size
    large[0] = False  # what is not white
    return np.asarray(large[labels])
