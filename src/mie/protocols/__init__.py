"""The benchmarks: which samples, which numbers, how they add up.

Another package adds one with an entry point of the group `mie.protocols`: its name, and the `module:function`
of a `score_run(run_folder, *, variant, workers, progress, judge) -> document`; `judge` is only given where
the user names one.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from mie.errors import ConfigError
from mie.vocabulary import nearest_name

if TYPE_CHECKING:
    from mie.judges.contracts import JudgeOptions

# Imported when asked for: a protocol brings its kernels along.
_OURS: Final = {
    "miedb": "mie.protocols.miedb:score_run",
    "medebench": "mie.protocols.medebench.score:score_run",
    "imgedit": "mie.protocols.imgedit.score:score_run",
    "omni-iie": "mie.protocols.omni_iie.score:score_run",
}
VARIANTS: Final = ("paper", "as_released")


class ScoreRun(Protocol):
    """Scores a run's folder and returns the document that `mie score --json` prints."""

    def __call__(
        self,
        run_folder: Path | str,
        *,
        variant: str = "paper",
        workers: int | None = None,
        progress: Callable[[int, int], None] | None = None,
        judge: JudgeOptions | None = None,
    ) -> dict[str, Any]: ...


def protocol_names() -> list[str]:
    """Our protocols and those that other packages brought."""
    return sorted({*_OURS, *_plugins()})


def find_protocol(name: str) -> ScoreRun:
    """The protocol's `score_run`; a name that nobody knows is answered with the nearest one."""
    if name in _OURS:
        module, _, attribute = _OURS[name].partition(":")
        found: ScoreRun = getattr(import_module(module), attribute)
        return found
    plugin = _plugins().get(name)
    if plugin is None:
        known = protocol_names()
        near = nearest_name(name, known)
        raise ConfigError(
            f"no protocol named {name!r}",
            expected=", ".join(known),
            fix=f"did you mean {near!r}?" if near else None,
        )
    loaded: ScoreRun = plugin.load()
    return loaded


def score(
    run_folder: Path | str,
    protocol: str = "miedb",
    *,
    variant: str = "paper",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    judge: JudgeOptions | str | None = None,
) -> dict[str, Any]:
    """Score a run by a protocol's name; the document is the one that `mie score --json` prints.

    `judge` is a spec such as `openai:gpt-4o`, or `JudgeOptions` with more to say.
    """
    asked = {} if judge is None else {"judge": _options(judge)}
    return find_protocol(protocol)(run_folder, variant=variant, workers=workers, progress=progress, **asked)


def _options(judge: JudgeOptions | str) -> JudgeOptions:
    from mie.judges.contracts import JudgeOptions  # brings the image kernels along

    return JudgeOptions(judge) if isinstance(judge, str) else judge


def check_variant(variant: str) -> None:
    """`ConfigError` for a variant that no protocol has."""
    if variant not in VARIANTS:
        near = nearest_name(variant, VARIANTS)
        raise ConfigError(
            f"no variant named {variant!r}",
            expected=", ".join(VARIANTS),
            fix=f"did you mean {near!r}?" if near else None,
        )


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group="mie.protocols")}
