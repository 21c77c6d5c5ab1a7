"""What the loop needs of a thing to train it, and the trainees by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, Protocol, cast

import torch
from torch import Tensor, nn

from mie.core.registry import Registry, load_target
from mie.errors import ConfigError
from mie.records import Pixels
from mie.training.config import TrainConfig


class Trainee(Protocol):
    """What is trained. Inherit from it: `check`, `prepare` and `grid` have defaults.

    Everything random is a function of (seed, step), so that a resumed run repeats nothing and skips nothing.
    The loop seeds torch, NumPy's and Python's global generators before each `loss`. `batch` runs in another
    thread, ahead of time, and must draw from a generator of its own, made from
    `batches.step_seed(config.seed, step, rank)`.
    """

    score: str  # the validation figure that chooses the best checkpoint; higher is better
    slower: Mapping[str, float] = {}  # prefix of a parameter's name -> its share of the learning rate
    flops_per_image: float | None = None  # forward and backward, for the TFLOP/s of `--profile`
    reads: str = "packs"  # or "datasets": what `data` names
    product: str = "weights.safetensors"  # what `save` writes into the folder: a file, or a folder
    # Losses are shares of the step's: they add up over micro-batches and processes, and the batches of all
    # processes together do not depend on how many there are.
    shares: bool = False
    sharded: bool = False  # several processes share the parameters of `blocks` (FSDP)
    # Tells the progress bar what `prepare` is doing; the loop sets it.
    notify: Callable[[str], None] = staticmethod(lambda note: None)

    def __init__(self, config: TrainConfig) -> None: ...

    def check(self) -> Mapping[str, Any]:
        """Called before a GPU is touched: raise when the data cannot be used.

        What is returned (digests of the data, as JSON) is kept in `train.json`; a run resumes only while it
        stays the same.
        """
        return {}

    def prepare(self, device: torch.device) -> None:
        """Read the data; called once, after `check`, before `model`."""
        return

    def model(self) -> nn.Module:
        """On the CPU, float32, freshly initialised. The loop has seeded torch with the config's seed."""
        ...

    def batch(self, step: int, rank: int, world: int) -> Any:
        """The images of process `rank` of `world` at a step from 0: `config.batch // world` of them.

        CPU or device tensors in tuples, lists, dicts or dataclasses; the loop moves them to the device.
        """
        ...

    def blocks(self, model: nn.Module) -> Sequence[nn.Module]:
        """The parts of a large model that are compiled, and shared out, one by one."""
        return ()

    def split(self, batch: Any) -> Sequence[Any]:
        """The micro-batches of a batch: each is given to `loss`, and the gradients add up."""
        return (batch,)

    def flops(self, batch: Any) -> float | None:
        """Operations of forward and backward pass over a batch, where they are known."""
        return None

    def loss(self, model: nn.Module, batch: Any, step: int) -> tuple[Tensor, dict[str, Tensor]]:
        """The loss to descend, and scalars to log. No `.item()` here: it would stall the GPU.

        Only the model runs in bf16. What it returns is float32 again in tensors, tuples and dicts; in a
        dataclass it stays bf16: call `.float()` before a loss.
        """
        ...

    def validate(self, model: nn.Module) -> dict[str, float | None]:
        """Figures of the averaged weights, without gradients, in eval mode; None is unscored. Rank 0 only."""
        ...

    def grid(self, model: nn.Module) -> Pixels | None:
        """Input | output | reference, `(H, W, 3)` uint8, to look at after each validation."""
        return None

    def editor(self, product: Path) -> str | None:
        """The spec of the editor that runs what was trained; None for what does not edit."""
        return None

    def save(self, model: nn.Module, path: Path, facts: Mapping[str, Any]) -> None:
        """Write the shippable file. `facts`: step, config, validation figures, versions."""
        ...


def _problem(thing: Any) -> str | None:
    """Return what is wrong with a class that should be a trainee, or None."""
    missing = [name for name in ("model", "batch", "loss", "validate", "save") if not hasattr(thing, name)]
    if isinstance(thing, type) and not missing:
        return None
    lacks = f"; this one has no {', '.join(missing)}" if missing else ""
    return f"a class that inherits mie.training.trainee.Trainee{lacks}"


TRAINEES: Final[Registry[type[Trainee]]] = Registry(
    "trainee",
    {
        "compact": "mie.training.compact:Compact",
        "diffusers-lora": "mie.training.diffusers_lora:DiffusersLora",
        "flow": "mie.training.flow:Flow",
        "forensic": "mie.training.forensic:Forensic",
        "flux-fill-lora": "mie.training.flux_lora:FluxFillLora",
        "inpainter": "mie.training.inpainter:Inpainter",
        "judge-lora": "mie.training.judge_lora:JudgeLora",
        "omnigen2": "mie.training.omnigen2:OmniGen2",
        "region": "mie.training.region:Region",
        "segmenter": "mie.training.segmenter:Segmenter",
    },
    group="mie.trainees",
    check=_problem,
    hint="name your own class as module:Class",
)


def make_trainee(config: TrainConfig) -> Trainee:
    """Make the trainee that the config names."""
    return trainee_class(config.trainee)(config)


def trainee_class(name: str) -> type[Trainee]:
    """Import the class behind a name of the registry, or `module:Class`."""
    if ":" not in name:
        return TRAINEES[name]
    try:
        thing = load_target(name)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"trainee {name!r} cannot be imported", where=name, found=error) from error
    if (problem := _problem(thing)) is not None:
        raise ConfigError(f"{name!r} is not a trainee", where=name, expected=problem)
    return cast("type[Trainee]", thing)
