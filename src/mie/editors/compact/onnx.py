"""The network as an ONNX file, for machines without torch, and the proof that it gives the same.

Inputs:   `image (1, 3, H, W)` float32 in [0, 1], sides multiples of 32; `tokens (1, 48, 384)` float32 and
          `mask (1, 48)` bool from the text encoder. With a gate for modification also `hole (1, 1, H, W)`
          float32, 1 inside (`mie.editors.compact.holes`).
Outputs:  `overlay (1, 3, H, W)`, `perspective (1, 3)`, `presence (1,)`: logits; `residual (1, 3, H, W)`. With
          that gate also `change (1, 1, H, W)`, logits. With a restoration network, `residual` is its own
          where `perspective` is highest for an edit of the whole image.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from torch import Tensor, nn

from mie.core.environment import install_hint
from mie.core.files import atomic_path
from mie.editors.compact.editor import STRIDE
from mie.editors.compact.kinds import PERSPECTIVE_OF, EditKind
from mie.errors import ConfigError, MieError
from mie.networks.compact import CompactNet, Heads, load_network
from mie.networks.text import TOKENS, WIDTH
from mie.vocabulary import PERSPECTIVES

TOLERANCE: Final = 1e-3
CHECKED: Final = (256, 512)  # sides at which both are run
_INPUTS: Final = ("image", "tokens", "mask", "hole")
_NEEDS: Final = ("onnx", "onnxruntime", "onnxscript")


def export_onnx(weights: Path, path: Path) -> dict[str, float]:
    """Write the network of a weights file to `path`; the largest difference from torch for each output.

    Both are run in float32 at 256x256 and 512x512. A file that differs by more than 1e-3 is not written.
    """
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise ConfigError(f"the export needs {', '.join(missing)}", fix=install_hint("onnx"))
    network, meta = load_network(weights)
    with atomic_path(path) as temporary:
        _export(network, meta, temporary)
        largest = differences(network, temporary)
        off = {name: value for name, value in largest.items() if not value <= TOLERANCE}
        if off:
            raise MieError(
                "the exported network gives something else than torch",
                where=path,
                expected=f"differences up to {TOLERANCE}",
                found=", ".join(f"{name} {value:.2g}" for name, value in off.items()),
            )
    return largest


class ExportedNetwork(nn.Module):
    """Both networks as one graph: both run, and the instruction decides whose residual counts."""

    def __init__(self, network: CompactNet) -> None:
        super().__init__()
        self.network = network

    def forward(self, image: Tensor, tokens: Tensor, mask: Tensor, hole: Tensor | None = None) -> Heads:
        heads: Heads = self.network(image, tokens, mask, hole)
        if self.network.restoration is None:
            return heads
        whole_image = heads.perspective.argmax(1) == PERSPECTIVES.index(PERSPECTIVE_OF[EditKind.IMAGE])
        residual = self.network.restore(image, tokens, mask)
        return heads._replace(
            residual=torch.where(whole_image[:, None, None, None], residual, heads.residual)
        )


def differences(network: CompactNet, path: Path) -> dict[str, float]:
    """The largest absolute difference of each output between torch and onnxruntime, on random input."""
    import onnxruntime

    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    largest = dict.fromkeys(_outputs(network), 0.0)
    for side in CHECKED:
        inputs = _example(network, side, side)
        with torch.inference_mode():
            expected = ExportedNetwork(network)(*inputs).known()
        outputs = session.run(None, {k: v.numpy() for k, v in zip(_INPUTS, inputs, strict=False)})
        for (name, ours), theirs in zip(expected.items(), outputs, strict=True):
            largest[name] = max(largest[name], float(np.abs(ours.numpy() - theirs).max()))
    return largest


def _export(network: CompactNet, meta: dict[str, Any], path: Path) -> None:
    import onnx

    inputs = _example(network, 128, 96)
    height, width = (STRIDE * torch.export.Dim(name, min=1, max=64) for name in ("rows", "columns"))
    with _quiet():
        program = torch.onnx.export(
            ExportedNetwork(network).eval(),
            inputs,
            dynamo=True,
            input_names=list(_INPUTS[: len(inputs)]),
            output_names=_outputs(network),
            dynamic_shapes=tuple({2: height, 3: width} if value.ndim == 4 else {} for value in inputs),
            verbose=False,
        )
    assert program is not None  # noqa: S101 (with dynamo it never is)
    model = program.model_proto
    facts = {"config": json.dumps(network.config.as_json()), "meta": json.dumps(meta)}
    onnx.helper.set_model_props(model, facts)
    onnx.save(model, path)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """The exporter warns of packages that we do not use and of its own future."""
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.disable(before)


def _outputs(network: CompactNet) -> list[str]:
    absent = ["restored"] if network.config.change else ["restored", "change"]
    return [name for name in Heads._fields if name not in absent]


def _example(network: CompactNet, height: int, width: int) -> tuple[Tensor, ...]:
    draw = torch.Generator().manual_seed(0)
    mask = torch.arange(TOKENS)[None] < TOKENS // 2
    tokens = torch.randn((1, TOKENS, WIDTH), generator=draw) * mask[..., None]
    image = torch.rand((1, 3, height, width), generator=draw)
    if not network.config.change:
        return image, tokens, mask
    hole = torch.zeros((1, 1, height, width))
    hole[..., height // 3 : height // 2, width // 4 : width // 2] = 1
    return image, tokens, mask, hole
