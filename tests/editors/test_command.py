"""Real programs as editors: well-behaved, slow, crashing, and writing nonsense."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import cv2
import numpy as np
import pytest

from mie.editors import Edited, Request, SampleRef, open_editor
from mie.editors.command import fill
from mie.errors import ConfigError
from mie.images.png import encode_png
from tests.conftest import crop

PER_EDIT = """
import os, shutil, subprocess, sys, time
mode, source, instruction, output, seed = sys.argv[1:]
here = os.path.dirname(os.path.abspath(__file__))
print("hello from", mode, file=sys.stderr)
if mode == "copy":
    shutil.copy(source, output)
    open(os.path.join(here, "seen"), "a").write(repr((instruction, seed)) + "\\n")
elif mode == "slow":
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(os.path.join(here, "child"), "w").write(str(child.pid))
    time.sleep(600)
elif mode == "crash":
    shutil.copy(source, output)
    sys.exit("out of memory, or so")
elif mode == "kill":
    os.kill(os.getpid(), 9)
elif mode == "loud":
    sys.stdout.write("x" * 5_000_000)
    sys.exit(3)
elif mode == "garbage":
    open(output, "w").write("not a picture")
elif mode == "folder":
    os.mkdir(output)
elif mode == "huge":
    shutil.copy(os.path.join(here, "huge.png"), output)
"""

LINES = """
import json, os, shutil, sys, time
print("loading the model", flush=True)
here = os.path.dirname(os.path.abspath(__file__))
open(os.path.join(here, "starts"), "a").write("x")
for line in sys.stdin:
    r = json.loads(line)
    word = r["instruction"]
    print("progress 100%", flush=True)
    if word == "crash":
        print("segmentation fault, or so", file=sys.stderr, flush=True)
        os._exit(7)
    if word == "slow":
        time.sleep(600)
    if word == "error":
        print(json.dumps({"error": "I do not like this one"}), flush=True)
        continue
    if word == "nonsense":
        print("{no json", flush=True)
        continue
    if word == "other":
        print(json.dumps({"id": "somebody else", "output": r["output"]}), flush=True)
        continue
    if word == "silent":
        print(json.dumps({"output": r["output"]}), flush=True)
        continue
    shutil.copy(r["input"], r["output"])
    reply = {"id": r["id"], "output": os.path.basename(r["output"])}
    more = [json.dumps({"output": "/nowhere.png"})] if word == "twice" else []
    print("\\n".join([json.dumps(reply), *more]), flush=True)
"""


@pytest.fixture
def script(tmp_path):
    (tmp_path / "edit me.py").write_text(PER_EDIT)
    cv2.imwrite(str(tmp_path / "huge.png"), np.zeros((1600, 1600), np.uint8))

    def spec(mode, options=""):
        words = f'"{sys.executable}" "{tmp_path}/edit me.py" {mode}'
        return f"command:{words} {{input}} {{instruction}} {{output}} {{seed}}{options}"

    return spec


@pytest.fixture
def lines(tmp_path):
    (tmp_path / "serve.py").write_text(LINES)
    made = []

    def opened(options=""):
        made.append(open_editor(f'command:"{sys.executable}" {tmp_path}/serve.py,jsonl=true{options}'))
        return made[-1]

    yield opened
    for editor in made:
        editor.close()


def one(editor, instruction="x", seed=0):
    (outcome,) = editor.edit_batch([Request(crop(3), instruction, seed, sample=SampleRef("id-1", "id-1"))])
    return outcome


def test_a_program_gets_image_instruction_and_seed(script, tmp_path):
    nasty = "a 'b' \"c\" $(touch x); {output} {seed} `ls` | & \n\\ 漢"
    with open_editor(script("copy")) as editor:
        outcome = editor.edit(crop(3), nasty, seed=77, history=())
        assert np.array_equal(outcome.image, crop(3))
    assert (tmp_path / "seen").read_text() == repr((nasty, "77")) + "\n"


@pytest.mark.parametrize("name", ["references", "history"])
def test_lists_are_no_words_of_a_command(name):
    with pytest.raises(ConfigError, match=rf"unknown placeholder {{{name}}}") as error:
        open_editor(f"command:{sys.executable} my.py {{input}} {{output}} {{{name}}}")
    assert "{request}" in str(error.value)


def test_what_is_filled_in_is_not_filled_again():
    values = {"input": "{output}", "output": "{seed}", "instruction": "{input}", "seed": 3}
    assert fill(["a{input}", "{output}{seed}", "{other}", "{instruction}"], values) == [
        "a{output}",
        "{seed}3",
        "{other}",
        "{input}",
    ]


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("crash", ["the command failed", "exit code 1", "out of memory, or so"]),
        ("kill", ["killed by SIGKILL", "hello from kill"]),
        ("loud", ["exit code 3", "xxx"]),
        ("nothing", ["wrote no output"]),
        ("garbage", ["not a picture"]),
        ("folder", ["not a file"]),
        ("huge", ["too large"]),
    ],
)
def test_failures_say_why(script, mode, words):
    with open_editor(script(mode)) as editor:
        outcome = one(editor)
    assert len(outcome.reason) < 6000
    for word in words:
        assert word in outcome.reason


def test_instructions_that_no_program_can_get(script):
    with open_editor(script("copy")) as editor:
        assert "cannot be started" in one(editor, "a\0b").reason
        assert "cannot be started" in one(editor, "x" * 3_000_000).reason


def _alive(pid):
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def _gone(pid):
    for _ in range(200):
        if not _alive(pid):
            return True
        time.sleep(0.02)
    return False


def test_past_its_time_the_whole_family_is_killed(script, tmp_path):
    with open_editor(script("slow", ",timeout=3")) as editor:
        outcome = one(editor)
    assert "time limit" in outcome.reason
    assert "hello from slow" in outcome.reason
    assert _gone(int((tmp_path / "child").read_text()))


def test_closing_ends_a_running_program(script, tmp_path):
    editor = open_editor(script("slow"))
    found = []
    thread = threading.Thread(target=lambda: found.append(one(editor)))
    thread.start()
    while not (tmp_path / "child").exists() or not (tmp_path / "child").read_text():
        time.sleep(0.02)
    editor.close()
    thread.join(20)
    assert not thread.is_alive()
    assert "SIGKILL" in found[0].reason
    assert _gone(int((tmp_path / "child").read_text()))
    assert "interrupted" in one(editor).reason


def test_no_temporary_file_is_left(script, monkeypatch, tmp_path):
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    for mode in ("copy", "crash"):
        with open_editor(script(mode)) as editor:
            one(editor)
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("command:", "the command is empty"),
        ("command:no-such-program-anywhere {input} {output}", "no such program"),
        ("command:cp {input} {outptu}", "did you mean {output}"),
        ("command:cp {input}", "has no {output}"),
        ("command:cp 'a {input} {output}", "cannot split"),
        ("command:cp {input} {output},jsonl=true", "no placeholders"),
        ("command:cp {input} {output},timeout=0", "time limit"),
        ("command:cp {input} {output},timeuot=3", "did you mean 'timeout'"),
    ],
)
def test_wrong_commands_are_refused_before_anything_runs(spec, word):
    with pytest.raises(ConfigError, match=word):
        open_editor(spec)


def test_a_shell_is_never_asked(tmp_path):
    marker = tmp_path / "owned"
    with open_editor("command:cp {input} {output} ; touch " + str(marker)) as editor:
        assert "failed" in one(editor).reason
    assert not marker.exists()


def test_one_process_serves_all_and_restarts_after_trouble(lines, tmp_path):
    editor = lines()

    def starts():
        return len((tmp_path / "starts").read_text())

    for _ in range(3):
        assert np.array_equal(one(editor).image, crop(3))
    assert "do not like" in one(editor, "error").reason
    assert "cannot be read" in one(editor, "silent").reason
    assert isinstance(one(editor), Edited)
    assert starts() == 1
    for word, said, total in [
        ("crash", "exit code 7; its output: segmentation fault, or so", 3),  # it is asked once more
        ("nonsense", "not JSON", 4),
        ("other", "another request", 5),
    ]:
        assert said in one(editor, word).reason
        assert isinstance(one(editor), Edited)
        assert starts() == total


def test_a_slow_line_process_is_killed(lines):
    editor = lines(",timeout=0.3,startup=20")
    assert isinstance(one(editor), Edited)
    assert "time limit" in one(editor, "slow").reason
    assert isinstance(one(editor), Edited)


def test_words_nobody_asked_for_do_not_answer_the_next_request(lines):
    editor = lines()
    for _ in range(5):
        assert isinstance(one(editor, "twice"), Edited)


def test_a_request_longer_than_a_pipe(lines):
    assert isinstance(one(lines(), "x" * 1_000_000), Edited)


def test_a_process_that_does_not_read_hits_the_limit():
    sleeper = (
        f'command:"{sys.executable}" -c "import time; time.sleep(600)",jsonl=true,timeout=0.2,startup=0.3'
    )
    with open_editor(sleeper) as editor:
        assert "time limit" in one(editor, "x" * 1_000_000).reason


def test_a_process_that_ends_at_once():
    with open_editor(f'command:"{sys.executable}" -c "print(1)",jsonl=true') as editor:
        for _ in range(2):
            assert "ended before it replied" in one(editor).reason


def test_closing_lets_a_line_process_end_by_itself(tmp_path):
    (tmp_path / "s.py").write_text(
        "import json, sys, shutil, pathlib\n"
        "for line in sys.stdin:\n"
        "    r = json.loads(line); shutil.copy(r['input'], r['output'])\n"
        "    print(json.dumps({'output': r['output']}), flush=True)\n"
        f"pathlib.Path({json.dumps(os.fspath(tmp_path / 'bye'))}).touch()\n"
    )
    with open_editor(f'command:"{sys.executable}" {tmp_path}/s.py,jsonl=true') as editor:
        assert isinstance(one(editor), Edited)
    assert (tmp_path / "bye").exists()


@pytest.mark.parametrize("number", [signal.SIGHUP, signal.SIGTERM])
@pytest.mark.parametrize("jsonl", [False, True], ids=["each", "jsonl"])
def test_a_closed_terminal_ends_the_program_and_removes_the_image(tmp_path, number, jsonl):
    """`mie edit`, and under it a program that holds a patient's image and never ends by itself."""
    image, program, started = tmp_path / "in.png", tmp_path / "editor.py", tmp_path / "started"
    image.write_bytes(encode_png(np.full((16, 16), 90, np.uint8)))
    program.write_text(
        "import os, pathlib, sys, time\n"
        f"pathlib.Path({str(started)!r} + '.part').write_text(str(os.getpid()))\n"
        f"os.rename({str(started)!r} + '.part', {str(started)!r})\n"
        "time.sleep(600)\n"
    )
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = "" if jsonl else " {input} {output}"
    spec = f"command:{sys.executable} {program}{words}" + (",jsonl=true" if jsonl else "")
    process = subprocess.Popen(
        [sys.executable, "-m", "mie", "edit", str(image), "blur", "-e", spec, "-o", str(tmp_path / "o.png")],
        env={**os.environ, "TMPDIR": str(temporary)},
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),
    )
    while not started.exists():
        assert process.poll() is None
        time.sleep(0.02)
    child = int(started.read_text())
    assert list(temporary.glob("mie-edit-*/input.png"))
    process.send_signal(number)
    assert process.wait(20) == 128 + number
    assert not list(temporary.glob("mie-edit-*"))
    with pytest.raises(ProcessLookupError):
        os.kill(child, 0)
