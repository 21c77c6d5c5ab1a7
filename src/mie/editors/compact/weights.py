"""The compact editor's weights file: its format, and the network that it makes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from torch import Tensor

from mie.editors.compact.network import CompactNet, NetConfig
from mie.errors import MieError
from mie.networks import weights
from mie.networks.trunk import BACKBONES

FORMAT: Final = "compact 1"


def save_weights(
    path: Path, state: Mapping[str, Tensor], config: NetConfig, meta: Mapping[str, Any] | None = None
) -> None:
    weights.save(path, state, format=FORMAT, config=config.as_json(), meta=meta)


def load_weights(path: Path) -> tuple[dict[str, Tensor], NetConfig, dict[str, Any]]:
    """(state in float32, the network's shape, meta). `MieError` for a file that is damaged or not ours."""
    found = weights.load(path, format=FORMAT)
    known = NetConfig().as_json()
    # A file may lack what came later, never have what is not known here.
    if not set(found.config) <= set(known):
        raise MieError(
            "the weights are those of another architecture",
            where=path,
            expected=", ".join(known),
            found=", ".join(found.config),
        )
    config = NetConfig.from_json(found.config)
    if config.backbone not in BACKBONES:
        raise MieError(
            "the weights are those of another architecture",
            where=path,
            expected=f"a trunk of {' or '.join(BACKBONES)}",
            found=config.backbone,
        )
    return found.state, config, found.meta


def load_network(path: Path) -> tuple[CompactNet, dict[str, Any]]:
    """The network of a weights file, ready to use, and the file's meta."""
    state, config, meta = load_weights(path)
    net = CompactNet(config)
    weights.fit(net, state, path)
    return net.eval().requires_grad_(False), meta
