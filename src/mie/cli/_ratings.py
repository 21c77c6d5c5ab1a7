"""Where people's ratings come from: a review's database, its exports, or any file of ratings."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mie.errors import ConfigError

if TYPE_CHECKING:
    from mie.analysis.human import Rating


def read(place: str) -> list[Rating]:
    """All of them, whatever they are about."""
    path = Path(place)
    if path.suffix.lower() == ".csv" or (path.suffix.lower() == ".jsonl" and not _is_export(path)):
        from mie.analysis.human import read_ratings

        return read_ratings(path)
    try:
        from mie.review.export import ratings_in, ratings_of
    except ModuleNotFoundError as error:
        raise ConfigError(f"a review's answers need {error.name}", fix="pip install 'mie[review]'") from None
    return ratings_in(path) if path.suffix.lower() == ".jsonl" else ratings_of(place)


def _is_export(path: Path) -> bool:
    """Whether the JSON lines are those of a review: an answer each, not a number each."""
    if not path.is_file():
        return False
    with path.open(encoding="utf-8", errors="replace") as file:
        first = file.readline()
    return '"answer"' in first and '"item_version"' in first
