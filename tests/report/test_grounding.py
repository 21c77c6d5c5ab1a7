"""Pictures of a grounding: only maps of its own folder are shown."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from mie.errors import MieError
from mie.images.png import encode_png
from mie.report.grounding import _pictures
from mie.scoring.benchmarks.medebench.grounding import LINES
from tests.scoring.benchmarks.runs import structure, write_samples


def test_a_map_outside_of_the_folder_is_not_shown(tmp_path: Path) -> None:
    dataset = write_samples([structure("a", 1)], tmp_path / "dataset")
    folder = tmp_path / "grounding"
    folder.mkdir()
    for path in (tmp_path / "secret.png", folder / "own.png"):
        path.write_bytes(encode_png(np.full((8, 8), 200, np.uint8)))
    (folder / "link.png").symlink_to(tmp_path / "secret.png")

    def pictures(name: str) -> int:
        line = {"id": "a", "map": name, "scores": {"iou": 0.5}}
        (folder / LINES).write_text("{}\n" + json.dumps(line) + "\n")
        return len(list(_pictures(dataset, folder, 4)))

    assert pictures("own.png") == 1
    for name in ("../secret.png", str(tmp_path / "secret.png"), "link.png", "absent.png"):
        with pytest.raises(MieError):
            pictures(name)
