"""The inpainter `flux-fill`: FLUX.1 Fill with a LoRA for one family of images.

`flux-fill:BASE,lora=FILE,steps=50,guidance=30,size=512,device=cuda,dtype=bf16`. BASE is a folder, or a hub id
that is already in the local cache. The models are loaded at the first fill.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import numpy as np

from mie.errors import ConfigError
from mie.images.families import GREY
from mie.images.files import digest
from mie.inpainters.base import Inpainter, check_hole
from mie.inpainters.flux_base import (
    MULTIPLE,
    PROMPTS,
    Words,
    base_digest,
    encode_prompt,
    fill_picture,
    find_base,
    load_pipeline,
    need_packages,
)
from mie.inpainters.flux_weights import load_lora, read_facts
from mie.inpainters.neighbourhood import neighbourhood
from mie.records import Mask, Pixels
from mie.spec import Spec, construct

_SIZES: Final = (64, 2048)


@dataclass(frozen=True, slots=True)
class _Options:
    base: str
    _: KW_ONLY
    lora: str | None = None
    steps: int = 50
    guidance: float = 30.0
    size: int = 512  # pixels the model sees at most in each direction
    device: str = "auto"
    dtype: str = "auto"


def open_flux_fill(argument: str | None, options: Mapping[str, str], family: str) -> Inpainter:
    """The inpainter as a spec describes it; what can be refused without the models is."""
    asked = construct(_Options, Spec("flux-fill", argument, options), noun="inpainter")
    need_packages("the inpainter flux-fill")
    if asked.steps < 1 or asked.guidance < 0:
        raise ConfigError(
            "steps or guidance of 'flux-fill' is not usable",
            expected="steps from 1, guidance from 0",
            found=f"steps {asked.steps}, guidance {asked.guidance}",
        )
    if not _SIZES[0] <= asked.size <= _SIZES[1] or asked.size % MULTIPLE:
        raise ConfigError(
            "no size to work at",
            expected=f"a multiple of {MULTIPLE} from {_SIZES[0]} to {_SIZES[1]}",
            found=asked.size,
        )
    if asked.dtype not in ("auto", "bf16", "fp32"):
        raise ConfigError("no such dtype", expected="auto, bf16 or fp32", found=asked.dtype)
    if asked.device.startswith("cuda") and not _gpu():
        raise ConfigError("no GPU is to be seen from here", found=asked.device, fix="say device=cpu")
    return FluxFill(find_base(asked.base), asked, family)


class FluxFill(Inpainter):
    """One fill at a time; the noise is drawn on the CPU, so a seed means the same on every device."""

    name = "flux-fill"

    @property
    def weights(self) -> str:
        """Of the base (`base_digest`) and, behind a plus, of the LoRA."""
        base = base_digest(self._base)
        return base if self._lora is None else f"{base}+{digest(self._lora)}"

    def __init__(self, base: Path, options: _Options, family: str) -> None:
        self._base, self._options, self._family = base, options, family
        self._lora = None if options.lora is None else Path(options.lora).expanduser()
        if self._lora is not None:
            read_facts(self._lora)

    def fill(self, image: Pixels, mask: Mask, *, seed: int) -> Pixels:
        check_hole(image, mask)
        if not mask.any():
            return image.copy()
        pipe, words = self._loaded
        near = neighbourhood(mask, size=self._options.size, multiple=MULTIPLE)
        emptied = image.copy()
        emptied[mask] = 128  # before anything is scaled: what was there leaves no trace
        asked = self._options
        filled = fill_picture(
            pipe,
            words,
            near.picture(emptied),
            near.hole(mask),
            steps=asked.steps,
            guidance=asked.guidance,
            seed=seed,
        )
        if self._family in GREY:
            filled = np.rint(filled.mean(2, keepdims=True)).astype(np.uint8).repeat(3, 2)
        return near.put_back(image, filled)

    @cached_property
    def _loaded(self) -> tuple[Any, Words]:
        import torch

        device = self._options.device
        if device == "auto":
            device = "cuda" if _gpu() else "cpu"
        half = {"auto": device != "cpu", "bf16": True, "fp32": False}[self._options.dtype]
        dtype = torch.bfloat16 if half else torch.float32
        words = encode_prompt(self._base, PROMPTS[self._family], device, dtype)
        pipe = load_pipeline(self._base, device, dtype)
        if self._lora is not None:
            load_lora(pipe, self._lora, self._family)
        return pipe, words


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()
