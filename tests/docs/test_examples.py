"""The examples on the pages and in `--help` run, and print what the pages show."""

from __future__ import annotations

import base64
import csv
import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

import mie
from mie.images.png import encode_png
from mie.questions.answers import answer_questions
from mie.questions.build import build_questions
from mie.questions.recipe import read_question_recipe
from mie.questions.scoring.score import score_answers
from mie.scoring.benchmarks import imgedit
from tests import forked_python
from tests.docs.pages import PAGES, ROOT, commands, environment, name_of, runnable
from tests.scoring.benchmarks.runs import write_samples
from tests.scoring.statistics.pairs import pairs

# What a page shows of a measured quantity is an example: times, rates and sizes.
_MEASURED = re.compile(r"\b\d[\d,.]*(?= ?(?:s|ms|min|MB|MiB|kB|edits/s|samples/s)\b)")
_TEXT = re.compile(r"[\s─━┏┓┗┛┡┩┳┻╇└┘┴│┃┼├┤┬┌┐]+")


# The slowest ones, as measured on busy cores.
_SLOW = frozenset(
    {
        "README.md",
        "docs/explanation/transformation.md",
        "docs/how-to/agree.md",
        "docs/how-to/board.md",
        "docs/how-to/demo.md",
        "docs/how-to/own-metric-and-benchmark.md",
        "docs/how-to/report.md",
        "docs/how-to/review.md",
        "docs/how-to/train.md",
        "docs/reference/python.md",
        "docs/reference/tables.md",
        "docs/tutorials/evaluate-my-model.md",
        "docs/tutorials/your-own-data.md",
    }
)


def _pages() -> list[ParameterSet]:
    """The pages with examples, the slow ones marked."""
    pages = {name_of(page): page for page in PAGES if runnable(page)}
    marks = {name: [pytest.mark.slow] if name in _SLOW else [] for name in pages}
    return [pytest.param(page, id=name, marks=marks[name]) for name, page in pages.items()]


def test_every_slow_page_exists() -> None:
    assert {name_of(page) for page in PAGES if runnable(page)} >= _SLOW


@pytest.mark.parametrize("page", _pages())
def test_the_examples_run(page: Path, tmp_path: Path, forked: Path, request: pytest.FixtureRequest) -> None:
    """Each page in a folder of its own, block by block, in order."""
    text = "".join(block.text for block in runnable(page))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    if re.search("sample_|quickstart|mie demo", text):
        request.getfixturevalue("samples")
    if "out/quickstart" in text and "-o out/quickstart\n" not in text:
        shutil.copytree(request.getfixturevalue("quickstart"), tmp_path / "out/quickstart")
    known = environment(tmp_path, forked)
    for number, block in enumerate(runnable(page)):
        if block.info == "bash":
            command = ["bash", "-c", f"set -euo pipefail\n{block.text}"]
            done = subprocess.run(command, cwd=tmp_path, env=known, capture_output=True, text=True)
        else:  # from a file, as a user would: worker processes import it again
            script = tmp_path / f"example{number}.py"
            script.write_text(block.text, encoding="utf-8")
            done = forked_python.run([sys.executable, str(script)], cwd=tmp_path, env=known)
        where = f"{name_of(page)}:\n{block.text}\n{done.stdout}\n{done.stderr}"
        assert done.returncode == 0, where
        printed = lines(done.stdout) + lines(done.stderr)
        assert [line for line in lines(block.output) if line not in printed] == [], where


def lines(text: str) -> list[str]:
    """The lines of an output without measured quantities and the frames of tables."""
    plain = [_TEXT.sub(" ", _MEASURED.sub("#", line)).strip() for line in text.splitlines()]
    return [line for line in plain if line not in ("", "...")]


def test_outputs_are_compared_line_by_line() -> None:
    assert lines("out/a: 9 edits, 0.8 s, 10.8 edits/s\n...\n┃ dice │ .014 ┃\n") == [
        "out/a: 9 edits, # s, # edits/s",
        "dice .014",
    ]
    shown = [block.output for page in PAGES for block in runnable(page) if block.output]
    assert len(shown) >= 12


EXAMPLES = [
    " ".join(paragraph.split()).removeprefix("Example: ")
    for command in commands().values()
    for paragraph in (command.help or "").split("\n\n")
    if paragraph.strip().startswith("Example: ")
]
# Not run here, and why.
_ELSEWHERE = {
    "mie vqa import out/vlmevalkit --from vlmevalkit -o out/imported": "the page of mie vqa runs it",
    "mie demo -o out/demo": "the page of mie demo runs it",
    "mie fake out/run --verdicts verdicts.csv": "the page of mie fake runs it",
    "mie filter out/oracle --benchmark miedb --metric dice --threshold 0.95 -o out/filtered": (
        "the page of mie filter runs it"
    ),
    "mie export-model --editor compact -o compact.onnx": (
        "takes half a minute; tests/editors/compact/test_onnx.py runs it and looks at the file"
    ),
    "mie weights get lpips-alex fid": "fetches published weights; tests/cli/test_weights.py serves its own",
    "mie propose out/quickstart --detector models/grounding-dino --segmenter models/sam -o out/regions": (
        "needs two published models; tests/review/test_regions.py has small ones"
    ),
    "mie train examples/omnigen2.yaml -o out/omnigen2 --processes 8": (
        "needs a published model; tests/training/test_omnigen2.py has a small one"
    ),
    **{
        f"mie experiment {name} examples/experiments/{name}.yaml -o out/{name}": (
            "needs three datasets, or published models; tests/experiments runs small ones"
        )
        for name in ("ablation", "holdout", "fewshot")
    },
    "mie vqa write out/questions -o out/written --writer local:a --second local:b --limit 5": (
        "needs two models; tests/questions/test_written.py has a server"
    ),
    **dict.fromkeys(
        (
            "mie vqa people out/questions --review out/questions-review/review.sqlite -o out/people",
            "mie vqa accept out/written --review out/written-review/review.sqlite -o out/accepted",
        ),
        "needs people's answers; tests/review/test_questions.py has them",
    ),
    "mie ground out/quickstart --editor omnigen2:models/omnigen2 -o out/attention": (
        "needs a published model; tests/editors/large/test_ground.py has small ones"
    ),
}
_NEEDS = {"mie train": "torch", "mie review": "starlette"}


def test_every_command_has_an_example() -> None:
    for name, command in commands().items():
        assert f"Example: {name}" in " ".join((command.help or "").split()), name
    assert set(_ELSEWHERE) <= set(EXAMPLES)


@pytest.fixture(scope="module")
def prepared(quickstart: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that the examples of `--help` name."""
    folder = tmp_path_factory.mktemp("help")
    shutil.copytree(ROOT / "examples", folder / "examples")
    shutil.copytree(quickstart, folder / "out/quickstart")
    for name, editor in (("run-a", "identity"), ("run-b", "otsu"), ("run", "otsu")):
        mie.score(mie.run(folder / "out/quickstart", editor, folder / "out" / name, split="test"), workers=1)
    mie.build(ROOT / "examples/several.yaml", folder / "out/several", workers=1)
    recipe = read_question_recipe(ROOT / "examples/questions_quickstart.yaml")
    questions = build_questions(recipe, folder / "out/questions", workers=1)
    for name in ("prior", "text-only"):
        score_answers(answer_questions(questions.split("test"), name, folder / "out" / name))
    dataset = mie.Dataset(folder / "out/quickstart")
    ids = [sample.id for sample in dataset.samples("test")]
    with (folder / "ratings.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["sample_id", "rater", "run", "rank"])
        rows.writerows((i, rater, run, rank) for i in ids for rater in "AB" for run, rank in _ranks(i, rater))
    with (folder / "grades.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["sample_id", "rater", "run", "criterion", "score"])
        graded = [(i, run) for i in ids for run in ("run-a", "run-b")]
        rows.writerows((i, "A", run, name, 4) for i, run in graded for name in imgedit.CRITERIA)
    for name in ("scan.png", "edited.png"):
        (folder / name).write_bytes(encode_png(dataset[0].input))
    (folder / "my.py").write_text("import shutil, sys\nshutil.copy(sys.argv[1], sys.argv[3])\n")
    _run("mie export out/quickstart -f miedb -o MieDB-100k/benchmark", folder)
    _run("mie pack out/quickstart -o out/pack", folder)
    write_samples(pairs(range(8), range(8, 16)), folder / "out/pairs")
    _run("mie sample out/quickstart -n 50 --stratify modality,task -o out/sheet", folder)
    answers = folder / "out/sheet/answers.csv"
    with answers.open(newline="") as file:
        asked = list(csv.DictReader(file))
    with answers.open("w", newline="") as file:
        table = csv.DictWriter(file, asked[0])
        table.writeheader()
        table.writerows({**row, "answer": "good"} for row in asked)
    return folder


def _ranks(sample_id: str, rater: str) -> list[tuple[str, int]]:
    first = ("run-b", "run-a") if (sample_id + rater).encode()[-2] % 3 else ("run-a", "run-b")
    return [(run, rank) for rank, run in enumerate(first, start=1)]


class _Echo(BaseHTTPRequestHandler):
    """An editing server that returns its input."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        picture = base64.b64decode(body["image"])
        self.send_response(200)
        self.send_header("Content-Type", "image/png")
        self.send_header("Content-Length", str(len(picture)))
        self.end_headers()
        self.wfile.write(picture)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def server() -> Iterator[int]:
    with ThreadingHTTPServer(("127.0.0.1", 0), _Echo) as running:
        threading.Thread(target=running.serve_forever, daemon=True).start()
        yield running.server_port
        running.shutdown()


@pytest.mark.parametrize("example", [e for e in EXAMPLES if e not in _ELSEWHERE])
def test_the_examples_of_help_run(example: str, prepared: Path, server: int, tmp_path: Path) -> None:
    pytest.importorskip(_NEEDS.get(" ".join(example.split()[:2]), "mie"))
    folder = tmp_path / "work"
    shutil.copytree(prepared, folder)
    output = re.search(r" -o (\S+)", example)
    if output and (folder / output[1]).is_dir():
        shutil.rmtree(folder / output[1])
    command = example.replace("127.0.0.1:8000", f"127.0.0.1:{server}")
    if example.startswith("mie review"):
        _serve(command, folder)
        return
    _run(command, folder)
    assert output is None or (folder / output[1]).exists() == ("--dry-run" not in example)


def _run(command: str, folder: Path) -> None:
    done = forked_python.run(
        [sys.executable, "-m", *shlex.split(command)], cwd=folder, env=environment(folder)
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"


def _serve(command: str, folder: Path) -> None:
    """Wait for the address that the server prints, then stop it."""
    arguments = [sys.executable, "-m", *shlex.split(command), "--port", "0"]
    process = subprocess.Popen(
        arguments,
        cwd=folder,
        env={**environment(folder), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        assert process.stdout is not None
        printed = ""
        for line in process.stdout:
            printed += line
            if "http://127.0.0.1:" in line:
                return
        pytest.fail(f"no address: {printed}")
    finally:
        process.terminate()
        process.communicate()
