"""Where there is a patient in the picture: not the air around a section, nor the black around a view."""

from __future__ import annotations

from typing import Final

import cv2
import numpy as np

from mie.records import Mask, Pixels

# Families whose pictures have black around the patient. In ultrasound black may be fluid: all of it counts.
_DARK_AROUND: Final = frozenset({"ct", "mri", "xray", "fundus", "endoscopy"})
_DARK: Final = 12  # grey levels, of 255, above black or above the air in the corners
_AIR: Final = 100  # grey level: in a wide window air is grey, never as bright as this
_CORNER: Final = 8  # pixels
_PART: Final = 0.1  # regions of this share of the largest count too: two breasts, two legs
_LEAST: Final = 0.02  # share of the picture, below which what is bright is no body


def body_of(image: Pixels, family: str) -> Mask:
    """`(H, W) bool`: the large bright regions with their holes filled; the whole picture where none is."""
    everywhere = np.ones(image.shape[:2], np.bool_)
    if family not in _DARK_AROUND:
        return everywhere
    bright = (image.max(axis=2) > _DARK + _air(image)).astype(np.uint8)
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


def _air(image: Pixels) -> float:
    """The grey level around the body, where all four corners show the same dark one; else black."""
    n = _CORNER
    corners = [
        image[rows, columns]
        for rows in (slice(n), slice(-n, None))
        for columns in (slice(n), slice(-n, None))
    ]
    levels = [float(np.median(corner)) for corner in corners]
    alike = max(levels) - min(levels) <= _DARK
    return max(levels) if alike and max(levels) < _AIR else 0.0


def hull_of(body: Mask) -> Mask:
    """The convex hull: lungs that are open to the picture's edge, and what lies between two breasts, too."""
    points = cv2.findNonZero(body.view(np.uint8))
    hull = np.zeros(body.shape, np.uint8)
    cv2.fillConvexPoly(hull, cv2.convexHull(points), 1)
    return hull.view(np.bool_)
