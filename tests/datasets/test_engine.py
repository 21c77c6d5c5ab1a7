"""The pool: its results, and what becomes of its workers when something goes wrong outside the tasks."""

import subprocess
import sys
import time
from operator import neg

from mie.datasets.engine import report, run_tasks

# One worker is busy for longer than any test, the other has nothing to do.
BUSY = """
import sys, time
from pathlib import Path
from mie.datasets.engine import report, run_tasks

def work(task):
    Path(sys.argv[1], str(task)).touch()
    time.sleep(600 * task)

if __name__ == "__main__":
    list(run_tasks(work, [0, 1], workers=2))
"""
UNGUARDED = """
from operator import neg
from mie.datasets.engine import report, run_tasks
print(sorted(run_tasks(neg, [1, 2, 3], workers=2)))
"""
# A worker that has begun, and that the system kills.
KILLED = """
import os, signal
from mie.datasets.engine import report, run_tasks

def work(task):
    os.kill(os.getpid(), signal.SIGKILL)

if __name__ == "__main__":
    list(run_tasks(work, [1, 2], workers=2))
"""

# The fourth task ends its process, until it is told not to.
RESCUED = """
import os
from mie.datasets.engine import report, run_tasks

def work(task):
    number, deadly = task
    report(number)
    if number == 3 and deadly:
        os.abort()
    return number

def rescue(task, standing):
    assert standing[0] == task[0] == 3, (task, standing)
    return 3, False

if __name__ == "__main__":
    print(sorted(run_tasks(work, [(n, True) for n in range(9)], workers=2, rescue=rescue)))
    print(list(run_tasks(work, [(3, True)], workers=1, isolate=True, rescue=rescue)))
"""

# The second worker is still beginning, and holds what it then may hold, when the first one ends.
BEGINNING = """
import os, sys, time
from pathlib import Path
from mie.datasets import engine

folder = Path(sys.argv[1])
begin = engine._begin

def slow(begun, board):
    try:
        (folder / "first").touch(exist_ok=False)
    except FileExistsError:
        if not (folder / "second").exists():
            if hasattr(begun, "_cond"):
                begun._cond.acquire()
            (folder / "second").touch()
            time.sleep(100)
    begin(begun, board)

if __name__ != "__main__":
    engine._begin = slow

def work(task):
    while not (folder / "second").exists():
        time.sleep(0.01)
    if not (folder / "ended").exists():
        (folder / "ended").touch()
        os.abort()
    return task

if __name__ == "__main__":
    print(sorted(engine.run_tasks(work, range(4), workers=2)))
"""


def start(folder, script):
    path = folder / "script.py"
    path.write_text(script)
    return subprocess.Popen(
        [sys.executable, str(path), str(folder)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_a_pool_gives_what_one_process_gives():
    assert sorted(run_tasks(neg, range(20), workers=2)) == sorted(run_tasks(neg, range(20), workers=1))


def test_workers_end_with_a_parent_that_is_killed(tmp_path):
    process = start(tmp_path, BUSY)
    while not ((tmp_path / "0").exists() and (tmp_path / "1").exists()):
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.05)
    process.kill()
    # The pipes end when the last process that holds them has ended, the workers among them.
    process.communicate(timeout=60)


def test_a_script_without_a_guard_is_told_so(tmp_path):
    process = start(tmp_path, UNGUARDED)
    out, error = process.communicate(timeout=300)
    assert (process.returncode, out) == (1, "")
    said = error[error.rindex("MieError") :]
    assert 'if __name__ == "__main__":' in said
    assert "--workers" not in said


def test_a_killed_worker_is_another_matter(tmp_path):
    process = start(tmp_path, KILLED)
    _, error = process.communicate(timeout=300)
    assert process.returncode == 1
    assert "a worker process was killed" in error
    assert "__main__" not in error[error.rindex("MieError") :]


def test_a_task_that_ends_its_process_is_replaced_and_the_others_are_repeated(tmp_path):
    process = start(tmp_path, RESCUED)
    out, error = process.communicate(timeout=300)
    assert (process.returncode, out) == (0, "[0, 1, 2, 3, 4, 5, 6, 7, 8]\n[3]\n"), error


def test_a_worker_that_ends_while_another_one_begins_stops_nobody(tmp_path):
    process = start(tmp_path, BEGINNING)
    out, error = process.communicate(timeout=100)
    assert (process.returncode, out) == (0, "[0, 1, 2, 3]\n"), error


def report_and_wait(task):
    """Reports, and ends when the caller has heard it."""
    number, heard = task
    report(number, 10 * number)
    while not heard.exists():
        time.sleep(0.01)
    return number


def test_a_task_in_another_process_says_how_far_it_is(tmp_path):
    heard = {}

    def listen(index, standing):
        heard[index] = standing
        if any(standing):
            (tmp_path / str(index)).touch()

    tasks = [(number, tmp_path / str(index)) for index, number in enumerate((5, 6, 7))]
    assert sorted(run_tasks(report_and_wait, tasks, workers=2, listen=listen)) == [5, 6, 7]
    assert heard == {0: (5, 50, 0), 1: (6, 60, 0), 2: (7, 70, 0)}


def test_a_task_in_this_process_says_so_at_once(tmp_path):
    heard = []

    def work(task):
        report(task)
        return len(heard)

    results = list(run_tasks(work, [4, 9], workers=1, listen=lambda *item: heard.append(item)))
    assert (results, heard) == ([1, 2], [(0, (4, 0, 0)), (1, (9, 0, 0))])
    report(1)  # outside of any task: nobody listens
    assert len(heard) == 2
