"""Checkpoints: whole or absent, proved by SHA-256, never pickle.

```text
checkpoints/step-000500/
  model.safetensors  ema.safetensors  optimizer.safetensors
  state.json          the digest of each file, and the loop's own state
```

A checkpoint is written under another name, synced and renamed. Whatever goes wrong before, the last good one
stays. Where processes share the model, each writes its own rows of every tensor
(`model-00001-of-00002.safetensors`) to the folder, which all of them must see. Any number of processes reads
any checkpoint: each takes the rows that are now its own. `ema` is left out where no average is kept.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from mie.core.files import atomic_write, make_folder, sync_folder, write_errors
from mie.errors import MieError
from mie.training.machine import gather, wait_for_all

FILES: Final = ("model", "ema", "optimizer")
_NAME: Final = re.compile(r"step-(\d{6,})")
_FILE: Final = re.compile(r"(model|ema|optimizer)(?:-(\d{5})-of-(\d{5}))?\.safetensors")
_SHOWN: Final = 4
_BLOCK: Final = 1 << 26  # bytes that are hashed at once
_TYPES: Final = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}

Tensors = dict[str, Tensor]


def write_checkpoint(
    root: Path,
    step: int,
    files: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    rank: int = 0,
    world: int = 1,
) -> Path:
    """Write `step-<step>` in `root` with the tensors of each file and `state`; return its folder.

    With `world` above 1 every process calls it, each with its own rows of the tensors.
    """
    folder = root / f"step-{step:06d}"
    # The processes must agree on it; alone, another run's leftover is not ours.
    temporary = root / (f".{folder.name}.{os.getpid()}.tmp" if world == 1 else f".{folder.name}.tmp")
    if rank == 0:
        make_folder(root)
        shutil.rmtree(temporary, ignore_errors=True)
    try:
        with write_errors(root):
            if rank == 0:
                temporary.mkdir()
            wait_for_all(world)
            suffix = "" if world == 1 else f"-{rank + 1:05d}-of-{world:05d}"
            paths = {name: temporary / f"{name}{suffix}.safetensors" for name in FILES if name in files}
            with ThreadPoolExecutor(len(paths)) as pool:
                digests = pool.map(lambda name: _write(paths[name], files[name]), paths)
                mine = {path.name: sha256 for path, sha256 in zip(paths.values(), digests, strict=True)}
            parts = gather(mine, world)
            if rank == 0:
                every = {name: sha256 for part in parts for name, sha256 in sorted(part.items())}
                body = json.dumps({"step": step, **state, "sha256": every}, indent=2, allow_nan=False) + "\n"
                _write_synced(temporary / "state.json", lambda: iter([body.encode()]))
                sync_folder(temporary)
                if folder.exists():
                    shutil.rmtree(folder)
                os.replace(temporary, folder)
                sync_folder(root)
            wait_for_all(world)
    except BaseException:
        if rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
        raise
    return folder


def amend_checkpoint(folder: Path, changes: Mapping[str, Any]) -> None:
    """Change a checkpoint's `state.json`; its tensors stay as they are."""
    path = folder / "state.json"
    body = {**json.loads(path.read_text(encoding="utf-8")), **changes}
    atomic_write(path, json.dumps(body, indent=2, allow_nan=False) + "\n")


def read_checkpoint(folder: Path, rank: int = 0, world: int = 1) -> tuple[dict[str, Any], dict[str, Tensors]]:
    """Read state and tensors by file name; every file that is read must have its recorded digest.

    With `world` above 1 only the rows of process `rank`.
    """
    state = _state(folder)
    names = [name for name in FILES if any(_stem(file) == name for file in state["sha256"])]
    if "model" not in names or "optimizer" not in names:
        found = ", ".join(state["sha256"]) or "no files"
        raise _corrupted(folder, folder / "state.json", "digests of model and optimizer", found)
    return state, {name: _read(folder, name, state["sha256"], rank, world) for name in names}


def read_ema(folder: Path) -> Tensors:
    """Read the averaged weights alone; the weights themselves where no average was kept."""
    digests = _state(folder)["sha256"]
    name = "ema" if any(_stem(file) == "ema" for file in digests) else "model"
    return _read(folder, name, digests, 0, 1)


def _state(folder: Path) -> dict[str, Any]:
    path = folder / "state.json"
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
        digests = {str(name): str(value) for name, value in state["sha256"].items()}
        if not all(_FILE.fullmatch(name) for name in digests):
            raise ValueError("names that are not ours")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _corrupted(folder, path, "a readable state.json", repr(error)) from None
    return {**state, "sha256": digests}


def _stem(file: str) -> str:
    match = _FILE.fullmatch(file)
    return match[1] if match else ""


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


def own_rows(rows: int, rank: int, world: int) -> slice:
    """Return the rows of a tensor that process `rank` holds: equal parts, the last ones smaller or empty."""
    part = -(-rows // world)
    return slice(min(rows, rank * part), min(rows, (rank + 1) * part))


def _write(path: Path, tensors: Mapping[str, Tensor]) -> str:
    """Write a safetensors file, one tensor after another: no second copy of the model is made in memory."""
    order = sorted(tensors, key=lambda name: (-tensors[name].element_size(), name))
    header, at = {}, 0
    for name in order:
        tensor = tensors[name]
        size = tensor.numel() * tensor.element_size()
        header[name] = {
            "dtype": _TYPES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [at, at + size],
        }
        at += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)

    def blocks() -> Iterator[Any]:
        yield len(text).to_bytes(8, "little") + text
        for name in order:
            # Small ones as they are; `numpy` has no bfloat16, bytes it has.
            flat = tensors[name].detach().to("cpu").contiguous().flatten().view(torch.uint8).numpy()
            for start in range(0, len(flat), _BLOCK):
                yield flat[start : start + _BLOCK].data

    return _write_synced(path, blocks)


def _write_synced(path: Path, blocks: Callable[[], Iterator[Any]]) -> str:
    whole = hashlib.sha256()
    with path.open("wb") as handle:
        for block in blocks():
            handle.write(block)
            whole.update(block)
        handle.flush()
        os.fsync(handle.fileno())
    return whole.hexdigest()


def _read(folder: Path, name: str, digests: Mapping[str, str], rank: int, world: int) -> Tensors:
    """Read one file's tensors, or the rows of them that are this process's, from all files of that name."""
    files = sorted(file for file in digests if _stem(file) == name)
    own = f"{name}-{rank + 1:05d}-of-{world:05d}.safetensors"
    if world > 1 and own in files:
        files, world = [own], 1  # written by as many processes: this one's rows are a file
    rows: dict[str, list[int]] = {}
    for file in files:
        for key, shape in _checked_shapes(folder, file, digests[file]):
            rows.setdefault(key, []).append(shape[0] if shape else 0)
    pieces: dict[str, list[Tensor]] = {}
    for number, file in enumerate(files):
        with safe_open(folder / file, framework="pt") as stored:
            for key, counts in rows.items():
                wanted = own_rows(sum(counts), rank if world > 1 else 0, world)
                before = sum(counts[:number])
                start = max(wanted.start - before, 0)
                stop = min(wanted.stop - before, counts[number])
                tensor = stored.get_slice(key)
                if not tensor.get_shape():  # a number: every process has the same
                    if number == 0:
                        pieces[key] = [stored.get_tensor(key)]
                elif len(files) == 1 and world == 1:
                    pieces[key] = [stored.get_tensor(key)]
                elif start < stop or number == 0:
                    pieces.setdefault(key, []).append(tensor[start : max(start, stop)])
    return {key: parts[0] if len(parts) == 1 else torch.cat(parts) for key, parts in pieces.items()}


def _checked_shapes(folder: Path, file: str, digest: str) -> Iterator[tuple[str, list[int]]]:
    path = folder / file
    try:
        with path.open("rb") as handle:
            sha256 = hashlib.file_digest(handle, "sha256").hexdigest()
        if sha256 != digest:
            raise _corrupted(folder, path, f"SHA-256 {digest}", sha256)
        with safe_open(path, framework="pt") as stored:
            for key in stored.keys():  # noqa: SIM118 (no mapping)
                yield key, list(stored.get_slice(key).get_shape())
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
