"""Names to things: our own by `"module:attribute"`, those of installed packages by entry point.

Nothing is imported before it is asked for, so a long list of names costs nothing. A name that nobody knows is
answered with the nearest one.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from mie.core.environment import install_hint
from mie.errors import ConfigError

T = TypeVar("T")

# How alike two names must be (`difflib`'s ratio) for one to be suggested for the other.
_ALIKE: Final = 0.6


class Registry(Generic[T]):
    """Things of one kind by name.

    Args:
        noun: What messages call one of them: "editor".
        targets: Our own, name to `"module:attribute"`. A script may add an object itself.
        group: The entry-point group in which other packages offer theirs. Our names win.
        check: Says what is wrong with an object that a package offers, or None.
        extra: The optional dependencies that our own need (`install_hint`).
        hint: What to do about an unknown name that is like no other.

    """

    def __init__(
        self,
        noun: str,
        targets: Mapping[str, str | T],
        *,
        group: str | None = None,
        check: Callable[[Any], str | None] = lambda _: None,
        extra: str = "models",
        hint: str | None = None,
    ) -> None:
        self.noun = noun
        self.targets: dict[str, str | T] = dict(targets)
        self.group = group
        self._check = check
        self._extra = extra
        self._hint = hint

    def names(self) -> list[str]:
        """Every known name, sorted."""
        return sorted({*self.targets, *self._points()})

    def __contains__(self, name: object) -> bool:
        return name in self.targets or name in self._points()

    def __iter__(self) -> Iterator[str]:
        return iter(self.names())

    def __getitem__(self, name: str) -> T:
        """The thing itself, imported now. `ConfigError` for an unknown name or one that cannot be loaded."""
        if name in self.targets:
            target = self.targets[name]
            return self._imported(name, target) if isinstance(target, str) else target
        points = self._points()
        if name not in points:
            raise unknown_name(self.noun, name, self.names(), fix=self._hint)
        return self._imported(name, points[name].value)

    def values(self) -> Iterator[T]:
        """All of them, imported now, in the order of their names."""
        return (self[name] for name in self.names())

    def _imported(self, name: str, target: str) -> T:
        try:
            thing = load_target(target)
        except ModuleNotFoundError as error:
            missing = (error.name or "").partition(".")[0]
            if missing == "mie" or name not in self.targets:
                raise ConfigError(
                    f"{self.noun} {name!r} cannot be imported", where=target, found=error
                ) from error
            raise ConfigError(
                f"{self.noun} {name!r} needs the package {missing}", fix=install_hint(self._extra)
            ) from None
        except (ImportError, AttributeError) as error:
            raise ConfigError(
                f"{self.noun} {name!r} cannot be imported", where=target, found=error
            ) from error
        wrong = self._check(thing)
        if wrong is not None:
            raise ConfigError(f"{name!r} is not {_article(self.noun)}", where=target, expected=wrong)
        return thing

    def _points(self) -> dict[str, EntryPoint]:
        if self.group is None:
            return {}
        points = entry_points(group=self.group)
        return {point.name: point for point in points if point.name not in self.targets}


def found_in(package: str, attribute: str) -> dict[str, str]:
    """The modules and folders of one of our packages that define `attribute`, as targets by their names.

    So a file or folder that is put there is known. Only their text is looked at; nothing is imported.
    """
    spec = importlib.util.find_spec(package)
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    files = {
        path.parent.name if path.name == "__init__.py" else path.stem: path
        for place in places
        for path in sorted((*place.glob("[a-z]*.py"), *place.glob("[a-z]*/__init__.py")))
    }
    defines = re.compile(rf"^{attribute}\b[^=\n]*=", re.MULTILINE)
    return {
        name: f"{package}.{name}:{attribute}"
        for name, path in files.items()
        if defines.search(path.read_text(encoding="utf-8"))
    }


def load_target(target: str) -> Any:
    """The object at `"module:attribute"`."""
    module, _, attribute = target.partition(":")
    thing: Any = importlib.import_module(module)
    for part in attribute.split("."):
        thing = getattr(thing, part)
    return thing


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """The known name that a typo or the beginning of a name most likely meant, or None.

    >>> nearest_name("perseption", ["perception", "modification"])
    'perception'
    >>> nearest_name("drive", ["chasedb1_vessel", "drive_vessel"])
    'drive_vessel'
    """
    folded = {n.casefold(): n for n in known}
    text = name.casefold()
    if text in folded:
        return folded[text]
    begin = [n for n in folded if len(text) >= 3 and n.startswith(text)]
    close = begin or difflib.get_close_matches(text, list(folded), n=1, cutoff=_ALIKE)
    return folded[min(close, key=len)] if close else None


def suggestion(name: str, known: Iterable[str]) -> str | None:
    """Return "did you mean 'x'?", or None where nothing is near."""
    near = nearest_name(name, known)
    return None if near is None else f"did you mean {near!r}?"


def unknown_name(
    noun: str, name: str, known: Iterable[str], *, where: object = None, fix: str | None = None
) -> ConfigError:
    """The error for a name that is not among `known`; `fix` is the advice where no name is near."""
    names = list(known)
    return ConfigError(
        f"no {noun} named {name!r}",
        where=where,
        expected=", ".join(names),
        fix=suggestion(name, names) or fix,
    )


def _article(noun: str) -> str:
    return f"an {noun}" if noun[0] in "aeiou" else f"a {noun}"
