"""CLIP similarities: how near images and texts lie in the space of a CLIP model (Radford et al. 2021)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from mie.core.environment import install_hint
from mie.errors import ConfigError, MetricError
from mie.records import Mask, Pixels
from mie.scoring.metrics.perceptual import weights as known
from mie.scoring.metrics.perceptual.tensors import batched, check_pixels, choose_device, exactly, to_tensor
from mie.scoring.metrics.perceptual.weights import Weights, find_weights, weights_folder

Vectors: TypeAlias = NDArray[np.float32]

MEAN: Final = (0.48145466, 0.4578275, 0.40821073)
STD: Final = (0.26862954, 0.26130258, 0.27577711)
_NO_DIRECTION: Final = 1e-5  # of two unit vectors: rounding, not a change


def keep_pixels(image: Pixels, region: Mask) -> Pixels:
    """The image with everything outside the region black."""
    return np.where(region[:, :, None], check_pixels(image), np.uint8(0))


def cropped(image: Pixels, side: int) -> NDArray[np.float32]:
    """CLIP's own preparation: the shorter side to `side`, bicubic with antialiasing, the middle cut out.

    `(side, side, 3) float32` in 0 to 1. Rounded to 8 bits on the way, as the reference does.
    """
    height, width = check_pixels(image).shape[:2]
    scale = side / min(height, width)
    size = (side, int(height * scale)) if width <= height else (int(width * scale), side)
    pixels = np.asarray(Image.fromarray(image).resize(size, Image.Resampling.BICUBIC))
    top, left = (pixels.shape[0] - side) // 2, (pixels.shape[1] - side) // 2
    return pixels[top : top + side, left : left + side].astype(np.float32) / np.float32(255)


def squashed(image: Pixels, side: int) -> NDArray[np.float32]:
    """The whole image squeezed to a square, bicubic without antialiasing: MedEBench's released way."""
    x = to_tensor([check_pixels(image)], torch.device("cpu")) / 255
    x = F.interpolate(x, size=(side, side), mode="bicubic", align_corners=False)
    return x[0].permute(1, 2, 0).numpy()


# How an image becomes the model's square.
FITS: Final[dict[str, Callable[[Pixels, int], NDArray[np.float32]]]] = {
    "crop": cropped,
    "squash": squashed,
}


def cosine(a: ArrayLike, b: ArrayLike) -> float:
    """The cosine of the angle between two vectors `(D,)`: image with image, or image with text."""
    x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
    length = float(np.linalg.norm(x) * np.linalg.norm(y))
    if length == 0:
        raise MetricError("a vector of length 0 has no direction")
    return float(x @ y) / length


def directional(before: Vectors, after: Vectors, text: Vectors, text_before: Vectors | None = None) -> float:
    """The cosine of the change from `before` to `after` with a text, or with the change between two texts.

    Unit vectors `(D,)`. An output that lies where its input lies has no direction: MetricError.
    """
    change = np.asarray(after, np.float64) - np.asarray(before, np.float64)
    if np.linalg.norm(change) < _NO_DIRECTION:
        raise MetricError("the output looks like the input to CLIP: a change of length 0 has no direction")
    return cosine(change, text if text_before is None else text - text_before)


class Clip:
    """A CLIP model: images and texts to unit vectors `(N, D) float32`."""

    def __init__(
        self, model: Any, tokenizer: Any, *, device: str | None = None, weights: tuple[Weights, ...] = ()
    ) -> None:
        """`model`: a `transformers.CLIPModel`; `tokenizer`: its tokenizer."""
        self.weights = weights
        self._device = choose_device(device)
        self._model = model.to(self._device).eval().requires_grad_(False)
        self._tokenizer = tokenizer
        self._side = int(model.config.vision_config.image_size)
        self._longest = int(model.config.text_config.max_position_embeddings)
        self._mean = torch.tensor(MEAN, device=self._device).view(1, 3, 1, 1)
        self._std = torch.tensor(STD, device=self._device).view(1, 3, 1, 1)

    def images(self, images: Iterable[Pixels], *, fit: str = "crop", batch: int = 32) -> Vectors:
        """`(H, W, 3) uint8` images of any sizes; `fit` is "crop" (CLIP's own) or "squash"."""
        if fit not in FITS:
            raise ConfigError(f"no way to fit an image named {fit!r}", expected=", ".join(FITS))
        return self._vectors(
            self._image_batch([FITS[fit](i, self._side) for i in b]) for b in batched(images, batch)
        )

    def texts(self, texts: Sequence[str], *, batch: int = 64) -> Vectors:
        """A text longer than the model reads (77 tokens) is cut."""
        return self._vectors(self._text_batch(chunk) for chunk in batched(texts, batch))

    def about(self) -> dict[str, Any]:
        """What a result has to record."""
        return {"weights": [w.as_dict() for w in self.weights]}

    def _image_batch(self, squares: list[NDArray[np.float32]]) -> torch.Tensor:
        with exactly():
            pixels = (to_tensor(squares, self._device) - self._mean) / self._std
            pooled = self._model.vision_model(pixel_values=pixels).pooler_output
            out: torch.Tensor = self._model.visual_projection(pooled)
            return out

    def _text_batch(self, texts: list[str]) -> torch.Tensor:
        with exactly():
            tokens = self._tokenizer(
                texts, padding=True, truncation=True, max_length=self._longest, return_tensors="pt"
            ).to(self._device)
            pooled = self._model.text_model(
                input_ids=tokens["input_ids"], attention_mask=tokens["attention_mask"]
            ).pooler_output
            out: torch.Tensor = self._model.text_projection(pooled)
            return out

    def _vectors(self, batches: Iterable[torch.Tensor]) -> Vectors:
        found = [F.normalize(one, dim=1).cpu().numpy() for one in batches]
        width = int(self._model.config.projection_dim)
        return np.concatenate(found) if found else np.zeros((0, width), np.float32)


def load_clip(folder: Path | str | None = None, *, device: str | None = None) -> Clip:
    """CLIP ViT-B/32 with the published weights of the weights folder, or the model in `folder` (of any size).

    Read from disk alone; nothing is fetched and no code of the folder is run.
    """
    if folder is None:
        found = tuple(find_weights("clip", file) for file in known.CLIP)
        folder = weights_folder() / Path(known.CLIP_MODEL.path).parent
    else:
        folder = Path(folder)
        names = [n for n in ("model.safetensors", "pytorch_model.bin") if (folder / n).is_file()]
        if not names:
            raise MetricError("no weights for clip", where=folder, expected=f"a CLIP model in {folder}")
        found = (find_weights("clip", known.CLIP_MODEL, folder / names[0]),)
    # The file that was looked at is the one that is loaded, whatever lies beside it.
    safe = found[0].path.suffix == ".safetensors"
    try:
        from transformers import AutoTokenizer, CLIPModel
    except ModuleNotFoundError:
        raise MetricError("transformers is not installed", expected=install_hint("models")) from None
    try:
        loaded: Any = CLIPModel.from_pretrained(
            folder, local_files_only=True, use_safetensors=safe, output_loading_info=True
        )
        model, info = loaded
        tokenizer = AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, RuntimeError) as error:
        raise MetricError("not a CLIP model", where=folder, found=str(error).split("\n")[0]) from error
    if info["missing_keys"]:  # transformers would go on with random numbers there
        raise MetricError(
            "weights of another network", where=folder, found=f"without {sorted(info['missing_keys'])[0]}"
        )
    return Clip(model, tokenizer, device=device, weights=found)
