"""mie: text-guided medical image editing, from data sets on disk to numbers you can publish."""

from __future__ import annotations

__version__ = "0.1.0"
