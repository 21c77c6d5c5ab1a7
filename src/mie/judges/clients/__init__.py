"""Judges by name: `openai:MODEL`, `gemini:MODEL`, `anthropic:MODEL`, `replay:FILE`, `local:FOLDER`.

Other packages add theirs in the entry-point group `mie.judges`: a class with what `contracts.Client` asks.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final, cast

from mie.errors import ConfigError
from mie.judges.contracts import Client
from mie.spec import Spec, construct, parse_spec
from mie.vocabulary import nearest_name

GROUP: Final = "mie.judges"
_OURS: Final = {
    "openai": "mie.judges.clients.openai:OpenAI",
    "gemini": "mie.judges.clients.openai:Gemini",
    "anthropic": "mie.judges.clients.openai:Anthropic",
    "replay": "mie.judges.clients.replay:Replay",
    "local": "mie.judges.clients.local:Local",
}


def open_client(spec: str | Spec) -> Client:
    """The client of a spec such as `openai:gpt-4o,base_url=http://127.0.0.1:8000/v1`."""
    spec = parse_spec(spec, noun="judge") if isinstance(spec, str) else spec
    return cast(Client, construct(client_class(spec.name), spec, noun="judge"))


def client_class(name: str) -> type[Any]:
    """The class behind a name, imported now."""
    if name in _OURS:
        module, _, attribute = _OURS[name].partition(":")
        return cast("type[Any]", getattr(import_module(module), attribute))
    plugins = _plugins()
    if name not in plugins:
        known = sorted({*_OURS, *plugins})
        near = nearest_name(name, known)
        raise ConfigError(
            f"no judge named {name!r}",
            expected=", ".join(known),
            fix=f"did you mean {near!r}?" if near else "write openai:MODEL for a model behind an API",
        )
    return cast("type[Any]", plugins[name].load())


def _plugins() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=GROUP) if point.name not in _OURS}
