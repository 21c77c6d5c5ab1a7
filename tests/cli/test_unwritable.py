"""Every verb that writes says so in words when it cannot: no traceback on a bad folder or a full disk."""

from __future__ import annotations

import io
import json
import os
import resource
import shutil
import signal
import sys
from pathlib import Path

import numpy as np
import pytest

from mie.cli import COMMANDS, main
from mie.images.png import encode_png
from tests.conftest import folder_source, write_folder

FIXTURE = Path(__file__).parents[1] / "fixtures/old_folders"

# Verb -> its words; OUT is where it is to write.
VERBS = {
    "build": "build recipe.yaml -o OUT --workers 1",
    "run": "run perception -e identity -o OUT",
    "report": "report runs/otsu -o OUT",
    "board": "board runs/otsu -o OUT",
    "choose": "choose perception -o OUT --quota 2",
    "merge": "merge perception transformation -o OUT",
    "export": "export perception -f folder -o OUT",
    "import": "import exported -f folder -o OUT",
    "stats": "stats perception -o OUT",
    "edit": "edit image.png blur -e identity -o OUT/x.png",
    "demo": "demo -o OUT",
    "sample": "sample perception -n 2 -o OUT",
    "pack": "pack perception -o OUT",
    "review": "review perception --db OUT/review.sqlite --invite Ada",
    "review --export": "review perception runs/otsu --db new.sqlite --kind inspect --export OUT/x.csv",
    "vqa": "vqa build questions.yaml -o OUT --workers 1",
    "export-model": "export-model -e compact:tiny.safetensors -o OUT.onnx",
}
# These write nothing or what `mie weights get` or a server sends, or need models or people; `score` is below.
OTHERS = {
    "agree",
    "doctor",
    "inspect",
    "parse",
    "plan",
    "privacy",
    "sources",
    "verify",
    "weights",
    "propose",
    "ground",
    "experiment",
    "fake",
    "filter",
    "judge-set",
    "train",
    "score",
}


def test_every_verb_is_tried_or_named():
    assert {name.split()[0] for name in VERBS} | OTHERS == set(COMMANDS.names())


@pytest.fixture
def here(tmp_path, monkeypatch, request):
    shutil.copytree(FIXTURE, tmp_path, dirs_exist_ok=True)
    (tmp_path / "image.png").write_bytes(encode_png(np.arange(96 * 96).reshape(96, 96).astype(np.uint8)))
    (tmp_path / "file").write_text("in the way")
    root = write_folder(tmp_path / "source", 4, patients=4)
    recipe = {"name": "small", "sources": [folder_source(root)]}
    (tmp_path / "recipe.yaml").write_text(json.dumps(recipe))
    (tmp_path / "questions.yaml").write_text(json.dumps(recipe))
    monkeypatch.chdir(tmp_path)
    if "export-model" in request.node.name:
        pytest.importorskip("onnx", reason="the export needs the extra `onnx`")
        from tests.editors.compact import tiny

        tiny.weights(tmp_path / "tiny.safetensors")
        # A real export takes twenty seconds (test_onnx.py has one); here it is only to be written.
        exporting = "mie.editors.compact.onnx"
        monkeypatch.setattr(f"{exporting}._export", lambda _net, _meta, to: to.write_bytes(bytes(1000)))
        monkeypatch.setattr(f"{exporting}.differences", lambda _net, _path: {})
    if "import" in request.node.name:
        assert mie("export perception -f folder -o exported")[0] == 0
    return tmp_path


def mie(words: str, *, limit: int | None = None) -> tuple[int, str]:
    """Run a command in a copy of this process: exit code, stderr. No file grows beyond `limit` bytes."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(write, 2)
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            sys.stdout, sys.stderr = (io.TextIOWrapper(io.FileIO(n, "w"), write_through=True) for n in (1, 2))
            sys.argv = ["mie", *words.split()]
            if limit is not None:
                signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
                resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
            code = 0
            try:
                main()
            except SystemExit as end:
                code = int(end.code or 0)
            except BaseException:
                sys.excepthook(*sys.exc_info())
                code = 70
            sys.stderr.flush()
            os._exit(code)
        finally:
            os._exit(71)
    os.close(write)
    with os.fdopen(read, encoding="utf-8", errors="replace") as pipe:
        text = pipe.read()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), text


@pytest.mark.parametrize("verb", VERBS)
def test_a_folder_that_cannot_be_made(here, verb):
    code, said = mie(VERBS[verb].replace("OUT", "file/out"))
    assert "Traceback" not in said, said
    assert (code in (1, 2), "file" in said) == (True, True), said
    assert (here / "file").read_text() == "in the way"


@pytest.mark.parametrize("verb", VERBS)
def test_a_full_disk(here, verb):
    code, said = mie(VERBS[verb].replace("OUT", "out"), limit=200)
    assert "Traceback" not in said, said
    assert code == 1, said
    assert "disk" in said, said  # SQLite calls it a disk I/O error


def test_scores_that_cannot_be_written(here):
    shutil.rmtree("runs/otsu/scores")
    Path("runs/otsu/scores").write_text("in the way")
    code, said = mie("score runs/otsu")
    assert "Traceback" not in said, said
    assert (code, "runs/otsu/scores" in said) == (1, True), said
    Path("runs/otsu/scores").unlink()
    shutil.rmtree("runs/otsu/summary")
    code, said = mie("score runs/otsu", limit=200)
    assert (code, "the disk is full" in said) == (1, True), said
