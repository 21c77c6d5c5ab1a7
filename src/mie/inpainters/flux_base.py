"""The base model of `flux-fill`: where it is, what it is told, and how it gets into memory.

The text encoders are larger than many GPUs. A family has one prompt, so they are loaded once, asked once and
dropped before the rest is loaded. Only safetensors are read, and nothing is ever fetched.
"""

from __future__ import annotations

import gc
import hashlib
import importlib.util
import json
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from mie.errors import ConfigError
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
}
TOKENS: Final = 128  # of the long text encoder; our prompts have some twenty
MULTIPLE: Final = 16  # eight pixels to a latent, two by two latents to a token
_NEEDS: Final = ("torch", "safetensors", "transformers", "diffusers", "peft")
_HUB_ID: Final = re.compile(r"[\w.-]+/[\w.-]+")
_WORDS: Final = ("tokenizer", "text_encoder", "tokenizer_2", "text_encoder_2")
_LICENCE: Final = (
    "FLUX.1-Fill-dev is under the FLUX.1 [dev] Non-Commercial License: read and accept it at "
    f"https://huggingface.co/{PUBLISHED} first"
)


class Words(NamedTuple):
    """A prompt as the transformer reads it: `(1, TOKENS, D)`, and pooled `(1, P)`."""

    embeds: Tensor
    pooled: Tensor


def need_packages(what: str) -> None:
    """Raise unless everything that `flux-fill` runs on is installed."""
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"{what} needs {', '.join(missing)}", fix="pip install 'mie[models]'")


def find_base(text: str | Path) -> Path:
    """The folder of a FluxFillPipeline: `text` itself, or a hub id whose files are in the local cache."""
    folder = Path(text).expanduser()
    if not folder.is_dir():
        folder = _cached(str(text))
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


def _cached(text: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    if not _HUB_ID.fullmatch(text):
        raise ConfigError("no such folder", where=text, expected=f"a folder, or a hub id such as {PUBLISHED}")
    try:
        return Path(snapshot_download(text, local_files_only=True))
    except LocalEntryNotFoundError:
        raise ConfigError(
            f"{text} is neither a folder nor in the local cache of models",
            expected="files that are already here: nothing is fetched by itself",
            fix=f"hf auth login; hf download {text} --exclude 'flux1-*' (tens of gigabytes). {_LICENCE}",
        ) from None


def base_digest(folder: Path) -> str:
    """SHA-256 over the configs and over the names and sizes of the weights; reading those takes minutes."""
    known = hashlib.sha256()
    for path in sorted(folder.rglob("*")):
        if path.suffix == ".json":
            known.update(path.relative_to(folder).as_posix().encode() + path.read_bytes())
        elif path.suffix == ".safetensors":
            known.update(f"{path.relative_to(folder).as_posix()} {path.stat().st_size}".encode())
    return known.hexdigest()


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
        with _quiet():
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


@contextmanager
def _quiet() -> Iterator[None]:
    """Without the libraries' progress bars, which would break ours, and their notes on coming names."""
    import diffusers.utils.logging
    import transformers.utils.logging

    said = (diffusers.utils.logging, transformers.utils.logging)
    shown = [each for each in said if each.is_progress_bar_enabled()]
    for each in shown:
        each.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            # `torch_dtype` is to become `dtype`, which older versions do not know.
            warnings.simplefilter("ignore", FutureWarning)
            yield
    finally:
        for each in shown:
            each.enable_progress_bar()
