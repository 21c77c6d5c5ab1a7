"""YAML files that people write: one mapping each, and no key given twice."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Final

import yaml

from mie.errors import ConfigError

_VARIABLE: Final = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}")


def read_mapping(path: Path, noun: str, *, expected: str) -> dict[Any, Any]:
    """What the file says. `noun` names it in errors ("recipe"); `expected` shows how one begins."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the {noun}", where=path, found=error) from None
    try:
        body = _UniqueKeys(text).get_single_data()
    except yaml.YAMLError as error:
        raise ConfigError(f"the {noun} is not valid YAML", where=path, found=error) from None
    if not isinstance(body, dict):
        raise ConfigError(f"the {noun} is not a mapping", where=path, expected=expected)
    return body


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
    keys = [loader.construct_object(key) for key, _ in node.value]
    for key in keys:
        if keys.count(key) > 1:
            raise yaml.constructor.ConstructorError(None, None, f"key {key!r} given twice", node.start_mark)
    return loader.construct_mapping(node, deep=True)


_UniqueKeys.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, _mapping)
