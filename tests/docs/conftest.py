"""Sample images and the dataset that most pages begin with."""

from __future__ import annotations

from pathlib import Path

import pytest

import mie
from mie.core.files import cache_folder
from mie.errors import MieError
from mie.sources.samples import samples_root
from tests import forked_python
from tests.docs.pages import ROOT


@pytest.fixture(scope="session")
def samples() -> Path:
    """The cache that holds the sample images, the user's own so that they are fetched once."""
    try:
        samples_root()
    except MieError as error:
        if not error.what.startswith("cannot get"):
            raise  # a wrong checksum or a broken archive is a failure
        pytest.skip(f"sample images are neither cached nor reachable: {error.what}; {error.found}")
    return cache_folder().resolve()


@pytest.fixture(scope="session")
def quickstart(samples: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset of `examples/quickstart.yaml`."""
    folder = tmp_path_factory.mktemp("tour") / "quickstart"
    mie.build(ROOT / "examples/quickstart.yaml", folder, workers=1)
    return folder


@pytest.fixture(scope="session")
def forked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with commands `mie` and `python` that start quickly."""
    return forked_python.install(tmp_path_factory.mktemp("forked"))
