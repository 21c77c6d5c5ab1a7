"""`--engine ray`: the same build, run, scores and answers as in one process, whatever dies on the way.

One cluster of two machines for all of it: each has one core, and the second is taken away and comes back.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from mie.datasets import build as building
from mie.datasets import cluster as clusters
from mie.datasets.build import build
from mie.datasets.cluster import Proof, _Actor, start_ray
from mie.datasets.dataset import Dataset
from mie.datasets.engine import report, run_tasks
from mie.datasets.part import make_part
from mie.datasets.recipe import parse_recipe
from mie.editors.actors import _Copy
from mie.editors.run import run_editor
from mie.errors import ConfigError, MieError
from mie.questions.answers import answer_questions
from mie.scoring import score as scoring
from mie.scoring.score import score
from tests.conftest import ROOT, folder_source
from tests.docs.pages import blocks
from tests.editors.conftest import make_dataset, outputs
from tests.questions.tiny import write_tiny

# Inverts the picture. For two instructions it first kills the process that started it: for "once" the first
# time, for "always" each time. For "machine" it never ends on the second machine.
EDIT = """
import os, pathlib, signal, sys, time
import cv2
source, target, seed, folder = sys.argv[1:]
plan = dict(line.split() for line in (pathlib.Path(folder) / "plan").read_text().splitlines())
what = plan.get(seed)
mark = pathlib.Path(folder) / f"killed-{seed}"
if what == "always" or (what == "once" and not mark.exists()):
    mark.touch()
    os.kill(os.getppid(), signal.SIGKILL)
if what == "machine" and os.environ.get("FRAGILE"):
    (pathlib.Path(folder) / "begun").touch()
    parent = os.getppid()
    while os.getppid() == parent:
        time.sleep(0.05)
    sys.exit(1)
cv2.imwrite(target, 255 - cv2.imread(source))
"""


# Answers with a letter that the question decides; in a folder with a file "armed" it first kills, once, the
# process that started it.
ANSWER = """
import os, pathlib, signal, sys
prompt, folder = sys.argv[1:]
armed = pathlib.Path(folder) / "armed"
if armed.exists():
    armed.unlink()
    os.kill(os.getppid(), signal.SIGKILL)
print("ABCD"[len(prompt) % 4])
"""


def lines(run):
    """What the journal says, without times, in any order."""
    body = [json.loads(line) for line in (run.folder / "edits.jsonl").read_text().splitlines()]
    return sorted(json.dumps({**line, "seconds": 0}) for line in body)


class Machines:
    """A head that stays, and a second machine, with FRAGILE set, that is killed and comes back."""

    def __init__(self, cluster):
        self._cluster = cluster
        self._second = None

    def kill_when(self, mark: Path) -> threading.Thread:
        """Have a second machine, and kill it as soon as the file is there."""
        mark.unlink(missing_ok=True)
        self.both()

        def wait():
            while not mark.exists():
                time.sleep(0.05)
            self._cluster.remove_node(self._second, allow_graceful=False)
            self._second = None

        thread = threading.Thread(target=wait, daemon=True)
        thread.start()
        return thread

    def both(self):
        if self._second is None:
            # A machine that dies takes all its processes at once; Ray would end the command first, and its
            # editor might still report that.
            alone = {"FRAGILE": "1", "RAY_kill_child_processes_on_worker_exit": "false"}
            self._second = self._cluster.add_node(num_cpus=1, env_vars=alone)


@pytest.fixture(scope="module")
def machines():
    ray = pytest.importorskip("ray", reason="the ray extra is not installed")
    from ray.cluster_utils import Cluster

    quick = {
        "health_check_initial_delay_ms": 0,
        "health_check_period_ms": 500,
        "health_check_failure_threshold": 4,
    }
    # Without the processes that only serve people: each imports all of Ray.
    spared = {"include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_worker_niceness", "0")  # else its workers wait for all other tests
        head = {"num_cpus": 1, "_system_config": quick, **spared}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        patch.setenv("RAY_ADDRESS", cluster.address)
        start_ray(None)
        yield Machines(cluster)
        ray.shutdown()
        cluster.shutdown()


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("running"), 40)


def recipe(dataset):
    body = {"name": "discs", "seed": 3, "split": {"test": 0.4}}
    body["sources"] = [folder_source(dataset.parent / "source")]
    return parse_recipe(body, where="t", base=dataset)


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def fragile_part(task):
    return hang_or(make_part, task, task.folder.parent.parent)


def hang_or(function, task, folder):
    if os.environ.get("FRAGILE"):
        (folder / "begun").touch()
        time.sleep(600)
    return function(task)


def deadly_chunk(task):
    """Ends the worker that gets the first chunk."""
    try:
        (task.part.parents[4] / "ended").touch(exist_ok=False)
    except FileExistsError:
        return _score_chunk(task)
    os.abort()


_score_chunk = scoring._score_chunk


@pytest.mark.slow
def test_a_machine_that_dies_costs_a_build_and_a_worker_scores_only_its_work_in_flight(
    machines, dataset, tmp_path, monkeypatch
):
    monkeypatch.setattr("mie.datasets.plan._PART_WEIGHT", 8)
    for name, workers in (("one", 1), ("pool", 2)):
        build(recipe(dataset), tmp_path / name, workers=workers)
    assert files(tmp_path / "pool") == files(tmp_path / "one")
    monkeypatch.setattr(building, "make_part", fragile_part)
    killed = machines.kill_when(tmp_path / "begun")
    build(recipe(dataset), tmp_path / "ray", engine="ray")
    killed.join()
    assert Dataset(tmp_path / "ray").digest == Dataset(tmp_path / "one").digest
    assert files(tmp_path / "ray") == files(tmp_path / "one")

    run = run_editor(tmp_path / "one", "kmeans", tmp_path / "run")
    score(run, workers=1)
    scores = files(run.folder)
    (run.folder / "scores/miedb.paper.jsonl").unlink()
    (run.folder / "summary/miedb.paper.json").unlink()
    monkeypatch.setattr(scoring, "_score_chunk", deadly_chunk)
    monkeypatch.setattr("mie.scoring.attempts._PAIRS", 4)
    score(run, engine="ray")
    assert (tmp_path / "ended").exists()
    assert files(run.folder) == scores


@pytest.mark.slow
def test_a_machine_that_dies_costs_a_run_and_an_actor_answers_only_those_in_flight(
    machines, dataset, tmp_path, monkeypatch
):
    (tmp_path / "edit.py").write_text(EDIT)
    (tmp_path / "plan").write_text("")
    editor = f"command:{sys.executable} {tmp_path}/edit.py {{input}} {{output}} {{seed}} {tmp_path}"
    whole = run_editor(dataset, editor, tmp_path / "whole", limit=6)
    (tmp_path / "plan").write_text("".join(f"{edit.seed} machine\n" for edit in whole.edits().values()))
    with monkeypatch.context() as patch:
        patch.setattr(clusters, "_PATIENCE", 2.0)  # there is no core for a new actor: the other does all
        killed = machines.kill_when(tmp_path / "begun")
        run = run_editor(dataset, editor, tmp_path / "run", limit=6, engine="ray", workers=2)
        killed.join()
    assert run.info["counts"]["failed"] == 0
    assert outputs(run.folder) == outputs(whole.folder)
    assert lines(run) == lines(whole)

    questions = write_tiny(tmp_path / "questions", test=8, train=2).split("test")
    (tmp_path / "answer.py").write_text(ANSWER)
    answerer = f"command:{sys.executable} {tmp_path}/answer.py {{prompt}} {tmp_path}"
    local = answer_questions(questions, answerer, tmp_path / "local", blind=True)
    (tmp_path / "armed").touch()
    ray = answer_questions(questions, answerer, tmp_path / "ray", blind=True, engine="ray", workers=1)
    assert not (tmp_path / "armed").exists()
    assert ray.complete
    assert (ray.folder / "answers.jsonl").read_bytes() == (local.folder / "answers.jsonl").read_bytes()
    assert {one.reply for one in ray.answers()} > {"A"}


def deadly(task):
    """The fourth task ends its process after its second step, until it is told not to."""
    number, kills = task
    for step in range(3):
        report(step)
        if number == 3 and step == 1 and kills:
            os.abort()
    return number


def without_step(task, standing):
    return (task[0], False) if standing[0] == 1 else None


def step_name(task, standing):
    return f"step {standing[0]} of task {task[0]}"


@pytest.mark.slow
def test_work_that_ends_every_worker_is_replaced_or_named(machines):
    tasks = [(number, True) for number in range(6)]
    found = run_tasks(deadly, tasks, engine="ray", rescue=without_step)
    assert sorted(found) == [0, 1, 2, 3, 4, 5]
    with pytest.raises(MieError, match="a worker process was killed") as error:
        list(run_tasks(deadly, tasks, engine="ray", describe=step_name))
    assert error.value.where == "step 1 of task 3"


@pytest.mark.slow
def test_a_cluster_without_a_shared_folder_is_told_so(machines, dataset, tmp_path, monkeypatch):
    class Elsewhere(Proof):
        """What a machine with a folder of its own would find: no token."""

        def __init__(self, *values):
            token = "of another folder" if len(values) > 3 else values[2]
            super().__init__(*values[:2], token, *values[3:], patience=0.3)

    monkeypatch.setattr(clusters, "Proof", Elsewhere)
    with pytest.raises(MieError, match="this machine does not see") as error:
        build(recipe(dataset), tmp_path / "d", engine="ray")
    assert "mount at the same path" in str(error.value)
    assert not list((tmp_path / "d" / "parts").glob(".shared*"))
    monkeypatch.undo()
    build(recipe(dataset), tmp_path / "d", engine="ray")
    assert files(tmp_path / "d") == files(dataset)


@pytest.mark.slow
def test_ray_data_reads_a_dataset_as_the_page_says(machines, dataset, tmp_path, monkeypatch):
    (snippet,) = [block.text for block in blocks(ROOT / "docs/how-to/cluster.md") if block.info == "py"]
    names = {}
    (tmp_path / "out").mkdir()
    (tmp_path / "out/quickstart").symlink_to(dataset)
    monkeypatch.chdir(tmp_path)
    exec(compile(snippet, "cluster.md", "exec"), names)
    samples = {sample.id: sample for sample in Dataset(dataset).samples()}
    assert {row["id"] for row in names["rows"]} == set(samples)
    for row in names["rows"]:
        assert row["brightness"] == pytest.approx(samples[row["id"]].input.mean())


def test_a_worker_compares_files_and_versions(tmp_path):
    image = tmp_path / "image.png"
    image.write_bytes(b"12345")
    import mie

    here = str(Path.cwd())
    Proof(here, mie.__version__, inputs=((image, 5),)).check()
    with pytest.raises(MieError, match=r"does not see .*image.png"):
        Proof(here, mie.__version__, inputs=((image, 6),), patience=0.1).check()
    with pytest.raises(MieError, match="another version of mie"):
        Proof(here, "0.0.0").check()


@pytest.mark.slow
def test_the_run_is_that_of_one_process(machines, dataset, tmp_path):
    machines.both()
    options = {"attempts": 2, "limit": 12}
    local = run_editor(dataset, "kmeans", tmp_path / "local", **options)
    ray = run_editor(dataset, "kmeans", tmp_path / "ray", engine="ray", workers=2, **options)
    assert outputs(ray.folder) == outputs(local.folder)
    assert lines(ray) == lines(local)
    same = ("editor", "config", "counts", "status")
    assert {key: ray.info[key] for key in same} == {key: local.info[key] for key in same}
    scores = [score(run, "miedb", engine=engine) for run, engine in ((local, "local"), (ray, "ray"))]
    assert scores[0]["b_psnr"] == scores[1]["b_psnr"]
    files = [(run.folder / "scores/miedb.paper.jsonl").read_text().splitlines()[1:] for run in (local, ray)]
    assert files[0] == files[1]
    # A run on Ray is resumed in one process, and the other way round: it is the same run.
    for path in sorted((ray.folder / "outputs").iterdir())[:3]:
        path.unlink()
    again = run_editor(dataset, "kmeans", ray.folder, **options)
    assert outputs(again.folder) == outputs(local.folder)


@pytest.mark.slow
def test_an_actor_that_dies_costs_only_its_edits_in_flight(machines, dataset, tmp_path):
    machines.both()
    (tmp_path / "edit.py").write_text(EDIT)
    (tmp_path / "plan").write_text("")
    editor = f"command:{sys.executable} {tmp_path}/edit.py {{input}} {{output}} {{seed}} {tmp_path}"
    whole = run_editor(dataset, editor, tmp_path / "whole", limit=8)
    seeds = {edit.seed: edit.sample_id for edit in whole.edits().values()}
    once, always = sorted(seeds)[:2]
    (tmp_path / "plan").write_text(f"{once} once\n{always} always\n")
    run = run_editor(dataset, editor, tmp_path / "run", limit=8, engine="ray", workers=2, batch_size=2)
    failed = {edit.sample_id: edit.reason for edit in run.edits().values() if edit.state == "failed"}
    assert list(failed) == [seeds[always]]
    assert "the process that made this edit died" in failed[seeds[always]]
    assert run.info["counts"] == {"samples": 8, "edits": 8, "done": 7, "failed": 1, "refused": 0}
    assert (tmp_path / f"killed-{once}").exists()
    (tmp_path / "plan").write_text("")
    run = run_editor(dataset, editor, run.folder, limit=8, engine="ray", workers=1, retry_failed=True)
    assert outputs(run.folder) == outputs(whole.folder)


@pytest.mark.slow
def test_more_actors_than_cores_are_refused_instead_of_waiting_for_ever(machines, dataset, tmp_path):
    machines.both()
    with pytest.raises(ConfigError, match="the cluster is too small"):
        run_editor(dataset, "identity", tmp_path / "run", engine="ray", workers=3)


def test_an_actor_reports_what_cannot_be_loaded(tmp_path):
    error = _Actor(_Copy, f"folder:{tmp_path}/nowhere", "/").load()
    assert isinstance(error, MieError)
    assert _Actor(_Copy, "identity", "/").load() is None


def test_what_other_processes_cannot_open_is_refused(dataset, tmp_path):
    with pytest.raises(ConfigError, match="other processes cannot be given this editor"):
        run_editor(dataset, lambda image, instruction: image, tmp_path / "run", engine="ray")
    with pytest.raises(ConfigError, match="did you mean 'ray'"):
        run_editor(dataset, "identity", tmp_path / "run", engine="rya")
    assert not (tmp_path / "run").exists()
    assert len(Dataset(dataset)) > 8


def test_ray_is_started_again_when_a_node_is_late(monkeypatch):
    ray = pytest.importorskip("ray", reason="the ray extra is not installed")
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    given: list[dict[str, object]] = []
    late = 2

    def init(**options):
        given.append(options)
        if len(given) <= late:
            raise Exception("The current node timed out during startup")

    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "shutdown", lambda: None)
    monkeypatch.setattr(ray, "is_initialized", lambda: len(given) > late)
    assert start_ray(2) is ray
    assert [options["address"] for options in given] == ["local"] * 3
    given.clear()
    late = 3
    with pytest.raises(MieError, match="Ray did not start: The current node timed out"):
        start_ray(2)
