"""The command that installs a missing part fits where this copy of mie came from."""

from __future__ import annotations

import json
from importlib.metadata import PackageNotFoundError

import pytest

from mie.core import environment


@pytest.mark.parametrize(
    ("origin", "expected"),
    [
        (None, "pip install 'mie[models]'"),
        ({"url": "file:///a%20b/mie", "dir_info": {"editable": True}}, "pip install -e '/a b/mie[models]'"),
        ({"url": "file:///src/mie", "dir_info": {}}, "pip install '/src/mie[models]'"),
        (
            {"url": "https://example.org/mie.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'mie[models] @ git+https://example.org/mie.git@abc'",
        ),
        (
            {"url": "file:///w/mie-0.1.0-py3-none-any.whl", "archive_info": {}},
            "pip install 'mie[models] @ file:///w/mie-0.1.0-py3-none-any.whl'",
        ),
    ],
)
def test_the_hint_names_where_mie_came_from(monkeypatch, origin, expected):
    class Distribution:
        def read_text(self, name):
            assert name == "direct_url.json"
            return None if origin is None else json.dumps(origin)

    monkeypatch.setattr(environment, "distribution", lambda name: Distribution())
    assert environment.install_hint("models") == f"run `{expected}`"


def test_a_source_folder_on_the_path_is_named(monkeypatch):
    def absent(name):
        raise PackageNotFoundError(name)

    monkeypatch.setattr(environment, "distribution", absent)
    assert "-e '" in environment.install_hint("models")
