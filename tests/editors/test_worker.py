"""Workers: batches, crashes, start-up deaths, earlier turns and references, and the template."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

from mie.editors import Edited, RefusedError, Request, SampleRef, StopRunError, Turn, open_editor
from mie.editors.run import run_editor
from mie.errors import ConfigError
from mie.images.png import decode_png
from tests.conftest import crop

TEMPLATE = Path(__file__).parents[2] / "examples" / "workers" / "template.py"

# Replies in reverse order once a batch of three is complete; "crash" kills it, "once" only the first time.
BATCH = """
import json, os, shutil, sys
here = os.path.dirname(os.path.abspath(__file__))
open(os.path.join(here, "starts"), "a").write("x")
seen = open(os.path.join(here, "seen"), "a")
size = int(sys.argv[1])
held = []
for line in sys.stdin:
    r = json.loads(line)
    seen.write(r["id"] + "\\n"); seen.flush()
    if r["instruction"] == "crash" or (r["instruction"] == "once" and not os.path.exists(here + "/crashed")):
        open(os.path.join(here, "crashed"), "w")
        print("out of memory", file=sys.stderr, flush=True)
        os._exit(9)
    held.append(r)
    if len(held) < size:
        continue
    for r in reversed(held):
        shutil.copy(r["input"], r["output"])
        said = {"refused": "not this one"} if r["instruction"] == "no" else {"output": r["output"]}
        print(json.dumps({"id": r["id"], **said}), flush=True)
    held = []
"""


@pytest.fixture
def worker(tmp_path):
    (tmp_path / "w.py").write_text(BATCH)
    made = []

    def opened(size, options=""):
        made.append(open_editor(f"command:{sys.executable} {tmp_path}/w.py {size},jsonl=true{options}"))
        return made[-1]

    yield opened
    for editor in made:
        editor.close()


def requests(*instructions):
    return [
        Request(crop(at), word, at, sample=SampleRef(f"s{at}", f"s{at}"))
        for at, word in enumerate(instructions)
    ]


def test_a_batch_is_sent_whole_and_answered_in_any_order(worker, tmp_path):
    editor = worker(3, ",batch=3,timeout=20")
    assert editor.batch_size == 3
    outcomes = editor.edit_batch(requests("a", "no", "b"))
    assert np.array_equal(outcomes[0].image, crop(0))
    assert isinstance(outcomes[1], RefusedError)
    assert "not this one" in outcomes[1].reason
    assert np.array_equal(outcomes[2].image, crop(2))
    assert (tmp_path / "seen").read_text().split() == ["s0_0", "s1_0", "s2_0"]


def test_a_crash_costs_one_more_try_and_not_the_batch(worker, tmp_path):
    editor = worker(1, ",timeout=20")
    outcomes = editor.edit_batch(requests("a", "once", "b"))
    assert [type(outcome) for outcome in outcomes] == [Edited, Edited, Edited]
    assert np.array_equal(outcomes[1].image, crop(1))
    assert (tmp_path / "starts").read_text() == "xx"
    # The one before the crash keeps its reply; the one behind it was never read, and is asked now.
    assert (tmp_path / "seen").read_text().split() == ["s0_0", "s1_0", "s1_0", "s2_0"]
    outcomes = editor.edit_batch(requests("a", "crash", "b"))
    assert isinstance(outcomes[0], Edited)
    assert "exit code 9; its output: out of memory" in outcomes[1].reason
    assert np.array_equal(outcomes[2].image, crop(2))


def test_one_that_never_starts_ends_the_run_with_its_last_words(dataset, tmp_path):
    (tmp_path / "w.py").write_text("open('starts', 'a').write('x'); raise SystemExit('no CUDA device')")
    spec = f"command:sh -c 'cd {tmp_path} && {sys.executable} w.py',jsonl=true"
    with pytest.raises(StopRunError) as stopped:
        run_editor(dataset, spec, tmp_path / "run")
    assert "no CUDA device" in stopped.value.found
    assert len((tmp_path / "starts").read_text()) == 5
    lines = (tmp_path / "run" / "edits.jsonl").read_text().splitlines()
    assert [json.loads(line)["state"] for line in lines] == ["failed", "failed"]


def test_one_that_was_ready_is_not_taken_for_one_that_never_starts(tmp_path):
    """Every edit ends it, but it has said that it is ready: edits fail, the run does not stop."""
    (tmp_path / "w.py").write_text("import json\nprint(json.dumps({'ready': True}), flush=True)\ninput()\n")
    with open_editor(f"command:{sys.executable} {tmp_path}/w.py,jsonl=true") as editor:
        for _ in range(4):
            (outcome,) = editor.edit_batch(requests("a"))
            assert "ended before it replied" in outcome.reason


HISTORY = [Turn("first", crop(11)), Turn("second", crop(12))]


@pytest.mark.parametrize("jsonl", [True, False])
def test_earlier_turns_and_references_are_files(tmp_path, jsonl):
    (tmp_path / "w.py").write_text(
        "import json, shutil, sys\n"
        "for line in (sys.stdin if len(sys.argv) < 2 else open(sys.argv[1])):\n"
        "    r = json.loads(line)\n"
        "    r['all'] = [t['image'] for t in r['history']] + r['references']\n"
        "    assert [t['instruction'] for t in r['history']] == ['first', 'second']\n"
        "    shutil.copy(r['all'][int(r['instruction'])], r['output'])\n"
        "    print(json.dumps({'output': r['output']}), flush=True)\n"
    )
    spec = f"command:{sys.executable} {tmp_path}/w.py" + (",jsonl=true" if jsonl else " {request}")
    with open_editor(spec) as editor:
        for at in range(3):
            request = Request(crop(1), str(at), history=HISTORY, references=[crop(13)])
            assert np.array_equal(editor.edit_request(request).image, crop(11 + at))


def test_without_turns_a_request_is_what_it_was(tmp_path):
    (tmp_path / "w.py").write_text(
        "import json, pathlib, shutil, sys\n"
        "for line in sys.stdin:\n"
        "    r = json.loads(line)\n"
        f"    pathlib.Path({str(tmp_path / 'keys')!r}).write_text(' '.join(r))\n"
        "    shutil.copy(r['input'], r['output'])\n"
        "    print(json.dumps({'output': r['output']}), flush=True)\n"
    )
    with open_editor(f"command:{sys.executable} {tmp_path}/w.py,jsonl=true") as editor:
        editor.edit_request(Request(crop(1), "x"))
    assert (tmp_path / "keys").read_text() == "id input instruction output seed"


def test_the_template_runs_as_it_is(dataset, tmp_path):
    spec = f"command:{sys.executable} {TEMPLATE},jsonl=true,batch=4"
    run = run_editor(dataset, spec, tmp_path / "run", limit=6)
    same = run_editor(dataset, "identity", tmp_path / "same", limit=6)
    for edit in run.edits().values():
        pair = [decode_png((folder / edit.path).read_bytes()) for folder in (run.folder, same.folder)]
        assert np.array_equal(*pair)
    assert run.info["counts"]["done"] == 6
    with open_editor(spec) as editor:
        request = Request(crop(1), "x", history=HISTORY, references=[crop(13)])
        assert np.array_equal(editor.edit_request(request).image, crop(1))


@pytest.mark.parametrize("options", ["batch=2", "jsonl=true,batch=0"])
def test_a_batch_needs_a_worker(options):
    words = "" if "jsonl" in options else " {input} {output}"
    with pytest.raises(ConfigError, match="batch"):
        open_editor(f"command:cp{words},{options}")
