"""How to install what is missing, worded for the place this copy of mie was installed from."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote, urlsplit


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
