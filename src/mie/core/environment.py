"""Versions and the machine, without a word about who or where; and how to install what is missing here."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit

import mie

_PACKAGES: Final = ("numpy", "opencv-python-headless", "pillow", "pyarrow", "isal")
# Only if the editor has imported them: a run without a model needs none of these.
_MODELS: Final = ("torch", "diffusers", "transformers", "accelerate", "peft")


def versions() -> dict[str, str]:
    used = [*_PACKAGES, *(name for name in _MODELS if name in sys.modules)]
    return {
        "mie": mie.__version__,
        "python": platform.python_version(),
        **{name: _version(name) for name in used},
    }


# Found once: a run writes them every ten seconds, and each would read a file for it.
_version = cache(importlib.metadata.version)


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


def install_hint(extra: str) -> str:
    """A `pip install` command for an optional part (`models`, `judges`, ...) that works here.

    A copy installed from a clone names the clone, one installed from a repository or file names that. Only a
    copy that came from a package index can be extended by its bare name.
    """
    return f"run `pip install {_requirement(extra)}`"


def _requirement(extra: str) -> str:
    try:
        text = distribution("mie").read_text("direct_url.json")
    except PackageNotFoundError:  # the source folder is on the path and nothing is installed
        return f"-e '{Path(__file__).parents[3]}[{extra}]'"
    if text is None:
        return f"'mie[{extra}]'"
    origin = json.loads(text)
    url = str(origin["url"])
    if "dir_info" in origin:
        option = "-e " if origin["dir_info"].get("editable") else ""
        return f"{option}'{unquote(urlsplit(url).path)}[{extra}]'"
    if "vcs_info" in origin:
        return f"'mie[{extra}] @ {origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}'"
    return f"'mie[{extra}] @ {url}'"
