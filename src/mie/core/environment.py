"""What a run was made with: versions and the machine, without a word about who or where."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
from typing import Any, Final

import mie

_PACKAGES: Final = ("numpy", "opencv-python-headless", "pillow", "pyarrow", "isal")
# Only if the editor has imported them: a run without a model needs none of these.
_MODELS: Final = ("torch", "diffusers", "transformers", "accelerate", "peft")


def versions() -> dict[str, str]:
    used = [*_PACKAGES, *(name for name in _MODELS if name in sys.modules)]
    return {
        "mie": mie.__version__,
        "python": platform.python_version(),
        **{name: importlib.metadata.version(name) for name in used},
    }


def environment() -> dict[str, Any]:
    facts = {
        "system": platform.system(),
        "release": platform.release(),
        "machine": platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gb": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
    }
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_available():
        facts["gpus"] = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
    return facts
