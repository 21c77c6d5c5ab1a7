"""Fill a hole in an image with healthy tissue: one small protocol, several backends, and what comes after."""

from mie.inpainters.base import Inpainter
from mie.inpainters.holes import LesionShapes
from mie.inpainters.registry import inpainter_names, make_inpainter

__all__ = ["Inpainter", "LesionShapes", "inpainter_names", "make_inpainter"]
