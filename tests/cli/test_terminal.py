"""Names from files cannot control the terminal."""

import io
import json
import subprocess
import sys

import pytest

from mie.cli._show import PrintableStream, printable

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\u202egnp.\x7f"


@pytest.mark.parametrize("text", ["CT, 5 % – ü\n\tok", "脑 🧠", ""])
def test_everyday_text_stays(text):
    assert printable(text) == text


def test_control_characters_are_shown():
    assert printable("a\x1b[2Jb\rc") == "a\\u001b[2Jb\\u000dc"
    assert not any(c in printable(EVIL) for c in "\x1b\x07\x9b\u202e\x7f")


def test_a_stream_lets_none_through_and_json_stays_json():
    under = io.StringIO()
    stream = PrintableStream(under)
    json.dump({"name": EVIL}, stream, ensure_ascii=False)
    stream.writelines(["\n", "\rbar", EVIL])
    first, rest = under.getvalue().split("\n")
    assert json.loads(first) == {"name": EVIL}
    assert rest == "\rbar" + printable(EVIL)


def test_the_command_prints_a_hostile_path_as_text(tmp_path):
    done = subprocess.run(
        [sys.executable, "-m", "mie", "verify", str(tmp_path / EVIL)], capture_output=True, text=True
    )
    assert done.returncode in (1, 2)
    assert "\\u202e" in done.stderr
    assert not any(c in done.stderr for c in "\x1b\x07\x9b\u202e\x7f")
