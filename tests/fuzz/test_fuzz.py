"""A short slice of the fuzz run, and that its watch would see a fault."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from mie.images.read import read_picture
from tests.fuzz import __main__ as runner
from tests.fuzz import worker
from tests.fuzz.corpus import seeds
from tests.fuzz.worker import FORMATS, KINDS, case

# A reader with one fault of each kind, by the number of the case.
FAULTY = """
import os, sys, time
from tests.fuzz import worker
def read(path):
    number = int(sys.argv[2]) if not hasattr(read, "next") else read.next
    read.next = number + 1
    if number == 1:
        raise KeyError("x")
    if number == 3:
        os.abort()
    if number == 5:
        open("/etc/hostname", "rb").close()
    if number == 7:
        while True: pass
for kind in worker.KINDS:
    worker.FORMATS[kind] = (worker.FORMATS[kind][0], read)
worker.main()
"""


def test_a_slice_of_hostile_files_does_no_harm():
    report = runner.fuzz(12 * len(KINDS), seed=20)
    assert report.faults == {}
    assert report.ran == dict.fromkeys(KINDS, 12)


def test_good_files_are_read_and_cases_are_the_same_in_every_process(tmp_path):
    corpus = seeds(tmp_path)
    assert corpus.keys() == FORMATS.keys()
    for kind in set(KINDS) - {"dicom", "npz", "parquet"}:  # each of those has tests of its own
        name, read = FORMATS[kind]
        for data in corpus[kind]:
            (tmp_path / name).write_bytes(data)
            (read_picture if read is worker._picture else read)(tmp_path / name)
    script = "import hashlib, sys; from pathlib import Path; from tests.fuzz.worker import case; "
    script += "from tests.fuzz.corpus import seeds; c = seeds(Path(sys.argv[1])); "
    script += "print(hashlib.sha256(b''.join(case(7, n, c)[1] for n in range(64))).hexdigest())"
    command = [sys.executable, "-c", script, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, env=runner.environment(), check=False)
    assert done.returncode == 0, done.stderr
    ours = hashlib.sha256(b"".join(case(7, n, corpus)[1] for n in range(64))).hexdigest()
    assert done.stdout.strip() == ours


@pytest.mark.slow
def test_every_kind_of_fault_is_seen(tmp_path, monkeypatch):
    (tmp_path / "faulty.py").write_text(FAULTY)
    monkeypatch.setattr(runner, "CPU_SECONDS", 1.0)
    real = subprocess.Popen

    def start(command, **how):
        return real([sys.executable, str(tmp_path / "faulty.py"), *command[3:]], **how)

    monkeypatch.setattr(runner.subprocess, "Popen", start)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(map(str, [Path.cwd(), *sys.path[1:]])))
    report = runner.fuzz(9, seed=1)
    assert report.ran.total() == 9
    assert sorted(report.faults) == [1, 3, 5, 7]
    words = {1: "KeyError", 3: "exit code -6", 5: "/etc/hostname", 7: "took longer"}
    assert all(word in report.faults[number] for number, word in words.items())
    runner.save_faults(report, 1, tmp_path / "faults")
    assert len(list((tmp_path / "faults").iterdir())) == 8
