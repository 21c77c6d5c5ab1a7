"""`mie run` as a process: killed, stopped, out of disk, and what it tells people."""

import json
import random
import signal
import subprocess
import sys
import time

import cv2
import numpy as np
import pytest

from mie.datasets.dataset import Dataset
from mie.editors.run import run_editor
from tests import forked_python
from tests.conftest import crop
from tests.editors.conftest import make_dataset, outputs

# The seed decides between the input and another picture; every request is noted.
SERVE = """
import json, shutil, sys, time
log = open(sys.argv[1], "a")
for line in sys.stdin:
    r = json.loads(line)
    log.write(r["id"] + "\\n"); log.flush()
    time.sleep(0.02)
    shutil.copy(r["input"] if r["seed"] % 2 else sys.argv[2], r["output"])
    print(json.dumps({"output": r["output"]}), flush=True)
"""


def mie(*words, **options):
    return forked_python.run([sys.executable, "-m", "mie", *map(str, words)], **options)


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("many"), 60, size=64)


@pytest.fixture
def serve(tmp_path):
    (tmp_path / "serve.py").write_text(SERVE)
    cv2.imwrite(str(tmp_path / "other.png"), crop(3, 64, 64))

    def spec(log):
        return (
            f"command:{sys.executable} {tmp_path}/serve.py {tmp_path}/{log} {tmp_path}/other.png,jsonl=true"
        )

    return spec


def test_killed_again_and_again_it_loses_nothing_and_redoes_little(many, serve, tmp_path):
    # The log's name is a part of the spec, so both runs use the same one.
    log = tmp_path / "log"
    editor = serve("log")
    run_editor(many, editor, tmp_path / "whole", attempts=2)
    total = len(Dataset(many)) * 2
    assert len(log.read_text().split()) == total
    log.unlink()
    folder = tmp_path / "run"
    command = [
        sys.executable,
        "-m",
        "mie",
        "run",
        str(many),
        "-e",
        editor,
        "-o",
        str(folder),
        "--attempts",
        "2",
    ]
    draw = random.Random(1)
    kills = 0
    for attempt in range(40):
        process = forked_python.Started(command)
        # Later attempts get more time, so the test ends on slow machines too.
        if process.wait(draw.uniform(0.4, 1.2) + 0.15 * attempt) is None:
            kills += 1
            process.kill()
            continue
        assert process.returncode == 0, process.errors()
        break
    assert kills >= 2
    assert outputs(folder) == outputs(tmp_path / "whole")
    lines = [json.loads(line) for line in (folder / "edits.jsonl").read_text().splitlines()]
    keys = {(line["sample_id"], line["attempt"]) for line in lines}
    assert len(lines) == len(keys) == total
    info = json.loads((folder / "run.json").read_text())
    assert info["status"] == "complete"
    assert info["counts"] == {"samples": total // 2, "edits": total, "done": total, "failed": 0, "refused": 0}
    # What a kill costs: the edits of the last moments, whose lines were not yet written.
    assert len(log.read_text().split()) <= total + kills * 64


@pytest.mark.parametrize("polite", [signal.SIGINT, signal.SIGTERM])
def test_stopped_politely_it_writes_down_what_is_finished(many, serve, tmp_path, polite):
    folder = tmp_path / "run"
    # Many attempts: on a busy machine the signal must not come after the end.
    options = ["run", str(many), "-e", serve("log"), "-o", str(folder), "--attempts", "6"]
    command = [sys.executable, "-m", "mie", *options]
    # A shell starts what it puts into the background with SIGINT ignored, and children inherit that.
    heed = lambda: signal.signal(signal.SIGINT, signal.SIG_DFL)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heed)
    log = tmp_path / "log"
    while not log.exists() or len(log.read_text().split()) < 5:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(polite)
    assert process.wait(20) == (130 if polite is signal.SIGINT else 143), process.stderr.read()
    lines = (folder / "edits.jsonl").read_text().splitlines()
    assert all(json.loads(line)["state"] == "done" for line in lines)
    asked = len(log.read_text().split())
    assert asked - 12 <= len(lines) <= asked
    assert json.loads((folder / "run.json").read_text())["status"] == "running"
    assert mie(*options).returncode == 0


def test_a_full_disk_stops_cleanly_and_the_run_goes_on_later(many, tmp_path):
    """The kernel refuses writes past a limit that lets `run.json` through but no output."""
    folder = tmp_path / "run"
    script = (
        "import resource, signal, sys\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (4_000, resource.RLIM_INFINITY))\n"
        "sys.argv = ['mie', 'run', sys.argv[1], '-e', 'identity', '-o', sys.argv[2]]\n"
        "from mie.cli import main\n"
        "main()\n"
    )
    full = subprocess.run(
        [sys.executable, "-c", script, str(many), str(folder)], capture_output=True, text=True
    )
    assert full.returncode == 1
    assert "the disk is full" in full.stderr
    assert "run the same command again" in full.stderr
    run = run_editor(many, "identity", folder)
    assert run.info["counts"]["done"] == len(Dataset(many))
    assert outputs(folder) == outputs(run_editor(many, "identity", tmp_path / "other").folder)


def test_what_people_see(many, tmp_path):
    done = mie(
        "run", many, "--editor", "oracle", "-o", tmp_path / "a", "--split", "test", "--limit", 3, "--json"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["counts"] == {
        "samples": 3,
        "edits": 3,
        "done": 3,
        "failed": 0,
        "refused": 0,
    }
    done = mie("run", many, "-e", f"folder:{tmp_path}/a/outputs", "-o", tmp_path / "b", "--split", "test")
    assert done.returncode == 3
    assert "no output in the folder" in done.stdout
    assert "--retry-failed" in done.stderr
    done = mie("run", many, "-e", "oracel", "-o", tmp_path / "c")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'oracle'" in done.stderr
    assert "Example: mie run" in mie("run", "--help").stdout


def test_edit_one_image(tmp_path):
    cv2.imwrite(str(tmp_path / "in.jpg"), crop(3)[..., ::-1])
    out = tmp_path / "out.png"
    done = mie("edit", tmp_path / "in.jpg", "mark it", "--editor", "identity", "-o", out, "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["size"] == [160, 160]
    assert np.array_equal(cv2.imread(str(out)), cv2.imread(str(tmp_path / "in.jpg")))
    again = mie("edit", tmp_path / "in.jpg", "mark it", "--editor", "identity", "-o", out)
    assert again.returncode == 2
    assert "--overwrite" in again.stderr
    for words, code in (
        (("identity", tmp_path / "x.jpg"), 2),
        (("identity", tmp_path / "in.jpg" / "x.png"), 1),
        (("oracle", tmp_path / "x.png"), 1),
        (("command:false {input} {output}", tmp_path / "x.png"), 1),
    ):
        done = mie("edit", tmp_path / "in.jpg", "mark it", "-e", words[0], "-o", words[1])
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert not (tmp_path / "x.png").exists()
    assert mie("edit", tmp_path / "none.png", "x", "-e", "identity", "-o", tmp_path / "y.png").returncode == 1


def test_what_cannot_be_written_or_edited_is_said_plainly(many, tmp_path):
    """A folder under a file, a folder without permission, a run of nothing, a volume."""
    import nibabel

    (tmp_path / "file").write_text("x")
    cv2.imwrite(str(tmp_path / "in.png"), crop(3))
    volume = tmp_path / "scan.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4), np.int16), np.eye(4)), volume)
    cases = [
        (("run", many, "-e", "identity", "-o", tmp_path / "file" / "run"), 1, "cannot write here"),
        (
            ("edit", tmp_path / "in.png", "x", "-e", "identity", "-o", tmp_path / "file/o.png"),
            1,
            "cannot write",
        ),
        (("run", many, "-e", "identity", "-o", "/sys/run"), 1, "cannot write here"),
        (("edit", tmp_path / "in.png", "x", "-e", "identity", "-o", "/sys/o.png"), 1, "cannot write here"),
        (("run", many, "-e", "identity", "-o", tmp_path / "v", "--split", "val"), 2, "nothing to edit"),
        (("edit", volume, "x", "-e", "identity", "-o", tmp_path / "o.png"), 2, ".nii.gz, .nii or .dcm"),
    ]
    for words, code, text in cases:
        done = mie(*words)
        assert done.returncode == code, (words, done.stderr)
        assert text in done.stderr
        assert "Traceback" not in done.stderr
