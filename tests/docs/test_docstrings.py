"""Examples in docstrings print what they say."""

from __future__ import annotations

import doctest
from pathlib import Path

import pytest

from tests.docs.pages import ROOT

SOURCE = ROOT / "src"
FILES = [path for path in sorted(SOURCE.rglob("*.py")) if ">>> " in path.read_text(encoding="utf-8")]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(SOURCE).as_posix())
def test_examples_of_docstrings(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    name = ".".join(path.relative_to(SOURCE).with_suffix("").parts).removesuffix(".__init__")
    module = pytest.importorskip(name, exc_type=ImportError)
    outcome = doctest.testmod(module)
    assert outcome.attempted
    assert not outcome.failed, "see above what was expected and found"
