"""mie: text-guided medical image editing, from data sets on disk to numbers you can publish.

The public names load on first use, so that `import mie` costs nothing.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

_PUBLIC = {
    "Dataset": "mie.store.dataset",
    "MieError": "mie.errors",
    "build": "mie.building.build",
    "read_picture": "mie.images.read",
    "read_recipe": "mie.building.config",
    "verify": "mie.building.verify",
}

if TYPE_CHECKING:
    from mie.building.build import build
    from mie.building.config import read_recipe
    from mie.building.verify import verify
    from mie.errors import MieError
    from mie.images.read import read_picture
    from mie.store.dataset import Dataset

__all__ = ["Dataset", "MieError", "__version__", "build", "read_picture", "read_recipe", "verify"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(importlib.import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module 'mie' has no attribute {name!r}")
