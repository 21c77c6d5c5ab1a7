"""The editor `compact`: image and instruction in, image out, on a laptop and without a network."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mie.editors.base import Edited, EditError, Editor, Request, Turn
from mie.editors.compact.views import STRIDE
from mie.errors import ConfigError
from mie.images.files import digest
from mie.networks.shipped import COMPACT, shipped_weights
from mie.records import Pixels

if TYPE_CHECKING:
    from mie.editors.compact.inference import Inference

_LARGEST: Final = 2048  # the option `size`
_FIX: Final = "train with `mie train` and give the file's path, as in --editor compact:PATH"
_NEEDS: Final = ("torch", "safetensors", "transformers")


class Compact(Editor):
    """A small network that paints, restores and transfers by instruction.

    `compact` uses the weights that ship with the package, `compact:PATH` those of a file. `size` forces the
    longer side that the network works at (0: chosen by `views`). `tta=flip` also shows it every image
    mirrored and takes the mean.
    """

    batch_size = 8
    deterministic = True

    def __init__(
        self,
        weights: str | None = None,
        *,
        size: int = 0,
        device: str = "auto",
        precision: str = "auto",
        tta: str = "none",
    ) -> None:
        missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
        if missing:
            raise ConfigError(
                f"the compact editor needs {', '.join(missing)}", fix="pip install 'mie[models]'"
            )
        if size != 0 and not STRIDE <= size <= _LARGEST:
            raise ConfigError("no size to work at", expected=f"0, or {STRIDE} to {_LARGEST}", found=size)
        if precision not in ("auto", "fp32", "bf16"):
            raise ConfigError("no such precision", expected="auto, fp32 or bf16", found=precision)
        if tta not in ("none", "flip"):
            raise ConfigError("no such test-time averaging", expected="none or flip", found=tta)
        self.weights = shipped_weights(COMPACT, fix=_FIX) if weights is None else Path(weights).expanduser()
        if not self.weights.is_file():
            raise ConfigError("no such weights file", where=self.weights)
        self._size, self._device, self._precision = size, device, precision
        self._flip = tta == "flip"

    def about(self) -> dict[str, Any]:
        return {"weights_sha256": digest(self.weights)}

    @cached_property
    def _inference(self) -> Inference:
        from mie.editors.compact.inference import Inference

        return Inference.load(self.weights, self._device, self._precision)

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        return self._edited([Request(image, instruction, seed)])[0]

    def edit_batch(self, requests: Sequence[Request]) -> Sequence[Edited | EditError]:
        try:
            return self._edited(requests)
        except Exception:  # one of them, or too many at once: one by one each has its own reason
            return super().edit_batch(requests)

    def _edited(self, requests: Sequence[Request]) -> list[Edited]:
        from mie.editors.compact.editing import edit_all

        return edit_all(self._inference, requests, self._size, self._flip)
