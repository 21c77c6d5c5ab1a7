"""What `python -m bench.proof` keeps in its work folder, and when it is made again."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.proof import commands
from bench.proof.commands import CommandLine


class Maker:
    """Fills `runs/one` as a command would, and counts how often."""

    def __init__(self, work: Path) -> None:
        self.work, self.times = work, 0

    def __call__(self) -> CommandLine:
        """A new recording, which asks for the folder twice."""
        mie = CommandLine(self.work)
        for _ in range(2):
            assert mie.make("runs/one", lambda: self._fill(mie)) == "runs/one"
        return mie

    def _fill(self, mie: CommandLine) -> None:
        self.times += 1
        mie.write("runs/one/edits.jsonl", "{}\n")
        mie.write("runs/one/outputs/a.png", b"pixels")


def test_a_folder_is_reused_without_what_was_added_to_it(tmp_path: Path) -> None:
    make = Maker(tmp_path / "work")
    mie = make()
    before = mie.tree("runs/one")
    mie.write("runs/one/scores/miedb.jsonl", "{}\n")
    assert make().tree("runs/one") == before
    assert make.times == 1


@pytest.mark.parametrize("name", ["edits.jsonl", "outputs/a.png"])
def test_a_folder_whose_files_changed_is_made_again(tmp_path: Path, name: str) -> None:
    make = Maker(tmp_path / "work")
    before = make().tree("runs/one")
    (tmp_path / "work/runs/one" / name).write_bytes(b"other")
    assert make().tree("runs/one") == before
    assert make.times == 2
    (tmp_path / "work/runs/one" / name).unlink()
    assert make().tree("runs/one") == before
    assert make.times == 3


def test_other_code_makes_a_folder_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """`mie` may be another one by `PYTHONPATH`, and a weights file counts as code does."""
    package = tmp_path / "src/mie"
    (package / "weights").mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "weights/net.safetensors").write_bytes(b"1")
    spec = commands.importlib.util.spec_from_file_location("mie", package / "__init__.py")
    monkeypatch.setattr(commands.importlib.util, "find_spec", lambda _: spec)
    make = Maker(tmp_path / "work")
    make()
    make()
    assert make.times == 1
    (package / "weights/net.safetensors").write_bytes(b"2")
    make()
    assert make.times == 2


def test_what_was_not_finished_is_made_again(tmp_path: Path) -> None:
    make = Maker(tmp_path / "work")

    def fail() -> None:
        make._fill(mie)
        raise SystemExit("mie run: exit 1")

    mie = CommandLine(tmp_path / "work")
    with pytest.raises(SystemExit):
        mie.make("runs/one", fail)
    make()
    assert make.times == 2
