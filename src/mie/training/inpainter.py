"""Experts that fill a hole with healthy tissue: one per family of modalities, trained on healthy tissue only.

The mean is learnt by regression. A mean has no grain, so a second head draws it from noise: its energy in
three bands of frequency must be that of the true tissue, and a critic, which sees filled and true windows
with the hole marked, must not be able to tell them apart. The critic's loss and the fill's are one sum: each
is computed with the other's part held still.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from pydantic import Field
from torch import Tensor, nn
from torch.func import functional_call

from mie.errors import ConfigError
from mie.images.families import FAMILIES, GREY
from mie.inpainters.compact import FORMAT
from mie.inpainters.network import FillConfig, FillNet, compose, slow
from mie.metrics import texture
from mie.networks import weights
from mie.records import Pixels
from mie.training.config import Strict, TrainConfig, parse_section
from mie.training.inpainter_data import SIDE, Windows, healthy_images, lesion_shapes
from mie.training.pack import TRAIN, VALIDATION
from mie.training.pack_files import read_pack
from mie.training.seeds import step_seed
from mie.training.trainee import Trainee

_BANDS: Final = (0.8, 1.6, 3.2)  # sigmas between which the grain's energy is compared
_UPRIGHT: Final = ("mri", "ct", "xray", "ultrasound", "fundus")  # not turned upside down
_SHOWN: Final = 8


class DataConfig(Strict):
    packs: list[str] = Field(min_length=1)
    family: str
    holes: int = Field(16, ge=1, description="windows cut from each image")
    validate_holes: int = Field(4, ge=1)


class ModelConfig(Strict):
    critic: float = Field(0.02, ge=0, description="the weight of the critic's word")
    energy: float = Field(0.05, ge=0, description="the weight of the grain's energy")
    share: float = Field(0.9, gt=0, le=1, description="of the tissue's energy that the fill shall have")


class Judged(NamedTuple):
    """What a step is computed from; float32 `(B, C, H, W)`."""

    mean: Tensor
    detail: Tensor
    true: Tensor  # the critic on true windows
    filled: Tensor  # on filled ones, the fill held still
    seen: Tensor  # on filled ones, the critic held still


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

    def forward(self, image: Tensor, hole: Tensor, noise: Tensor, grey: bool) -> Judged:
        mean, detail = self.fill(image, hole, noise)
        if grey:
            mean, detail = (x.mean(1, keepdim=True).expand(-1, 3, -1, -1) for x in (mean, detail))
        # The mean is held still before the critic: it stays the best guess.
        filled = compose(image, hole, mean.detach(), detail)
        still = {name: value.detach() for name, value in self.critic.named_parameters()}
        seen = functional_call(self.critic, still, (filled, hole))
        return Judged(mean, detail, self.critic(image, hole), self.critic(filled.detach(), hole), seen)


class Inpainter(Trainee):
    score = "score"
    slower: Mapping[str, float] = {"critic.": 0.5}

    def __init__(self, config: TrainConfig) -> None:
        self.config = config
        self.data = parse_section(DataConfig, config.data, where="data")
        self.options = parse_section(ModelConfig, config.model, where="model")
        if self.data.family not in FAMILIES:
            raise ConfigError(
                "no such family", where="data.family", expected=", ".join(FAMILIES), found=self.data.family
            )
        self.grey = self.data.family in GREY

    def check(self) -> Mapping[str, Any]:
        self._packs = [read_pack(self.config.path(path)) for path in self.data.packs]
        self._healthy = {
            fold: healthy_images(self._packs, self.data.family, fold) for fold in (TRAIN, VALIDATION)
        }
        for fold, found in self._healthy.items():
            if not found:
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
        judged = model(image, hole, noise, self.grey)
        area = hole.sum().clamp(min=1)
        regression = (((judged.mean - image) ** 2 + 1e-6).sqrt() * hole).sum() / (3 * area)
        energy = _energy_loss(judged.mean.detach() + judged.detail, image, hole, self.options.share)
        # Only where a patch of the critic's shows some of the hole.
        share = F.adaptive_avg_pool2d(hole, judged.seen.shape[2:])
        count = share.sum().clamp(min=1)
        deceived = -(judged.seen * share).sum() / count
        critic = ((F.relu(1 - judged.true) + F.relu(1 + judged.filled)) * share).sum() / count
        loss = regression + self.options.energy * energy + self.options.critic * deceived + critic
        parts = {"regression": regression, "energy": energy, "deceived": deceived, "critic": critic}
        return loss, {name: value.detach() for name, value in parts.items()}

    def _views(self, places: Tensor, draw: torch.Generator) -> tuple[Tensor, Tensor]:
        """Windows and holes, mirrored, turned where the family has no upright, a little brighter."""
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
        """On held-out patients: PSNR in the hole, and the fill's grain against that of what was there."""
        psnr: list[float] = []
        compared: list[dict[str, float]] = []
        for at in range(len(self.held_out.images)):
            image, hole, filled = self._filled(model, slice(at, at + 1))
            truth, made, mask = _pixels(image[0]), _pixels(filled[0]), hole[0, 0].bool().cpu().numpy()
            error = np.mean((truth[mask].astype(float) - made[mask]) ** 2)
            psnr.append(float(10 * np.log10(255**2 / max(error, 1e-2))))
            mine, its = texture.texture(made, mask), texture.texture(truth, mask)
            if mine is not None and its is not None:
                compared.append(texture.compare(mine, its))
        figures: dict[str, float | None] = {"psnr": float(np.mean(psnr)), "holes": float(len(psnr))}
        for key in ("variance_ratio", "gradient_distance", "spectrum_distance"):
            values = [one[key] for one in compared]
            figures[key] = float(np.median(values)) if values else None
        distance = figures["spectrum_distance"]
        figures["score"] = None if distance is None else figures["psnr"] - 5 * distance  # type: ignore[operator]
        return figures

    def _filled(self, model: nn.Module, which: slice) -> tuple[Tensor, Tensor, Tensor]:
        image = self.held_out.images[which].float() / 255
        hole = self.held_out.holes[which].float()
        noise = torch.randn(hole.shape, generator=torch.Generator().manual_seed(which.start)).to(self.device)
        judged = model(image, hole, noise, self.grey)
        return image, hole, compose(image, hole, judged.mean, judged.detail)

    def grid(self, model: nn.Module) -> Pixels | None:
        step = max(1, len(self.held_out.images) // _SHOWN)
        rows = []
        for at in range(0, len(self.held_out.images), step):
            image, hole, filled = self._filled(model, slice(at, at + 1))
            white = image * (1 - hole) + hole
            rows.append(np.hstack([_pixels(x[0]) for x in (white, filled, image)]))
        return np.vstack(rows[:_SHOWN])

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        state = {
            name.removeprefix("fill."): value
            for name, value in model.state_dict().items()
            if name.startswith("fill.")
        }
        meta = {"family": self.data.family, "grey": self.grey, "side": SIDE, **facts}
        weights.save(path, state, format=FORMAT, config=FillConfig().as_json(), meta=meta)


def _energy_loss(filled: Tensor, truth: Tensor, hole: Tensor, share: float) -> Tensor:
    """How far the fill's local energy in each band is from `share` of the tissue's, as a ratio."""
    total = filled.new_zeros(())
    inside = slow(hole, _BANDS[-1])
    area = (inside * hole).sum().clamp(min=1)
    mine, its = filled * hole + truth * (1 - hole), truth
    for sigma in _BANDS:
        soft_mine, soft_its = slow(mine, sigma), slow(its, sigma)
        have = slow(((mine - soft_mine) ** 2).mean(1, keepdim=True) * hole, 6.0)
        want = slow(((its - soft_its) ** 2).mean(1, keepdim=True) * hole, 6.0) * share
        total = total + ((have + 1e-5).log() - (want + 1e-5).log()).abs().mul(inside * hole).sum() / area
        mine, its = soft_mine, soft_its
    return total / len(_BANDS)


def _pixels(image: Tensor) -> Pixels:
    return (image.clamp(0, 1) * 255).round().byte().permute(1, 2, 0).cpu().numpy()
