"""Published models on this disk: a folder, or a hub id that is already in the local cache.

Nothing is fetched, and of models only safetensors are read. LoRAs lie on top of a pipeline of diffusers.
A few networks are published as `.pth` alone: `read_pth` is the one place that opens these.
"""

from __future__ import annotations

import hashlib
import importlib.util
import re
import warnings
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, Final

from mie.core.environment import install_hint
from mie.errors import ConfigError, MieError

_NEEDS: Final = ("torch", "safetensors", "transformers", "diffusers", "peft")
_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")
_ADAPTER: Final = "mie"  # the name of a LoRA within a pipeline
_PICKLES: Final = (".bin", ".pt", ".pth", ".ckpt", ".pkl")
_SHOWN: Final = 3


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


def refuse_pickles(folder: Path, names: Iterable[str]) -> None:
    """Raise where pickled weights are among the files of a part that has no safetensors."""
    pickles = sorted(name for name in names if name.endswith(_PICKLES))
    if pickles:
        raise ConfigError(
            f"the weights of the {folder.name} are pickled, and pickles can run code when they are read",
            where=folder,
            expected="safetensors",
            found=", ".join(pickles),
            fix="download the safetensors version, or convert it on a machine that may run foreign code",
        )


def read_pth(path: Path, plain: Sequence[Any] = ()) -> Any:
    """What a `.pth` file holds: tensors, numbers, texts, and the classes in `plain`.

    Such a file is a pickle in a zip archive, or an older form of it. PyTorch's restricted reader knows only
    these kinds of values and raises for any other, so nothing in the file is run.
    """
    import torch

    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as archive:
                promised = sum(member.file_size for member in archive.infolist())
            if promised > path.stat().st_size:  # PyTorch compresses nothing, so this is none of its files
                raise ValueError(f"its members promise {promised:,} bytes, more than the file has")
        with torch.serialization.safe_globals(list(plain)):
            return torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, RuntimeError, EOFError, OSError, ValueError, LookupError, TypeError) as error:
        reason = str(error).partition("WeightsUnpickler error:")[2] or str(error)
        raise MieError(
            "the file of weights cannot be opened safely",
            where=path,
            expected="tensors and plain values, as torch.save writes them",
            found=reason.strip().partition("\n")[0][:200] or type(error).__name__,
            fix="get it from its publisher again; or save its tensors anew, without any other object",
        ) from None


def read_pth_tensors(path: Path) -> dict[str, Any]:
    """The tensors by name of a `.pth` file that holds nothing else."""
    import torch

    state = read_pth(path)
    if not isinstance(state, dict) or not all(isinstance(value, torch.Tensor) for value in state.values()):
        raise MieError("not a file of weights", where=path, expected="tensors by name", found=type(state))
    return state


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


def put_lora(pipe: Any, path: Path) -> None:
    """Put the LoRA of a safetensors file on top of a pipeline of diffusers.

    diffusers pads, drops or half-loads a LoRA of another model with a warning. Here that is an error.
    """
    with quiet():
        try:
            tensors = pipe.lora_state_dict(str(path), use_safetensors=True, local_files_only=True)
            tensors = tensors[0] if isinstance(tensors, tuple) else tensors
        except Exception as error:  # the library raises what it likes
            raise _misfit(path, [f"{type(error).__name__}: {error}"]) from error
        wrong = _misfits(pipe, tensors)
        if wrong:
            raise _misfit(path, wrong)
        try:
            pipe.load_lora_weights(
                str(path), use_safetensors=True, local_files_only=True, adapter_name=_ADAPTER
            )
        except Exception as error:  # the library raises what it likes
            raise _misfit(path, [f"{type(error).__name__}: {error}"]) from error
    layers = sum(".lora_A." in name or ".down." in name for name in tensors)
    placed = sum(
        _ADAPTER in getattr(module, "lora_A", ())
        for part in pipe.components.values()
        if hasattr(part, "modules")
        for module in part.modules()
    )
    if not placed or placed < layers:
        raise _misfit(path, [f"{placed} of its {layers} layers have a place here"])


def _misfits(pipe: Any, tensors: Mapping[str, Any]) -> list[str]:
    """What a LoRA has that the pipeline has no place for; names are `part.layer.lora_A.weight`."""
    wrong = [] if tensors else ["no tensors"]
    for name, value in tensors.items():
        path, _, which = name.partition(".lora_")
        if which[:2] not in ("A.", "B."):  # an older form, which diffusers converts
            continue
        part, _, layer = path.partition(".")
        try:
            weight = getattr(pipe, part).get_submodule(layer).weight
        except AttributeError:
            wrong.append(f"{name} is of no layer here")
            continue
        side = int(which.startswith("A"))  # A reads what the layer reads, B writes what it writes
        if value.ndim != weight.ndim or value.shape[side] != weight.shape[side]:
            wrong.append(f"{name} is {tuple(value.shape)}, the layer's weight {tuple(weight.shape)}")
    return wrong


def _misfit(path: Path, wrong: Sequence[str]) -> ConfigError:
    more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
    return ConfigError(
        "the LoRA does not fit the base model",
        where=path,
        expected="a LoRA of this very model",
        found="; ".join(wrong[:_SHOWN]) + more,
        fix="give the base model that the LoRA was trained on",
    )
