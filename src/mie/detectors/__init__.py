"""Finding lesions: one small protocol, detectors of our own and of others, and how good they are."""

from mie.detectors.base import Detector, Finding
from mie.detectors.registry import detector_names, make_detector

__all__ = ["Detector", "Finding", "detector_names", "make_detector"]
