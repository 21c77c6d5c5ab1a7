"""Tiny pipelines on disk, each written once, and a dataset that is small enough for them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest

from mie.datasets.build import build
from mie.datasets.recipe import parse_recipe
from tests.conftest import folder_source, write_folder


@pytest.fixture(scope="session")
def tiny(tmp_path_factory) -> Callable[[str], Path]:
    """`tiny("FluxKontextPipeline")` is the folder of that pipeline with random weights."""
    from tests.editors.large.tiny_pipelines import write_pipeline

    root = tmp_path_factory.mktemp("pipelines")
    return cache(lambda name: write_pipeline(name, root / name))


@pytest.fixture(scope="session")
def small(tmp_path_factory) -> Path:
    """Three samples of 72 x 72 pixels, which only the UNets take as they are. Test images keep their size."""
    folder = tmp_path_factory.mktemp("small")
    source = folder_source(write_folder(folder / "source", 3, size=72))
    recipe = {"name": "small", "seed": 3, "sources": [source], "split": {"test": 1.0}}
    build(parse_recipe(recipe, where="t", base=Path()), folder / "dataset", workers=1)
    return folder / "dataset"
