"""Overall scores of the Omni IIE Bench paper: single-turn, and multi-turn where it is given."""

from __future__ import annotations

from typing import Final

OMNI_IIE: Final[dict[str, tuple[float, float | None]]] = {
    "Qwen-image-edit": (0.687, 0.676),
    "Step1X": (0.680, 0.654),
    "ICEdit": (0.626, None),
    "FLUX": (0.614, None),
    "InstructPix2Pix": (0.530, None),
    "MGIE": (0.520, 0.404),
    "HQEdit": (0.457, None),
}
