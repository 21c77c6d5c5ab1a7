import errno
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from mie.core.files import atomic_path, atomic_write, folder_lock
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
