from __future__ import annotations

from pathlib import Path

import pytest

from mie.questions.store import QuestionSet
from tests.questions.tiny import write_tiny


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> QuestionSet:
    return write_tiny(Path(tmp_path_factory.mktemp("questions")) / "tiny")
