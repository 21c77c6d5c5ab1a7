"""A small dataset to run editors over, and editors that a test can steer."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from mie.datasets.build import build
from mie.datasets.recipe import parse_recipe
from mie.editors import EDITORS
from tests.conftest import folder_source, write_folder


def make_dataset(folder: Path, count: int, size: int = 96) -> Path:
    root = write_folder(folder / "source", count, patients=count, size=size)
    recipe = {"name": "discs", "seed": 3, "sources": [folder_source(root)], "split": {"test": 0.4}}
    build(parse_recipe(recipe, where="t", base=Path()), folder / "dataset", workers=1)
    return folder / "dataset"


@pytest.fixture(scope="session")
def dataset(tmp_path_factory) -> Path:
    return make_dataset(tmp_path_factory.mktemp("running"), 40)


@pytest.fixture
def use(monkeypatch):
    """`use(kind)` makes the class known as the editor `test`."""

    def known(kind):
        monkeypatch.setitem(EDITORS.targets, "test", f"{__name__}:_current")
        monkeypatch.setattr(f"{__name__}._current", kind, raising=False)
        return "test"

    return known


_current: type | None = None


def outputs(run: Path) -> dict[str, str]:
    """Every output's name and bytes."""
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in (run / "outputs").iterdir()}
