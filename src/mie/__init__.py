"""mie: text-guided medical image editing, from data sets on disk to numbers you can publish.

The public names load on first use, so that `import mie` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Dataset": "mie.store.dataset:Dataset",
    "MieError": "mie.errors:MieError",
    "build": "mie.building.build:build",
    "read_picture": "mie.images.read:read_picture",
    "read_recipe": "mie.building.config:read_recipe",
    "read_run": "mie.store.runs:read_run",
    "read_scores": "mie.protocols.frame:read_scores",
    "run": "mie.running.run:run_editor",
    "score": "mie.protocols:score",
    "score_triplet": "mie.protocols.triplet:score_triplet",
    "verify": "mie.building.verify:verify",
    "write_report": "mie.report.page:write_report",
}

if TYPE_CHECKING:
    from mie.building.build import build
    from mie.building.config import read_recipe
    from mie.building.verify import verify
    from mie.errors import MieError
    from mie.images.read import read_picture
    from mie.protocols import score
    from mie.protocols.frame import read_scores
    from mie.protocols.triplet import score_triplet
    from mie.report.page import write_report
    from mie.running.run import run_editor as run
    from mie.store.dataset import Dataset
    from mie.store.runs import read_run

__all__ = [
    "Dataset",
    "MieError",
    "__version__",
    "build",
    "read_picture",
    "read_recipe",
    "read_run",
    "read_scores",
    "run",
    "score",
    "score_triplet",
    "verify",
    "write_report",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        module, attribute = _PUBLIC[name].split(":")
        return getattr(importlib.import_module(module), attribute)
    raise AttributeError(f"module 'mie' has no attribute {name!r}")
