"""The inpainter `flux-fill`: FLUX.1 Fill with a LoRA for one family of images.

`flux-fill:BASE,lora=FILE,steps=50,guidance=30,size=512,device=cuda,dtype=bf16`. BASE is a folder, or a hub id
that is already in the local cache. The models are loaded at the first fill.

The text encoders are larger than many GPUs. A family has one prompt, so they are loaded once, asked once and
dropped before the rest is loaded. Only safetensors are read, and nothing is ever fetched. A LoRA's file is
written as diffusers writes it.
"""

from __future__ import annotations

import gc
import json
from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from mie.core.files import digest
from mie.core.spec import Spec, construct
from mie.errors import ConfigError
from mie.images.families import GREY
from mie.networks.pretrained import model_digest, model_folder, need_packages, put_lora, quiet
from mie.perspectives.modification.inpainters import Inpainter, check_hole
from mie.perspectives.modification.inpainters.holes import neighbourhood
from mie.records import Mask, Pixels

if TYPE_CHECKING:
    from torch import Tensor, device, dtype

PUBLISHED: Final = "black-forest-labs/FLUX.1-Fill-dev"
# One sentence per family, the same in training and in use.
PROMPTS: Final = {
    "dermoscopy": "dermoscopic photograph of healthy skin with even pigment and fine skin lines, no lesion",
    "endoscopy": "endoscopic photograph of healthy smooth mucosa with fine vessels, no polyp",
    "ultrasound": "ultrasound image of healthy tissue with even speckle, no mass",
    "mri": "MRI slice of healthy tissue, normal signal, no lesion",
    "ct": "CT slice of healthy tissue, normal density, no lesion",
    "fundus": "fundus photograph of healthy retina with even background, no lesion",
    "xray": "X-ray of healthy anatomy, clear and unremarkable, no lesion",
    "microscopy": "microscope image of healthy stained tissue, regular cells and glands, no tumour",
}
TOKENS: Final = 128  # of the long text encoder; our prompts have some twenty
MULTIPLE: Final = 16  # eight pixels to a latent, two by two latents to a token
_WORDS: Final = ("tokenizer", "text_encoder", "tokenizer_2", "text_encoder_2")
_LICENCE: Final = (
    "FLUX.1-Fill-dev is under the FLUX.1 [dev] Non-Commercial License: read and accept it at "
    f"https://huggingface.co/{PUBLISHED} first"
)


class Words(NamedTuple):
    """A prompt as the transformer reads it: `(1, TOKENS, D)`, and pooled `(1, P)`."""

    embeds: Tensor
    pooled: Tensor


def find_base(text: str | Path) -> Path:
    """The folder of a FluxFillPipeline: `text` itself, or a hub id whose files are in the local cache."""
    download = f"hf auth login; hf download {text} --exclude 'flux1-*' (tens of gigabytes). {_LICENCE}"
    folder = model_folder(text, PUBLISHED, download)
    index = folder / "model_index.json"
    try:
        kind = json.loads(index.read_text(encoding="utf-8"))["_class_name"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ConfigError(
            "no diffusers pipeline here", where=index, expected="model_index.json", found=error
        ) from None
    if kind != "FluxFillPipeline":
        raise ConfigError("not a FLUX Fill model", where=index, expected="FluxFillPipeline", found=kind)
    return folder


def encode_prompt(folder: Path, prompt: str, device: str | device, dtype: dtype) -> Words:
    """What the text encoders make of `prompt`, on `device`; they are gone from memory afterwards."""
    import torch

    pipe = _load(folder, dtype, transformer=None, vae=None).to(device)
    with torch.no_grad():
        embeds, pooled, _ = pipe.encode_prompt(prompt=prompt, prompt_2=None, max_sequence_length=TOKENS)
    del pipe
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return Words(embeds, pooled)


def load_pipeline(folder: Path, device: str | device, dtype: dtype) -> Any:
    """Transformer, VAE and scheduler as a FluxFillPipeline without text encoders, frozen, on `device`."""
    pipe = _load(folder, dtype, **dict.fromkeys(_WORDS))
    pipe.transformer.requires_grad_(False)
    pipe.vae.requires_grad_(False)
    pipe.set_progress_bar_config(disable=True)
    return pipe.to(device)


def fill_picture(
    pipe: Any, words: Words, picture: Pixels, hole: Mask, *, steps: int, guidance: float, seed: int
) -> Pixels:
    """One run of the sampler. `picture` `(H, W, 3)` and `hole` `(H, W)`; H and W are multiples of 16."""
    import torch

    filled = pipe(
        prompt_embeds=words.embeds,
        pooled_prompt_embeds=words.pooled,
        image=picture.astype(np.float32) / 255,
        mask_image=hole.astype(np.float32),
        height=hole.shape[0],
        width=hole.shape[1],
        num_inference_steps=steps,
        guidance_scale=guidance,
        generator=torch.Generator("cpu").manual_seed(seed),  # the same noise on every device
        output_type="np",
    ).images[0]
    return np.rint(255 * filled).astype(np.uint8)


def _load(folder: Path, dtype: dtype, **parts: Any) -> Any:
    from diffusers import FluxFillPipeline

    try:
        with quiet():
            return FluxFillPipeline.from_pretrained(  # type: ignore[no-untyped-call]
                folder, torch_dtype=dtype, local_files_only=True, use_safetensors=True, **parts
            )
    except (OSError, ValueError) as error:
        raise ConfigError(
            "the base model cannot be read",
            where=folder,
            expected="every part as safetensors; files with pickles are not read",
            found=str(error).split("\n")[0][:300],
            fix="fetch the whole folder again",
        ) from error


_FACTS: Final = "mie"  # our key in the header, beside those of diffusers
_ADAPTER: Final = "lora_adapter_metadata"


def save_lora(
    path: Path,
    tensors: Mapping[str, Tensor],
    adapter: Mapping[str, Any],
    facts: Mapping[str, Any],
    *,
    part: str = "transformer",
) -> None:
    """`tensors`: `<layer>.lora_A.weight` (rank, in) and `.lora_B.weight` (out, rank) by layer.

    `adapter` is peft's LoraConfig as JSON (diffusers needs it to know alpha), `facts` are ours.
    """
    from safetensors.torch import save

    header = {
        "format": "pt",
        _ADAPTER: json.dumps({f"{part}.{key}": value for key, value in adapter.items()}, sort_keys=True),
        _FACTS: json.dumps(facts, sort_keys=True),
    }
    named = {f"{part}.{name}": value.contiguous() for name, value in tensors.items()}
    path.write_bytes(_in_fixed_order(save(named, header)))


def _in_fixed_order(data: bytes) -> bytes:
    """A safetensors file with its metadata sorted by key: the library writes them in any order."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the format aligns tensors to eight bytes
    return len(text).to_bytes(8, "little") + text + data[8 + length :]


def read_facts(path: Path) -> dict[str, Any]:
    """What `save_lora` was told; empty for a LoRA of somebody else."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as file:
            return json.loads((file.metadata() or {}).get(_FACTS, "{}"))
    except (OSError, SafetensorError, ValueError) as error:
        raise ConfigError(
            "the LoRA cannot be read", where=path, expected="a safetensors file", found=error
        ) from None


def load_lora(pipe: Any, path: Path, family: str) -> dict[str, Any]:
    """The LoRA of `path` into the transformer of `pipe`; returns `read_facts`.

    Refused: one of another model, and one that was trained for another family.
    """
    facts = read_facts(path)
    if facts.get("family", family) != family:
        raise ConfigError(
            "the LoRA was trained for another family", where=path, expected=family, found=facts["family"]
        )
    put_lora(pipe, path)
    return facts


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
        """Of the base (`model_digest`) and, behind a plus, of the LoRA."""
        base = model_digest(self._base)
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
