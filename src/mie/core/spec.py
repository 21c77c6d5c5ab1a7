r"""Which editor or judge, and how: `name[:argument][,key=value]...`

The argument is taken as it stands, up to the first comma that is followed by `key=`. So a URL or a command
with commas, colons, quotes and equal signs needs nothing special:

    http:http://127.0.0.1:8000/edit?mode=a,b,timeout=30     argument http://127.0.0.1:8000/edit?mode=a,b
    command:python my.py --size=3,4 {input} {output}        the whole rest is the argument

An argument that itself holds `,key=`, and a value that holds a comma, stand in quotes: within '...' all is
literal, within "..." a quote or backslash is written \" or \\. Quotes count only when they enclose the whole
argument or value; others are part of it. An option that the editor or judge does not have is an error.
"""

from __future__ import annotations

import inspect
import math
import re
import types
import typing
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeVar

from mie.core.registry import suggestion
from mie.errors import ConfigError

T = TypeVar("T")

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_.-]*")
_OPTION: Final = re.compile(r",\s*([A-Za-z_][A-Za-z0-9_]*)=")
_QUOTED: Final = re.compile(r"'([^']*)'|\"((?:[^\"\\]|\\.)*)\"", re.DOTALL)
_SECRET_WORD: Final = r"(?:api|auth|access)?(?:key|token|secret|password|passwd|signature|sig|credentials?)"  # noqa: S105
_SECRET_NAME: Final = rf"(?<![A-Za-z])(?:[\w.-]*[_.-])?{_SECRET_WORD}"
_SECRET_VALUE: Final = r"(?:\\?'[^']*'|\\?\"[^\"]*\"|[^&#\s,'\"}]+)"  # noqa: S105
_SECRETS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"(://)[^/@\s]+(?=@)",  # the password of a URL
        # `Authorization: Bearer value`, in a header, a flag or JSON; `Bearer value` anywhere.
        r"(\bauthorization\\?['\"]?\s*[:=]\s*\\?['\"]?(?:(?:bearer|basic|token|apikey)\s+)?)[^\s'\",;\\]+",
        r"(\bbearer[\s:=]+)(?!\*)[^\s'\",;\\]+",
        rf"({_SECRET_NAME}=){_SECRET_VALUE}",  # in a query, a flag or an environment
        rf"({_SECRET_NAME}\\?['\"]?\s*:\s*){_SECRET_VALUE}",  # a header or JSON
        rf"(\s--?(?:[\w-]*[_-])?{_SECRET_WORD}\s+)(?!-){_SECRET_VALUE}",
        # What providers give out, wherever it stands.
        r"(\b)(?:sk-[\w-]{16,}|hf_\w{16,}|gh[pousr]_\w{16,}|AKIA\w{16}|AIza[\w-]{20,}|eyJ[\w-]{8,}\.[\w.-]+)",
    )
)


@dataclass(frozen=True, slots=True)
class Spec:
    """A parsed spec string; `str(spec)` is one that parses to it again."""

    name: str
    argument: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        argument = "" if self.argument is None else f":{_as_argument(self.argument)}"
        return f"{self.name}{argument}" + "".join(f",{k}={_as_value(v)}" for k, v in self.options.items())

    def masked(self) -> Spec:
        """The same with `***` where a password or key stands, fit to be stored and shown."""
        options = {
            key: "***" if re.fullmatch(_SECRET_NAME, key, re.IGNORECASE) else mask_secrets(value)
            for key, value in self.options.items()
        }
        return Spec(self.name, None if self.argument is None else mask_secrets(self.argument), options)

    def without(self, options: Collection[str]) -> Spec:
        return Spec(self.name, self.argument, {k: v for k, v in self.options.items() if k not in options})


def parse_spec(text: str, *, noun: str = "editor") -> Spec:
    """`ConfigError` for anything that is not a spec; `noun` is what the message calls it.

    >>> parse_spec("http:http://127.0.0.1:8000/edit,timeout=30")
    Spec(name='http', argument='http://127.0.0.1:8000/edit', options={'timeout': '30'})
    """
    found = _NAME.match(text)
    if found is None:
        raise _unreadable(noun, text, text)
    rest, argument = text[found.end() :], None
    if rest.startswith(":"):
        argument, rest = _argument(rest[1:])
    options: dict[str, str] = {}
    while rest:
        option = _OPTION.match(rest)
        if option is None:
            raise _unreadable(noun, text, rest)
        if option[1] in options:
            raise ConfigError(f"option {option[1]!r} stands twice", where=_shown(text))
        options[option[1]], rest = _value(rest[option.end() :])
    return Spec(found[0], argument, options)


def construct(kind: type[T], spec: Spec, *, noun: str = "editor") -> T:
    """An instance of `kind` as the spec says.

    The constructor says what may be given: its positional parameter is the argument, its keyword-only ones
    (`str`, `int`, `float` or `bool`) are the options.
    """
    argument, options = _parameters(kind)
    if spec.argument is not None and argument is None:
        raise ConfigError(f"{noun} {spec.name!r} takes no argument", found=repr(spec.masked().argument))
    if spec.argument is None and argument is not None and argument.default is inspect.Parameter.empty:
        raise ConfigError(
            f"{noun} {spec.name!r} needs an argument", expected=f"{spec.name}:{argument.name.upper()}"
        )
    values = {key: _typed(f"{noun} {spec.name!r}", key, text, options) for key, text in spec.options.items()}
    make: Callable[..., T] = kind
    return make(**values) if spec.argument is None else make(spec.argument, **values)


def _parameters(kind: type) -> tuple[inspect.Parameter | None, dict[str, Any]]:
    """The parameter that takes the argument, and each option's type."""
    found = inspect.signature(kind).parameters
    if not found:
        return None, {}
    hints = typing.get_type_hints(inspect.getattr_static(kind, "__init__"))
    places = [p for p in found.values() if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    return (
        places[0] if places else None,
        {name: hints.get(name, str) for name, p in found.items() if p.kind is p.KEYWORD_ONLY},
    )


def _typed(owner: str, key: str, text: str, options: Mapping[str, Any]) -> Any:
    if key not in options:
        raise ConfigError(
            f"{owner} has no option {key!r}",
            expected=", ".join(options) or "no options",
            fix=suggestion(key, options) or "put the whole argument in quotes if this is a part of it",
        )
    kind = options[key]
    if isinstance(kind, types.UnionType):  # `float | None`
        kind = next(part for part in kind.__args__ if part is not types.NoneType)
    try:
        if kind is bool:
            return {"true": True, "false": False}[text.lower()]
        value = kind(text)
    except (ValueError, KeyError):
        value = None
    if value is None or (isinstance(value, float) and not math.isfinite(value)):
        raise ConfigError(
            f"option {key!r} of {owner} is not usable",
            expected="true or false" if kind is bool else f"a value of type {kind.__name__}",
            found=repr(text),
        )
    return value


def mask_secrets(text: str) -> str:
    """The text with `***` in place of what looks like a password, key or token.

    >>> mask_secrets("https://me:pw@host/edit?model=a&api_key=123")
    'https://***@host/edit?model=a&api_key=***'
    """
    for pattern in _SECRETS:
        text = pattern.sub(r"\1***", text)
    return text


def _argument(text: str) -> tuple[str, str]:
    enclosed = _enclosed(text)
    if enclosed is not None:
        return enclosed
    option = _OPTION.search(text)
    end = len(text) if option is None else option.start()
    return text[:end], text[end:]


def _value(text: str) -> tuple[str, str]:
    enclosed = _enclosed(text)
    if enclosed is not None:
        return enclosed
    value, comma, rest = text.partition(",")
    return value, comma + rest


def _enclosed(text: str) -> tuple[str, str] | None:
    """What stands in quotes at the start of the text, if the quotes enclose the whole, and what follows."""
    found = _QUOTED.match(text)
    if found is None or not (found.end() == len(text) or _OPTION.match(text, found.end())):
        return None
    inner = found[1] if found[1] is not None else re.sub(r"\\([\"\\])", r"\1", found[2])
    return inner, text[found.end() :]


def _as_argument(text: str) -> str:
    return _in_quotes(text) if text[:1] in ("'", '"') or _OPTION.search(text) else text


def _as_value(text: str) -> str:
    return _in_quotes(text) if text[:1] in ("'", '"') or "," in text else text


def _in_quotes(text: str) -> str:
    escaped = re.sub(r"([\"\\])", r"\\\1", text)
    return f'"{escaped}"'


def _shown(text: str) -> str:
    return mask_secrets(text)[:200]


def _unreadable(noun: str, text: str, rest: str) -> ConfigError:
    return ConfigError(
        f"cannot read this {noun}",
        where=_shown(text),
        expected="name, or name:argument,key=value,...",
        found=repr(_shown(rest)),
        fix="put a value that holds a comma in quotes: key='a,b'",
    )
