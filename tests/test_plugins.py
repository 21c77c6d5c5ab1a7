"""A package of somebody else, on the path as pip would leave it, works in every verb."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import cv2
import numpy as np
import pytest

import mie
from tests.conftest import crop

MODULE = '''
from dataclasses import dataclass
from typing import Literal

import numpy as np

from mie.editors import Editor
from mie.editors.base import Edited
from mie.perspectives import Perspective, PerspectiveConfig
from mie.records import Case, Sample, Unit
from mie.scoring.benchmarks import Benchmark
from mie.scoring.metrics import Metric, MetricError


class Cards:
    """Image files in one folder, whose names begin with the patient's."""

    def __init__(self, entry, root):
        self.entry, self.root = entry, root

    def scan(self):
        for path in sorted(self.root.glob(f"*{self.entry.layout.suffix}")):
            yield Unit(path.name, {"image": (path.name,)}, patient_id=path.name.partition("_")[0])

    def load(self, unit):
        import cv2

        image = cv2.cvtColor(cv2.imread(str(self.root / unit.key)), cv2.COLOR_BGR2RGB)
        yield Case(self.entry.name, unit.key, image, self.entry.modality, self.entry.anatomy,
                   patient_id=unit.patient_id, license="CC0-1.0")


class MirrorConfig(PerspectiveConfig):
    kind: Literal["mirroring"] = "mirroring"


class Mirroring:
    def samples(self, case, split, build_seed):
        yield Sample(
            id=case.case_id.partition(".")[0].encode().hex()[:32], perspective="mirroring", task="flip",
            target="image", modality=case.modality, anatomy=case.anatomy, prompt="Mirror the image.",
            prompt_template="Mirror the image.", description="mirrored", input=case.image,
            target_image=np.ascontiguousarray(case.image[:, ::-1]), mask=None, colour=None, split=split,
            bin=None, source=case.source, case_id=case.case_id, patient_id=case.patient_id,
            recipe="mirroring", recipe_version=1, params={}, seed=0, license=case.license,
        )


PERSPECTIVE = Perspective(
    name="mirroring", tasks=("flip",), edit="image", config=MirrorConfig,
    samples=lambda config, build: Mirroring(), gates=lambda config, limits: (), prove=lambda sample: [],
    metrics=("psnr",),
)


class HalfMirror(Editor):
    """Mirrors the upper part of the image."""

    deterministic = True

    def __init__(self, argument="", *, share: float = 0.5):
        self.share = share

    def edit(self, image, instruction, *, seed, history):
        rows = int(self.share * len(image))
        return Edited(np.concatenate([image[:rows, ::-1], image[rows:]]))


def misplaced(output, reference):
    if output.shape[0] % 2:
        raise MetricError("an odd number of rows")
    return float((output != reference).any(axis=2).mean() * 100)


MISPLACED = Metric("misplaced", "Misplaced", "pixels that are not where they belong", "%", 2,
                   higher_is_better=False, needs={"reference"}, function=misplaced, scale=(0.0, 100.0))
BENCHMARK = Benchmark("mirrors", version=3, metrics=("misplaced", "ssim"), main=("misplaced",))


def older(run_folder, *, variant, workers, progress):
    numbers = {"mean": float("nan"), "n": 0, "ci95": None}
    return {"groups": [{"group": {}, "metrics": {"calm@1": {"mean": np.float64(0.5), "n": 2, "ci95": None},
                                                 "joy@1": numbers}}]}
'''
POINTS = """
[mie.sources]
cards = mirrorkit:Cards
[mie.perspectives]
mirroring = mirrorkit:PERSPECTIVE
[mie.editors]
half-mirror = mirrorkit:HalfMirror
[mie.metrics]
misplaced = mirrorkit:MISPLACED
[mie.benchmarks]
mirrors = mirrorkit:BENCHMARK
[mie.protocols]
older = mirrorkit:older
"""
RECIPE = """
name: mirrored
recipe: mirroring
split: {test: 1.0}
sources:
  - name: cards
    root: images
    title: Cards of a test
    modality: fundus
    anatomy: retina
    license: {name: CC0-1.0, use: open}
    layout: {kind: cards, suffix: .png}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A working directory with images, a recipe, and the package installed beside."""
    folder = tmp_path_factory.mktemp("plugins")
    about = folder / "site/mirrorkit-1.0.dist-info"
    about.mkdir(parents=True)
    (folder / "site/mirrorkit.py").write_text(MODULE)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: mirrorkit\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    (folder / "recipe.yaml").write_text(RECIPE)
    (folder / "images").mkdir()
    for n in range(8):
        cv2.imwrite(str(folder / f"images/p{n % 4}_{n}.png"), crop(n, 64, 64)[..., ::-1])
    return folder


class Done(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def document(self) -> Any:
        return json.loads(self.out)


# Runs commands one after the other in one process, as each would run alone.
DRIVER = """
import contextlib, io, json, sys
from mie.cli import main
results = []
for words in json.load(sys.stdin):
    sys.argv = ["mie", *words]
    out, err = io.StringIO(), io.StringIO()
    code = 0
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main()
        except SystemExit as stop:
            code = stop.code or 0
    results.append([code, out.getvalue(), err.getvalue()])
json.dump(results, sys.stdout)
"""


def run_mie(folder: Path, commands: Sequence[str], *, installed: bool = True) -> list[Done]:
    """An exception that `main` does not turn into a message ends the process, and fails here."""
    done = python(folder, DRIVER, json.dumps([command.split() for command in commands]), installed=installed)
    return [Done(*result) for result in json.loads(done)]


def python(folder: Path, code: str, text: str = "", *, installed: bool = True) -> str:
    places = [str(Path(mie.__file__).parents[1]), *([str(folder / "site")] if installed else [])]
    return subprocess.run(
        [sys.executable, "-c", code],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(places), "OMP_NUM_THREADS": "1"},
        input=text,
        stdout=subprocess.PIPE,
        text=True,
        timeout=500,
        check=True,
    ).stdout


COMMANDS = {
    "build": "build recipe.yaml -o ds --workers 1",
    "verify": "verify ds --json",
    "half": "run ds -e half-mirror -o half",
    "whole": "run ds -e half-mirror,share=1.0 -o whole",
    "miedb": "score half --json",
    "table": "score half",
    "miedb whole": "score whole",
    "mirrors": "score half --benchmark mirrors",
    "mirrors whole": "score whole --benchmark mirrors",
    "report": "report half whole -o report",
    "older": "score half --protocol older",
    "older json": "score half --protocol older --json",
    "judge mirrors": "score half --benchmark mirrors --judge replay:x.jsonl",
    "judge older": "score half --benchmark older --judge replay:x.jsonl",
    "list": "score --list --json",
    "score help": "score --help",
    "run help": "run --help",
    "typo": "score half --benchmark mirors",
}


@pytest.fixture(scope="module")
def done(folder: Path) -> dict[str, Done]:
    return dict(zip(COMMANDS, run_mie(folder, list(COMMANDS.values())), strict=True))


def test_source_perspective_and_editor_make_a_run(folder: Path, done: dict[str, Done]) -> None:
    for name in ("build", "verify", "half", "whole"):
        assert done[name].code == 0, done[name].err
    assert done["verify"].document["ok"]
    image = cv2.imread(str(folder / "images/p0_0.png"))
    output = cv2.imread(str(next((folder / "whole/outputs").glob(f"{b'p0_0'.hex()}_0.png"))))
    np.testing.assert_array_equal(output, image[:, ::-1])


def test_its_metric_stands_among_ours(folder: Path, done: dict[str, Done]) -> None:
    document = done["miedb"].document
    means = document["groups"][0]["metrics"]
    images = [cv2.imread(str(path)) for path in sorted((folder / "images").iterdir())]
    expected = [(image[32:, ::-1] != image[32:]).any(axis=2).mean() * 50 for image in images]
    assert means["misplaced@1"]["mean"] == pytest.approx(np.mean(expected), abs=1e-9)
    assert means["misplaced@1"]["n"] == means["psnr@1"]["n"] == 8
    assert means["misplaced@1"]["patients"] == 4
    assert {"perspective": "mirroring"} in [item["group"] for item in document["groups"]]
    header = json.loads((folder / "half/scores/miedb.paper.jsonl").open().readline())
    assert header["specs"]["misplaced"]["higher_is_better"] is False
    row = next(line for line in done["table"].out.splitlines() if "misplaced@1" in line)
    assert f"{np.mean(expected):.2f}" in row


def test_its_benchmark_is_scored_stored_and_read_back(folder: Path, done: dict[str, Done]) -> None:
    assert done["mirrors"].code == done["mirrors whole"].code == 0
    assert "misplaced@1" in done["mirrors"].out
    lines = (folder / "half/scores/mirrors.paper.jsonl").read_text().splitlines()
    assert len(lines) == 9
    assert json.loads(lines[0])["version"] == 3
    code = (
        "from mie.scoring.results import Results;"
        "r = Results.open('whole', 'mirrors');"
        "print(float(r['misplaced']), r['misplaced'].metric.title, len(r.frame))"
    )
    for installed in (True, False):  # the numbers can be shown where the package is not installed
        assert python(folder, code, installed=installed).split() == ["0.0", "Misplaced", "(%)", "8"]


def test_a_report_shows_its_metric_and_its_benchmark(folder: Path, done: dict[str, Done]) -> None:
    assert done["report"].code == 0, done["report"].err
    page = (folder / "report/index.html").read_text()
    assert "Misplaced (%)" in page
    assert "mirrors" in page
    assert "misplaced" in (folder / "report/tables/leaderboard.csv").read_text()


def test_an_older_function_is_stored_too(folder: Path, done: dict[str, Done]) -> None:
    assert "calm@1" in done["older"].out
    assert "nan" not in done["older"].out.lower()
    document = done["older json"].document
    means = document["groups"][0]["metrics"]
    assert means["joy@1"] == {"mean": None, "n": 0, "ci95": None, "unscored": 0}
    assert document["n_samples"] == 2
    assert json.loads((folder / "half/summary/older.paper.json").read_text()) == document


@pytest.mark.parametrize("name", ["mirrors", "older"])
def test_a_judge_that_it_cannot_ask_is_refused(done: dict[str, Done], name: str) -> None:
    refused = done[f"judge {name}"]
    assert refused.code == 2
    assert f"the benchmark {name} asks no judge" in refused.err


def test_help_and_lists_name_them(done: dict[str, Done]) -> None:
    benchmarks = {one["name"]: one for one in done["list"].document["benchmarks"]}
    assert {"mirrors", "older"} <= set(benchmarks)
    assert "misplaced" in benchmarks["miedb"]["metrics"]
    assert "mirrors" in " ".join(done["score help"].out.split())
    assert "half-mirror" in done["run help"].out
    assert done["typo"].code == 2
    assert "did you mean 'mirrors'?" in done["typo"].err


def test_without_the_package_a_recipe_says_what_is_missing(folder: Path) -> None:
    (gone,) = run_mie(folder, ["build recipe.yaml -o other"], installed=False)
    assert gone.code == 2
    assert "that an installed package reads" in gone.err
