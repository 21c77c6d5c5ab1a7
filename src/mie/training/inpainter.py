"""Experts that fill a hole with healthy tissue, as a trainee: one per family of modalities.

They learn from healthy tissue only: windows of a pack's images, cut before training starts, with holes in the
shape of lesions. A hole lies inside the body and clear of every marked lesion, so what was under it is
healthy and known.

The mean is learnt by regression. A mean has no grain, so a second head draws it from noise: its energy in
three bands of frequency must be that of the true tissue, and a critic, which sees filled and true windows
with the hole marked, must not be able to tell them apart. The critic's loss and the fill's are one sum: each
is computed with the other's part held fixed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import cv2
import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from mie.core.hashing import generator, stable_hash
from mie.editors.compact.kinds import EditKind
from mie.errors import ConfigError
from mie.images.families import GREY, family_of
from mie.images.texture import compare, texture
from mie.networks import weights
from mie.networks.fill import FillConfig, FillNet, compose, gaussian_blur
from mie.perspectives.modification.inpainters.compact import EXPERTS, FORMAT
from mie.perspectives.modification.inpainters.holes import LesionShapes
from mie.records import Mask, Pixels
from mie.training.batches import step_seed
from mie.training.config import Strict, TrainConfig, parse_section
from mie.training.pack import TRAIN, VALIDATION, Pack, as_rgb, read_pack
from mie.training.trainee import Trainee

SIDE: Final = 256
_DARK: Final = 12  # grey levels: the air around a scanned body is darker
_CLEAR: Final = 9  # pixels around a lesion that are not healthy either
_AROUND: Final = 1.5  # a window's side, in extents of its hole
_AREA: Final = (0.003, 0.25)  # of the image: smaller holes have no texture to learn
_BANDS: Final = (0.8, 1.6, 3.2)  # sigmas between which the grain's energy is compared
_UPRIGHT: Final = ("mri", "ct", "xray", "ultrasound", "fundus")  # not turned upside down
_SHOWN: Final = 8
_LAST: Final = "grain.2."  # the layer that draws the grain
_VARIANCE: Final = 0.85  # of the true tissue's: less looks smooth, all of it costs PSNR
_CALIBRATED: Final = 40  # held-out holes that the grain's strength is set on


@dataclass(frozen=True, slots=True)
class Healthy:
    """An image of a family, and where it is healthy."""

    name: str  # source and place, for seeds
    image: Pixels  # (H, W, 3)
    allowed: Mask


def healthy_images(packs: Sequence[Pack], family: str, fold: str) -> list[Healthy]:
    """Return the family's images of a fold, each once, without the union of their lesion masks."""
    images: list[Healthy] = []
    for pack in packs:
        lesions, sources = _lesions(pack, family, fold)
        for place, masks in lesions.items():
            image = as_rgb(pack.images[place])
            images.append(Healthy(f"{sources[place]}/{place}", image, _allowed(image, masks)))
    return images


def lesion_shapes(packs: Sequence[Pack], family: str, fold: str) -> LesionShapes:
    """Return the outlines of the family's lesions; those of all families where it has none."""
    for only in (family, None):
        masks = [mask for pack in packs for shown in _lesions(pack, only, fold)[0].values() for mask in shown]
        if masks:
            return LesionShapes.from_masks(masks)
    raise ConfigError("no lesion masks in the packs", expected="rows of the task lesion", found="none")


def _lesions(pack: Pack, family: str | None, fold: str) -> tuple[Mapping[int, list[Mask]], Mapping[int, str]]:
    lesions: dict[int, list[Mask]] = {}
    sources: dict[int, str] = {}
    for row in pack.rows:
        if row.kind is not EditKind.OVERLAY or row.fold != fold:
            continue
        if family is not None and family_of(row.modality) != family:
            continue
        masks = lesions.setdefault(row.input, [])
        sources[row.input] = row.source
        if row.task == "lesion" and row.mask is not None:
            masks.append(pack.masks[row.mask] > 0)
    return lesions, sources


def _allowed(image: Pixels, lesions: Sequence[Mask]) -> Mask:
    level = cv2.GaussianBlur(image.mean(axis=2).astype(np.float32), (0, 0), 4)
    body = level > _DARK
    if lesions:
        lesion = np.any(lesions, axis=0).astype(np.uint8)
        body &= cv2.dilate(lesion, np.ones((2 * _CLEAR + 1,) * 2, np.uint8)) == 0
    edge = np.zeros_like(body)
    edge[2:-2, 2:-2] = True  # a hole at the border has no surroundings on one side
    return np.asarray(body & edge)


def windows(
    images: Sequence[Healthy], shapes: LesionShapes, each: int, seed: int
) -> Iterator[tuple[int, Pixels, Mask]]:
    """Yield `each` holes per image where they fit: (image, window `(SIDE, SIDE, 3)`, hole `(SIDE, SIDE)`)."""
    for number, healthy in enumerate(images):
        for at in range(each):
            rng = generator(stable_hash("hole", seed, healthy.name, at))
            hole = shapes.sample(rng, *healthy.allowed.shape, allowed=healthy.allowed, area=_AREA)
            if hole is not None:
                yield number, *window(healthy.image, hole, rng)


def window(image: Pixels, hole: Mask, rng: np.random.Generator) -> tuple[Pixels, Mask]:
    """Cut a square around the hole, not always centred, at the image's own scale if the hole fits."""
    rows, columns = np.nonzero(hole)
    top, bottom, left, right = rows.min(), rows.max() + 1, columns.min(), columns.max() + 1
    extent = max(bottom - top, right - left)
    side = int(max(SIDE, _AROUND * extent))
    slack = rng.uniform(-0.5, 0.5, 2) * (side - extent) * 0.5
    y = int((top + bottom - side) / 2 + slack[0])
    x = int((left + right - side) / 2 + slack[1])
    height, width = hole.shape
    y = int(np.clip(y, min(0, height - side), max(0, height - side)))
    x = int(np.clip(x, min(0, width - side), max(0, width - side)))
    edges = (max(0, -y), max(0, y + side - height), max(0, -x), max(0, x + side - width))
    padded = cv2.copyMakeBorder(image, *edges, cv2.BORDER_REFLECT_101)
    # The hole is mirrored like the image: otherwise what is under it would be seen beside it.
    marked = cv2.copyMakeBorder(hole.astype(np.uint8), *edges, cv2.BORDER_REFLECT_101)
    at = (slice(y + edges[0], y + edges[0] + side), slice(x + edges[2], x + edges[2] + side))
    crop, mark = padded[at], marked[at]
    if side != SIDE:
        crop = cv2.resize(crop, (SIDE, SIDE), interpolation=cv2.INTER_AREA)
        mark = cv2.resize(mark, (SIDE, SIDE), interpolation=cv2.INTER_NEAREST_EXACT)
    return np.ascontiguousarray(crop, np.uint8), np.asarray(mark > 0)


@dataclass(frozen=True, slots=True)
class Windows:
    """All windows of a fold on the device, as bytes."""

    images: Tensor  # (N, 3, SIDE, SIDE) uint8
    holes: Tensor  # (N, 1, SIDE, SIDE) bool
    of: list[int]  # which image each was cut from

    @classmethod
    def cut(
        cls, images: Sequence[Healthy], shapes: LesionShapes, each: int, seed: int, device: torch.device
    ) -> Windows:
        cuts = list(windows(images, shapes, each, seed))
        if not cuts:
            raise ConfigError("no hole fits into any image", found=f"{len(images)} images")
        pixels = np.stack([image.transpose(2, 0, 1) for _, image, _ in cuts])
        holes = np.stack([hole[None] for _, _, hole in cuts])
        return cls(
            torch.from_numpy(pixels).to(device), torch.from_numpy(holes).to(device), [of for of, _, _ in cuts]
        )


class DataConfig(Strict):
    packs: list[str] = Field(min_length=1)
    family: str
    holes: int = Field(16, ge=1, description="windows cut from each image")
    validate_holes: int = Field(4, ge=1)


class ModelConfig(Strict):
    critic: float = Field(0.02, ge=0, description="weight of the critic's verdict")
    energy: float = Field(0.05, ge=0, description="weight of the grain's energy")
    share: float = Field(0.9, gt=0, le=1, description="share of the tissue's energy to reach")


class Verdict(NamedTuple):
    """What a step is computed from; float32 `(B, C, H, W)`."""

    mean: Tensor
    detail: Tensor
    true: Tensor  # the critic on true windows
    filled: Tensor  # on filled ones, the fill held fixed
    seen: Tensor  # on filled ones, the critic held fixed


class Critic(nn.Module):
    """`(image, hole)` to a map of logits, an eighth of the side: is this tissue that nobody touched?"""

    def __init__(self, width: int = 48) -> None:
        super().__init__()
        norm = nn.utils.parametrizations.spectral_norm
        self.layers = nn.Sequential(
            norm(nn.Conv2d(4, width, 3, padding=1)),
            nn.LeakyReLU(0.2),
            norm(nn.Conv2d(width, width, 4, 2, 1)),
            nn.LeakyReLU(0.2),
            norm(nn.Conv2d(width, 2 * width, 4, 2, 1)),
            nn.LeakyReLU(0.2),
            norm(nn.Conv2d(2 * width, 4 * width, 4, 2, 1)),
            nn.LeakyReLU(0.2),
            norm(nn.Conv2d(4 * width, 4 * width, 3, padding=1)),
            nn.LeakyReLU(0.2),
            nn.Conv2d(4 * width, 1, 3, padding=1),
        )

    def forward(self, image: Tensor, hole: Tensor) -> Tensor:
        logits: Tensor = self.layers(torch.cat([2 * image - 1, hole], 1))
        return logits


class Adversaries(nn.Module):
    """The expert and its critic as one module, so that one loop and one optimizer train both."""

    def __init__(self, config: FillConfig) -> None:
        super().__init__()
        self.fill = FillNet(config)
        self.critic = Critic()

    def forward(self, image: Tensor, hole: Tensor, noise: Tensor, grey: bool) -> Verdict:
        mean, detail = self.fill(image, hole, noise)
        if grey:
            mean, detail = (x.mean(1, keepdim=True).expand(-1, 3, -1, -1) for x in (mean, detail))
        # The mean is held fixed before the critic: it stays the best guess.
        filled = compose(image, hole, mean.detach(), detail)
        fixed = {name: value.detach() for name, value in self.critic.named_parameters()}
        seen = functional_call(self.critic, fixed, (filled, hole))
        return Verdict(mean, detail, self.critic(image, hole), self.critic(filled.detach(), hole), seen)


class Inpainter(Trainee):
    score = "score"
    slower: Mapping[str, float] = {"critic.": 0.5}

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.data = parse_section(DataConfig, config.data, where="data")
        self.options = parse_section(ModelConfig, config.model, where="model")
        if self.data.family not in EXPERTS:
            raise ConfigError(
                "no such family", where="data.family", expected=", ".join(EXPERTS), found=self.data.family
            )
        self.grey = self.data.family in GREY

    def check(self) -> Mapping[str, Any]:
        self._packs = [read_pack(self.config.path(path)) for path in self.data.packs]
        self._healthy = {
            fold: healthy_images(self._packs, self.data.family, fold) for fold in (TRAIN, VALIDATION)
        }
        for fold, images in self._healthy.items():
            if not images:
                raise ConfigError(
                    f"no {self.data.family} images to {'train' if fold == TRAIN else 'validate'} on",
                    where="data.packs",
                )
        return {"packs": [pack.facts["digest"] for pack in self._packs]}

    def prepare(self, device: torch.device) -> None:
        self.device = device
        shapes = lesion_shapes(self._packs, self.data.family, TRAIN)
        seed = self.config.seed
        self.train = Windows.cut(self._healthy[TRAIN], shapes, self.data.holes, seed, device)
        self.held_out = Windows.cut(
            self._healthy[VALIDATION], shapes, self.data.validate_holes, seed + 1, device
        )
        del self._packs

    def model(self) -> nn.Module:
        return Adversaries(FillConfig())

    def batch(self, step: int, rank: int, world: int) -> Any:
        seed = step_seed(self.config.seed, step, rank)
        rng = np.random.default_rng(seed)
        places = rng.integers(0, len(self.train.images), self.config.batch // world)
        return {"seed": seed, "places": torch.from_numpy(places)}

    def loss(self, model: nn.Module, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        draw = torch.Generator(self.device).manual_seed(batch["seed"])
        image, hole = self._views(batch["places"], draw)
        noise = torch.randn(hole.shape, generator=draw, device=self.device)
        verdict = model(image, hole, noise, self.grey)
        area = hole.sum().clamp(min=1)
        regression = (((verdict.mean - image) ** 2 + 1e-6).sqrt() * hole).sum() / (3 * area)
        energy = _energy_loss(verdict.mean.detach() + verdict.detail, image, hole, self.options.share)
        # Only where a patch of the critic's shows some of the hole.
        share = F.adaptive_avg_pool2d(hole, verdict.seen.shape[2:])
        count = share.sum().clamp(min=1)
        deceived = -(verdict.seen * share).sum() / count
        critic = ((F.relu(1 - verdict.true) + F.relu(1 + verdict.filled)) * share).sum() / count
        loss = regression + self.options.energy * energy + self.options.critic * deceived + critic
        parts = {"regression": regression, "energy": energy, "deceived": deceived, "critic": critic}
        return loss, {name: value.detach() for name, value in parts.items()}

    def _views(self, places: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Return windows and holes, mirrored, turned where the family has no upright, a little brighter."""
        places = places.to(self.device)
        both = torch.cat([self.train.images[places].float() / 255, self.train.holes[places].float()], 1)

        def chance() -> Tensor:
            return torch.rand(len(places), 1, 1, 1, generator=draw, device=self.device) < 0.5

        both = torch.where(chance(), both.flip(3), both)
        if self.data.family not in _UPRIGHT:
            both = torch.where(chance(), both.flip(2), both)
            both = torch.where(chance(), both.transpose(2, 3), both)
        image, hole = both[:, :3], both[:, 3:]
        u = torch.rand(2, len(places), 1, 1, 1, generator=draw, device=self.device)
        return (image ** torch.exp(0.5 * (u[0] - 0.5)) * (0.8 + 0.3 * u[1])).clamp(0, 1), hole

    def validate(self, model: nn.Module) -> dict[str, float | None]:
        """Measure PSNR in held-out holes, and the fill's grain against that of the true tissue."""
        psnr: list[float] = []
        compared: list[dict[str, float]] = []
        for at in range(len(self.held_out.images)):
            image, hole, filled = self._filled(model, slice(at, at + 1))
            truth, fill, mask = _pixels(image[0]), _pixels(filled[0]), hole[0, 0].bool().cpu().numpy()
            error = np.mean((truth[mask].astype(float) - fill[mask]) ** 2)
            psnr.append(float(10 * np.log10(255**2 / max(error, 1e-2))))
            fill_texture, true_texture = texture(fill, mask), texture(truth, mask)
            if fill_texture is not None and true_texture is not None:
                compared.append(compare(fill_texture, true_texture))
        figures: dict[str, float | None] = {"psnr": float(np.mean(psnr)), "holes": float(len(psnr))}
        for key in ("variance_ratio", "gradient_distance", "spectrum_distance"):
            values = [one[key] for one in compared]
            figures[key] = float(np.median(values)) if values else None
        distance = figures["spectrum_distance"]
        figures["score"] = None if distance is None else figures["psnr"] - 5 * distance  # type: ignore[operator]
        return figures

    def _filled(self, model: nn.Module, which: slice) -> tuple[Tensor, Tensor, Tensor]:
        image, hole, mean, detail = self._parts(model, which)
        return image, hole, compose(image, hole, mean, detail)

    def _parts(self, model: nn.Module, which: slice) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        image = self.held_out.images[which].float() / 255
        hole = self.held_out.holes[which].float()
        noise = torch.randn(hole.shape, generator=torch.Generator().manual_seed(which.start)).to(self.device)
        with torch.no_grad():
            verdict = model(image, hole, noise, self.grey)
        return image, hole, verdict.mean, verdict.detail

    def grid(self, model: nn.Module) -> Pixels | None:
        step = max(1, len(self.held_out.images) // _SHOWN)
        rows = []
        for at in range(0, len(self.held_out.images), step):
            image, hole, filled = self._filled(model, slice(at, at + 1))
            white = image * (1 - hole) + hole
            rows.append(np.hstack([_pixels(x[0]) for x in (white, filled, image)]))
        return np.vstack(rows[:_SHOWN])

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        """Save the expert without its critic, its grain as strong as that of held-out tissue."""
        expert = cast("Adversaries", model).fill
        factor = self._grain(model)
        state = {
            name: value * factor if name.startswith(_LAST) else value
            for name, value in expert.state_dict().items()
        }
        meta = {"family": self.data.family, "grey": self.grey, "side": SIDE, "grain": factor, **facts}
        weights.save(path, state, format=FORMAT, config=expert.config.as_json(), meta=meta)

    def _grain(self, model: nn.Module) -> float:
        """Return the factor that gives the fill `_VARIANCE` of the true tissue's variance.

        Neither the energy nor the critic sets it exactly, and every bit of it costs PSNR.
        """
        step = max(1, len(self.held_out.images) // _CALIBRATED)
        holes = []
        for at in range(0, len(self.held_out.images), step):
            parts = self._parts(model, slice(at, at + 1))
            mask = parts[1][0, 0].bool().cpu().numpy()
            truth = texture(_pixels(parts[0][0]), mask)
            if truth is not None:
                holes.append((parts, mask, truth))
        if not holes:
            return 1.0
        low, high = 0.5, 2.0
        for _ in range(6):
            middle = (low * high) ** 0.5
            ratios = []
            for (image, hole, mean, detail), mask, truth in holes:
                mine = texture(_pixels(compose(image, hole, mean, middle * detail)[0]), mask)
                if mine is not None:
                    ratios.append(compare(mine, truth)["variance_ratio"])
            low, high = (middle, high) if np.median(ratios) < _VARIANCE else (low, middle)
        return float((low * high) ** 0.5)


def _energy_loss(filled: Tensor, truth: Tensor, hole: Tensor, share: float) -> Tensor:
    """Return how far the fill's local energy in each band is from `share` of the tissue's, as a ratio."""
    total = filled.new_zeros(())
    inside = gaussian_blur(hole, _BANDS[-1])
    area = (inside * hole).sum().clamp(min=1)
    fill, tissue = filled * hole + truth * (1 - hole), truth
    for sigma in _BANDS:
        soft_fill, soft_tissue = gaussian_blur(fill, sigma), gaussian_blur(tissue, sigma)
        have = gaussian_blur(((fill - soft_fill) ** 2).mean(1, keepdim=True) * hole, 6.0)
        want = gaussian_blur(((tissue - soft_tissue) ** 2).mean(1, keepdim=True) * hole, 6.0) * share
        total = total + ((have + 1e-5).log() - (want + 1e-5).log()).abs().mul(inside * hole).sum() / area
        fill, tissue = soft_fill, soft_tissue
    return total / len(_BANDS)


def _pixels(image: Tensor) -> Pixels:
    return (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
