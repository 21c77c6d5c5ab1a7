"""YAML files that people write: one mapping each, and no key given twice."""

from __future__ import annotations

import os
import re
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final

import yaml

from mie.errors import ConfigError

_LONGEST: Final = 1 << 20
_MERGE: Final = "tag:yaml.org,2002:merge"  # merges of merges double with every level
_MOST_VALUES: Final = 100_000
_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def read_mapping(path: Path, noun: str, *, expected: str) -> dict[Any, Any]:
    """What the file says. `noun` names it in errors ("recipe"); `expected` shows how one begins."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {noun}", where=path, found=error) from None
    if len(text) > _LONGEST:
        raise ConfigError(f"the {noun} is too long", where=path, expected=f"at most {_LONGEST} characters")
    try:
        body = _UniqueKeys(text).get_single_data()
    # A number, a date or a nesting that Python cannot hold is no YAMLError.
    except (yaml.YAMLError, ValueError, OverflowError, RecursionError) as error:
        raise ConfigError(f"the {noun} is not valid YAML", where=path, found=error) from None
    if not isinstance(body, dict):
        raise ConfigError(f"the {noun} is not a mapping", where=path, expected=expected)
    if _is_endless(body):
        raise ConfigError(
            f"the {noun} is too large once its aliases are followed",
            where=path,
            expected=f"at most {_MOST_VALUES} values",
        )
    return body


def _is_endless(body: Any) -> bool:
    """Whether the values, counted once for each alias that leads to them, are too many: or without end."""
    values, count = [body], 0
    while values:
        value = values.pop()
        count += 1
        if count + len(values) > _MOST_VALUES:
            return True
        if isinstance(value, dict):
            values += value.values()
        elif isinstance(value, list):
            values += value
    return False


def expanded(value: Any, where: str) -> Any:
    """A value in which `${NAME}` in every string is the environment's."""
    if isinstance(value, dict):
        return {key: expanded(item, where) for key, item in value.items()}
    if isinstance(value, list):
        return [expanded(item, where) for item in value]
    return _VARIABLE.sub(lambda match: _variable(match, where), value) if isinstance(value, str) else value


def _variable(match: re.Match[str], where: str) -> str:
    name = match[1]
    if name not in os.environ:
        raise ConfigError(
            f"the environment variable {name} is not set",
            where=where,
            found=match.string,
            fix=f"run `export {name}=...` first",
        )
    return os.environ[name]


# libyaml's parser where PyYAML was built with it: the same documents, ten times as fast.
_SafeLoader: Final[type[yaml.SafeLoader]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class _UniqueKeys(_SafeLoader):  # type: ignore[misc, valid-type]
    """SafeLoader that refuses a key given twice instead of keeping the last."""


def _mapping(loader: _UniqueKeys, node: yaml.MappingNode) -> dict[Any, Any]:
    if any(key.tag == _MERGE for key, _ in node.value):
        problem = "`<<` is not read here: repeat the keys"
        raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
    keys = [loader.construct_object(key) for key, _ in node.value]
    seen = set()
    for key in keys:
        if isinstance(key, Hashable) and key in seen:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} given twice", node.start_mark)
        if isinstance(key, Hashable):  # what is not is refused below
            seen.add(key)
    return loader.construct_mapping(node, deep=True)


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
