"""Where there is a patient in the picture: not the air around a section, nor the black around a view."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np

from mie.records import Mask, Pixels

# Families whose pictures have black around the patient. In ultrasound black may be fluid: all of it counts.
_DARK_AROUND: Final = frozenset({"ct", "mri", "xray", "fundus", "endoscopy"})
_DARK: Final = 12  # grey level, of 255
_PART: Final = 0.1  # regions of this share of the largest count too: two breasts, two legs
_LEAST: Final = 0.02  # share of the picture, below which what is bright is no body


def body_of(image: Pixels, family: str) -> Mask:
    """`(H, W) bool`: the large bright regions with their holes filled; the whole picture where none is."""
    everywhere = np.ones(image.shape[:2], np.bool_)
    if family not in _DARK_AROUND:
        return everywhere
    bright = (image.max(axis=2) > _DARK).astype(np.uint8)
    # A dark rim or a thin gap must not cut the body in two.
    bright = cv2.morphologyEx(bright, cv2.MORPH_CLOSE, np.ones((5, 5), np.uint8))
    count, labels, stats, _ = cv2.connectedComponentsWithStats(bright, connectivity=4)
    if count < 2:
        return everywhere
    areas = stats[:, cv2.CC_STAT_AREA]
    large = np.flatnonzero(areas >= _PART * areas[1:].max())
    body = np.isin(labels, large[large > 0]).astype(np.uint8)
    outlines, _ = cv2.findContours(body, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
    cv2.drawContours(body, outlines, -1, 1, cv2.FILLED)
    return body.view(np.bool_) if body.mean() >= _LEAST else everywhere


def hull_of(body: Mask) -> Mask:
    """The convex hull: lungs that are open to the picture's edge, and what lies between two breasts, too."""
    points = cv2.findNonZero(body.view(np.uint8))
    hull = np.zeros(body.shape, np.uint8)
    cv2.fillConvexPoly(hull, cv2.convexHull(points), 1)
    return hull.view(np.bool_)
