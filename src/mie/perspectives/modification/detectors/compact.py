"""Our own detectors: one small U-Net per family of images, trained by `mie train`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch

from mie.core.files import digest
from mie.errors import ConfigError, MieError
from mie.networks import weights
from mie.networks.shipped import shipped_weights
from mie.networks.unet import NetConfig, UNet, mask_of, probabilities, score_of
from mie.perspectives.modification.detectors import Finding
from mie.records import Pixels

FORMAT: Final = "detector 1"


class CompactDetector:
    """A weights file, its threshold and what was measured of it."""

    name = "compact"

    def __init__(self, path: Path, *, device: str = "cpu") -> None:
        self._net, self.meta = load_detector(path)
        self.weights = digest(path)
        self._device = torch.device(device)
        self._net.to(self._device)
        self._side = self._net.config.side
        self.threshold = float(self.meta["threshold"])

    def find(self, image: Pixels) -> Finding:
        probability = probabilities(self._net, image, self._side, self._device)
        return Finding(mask_of(probability, self.threshold, self._side), score_of(probability))

    def quality(self) -> Mapping[str, Any] | None:
        found: Mapping[str, Any] | None = self.meta["quality"]
        return found


def open_compact(argument: str | None, options: Mapping[str, str], family: str) -> CompactDetector:
    """`compact` is the shipped detector of the family, `compact:PATH` the file of a training."""
    train = f"train it with `mie train examples/detectors/{family}.yaml` and say compact:PATH"
    path = Path(argument) if argument else shipped_weights(f"detector-{family}.safetensors", fix=train)
    if not path.is_file():
        raise ConfigError("no such weights file", where=path, fix=train)
    unknown = set(options) - {"device"}
    if unknown:
        raise ConfigError(f"detector 'compact' has no option {min(unknown)!r}", expected="device")
    found = CompactDetector(path, device=options.get("device", "cpu"))
    if found.meta["family"] not in (family, None):
        raise ConfigError(
            "the detector is for other images",
            where=path,
            expected=family,
            found=found.meta["family"],
            fix=train,
        )
    return found


def load_detector(path: Path) -> tuple[UNet, dict[str, Any]]:
    """The network of a weights file, ready to use, and the file's meta."""
    found = weights.load(path, format=FORMAT)
    known = NetConfig().as_json()
    if set(found.config) != set(known):
        raise MieError(
            "the weights are those of another architecture",
            where=path,
            expected=", ".join(known),
            found=", ".join(found.config),
        )
    net = weights.build(lambda: UNet(NetConfig.from_json(found.config)), found, path)
    return net.eval().requires_grad_(False), found.meta
