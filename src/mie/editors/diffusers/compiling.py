"""The option `compile=true`: torch compiles the blocks that a network repeats, and the rest stays as it is.

One compilation serves all blocks of a class. The first edit, and one of another size, waits for it. The
pixels may differ from those of the same model without it by rounding; the option is part of a run's identity.
"""

from __future__ import annotations

import importlib.util
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from mie.editors.base import StopRunError
from mie.errors import ConfigError

BACKEND: Final = "inductor"


def check_compiler(device: str) -> None:
    """`ConfigError` where torch could not compile for the device: without Triton, or a C++ compiler."""
    if device.startswith("cuda"):
        if importlib.util.find_spec("triton") is None:
            raise _unavailable("Triton, which comes with torch for CUDA on Linux", "no package triton")
    elif not any(shutil.which(name) for name in ("c++", "g++", "clang++")):
        raise _unavailable("a C++ compiler", "neither c++ nor g++ nor clang++")


def _unavailable(expected: str, found: str) -> ConfigError:
    return ConfigError(
        "compile=true does not work here", expected=expected, found=found, fix="leave out compile=true"
    )


def compile_blocks(network: Any, blocks: Sequence[str]) -> None:
    """Compile the modules of the classes `blocks` in place, the network as a whole where it has none."""
    found = [module for module in network.modules() if type(module).__name__ in blocks]
    for module in found or [network]:
        module.compile(backend=BACKEND)


@contextmanager
def compiler_errors(compiled: bool) -> Iterator[None]:
    """End the run where torch fails to compile: every edit would fail in the same way."""
    try:
        yield
    except Exception as error:
        if compiled and _by_the_compiler(error):
            raise StopRunError(
                "torch cannot compile this model here",
                found=f"{type(error).__name__}: {' '.join(str(error).split())}"[:300],
                fix="run the same command without compile=true, into another folder",
            ) from error
        raise


def _by_the_compiler(error: Exception) -> bool:
    import torch

    return isinstance(error, torch._dynamo.exc.TorchDynamoException)
