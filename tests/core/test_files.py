import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mie.core import files
from mie.core.files import atomic_path, atomic_write, folder_lock, make_folder, refuse_foreign, write_errors
from mie.errors import MieError


def test_a_failed_write_leaves_the_old_file_and_no_litter(tmp_path):
    path = tmp_path / "a.txt"
    atomic_write(path, "old")
    with pytest.raises(RuntimeError), atomic_path(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


def test_a_full_disk_says_so(tmp_path):
    path = tmp_path / "a.txt"
    with pytest.raises(MieError, match="disk is full") as caught, atomic_path(path):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert "run the same command again" in (caught.value.fix or "")
    assert not os.listdir(tmp_path)


def test_a_file_past_the_system_limit_leaves_nothing_behind(tmp_path):
    """The kernel itself refuses the write here."""
    script = (
        "import resource, signal, pathlib, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))\n"
        "from mie.errors import MieError\n"
        "from mie.core.files import atomic_write\n"
        "try:\n"
        "    atomic_write(pathlib.Path(sys.argv[1]) / 'big', b'x' * 100_000)\n"
        "except MieError as error:\n"
        "    print(error.what)\n"
    )
    out = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], capture_output=True, text=True, check=True
    )
    assert out.stdout == "the disk is full\n"
    assert not os.listdir(tmp_path)


def test_two_processes_cannot_hold_one_folder_and_a_dead_one_lets_go(tmp_path):
    script = (
        "import sys, time, pathlib\n"
        "from mie.core.files import folder_lock\n"
        "with folder_lock(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(MieError, match="another process") as caught, folder_lock(tmp_path):
            pass
        assert str(holder.pid) in (caught.value.found or "")
    finally:
        holder.kill()
        holder.wait()
    deadline = time.monotonic() + 10
    while True:
        try:
            with folder_lock(Path(tmp_path)):
                return
        except MieError:
            assert time.monotonic() < deadline
            time.sleep(0.05)


def test_a_file_is_synced_before_it_takes_its_name_and_the_folder_after(tmp_path, monkeypatch):
    events = []
    fsync, replace = os.fsync, os.replace

    def synced(handle):
        kind = "folder" if Path(f"/proc/self/fd/{handle}").is_dir() else "file"
        events.append(kind)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", lambda a, b: (events.append("rename"), replace(a, b)))
    atomic_write(tmp_path / "a.txt", "text")
    assert events == ["file", "rename", "folder"]


@pytest.mark.parametrize(
    ("number", "message", "advice"),
    [
        (errno.ENOSPC, "the disk is full", "free some space"),
        (errno.EDQUOT, "the disk is full", "free some space"),
        (errno.EIO, "the disk has an error", "check the disk"),
        (errno.EROFS, "cannot write here", "that you may write to"),
        (errno.EACCES, "cannot write here", "that you may write to"),
        (errno.ENOTDIR, "cannot write here", "choose another folder"),
    ],
)
def test_what_a_user_can_put_right_is_said(tmp_path, number, message, advice):
    with pytest.raises(MieError, match=message) as caught, write_errors(tmp_path / "out"):
        raise OSError(number, os.strerror(number), "somewhere")
    assert caught.value.where == str(tmp_path / "out")
    assert advice in (caught.value.fix or "")


def test_other_errors_pass_and_those_of_the_disk_are_caught_while_a_folder_is_held(tmp_path):
    with pytest.raises(OSError, match="symbolic links"), write_errors(tmp_path):
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    with pytest.raises(PermissionError), folder_lock(tmp_path / "held"):  # of an input, say
        raise OSError(errno.EACCES, "Permission denied")
    with pytest.raises(MieError, match="the disk is full"), folder_lock(tmp_path / "held"):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_folder_under_a_file_is_refused(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MieError, match="cannot write here") as caught:
        make_folder(tmp_path / "file" / "deep" / "out")
    assert caught.value.found == f"a file at {tmp_path / 'file'}"
    with pytest.raises(MieError, match="cannot write here"), folder_lock(tmp_path / "file"):
        pass


def test_folders_with_other_things_in_them_are_refused(tmp_path):
    def ours(path: Path) -> bool:
        return path.name == "run.json"

    refuse_foreign(tmp_path / "absent", "a run", ours)
    for name in ("run.json", ".lock", ".run.json.12.ab.tmp"):
        (tmp_path / name).write_text("")
    refuse_foreign(tmp_path, "a run", ours)
    (tmp_path / "thesis.tex").write_text("")
    with pytest.raises(MieError, match="holds something else") as caught:
        refuse_foreign(tmp_path, "a run", ours)
    assert caught.value.found == "thesis.tex"
    assert caught.value.expected == "a new folder, or one with a run"
    with pytest.raises(MieError, match="not a folder"):
        refuse_foreign(tmp_path / "thesis.tex", "a run", ours)


def test_what_killed_writes_left_is_removed_when_the_folder_is_held(tmp_path):
    half = tmp_path / "a" / ".x.png.123.abcdef01.tmp"
    checkpoint = tmp_path / "checkpoints" / ".step-000004.77.tmp" / "model.safetensors"
    other = tmp_path / "a" / "notes.tmp"
    for path in (half, checkpoint, other):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("half")
    with folder_lock(tmp_path):
        assert sorted(p.name for p in tmp_path.rglob("*")) == [".lock", "a", "checkpoints", "notes.tmp"]


def test_a_folder_appears_whole_or_not_at_all(tmp_path):
    with pytest.raises(MieError, match="the disk is full"), atomic_path(tmp_path / "plots") as temporary:
        temporary.mkdir()
        (temporary / "a.png").write_text("x")
        raise OSError(errno.ENOSPC, "No space left on device")
    assert list(tmp_path.iterdir()) == []
    with atomic_path(tmp_path / "plots") as temporary:
        temporary.mkdir()
        (temporary / "a.png").write_text("x")
    assert [p.name for p in tmp_path.rglob("*")] == ["plots", "a.png"]


def test_only_plain_files_are_read_and_nothing_is_waited_for(tmp_path):
    (tmp_path / "a").write_bytes(b"12345")
    assert files.read_regular(tmp_path / "a", 10) == b"12345"
    assert files.read_regular(tmp_path / "a", 3) == b"1234"
    (tmp_path / "link").symlink_to(tmp_path / "a")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe", "nothing"):
        with pytest.raises(OSError):
            files.read_regular(tmp_path / name, 10)
