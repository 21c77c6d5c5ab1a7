"""What frozen encoders say of images and texts, computed once and kept on disk.

```text
CACHE/
  moments-<encoder>/ab/<key>.safetensors   mean and standard deviation of an image's latents
  states-<encoder>/cd/<key>.safetensors    hidden states of a text
  rows/<key>.json                          which entries the samples of a dataset need
```

A key is the SHA-256 of what was encoded, a folder's name has the digest of the encoder's weights: an entry
never goes stale, and datasets with images in common share entries. An entry is written whole or not at all
and says itself what it is; what does not agree with its name or its checksum is refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import safetensors.torch
import torch
from safetensors import SafetensorError
from torch import Tensor

from mie.core.files import atomic_write, make_folder, read_regular
from mie.core.hashing import canonical
from mie.errors import MieError
from mie.networks.weights import tensors_digest

_MOST: Final = 64 << 20  # bytes of an entry: a text of 1,024 tokens has 4 MiB, an image of 1,024² 1 MiB
_MOST_ROWS: Final = 1 << 30


def content_key(*parts: bytes | str) -> str:
    """SHA-256 of the parts, each with its length, so that no two lists of parts give the same key."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "little") + data)
    return whole.hexdigest()


def weights_digest(*folders: Path) -> str:
    """SHA-256 over configs and weights of a model's parts, every byte: a cache outlives many trainings."""
    whole = hashlib.sha256()
    for folder in folders:
        for path in sorted(folder.rglob("*")):
            if path.suffix in (".json", ".safetensors", ".txt", ".model") and path.is_file():
                with path.open("rb") as file:
                    digest = hashlib.file_digest(file, "sha256").hexdigest()
                whole.update(f"{path.relative_to(folder).as_posix()} {digest}\n".encode())
    return whole.hexdigest()


class LatentCache:
    """Tensors by key, of one encoder. Several processes may write to one folder."""

    def __init__(self, root: Path, kind: str, encoder: str, memory: int = 0) -> None:
        """`memory`: as many bytes of what has been read stay in memory."""
        self._kind, self._encoder = kind, encoder
        self.folder = root / f"{kind}-{encoder[:16]}"
        self._memory, self._kept = memory, dict[str, dict[str, Tensor]]()

    def path(self, key: str) -> Path:
        return self.folder / key[:2] / f"{key}.safetensors"

    def missing(self, keys: Iterable[str]) -> list[str]:
        """Return the keys without an entry, each once, in order."""
        have: set[str] = set()
        for folder in self.folder.glob("??"):
            have.update(path.stem for path in folder.glob("*.safetensors"))
        return [key for key in dict.fromkeys(keys) if key not in have]

    def write(self, key: str, tensors: Mapping[str, Tensor]) -> None:
        own = {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}
        bad = [name for name, value in own.items() if not torch.isfinite(value).all()]
        if bad:
            raise MieError(
                "the encoder gave values that are not finite",
                where=self.path(key),
                found=", ".join(bad),
                fix="try precision: fp32",
            )
        header = {"kind": self._kind, "encoder": self._encoder, "key": key, "sha256": tensors_digest(own)}
        data = safetensors.torch.save(own, {"mie": canonical(header)})
        make_folder(self.path(key).parent)
        atomic_write(self.path(key), data)

    def read(self, key: str) -> dict[str, Tensor]:
        """Return an entry's tensors. `MieError` where it is damaged, of another encoder or another key."""
        if (kept := self._kept.get(key)) is not None:
            return kept
        tensors = self._read(key)
        size = sum(tensor.nbytes for tensor in tensors.values())
        if size <= self._memory:
            self._memory -= size
            self._kept[key] = tensors
        return tensors

    def _read(self, key: str) -> dict[str, Tensor]:
        path = self.path(key)
        try:
            data = read_regular(path, _MOST)
            if len(data) > _MOST:
                raise ValueError(f"more than {_MOST} bytes")
            length = int.from_bytes(data[:8], "little")
            header = json.loads(json.loads(data[8 : 8 + length])["__metadata__"]["mie"])
            tensors = safetensors.torch.load(data)
        except (OSError, ValueError, KeyError, TypeError, RecursionError, SafetensorError) as error:
            raise self._damaged(path, "an entry of the cache", repr(error)[:200]) from None
        expected = {"kind": self._kind, "encoder": self._encoder, "key": key}
        found = {name: header.get(name) for name in expected} if isinstance(header, dict) else {}
        if found != expected:
            name = next((name for name in expected if found.get(name) != expected[name]), "kind")
            raise self._damaged(path, f"{name} {expected[name]}", f"{name} {str(found.get(name))[:80]}")
        if tensors_digest(tensors) != header.get("sha256"):
            raise self._damaged(path, f"tensors with SHA-256 {header.get('sha256')}", "others")
        return tensors

    def _damaged(self, path: Path, expected: str, found: str) -> MieError:
        return MieError(
            f"this entry of the cache of {self._kind} cannot be used",
            where=path,
            expected=expected,
            found=found,
            fix="remove the file and run the same command again: it is encoded anew",
        )


def read_rows_file(root: Path, key: str) -> Any | None:
    """Return what `write_rows_file` kept under this key; None where there is nothing, or nothing readable."""
    try:
        data = read_regular(root / "rows" / f"{key}.json", _MOST_ROWS)
        return json.loads(data) if len(data) <= _MOST_ROWS else None
    except (OSError, ValueError, RecursionError):
        return None


def write_rows_file(root: Path, key: str, body: Any) -> None:
    make_folder(root / "rows")
    atomic_write(root / "rows" / f"{key}.json", json.dumps(body, separators=(",", ":"), ensure_ascii=False))
