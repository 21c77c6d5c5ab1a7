"""mie: text-guided medical image editing, from data sets on disk to numbers you can publish.

The public names load on first use, so that `import mie` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mie.datasets.build import build
    from mie.datasets.dataset import Dataset
    from mie.datasets.recipe import read_recipe
    from mie.datasets.verify import verify
    from mie.editors.run import run_editor as run
    from mie.editors.runs import read_run
    from mie.errors import MieError
    from mie.images.read import read_picture
    from mie.report.page import write_report
    from mie.scoring.results import read_scores
    from mie.scoring.score import score
    from mie.scoring.triplet import score_triplet

__version__ = "0.1.0"

_PUBLIC = {
    "Dataset": "mie.datasets.dataset:Dataset",
    "MieError": "mie.errors:MieError",
    "build": "mie.datasets.build:build",
    "read_picture": "mie.images.read:read_picture",
    "read_recipe": "mie.datasets.recipe:read_recipe",
    "read_run": "mie.editors.runs:read_run",
    "read_scores": "mie.scoring.results:read_scores",
    "run": "mie.editors.run:run_editor",
    "score": "mie.scoring.score:score",
    "score_triplet": "mie.scoring.triplet:score_triplet",
    "verify": "mie.datasets.verify:verify",
    "write_report": "mie.report.page:write_report",
}


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
