"""A line of `edits.jsonl` says that its output is safe: the file and its name are synced before it."""

import os

import pytest

from mie.core.journal import Journal
from mie.editors import pipeline
from mie.editors.run import run_editor
from mie.editors.runs import read_edits
from tests.scoring.benchmarks.runs import structure, write_samples


@pytest.fixture
def synced(monkeypatch):
    """The inodes of everything that was synced so far."""
    inodes = set()
    real = os.fsync

    def fsync(handle):
        real(handle)
        inodes.add(os.fstat(handle).st_ino)

    monkeypatch.setattr(os, "fsync", fsync)
    return inodes


@pytest.mark.parametrize("group", [1, 64])
def test_outputs_are_synced_before_their_lines(tmp_path, monkeypatch, synced, group):
    dataset = write_samples([structure(f"{n:04x}", n) for n in range(6)], tmp_path / "dataset")
    monkeypatch.setattr(pipeline, "_GROUP", group)
    run = tmp_path / "run"
    lines = []
    real = Journal.append

    def append(journal, data):
        # A hidden file is one that is being written, and may be renamed at any moment.
        names = {path.name: path.stat().st_ino for path in (run / "outputs").glob("[!.]*")}
        for line in data.splitlines():
            lines.append(line)
            edit = read_line(tmp_path, line)
            assert names[edit.path.removeprefix("outputs/")] in synced, "the file's content"
        assert (run / "outputs").stat().st_ino in synced, "the file's name"
        synced.discard((run / "outputs").stat().st_ino)  # the next lines need a sync of their own
        real(journal, data)

    monkeypatch.setattr(Journal, "append", append)
    run_editor(dataset.folder, "identity", run)
    assert len(lines) == 6


def read_line(folder, line):
    path = folder / "line.jsonl"
    path.write_bytes(line + b"\n")
    (edit,) = read_edits(path).values()
    return edit
