"""File-name patterns with named places: `images/{patient}_z{slice}.png` <-> `masks/{patient}_z{slice}.png`.

`{name}` matches one or more characters other than `/`; `{name:regex}` says which. `*` matches within one
folder level and is not remembered. What the image pattern captures fills the mask pattern, so a suffix on
either side is plain text. `{patient}` and `{split}`, where present, are the data set's own.
"""

from __future__ import annotations

import os
import re
import warnings
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from mie.errors import ConfigError, MieError
from mie.records import Rejection

# Python's own parser of regular expressions: `re` offers it under no other name.
_parser: Any = re._parser  # type: ignore[attr-defined]
_constants: Any = re._constants  # type: ignore[attr-defined]
_REPEATS = (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT)
_LONGEST_EXPRESSION = 1000
_MOST_REPEATS = 6
_PLACE = re.compile(r"[a-z_][a-z0-9_]*")


@lru_cache(maxsize=1024)
def _tokens(pattern: str) -> tuple[tuple[str, str], ...]:
    """(kind, text) pairs: literal text, "star", or a place with its regular expression."""
    tokens: list[tuple[str, str]] = []
    at = 0
    while at < len(pattern):
        char = pattern[at]
        if char == "*":
            tokens.append(("*", ""))
            at += 1
        elif char == "{":
            depth, end = 1, at + 1
            while end < len(pattern) and depth:
                depth += {"{": 1, "}": -1}.get(pattern[end], 0)
                end += 1
            name, _, expression = pattern[at + 1 : end - 1].partition(":")
            if depth or not _PLACE.fullmatch(name):
                raise ConfigError(
                    "bad place in a file pattern",
                    where=pattern,
                    expected="{name} or {name:regular expression}",
                    found=pattern[at:end],
                )
            if expression:
                check_expression(expression, pattern)
            tokens.append((name, expression or "[^/]+?"))
            at = end
        else:
            end = at
            while end < len(pattern) and pattern[end] not in "*{":
                end += 1
            tokens.append(("", pattern[at:end]))
            at = end
    return tuple(tokens)


def check_expression(expression: str, where: str) -> str:
    """The regular expression itself, if no name can make it search for hours.

    Python's matcher tries every way to cut a text. The ways are exponentially many where something that is
    repeated has repetitions or alternatives of its own, as in `(a+)+` and `(a|ab)*`.
    """
    if len(expression) > _LONGEST_EXPRESSION:
        raise ConfigError("the regular expression is too long", where=where, found=len(expression))
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = _parser.parse(expression)
    except (re.error, RecursionError, OverflowError) as error:
        raise ConfigError("bad regular expression", where=where, found=error) from None
    if _is_ambiguous(tree, repeated=False) or _repeats(tree) > _MOST_REPEATS:
        raise ConfigError(
            "the regular expression could search for hours",
            where=where,
            expected=f"at most {_MOST_REPEATS} repetitions, with no repetition or alternative inside another",
            found=expression,
            fix="write it with character classes, as [a-z0-9]+",
        )
    return expression


def _parts(argument: Any) -> Iterator[Any]:
    """The patterns inside a parsed node's argument."""
    if isinstance(argument, _parser.SubPattern):
        yield argument
    elif isinstance(argument, list | tuple):
        for item in argument:
            yield from _parts(item)


def _varies(operation: Any, argument: Any) -> bool:
    """Whether this matches texts of several lengths by repeating something; `a?` does so too."""
    return operation in _REPEATS and argument[0] != argument[1]


def _is_ambiguous(tree: Any, *, repeated: bool) -> bool:
    for operation, argument in tree:
        if repeated and (_varies(operation, argument) or operation == _constants.BRANCH):
            return True
        again = operation in _REPEATS and argument[1] > 1
        if any(_is_ambiguous(part, repeated=repeated or again) for part in _parts(argument)):
            return True
    return False


def _repeats(tree: Any) -> int:
    return sum(
        _varies(operation, argument) + sum(_repeats(part) for part in _parts(argument))
        for operation, argument in tree
    )


def check(pattern: str) -> str:
    """The pattern itself, if it is well formed and stays inside its root."""
    literal = "".join(text if kind == "" else "x" for kind, text in _tokens(pattern))
    if literal.startswith("/") or ".." in literal.split("/") or "\\" in literal or literal[1:2] == ":":
        raise ConfigError(
            "a file pattern must stay inside the data set's folder",
            where=pattern,
            expected="a relative pattern without '..', such as images/{id}.png",
        )
    compiled(pattern)
    return pattern


@lru_cache(maxsize=1024)
def compiled(pattern: str, known: tuple[tuple[str, str], ...] = ()) -> re.Pattern[str]:
    """A regular expression over relative POSIX paths; places in `known` must have that text."""
    fixed = dict(known)
    seen: set[str] = set()
    out = []
    for kind, text in _tokens(pattern):
        if kind == "":
            out.append(re.escape(text))
        elif kind == "*":
            out.append("[^/]*")
        elif kind in fixed:
            out.append(re.escape(fixed[kind]))
        elif kind in seen:
            out.append(f"(?P={kind})")
        else:
            seen.add(kind)
            out.append(f"(?P<{kind}>{text})")
    try:
        return re.compile("".join(out))
    except re.error as error:
        raise ConfigError("bad regular expression in a file pattern", where=pattern, found=error) from None


def places(pattern: str) -> list[str]:
    return list(dict.fromkeys(kind for kind, _ in _tokens(pattern) if kind not in ("", "*")))


def fixed_folder(pattern: str) -> str:
    """The leading folders without places or stars: where a listing has to start."""
    parts = pattern.split("/")[:-1]
    literal: list[str] = []
    for part in parts:
        if "{" in part or "*" in part:
            break
        literal.append(part)
    return "/".join(literal)


class Listing:
    """The regular files below a root, listed once per folder, sorted; links out of the root are refused."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self._real_root = Path(os.path.realpath(root))
        self._folders: dict[str, list[str]] = {}
        self._odd: dict[str, str] = {}  # what is no file for us, and why
        self._inside: set[str] = set()  # folders whose real place has been looked at

    def under(self, folder: str) -> list[str]:
        if folder not in self._folders:
            self._folders[folder] = sorted(self._walk(folder))
        return self._folders[folder]

    def _walk(self, folder: str) -> Iterator[str]:
        folders = [folder + "/" if folder else ""]
        while folders:
            prefix = folders.pop()
            try:
                entries = list(os.scandir(self.root / prefix))
            except OSError:  # absent, or not ours to read: no file in it matches
                continue
            for entry in entries:
                path = prefix + entry.name
                if not _is_utf8(path):
                    self._odd[os.fsencode(path).decode(errors="backslashreplace")] = (
                        "the file's name is not UTF-8"
                    )
                elif entry.is_dir(follow_symlinks=False):
                    folders.append(path + "/")
                elif entry.is_file():
                    yield path
                elif not entry.is_dir():  # a pipe or a device must never be opened, a dangling link cannot be
                    self._odd[path] = "not a regular file"

    def odd(self, source: str) -> list[Rejection]:
        """What is below the folders that were listed and is no file for us."""
        return [Rejection(source, path, "source", reason) for path, reason in sorted(self._odd.items())]

    def matches(self, pattern: str, **known: str) -> list[tuple[str, dict[str, str]]]:
        """(relative path, captured places) of every file that fits, in sorted order."""
        expression = compiled(pattern, tuple(sorted(known.items())))
        found = []
        for path in self.under(fixed_folder(pattern)):
            match = expression.fullmatch(path)
            if match:
                found.append((path, match.groupdict()))
        return found

    def inside(self, relative: str) -> Path:
        """The absolute path, refused when it (or a link on the way) leaves the root."""
        path = self.root / relative
        folder, _, name = relative.rpartition("/")
        plain = name != ".." and not path.is_symlink()
        if plain and folder in self._inside:
            return path
        real = Path(os.path.realpath(path))
        if real != self._real_root and self._real_root not in real.parents:
            raise MieError(
                "path leaves its data set's folder",
                where=relative,
                expected=f"a file inside {self.root}",
                found=real,
                fix="copy the file into the folder instead of linking to it",
            )
        if plain:
            self._inside.add(folder)
        return path


def _is_utf8(path: str) -> bool:
    try:
        path.encode()
    except UnicodeEncodeError:
        return False
    return True


class Companions:
    """The files of one pattern, found by what the image's pattern captured, without a search per image."""

    def __init__(self, listing: Listing, pattern: str, image_places: Iterable[str]) -> None:
        self.pattern = pattern
        self._shared = [place for place in places(pattern) if place in set(image_places)]
        self._exact = len(self._shared) == len(places(pattern)) and "*" not in pattern
        self._by_places: dict[tuple[str, ...], list[str]] = defaultdict(list)
        self.paths = []
        for path, found in listing.matches(pattern):
            self.paths.append(path)
            self._by_places[tuple(found[place] for place in self._shared)].append(path)
        self._known = set(self.paths)

    def of(self, captured: Mapping[str, str]) -> tuple[str, ...]:
        if self._exact:
            path = self.expected(captured)
            return (path,) if path in self._known else ()
        paths = self._by_places.get(tuple(captured[place] for place in self._shared), [])
        if not paths:
            # Left alone, "{id}_{part}" cuts "a_b_liver" at the first "_"; told that id is "a_b", it does not.
            expression = compiled(self.pattern, tuple((place, captured[place]) for place in self._shared))
            paths = [path for path in self.paths if expression.fullmatch(path)]
        return tuple(paths)

    def expected(self, captured: Mapping[str, str]) -> str:
        """The path that is looked for, as far as the image's name says it."""
        parts = []
        for kind, text in _tokens(self.pattern):
            star_or_place = "*" if kind == "*" else captured.get(kind, f"{{{kind}}}")
            parts.append(text if kind == "" else star_or_place)
        return "".join(parts)
