"""Overall scores of the ImgEdit-Bench paper and its leaderboard, 1 to 5, by the released script."""

from __future__ import annotations

from typing import Final

IMGEDIT: Final = {
    "MagicBrush": 1.83,
    "Instruct-P2P": 1.88,
    "AnyEdit": 2.45,
    "UltraEdit": 2.70,
    "ICEdit": 3.05,
    "Step1X-Edit": 3.06,
    "UniWorld-V1": 3.26,
    "BAGEL": 3.42,
    "OmniGen2": 3.44,
    "Kontext-dev": 3.71,
    "Ovis-U1": 3.97,
    "GPT-4o-Image": 4.20,
}
