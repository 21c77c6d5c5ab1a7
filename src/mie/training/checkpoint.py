"""Checkpoints: whole or absent, proved by SHA-256, never pickle.

```text
checkpoints/step-000500/
  model.safetensors  ema.safetensors  optimizer.safetensors
  state.json          the digest of each file, and the loop's own state
```

A checkpoint is written under another name, synced and renamed. Whatever goes wrong before, the last good one
stays.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import safetensors.torch
from safetensors import SafetensorError
from torch import Tensor, nn

from mie.core.files import atomic_write, make_folder, sync_folder, write_errors
from mie.errors import MieError

FILES: Final = ("model", "ema", "optimizer")
_NAME: Final = re.compile(r"step-(\d{6,})")
_SHOWN: Final = 4

Tensors = dict[str, Tensor]


def write_checkpoint(root: Path, step: int, files: Mapping[str, Tensors], state: Mapping[str, Any]) -> Path:
    """`step-<step>` in `root` with the tensors of each file and `state`; returns its folder."""
    make_folder(root)
    folder = root / f"step-{step:06d}"
    temporary = root / f".{folder.name}.{os.getpid()}.tmp"
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        with write_errors(root):
            temporary.mkdir()
            digests = {f"{name}.safetensors": _write(temporary, name, files[name]) for name in FILES}
            body = json.dumps({"step": step, **state, "sha256": digests}, indent=2, allow_nan=False) + "\n"
            _write_synced(temporary / "state.json", body.encode())
            sync_folder(temporary)
            if folder.exists():
                shutil.rmtree(folder)
            os.replace(temporary, folder)
            sync_folder(root)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder


def amend_checkpoint(folder: Path, changes: Mapping[str, Any]) -> None:
    """Change a checkpoint's `state.json`; its tensors stay as they are."""
    path = folder / "state.json"
    body = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    atomic_write(path, json.dumps(body, indent=2, allow_nan=False) + "\n")


def read_checkpoint(folder: Path) -> tuple[dict[str, Any], dict[str, Tensors]]:
    """Read state and tensors by file name; every file must have its recorded digest."""
    path = folder / "state.json"
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        digests = {name: str(state["sha256"][f"{name}.safetensors"]) for name in FILES}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise _corrupted(folder, path, "a readable state.json", repr(error)) from None
    return state, {name: _read(folder, name, digest) for name, digest in digests.items()}


def read_ema(folder: Path) -> Tensors:
    """Read the averaged weights alone."""
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    return _read(folder, "ema", state["sha256"]["ema.safetensors"])


def checkpoints(root: Path) -> list[tuple[int, Path]]:
    """(step, folder), oldest first."""
    folders = [(int(m[1]), p) for p in root.glob("step-*") if (m := _NAME.fullmatch(p.name)) and p.is_dir()]
    return sorted(folders)


def newest(root: Path) -> Path | None:
    return max(checkpoints(root), default=(0, None))[1]


def prune(root: Path, keep: int, best: int | None) -> None:
    """Remove all but the newest `keep` and the best, and what killed runs left half written."""
    for step, folder in checkpoints(root)[:-keep]:
        if step != best:
            # Under another name first: a removal that is cut short leaves no checkpoint without files.
            os.replace(folder, root / f".{folder.name}.tmp")
    for leftover in root.glob(".step-*.tmp"):
        shutil.rmtree(leftover, ignore_errors=True)


def cpu_copies(tensors: Mapping[str, Tensor]) -> Tensors:
    """Copy to contiguous tensors on the CPU: a snapshot that later steps do not change."""
    return {name: value.detach().to("cpu", copy=True).contiguous() for name, value in tensors.items()}


def load_model(model: nn.Module, tensors: Tensors, where: Path) -> None:
    """`tensors` into `model`; another architecture is refused with the names and shapes that differ."""
    own = model.state_dict()
    wrong = [f"{name} is not in the checkpoint" for name in own if name not in tensors]
    wrong += [f"{name} is not in the model" for name in tensors if name not in own]
    wrong += [
        f"{name} is {tuple(tensors[name].shape)}, the model's {tuple(value.shape)}"
        for name, value in own.items()
        if name in tensors and tensors[name].shape != value.shape
    ]
    if wrong:
        more = f"; and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise MieError(
            "the checkpoint is of another architecture",
            where=where,
            expected=f"the {len(own)} tensors of {type(model).__name__}",
            found="; ".join(wrong[:_SHOWN]) + more,
            fix="choose another output folder, or the code and config that the run started with",
        )
    model.load_state_dict(tensors)


def _write(folder: Path, name: str, tensors: Tensors) -> str:
    # Through bytes of our own: safetensors' own writer hides the error number of a full disk.
    data = safetensors.torch.save(tensors)
    _write_synced(folder / f"{name}.safetensors", data)
    return hashlib.sha256(data).hexdigest()


def _write_synced(path: Path, data: bytes) -> None:
    with path.open("wb") as handle:
        handle.write(data)
        handle.flush()
        os.fsync(handle.fileno())


def _read(folder: Path, name: str, digest: str) -> Tensors:
    path = folder / f"{name}.safetensors"
    try:
        data = path.read_bytes()
        sha256 = hashlib.sha256(data).hexdigest()
        if sha256 != digest:
            raise _corrupted(folder, path, f"SHA-256 {digest}", sha256)
        return safetensors.torch.load(data)
    except (OSError, SafetensorError) as error:
        raise _corrupted(folder, path, "a file of safetensors", error) from None


def _corrupted(folder: Path, path: Path, expected: str, found: object) -> MieError:
    earlier = [p for _, p in checkpoints(folder.parent) if p < folder]
    last = _named(earlier[-1] if earlier else None)
    return MieError(
        "the checkpoint is corrupted",
        where=path,
        expected=expected,
        found=found,
        fix=f"remove the folder {folder.name} and run the same command again: it resumes from {last}",
    )


def _named(folder: Path | None) -> str:
    return folder.name if folder else "the beginning"
