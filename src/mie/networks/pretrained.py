"""Published models on this disk: a folder, or a hub id that is already in the local cache.

Nothing is fetched, and only safetensors are read.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from mie.core.environment import install_hint
from mie.errors import ConfigError

_NEEDS: Final = ("torch", "safetensors", "transformers", "diffusers", "peft")
_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")


def need_packages(what: str) -> None:
    """Raise unless everything that large models run on is installed."""
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{what} needs {', '.join(missing)}", fix=install_hint("models"))


def model_folder(text: str | Path, example: str, download: str | None = None) -> Path:
    """The folder `text`, or the cached one of a hub id. `download` is the advice where it is not here."""
    folder = Path(text).expanduser()
    if folder.is_dir():
        return folder
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    if not _HUB_ID.fullmatch(str(text)):
        raise ConfigError("no such folder", where=text, expected=f"a folder, or a hub id such as {example}")
    try:
        return Path(snapshot_download(str(text), local_files_only=True))
    except LocalEntryNotFoundError:
        raise ConfigError(
            f"{text} is neither a folder nor in the local cache of models",
            expected="files that are already here: nothing is fetched by itself",
            fix=download or f"hf download {text} (tens of gigabytes); read its licence first",
        ) from None


def model_digest(folder: Path) -> str:
    """SHA-256 over the configs and over the names and sizes of the weights; reading those takes minutes."""
    known = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".json":
            known.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
        elif path.suffix == ".safetensors":
            known.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}".encode())
    return known.hexdigest()


@contextmanager
def quiet() -> Iterator[None]:
    """Without the libraries' progress bars and warnings, which would break our own bar."""
    import diffusers.utils.logging
    import transformers.utils.logging

    both = (diffusers.utils.logging, transformers.utils.logging)
    bars = [each for each in both if each.is_progress_bar_enabled()]
    levels = [each.get_verbosity() for each in both]
    for each in bars:
        each.disable_progress_bar()
    for each in both:
        each.set_verbosity_error()
    try:
        with warnings.catch_warnings():
            # `torch_dtype` is to become `dtype`, which older versions do not know.
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for each in bars:
            each.enable_progress_bar()
        for each, level in zip(both, levels, strict=True):
            each.set_verbosity(level)
