"""Baselines: the floor and the ceiling of every table, and classical image processing in between.

None of the classical ones knows anatomy: they show what a number is worth that a learned editor reaches.
"""

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

# Regions and holes below this share of the image are ignored.
_SMALLEST: Final = 0.001
# Otsu and k-means: blur before thresholds, in pixels.
_BLUR: Final = 1.5
_CLUSTERS: Final = 3
_SAMPLE: Final = 160  # pixels of the longer side at which the cluster centres are fitted
_ROUNDS: Final = (cv2.TERM_CRITERIA_EPS + cv2.TERM_CRITERIA_MAX_ITER, 30, 0.2)
# Denoisers: strengths over the noise's standard deviation. Non-local means filters colour in Lab, where the
# same noise is smaller.
_NLM_GREY: Final = 1.0
_NLM_COLOUR: Final = 0.6
_NLM_PATCH: Final = 5
_NLM_WINDOW: Final = 15
_BILATERAL_RANGE: Final = 2.0
_BILATERAL_SPACE: Final = 1.8  # pixels
_NORMAL: Final = 0.6745  # median of |x| for x of a standard normal distribution
_TELEA_RADIUS: Final = 5  # pixels that a pixel is filled from


class _Baseline(Editor):
    deterministic = True
    generative = False
    thread_safe = True
    workers = None


class Identity(_Baseline):
    """Returns the input unchanged: the floor of every table, with a perfect background."""

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        return Edited(image)


class Oracle(_Baseline):
    """Returns the sample's target image: the ceiling of every table, and a check of every metric."""

    needs_target = True

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        raise EditError("the oracle needs a sample of a dataset", fix="use it with `mie run`")

    def edit_request(self, request: Request) -> Edited:
        if request.sample is None or request.sample.target_image is None:
            return super().edit_request(request)
        return Edited(request.sample.target_image)


class Otsu(_Baseline):
    """Paints the smaller side of Otsu's threshold in the colour that the instruction names."""

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        colour = named_colour(instruction)
        mask = smaller_side(image)
        return Edited(paint(image, mask, colour), {"region": float(mask.mean())})


class Kmeans(_Baseline):
    """Paints the colour cluster that differs most from the image's border, in the named colour."""

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        colour = named_colour(instruction)
        mask = distinct_cluster(image)
        return Edited(paint(image, mask, colour), {"region": float(mask.mean())})


class NonLocalMeans(_Baseline):
    """Denoises by non-local means (Buades 2005), as strongly as the image is noisy."""

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        noise = noise_level(image)
        if noise == 0:
            return Edited(image, {"noise": 0.0})
        if is_grey(image):
            h, grey = _NLM_GREY * noise, np.ascontiguousarray(image[..., 0])
            grey = cv2.fastNlMeansDenoising(grey, None, h, _NLM_PATCH, _NLM_WINDOW)
            result = cv2.cvtColor(grey, cv2.COLOR_GRAY2RGB)
        else:
            h = _NLM_COLOUR * noise
            bgr = cv2.cvtColor(image, cv2.COLOR_RGB2BGR)
            result = cv2.fastNlMeansDenoisingColored(bgr, None, h, h, _NLM_PATCH, _NLM_WINDOW)
            result = cv2.cvtColor(result, cv2.COLOR_BGR2RGB)
        return Edited(np.asarray(result, np.uint8), {"noise": round(noise, 3)})


class Bilateral(_Baseline):
    """Denoises by the bilateral filter (Tomasi 1998), as strongly as the image is noisy."""

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        noise = noise_level(image)
        if noise == 0:
            return Edited(image, {"noise": 0.0})
        # OpenCV sums the channels' differences: three equal channels differ by three times as much as one.
        strength = 3 * _BILATERAL_RANGE * noise
        result = cv2.bilateralFilter(np.ascontiguousarray(image), 0, strength, _BILATERAL_SPACE)
        return Edited(np.asarray(result, np.uint8), {"noise": round(noise, 3)})


class Telea(_Baseline):
    """Fills holes of pure white by fast marching (Telea 2004); all other pixels stay."""

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        hole = white_hole(image)
        if not hole.any():
            raise EditError(
                "the image has no hole to fill",
                expected=f"pure white areas of more than {_SMALLEST:.1%} of the image",
            )
        if hole.all():
            raise EditError("the hole covers the whole image: there is nothing to fill it from")
        filled = closed(image, hole, cv2.INPAINT_TELEA, _TELEA_RADIUS)
        return Edited(np.where(hole[..., None], filled, image), {"hole": round(float(hole.mean()), 6)})


def named_colour(instruction: str) -> str:
    """The first overlay colour in the instruction."""
    named = re.search(r"\b(" + "|".join(COLOURS) + r")\b", instruction.casefold())
    if named is None:
        raise EditError("the instruction names no overlay colour", expected=" or ".join(COLOURS))
    return named[0]


def smaller_side(image: Pixels) -> Mask:
    """The smaller of Otsu's two classes of smoothed grey, without specks."""
    grey = cv2.GaussianBlur(cv2.cvtColor(image, cv2.COLOR_RGB2GRAY), (0, 0), _BLUR)
    threshold, _ = cv2.threshold(grey, 0, 255, cv2.THRESH_BINARY | cv2.THRESH_OTSU)
    bright = grey > threshold
    side = bright if bright.mean() <= 0.5 else ~bright
    count, labels, stats, _ = cv2.connectedComponentsWithStats(side.astype(np.uint8))
    large = np.flatnonzero(stats[:, cv2.CC_STAT_AREA] >= _SMALLEST * side.size)
    return np.isin(labels, large[(large > 0) & (large < count)])


def distinct_cluster(image: Pixels) -> Mask:
    """`(H, W)`: the pixels of the cluster whose centre is farthest in Lab from the border's mean colour."""
    small = _lab(resize_image(image, fitted_size(image.shape[0], image.shape[1], _SAMPLE)))
    points = small.reshape(-1, 3)
    # Start from dark, middle and bright: OpenCV's random start would differ from run to run.
    start = np.empty(len(points), np.int32)
    start[np.argsort(points[:, 0], kind="stable")] = np.arange(len(points)) * _CLUSTERS // len(points)
    _, _, centres = cv2.kmeans(points, _CLUSTERS, start, _ROUNDS, 1, cv2.KMEANS_USE_INITIAL_LABELS)
    border = np.concatenate([small[0], small[-1], small[:, 0], small[:, -1]]).mean(0)
    chosen = int(np.linalg.norm(centres - border, axis=1).argmax())
    whole = _lab(cv2.GaussianBlur(image, (0, 0), _BLUR))
    distances = np.stack([((whole - centre) ** 2).sum(2) for centre in centres])
    return np.asarray(distances.argmin(0) == chosen)


def _lab(image: Pixels) -> NDArray[np.float32]:
    return np.asarray(cv2.cvtColor(np.float32(image) / 255, cv2.COLOR_RGB2Lab), np.float32)


def noise_level(image: Pixels) -> float:
    """The noise's standard deviation in grey levels, by Donoho's median of the finest diagonal details.

    Details of the Haar wavelet, (a - b - c + d) / 2 over 2x2 pixels, have the noise's own deviation. Flat
    blocks, such as the black around a scan, are left out. The noisiest channel counts.
    """
    height, width = image.shape[0] // 2 * 2, image.shape[1] // 2 * 2
    x = image[:height, :width].astype(np.float32)
    a, b, c, d = x[::2, ::2], x[1::2, ::2], x[::2, 1::2], x[1::2, 1::2]
    details, varied = np.abs(a - b - c + d) / 2, (a != b) | (a != c) | (a != d)
    channels = [details[..., k][varied[..., k]] for k in range(3)]
    return max((float(np.median(values)) / _NORMAL for values in channels if values.size), default=0.0)


def white_hole(image: Pixels) -> Mask:
    """`(H, W)`: connected areas of exactly (255, 255, 255), larger than 0.1% of the image."""
    white = (image == 255).all(2)
    _, labels, stats, _ = cv2.connectedComponentsWithStats(white.astype(np.uint8))
    large = stats[:, cv2.CC_STAT_AREA] > _SMALLEST * white.size
    large[0] = False  # everything that is not white
    return np.asarray(large[labels])
