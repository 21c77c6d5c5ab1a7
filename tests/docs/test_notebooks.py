"""The notebooks do what they show. `python -m tests.docs.test_notebooks` executes and stores them again."""

from __future__ import annotations

import re
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import ROOT, environment

nbformat = pytest.importorskip("nbformat", reason="notebooks need the extra dev")
nbclient = pytest.importorskip("nbclient", reason="notebooks need the extra dev")

NOTEBOOKS = sorted((ROOT / "docs").rglob("*.ipynb"))
_LIMIT = 300_000  # bytes: notebooks are cloned with the code


def execute(path: Path, folder: Path) -> Any:
    """The notebook with the outputs that it has when it runs in `folder`, without what goes to stderr."""
    notebook = nbformat.read(path, as_version=4)
    client = nbclient.NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(folder)}}
    )
    client.execute(env=environment(folder))
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
        if cell.cell_type == "code":
            cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    return notebook


def texts(notebook: Any) -> list[list[str]]:
    """What each code cell prints or shows as text; figures are compared by eye."""
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    return [
        [out.get("text") or out.get("data", {}).get("text/plain", "") for out in cell.outputs]
        for cell in cells
    ]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_stored_outputs_are_those_of_the_code(path: Path, tmp_path: Path, samples: Path) -> None:
    assert texts(execute(path, tmp_path)) == texts(nbformat.read(path, as_version=4))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_stored_notebooks_are_small_and_clean(path: Path) -> None:
    assert path.stat().st_size < _LIMIT
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    outputs = [out for cell in notebook.cells if cell.cell_type == "code" for out in cell.outputs]
    assert outputs
    assert [out for out in outputs if out.output_type == "error" or out.get("name") == "stderr"] == []
    shown = "".join(text for cell in texts(notebook) for text in cell)
    assert not re.search(r"(^|[\s'\"(])/(home|root|tmp|Users)\b", shown), "a path of one machine"


def test_there_are_two_notebooks() -> None:
    assert [path.stem for path in NOTEBOOKS] == ["evaluate_my_model", "first_dataset"]


if __name__ == "__main__":
    for notebook_path in [Path(name) for name in sys.argv[1:]] or NOTEBOOKS:
        with tempfile.TemporaryDirectory() as empty:
            nbformat.write(execute(notebook_path, Path(empty)), notebook_path)
