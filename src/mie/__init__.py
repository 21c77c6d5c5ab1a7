"""mie: text-guided medical image editing, from data sets on disk to numbers you can publish.

    ds = mie.build("recipe.yaml", "out/ds")
    run = mie.run(ds, my_function, "out/mine")
    mie.score(run, "miedb")
    mie.report([run], "out/report")

Every name is loaded at its first use, so `import mie` is quick.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from mie.api import build, compare, edit, triplet
    from mie.datasets.dataset import Dataset
    from mie.datasets.merge import merge
    from mie.datasets.recipe import read_recipe
    from mie.datasets.remote import work_folder
    from mie.datasets.verify import verify
    from mie.editors.base import Edited, Editor
    from mie.editors.run import run_editor as run
    from mie.editors.runs import Run, read_run
    from mie.errors import MieError
    from mie.images.read import read_picture
    from mie.records import Sample
    from mie.report import report
    from mie.scoring.benchmarks.miedb.score import score_triplet
    from mie.scoring.results import Results, read_scores
    from mie.scoring.score import score

__version__ = "0.1.0"

_TARGETS: Final = {
    "Dataset": "mie.datasets.dataset:Dataset",
    "Edited": "mie.editors.base:Edited",
    "Editor": "mie.editors.base:Editor",
    "MieError": "mie.errors:MieError",
    "Results": "mie.scoring.results:Results",
    "Run": "mie.editors.runs:Run",
    "Sample": "mie.records:Sample",
    "build": "mie.api:build",
    "compare": "mie.api:compare",
    "edit": "mie.api:edit",
    "merge": "mie.datasets.merge:merge",
    "read_picture": "mie.images.read:read_picture",
    "read_recipe": "mie.datasets.recipe:read_recipe",
    "read_run": "mie.editors.runs:read_run",
    "read_scores": "mie.scoring.results:read_scores",
    "report": "mie.report",  # a package that can be called
    "run": "mie.editors.run:run_editor",
    "score": "mie.scoring.score:score",
    "score_triplet": "mie.scoring.benchmarks.miedb.score:score_triplet",
    "triplet": "mie.api:triplet",
    "verify": "mie.datasets.verify:verify",
    "work_folder": "mie.datasets.remote:work_folder",
}

__all__ = [
    "Dataset",
    "Edited",
    "Editor",
    "MieError",
    "Results",
    "Run",
    "Sample",
    "__version__",
    "build",
    "compare",
    "edit",
    "merge",
    "read_picture",
    "read_recipe",
    "read_run",
    "read_scores",
    "report",
    "run",
    "score",
    "score_triplet",
    "triplet",
    "verify",
    "work_folder",
]


def __getattr__(name: str) -> Any:
    if name not in _TARGETS:
        raise AttributeError(f"module 'mie' has no attribute {name!r}")
    module, _, attribute = _TARGETS[name].partition(":")
    loaded = importlib.import_module(module)
    return getattr(loaded, attribute) if attribute else loaded


def __dir__() -> list[str]:
    return __all__
