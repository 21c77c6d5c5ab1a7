"""Interrupted, killed, split over processes: always the same bytes."""

import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from mie.editors.runs import Run
from mie.scoring.attempts import Chunk, Output
from tests import forked_python
from tests.scoring.benchmarks.runs import attempt_at, structure, transformation, write_run, write_samples
from tests.scoring.benchmarks.scoring import miedb as score_run

FILES = ("scores/miedb.paper.jsonl", "summary/miedb.paper.json")
SCORE = "import sys; from mie.scoring.score import score; score(sys.argv[1], workers=1)"


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("resume")
    samples = [
        transformation(f"{n:04x}", n, 24, 24) if n % 4 == 3 else structure(f"{n:04x}", n, 24, 24)
        for n in range(70)
    ]
    dataset = write_samples(samples, folder / "dataset")
    made = {
        s.id: [attempt_at(s, n), None if n % 5 else attempt_at(s, 99 + n)] for n, s in enumerate(samples, 1)
    }
    return write_run(folder / "run", dataset, made)


@pytest.fixture(scope="module")
def expected(run):
    score_run(run)
    return read(run)


def read(run: Path) -> list[bytes]:
    return [(run / name).read_bytes() for name in FILES]


def forget(run: Path) -> None:
    for name in FILES:
        (run / name).unlink(missing_ok=True)


def test_processes_and_chunks_do_not_change_a_byte(run, expected, monkeypatch):
    for pairs in (1, 10**6):
        monkeypatch.setattr("mie.scoring.attempts._PAIRS", pairs)
        for workers in (1, 2) if pairs == 1 else (None,):
            forget(run)
            score_run(run, workers=workers)
            assert read(run) == expected
    assert [path.name for path in (run / "scores").iterdir()] == ["miedb.paper.jsonl"]


def test_a_call_that_was_stopped_goes_on_where_it_was(run, expected, monkeypatch):
    monkeypatch.setattr("mie.scoring.attempts._PAIRS", 1)
    forget(run)
    calls = []

    def stop(done, total):
        calls.append((done, total))
        raise KeyboardInterrupt

    for _ in range(3):
        with pytest.raises(KeyboardInterrupt):
            score_run(run, progress=stop)
        assert not (run / FILES[0]).exists()
    assert calls == [(32, 140), (64, 140), (96, 140)]
    score_run(run, progress=lambda *at: calls.append(at))
    assert calls[3:] == [(128, 140), (140, 140)]
    assert read(run) == expected


def test_what_changed_since_is_scored_again(run, expected, monkeypatch):
    monkeypatch.setattr("mie.scoring.attempts._PAIRS", 1)
    forget(run)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_run(run, progress=stop)
    path = Run.open(run).output_path("0000", 0)
    before = path.read_bytes()
    path.write_bytes(b"")
    score_run(run)
    assert read(run) != expected
    path.write_bytes(before)
    score_run(run)
    assert read(run) == expected


def test_a_chunk_is_scored_again_when_anything_that_it_depends_on_changes():
    """Above all the edits: lines may tell of another model or seed, with files that look the same."""
    chunk = Chunk(0, Path("shard"), (0,), (("a", (Output(0, "a_0.png", stamp=(10, 20)),)),))
    header = {"edits_sha256": "1" * 64, "dataset_digest": "2" * 64, "version": 1, "metrics": ["dice"]}
    keys = {chunk.key(header)}
    for changed in (
        {"edits_sha256": "3" * 64},
        {"dataset_digest": "3" * 64},
        {"version": 2},
        {"metrics": []},
    ):
        keys.add(chunk.key({**header, **changed}))
    for outputs in (
        (("a", (Output(0, "a_0.png", stamp=(10, 21)),)),),
        (("a", (Output(0, None, "edit failed: x"),)),),
        (("b", (Output(0, "a_0.png", stamp=(10, 20)),)),),
    ):
        keys.add(replace(chunk, outputs=outputs).key(header))
    assert len(keys) == 8


def test_parts_of_other_edits_are_not_taken(run, expected, monkeypatch):
    """The same outputs, to the byte and to the time, under a changed `edits.jsonl`: all is scored again."""
    monkeypatch.setattr("mie.scoring.attempts._PAIRS", 1)
    forget(run)

    def stop(done, total):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        score_run(run, progress=stop)
    path = run / "edits.jsonl"
    before = path.read_text()
    path.write_text(before + before.splitlines()[0] + "\n")
    calls = []
    score_run(run, progress=lambda *at: calls.append(at))
    assert calls[0] == (32, 140)  # none of the first 32 was there already
    path.write_text(before)
    score_run(run)
    assert read(run) == expected


def test_kill_9(run, expected):
    forget(run)
    started = time.monotonic()
    forked_python.run([sys.executable, "-c", SCORE, str(run)], check=True)
    whole = time.monotonic() - started
    for share in (0.5, 0.8, 0.95):
        forget(run)
        process = forked_python.Started([sys.executable, "-c", SCORE, str(run)])
        time.sleep(share * whole)
        process.kill()
        score_run(run)
        assert read(run) == expected


def test_two_at_once_is_refused(run):
    from mie.errors import MieError

    def again(done, total):
        with pytest.raises(MieError, match="another process"):
            score_run(run)

    score_run(run, progress=again)


def test_a_script_without_a_guard_is_told_so(run, expected, tmp_path):
    forget(run)
    script = tmp_path / "script.py"
    script.write_text(SCORE.replace("workers=1", "workers=2"))
    done = subprocess.run([sys.executable, str(script), run], capture_output=True, text=True)
    assert done.returncode == 1
    last = done.stderr[done.stderr.rindex("MieError") :]
    assert 'put the call under `if __name__ == "__main__":`' in last
    score_run(run)
    assert read(run) == expected
