"""Runs: whole, resumed, failing, refused. Pixels and bytes are compared with the dataset's own."""

import hashlib
import json
import subprocess
import sys
from typing import ClassVar

import numpy as np
import pytest

from mie.datasets.dataset import Dataset
from mie.editors import Edited, EditError, Editor, Turn, pipeline
from mie.editors.baselines import Identity
from mie.editors.requests import edit_seed
from mie.editors.run import run_editor
from mie.editors.runs import Run
from mie.errors import ConfigError, MieError
from mie.images.png import decode_png
from tests.editors.conftest import outputs


def pixels(run, sample_id, k=0):
    return decode_png(run.output_path(sample_id, k).read_bytes())


class Recording(Identity):
    """Notes what it is asked, and fails where `fails` says."""

    asked: ClassVar[list] = []
    fails = staticmethod(lambda request: False)
    workers = 1

    def edit_request(self, request):
        self.asked.append((request.sample.id, request.attempt, request.seed))
        if self.fails(request):
            raise RuntimeError("no such luck")
        return Edited(255 - request.image, {"asked": request.instruction})


@pytest.fixture
def recording(use):
    Recording.asked = []
    Recording.fails = staticmethod(lambda request: False)
    use(Recording)
    return Recording


@pytest.mark.parametrize("editor", ["identity", "oracle"])
def test_identity_gives_the_input_and_oracle_the_target(dataset, tmp_path, editor):
    run = run_editor(dataset, editor, tmp_path / "run")
    edits = run.edits()
    samples = list(Dataset(dataset).samples())
    assert len(samples) == len(edits) == run.info["counts"]["done"] > 30
    for sample in samples:
        expected = sample.input if editor == "identity" else sample.target_image
        assert np.array_equal(pixels(run, sample.id), expected)
        edit = edits[sample.id, 0]
        data = (run.folder / edit.path).read_bytes()
        assert edit.sha256 == hashlib.sha256(data).hexdigest()
        assert (edit.state, edit.size, edit.reason) == ("done", expected.shape[:2], None)
        assert edit.seed == edit_seed(sample.id, 0)


def test_run_json_says_enough_to_repeat_it(dataset, tmp_path):
    run = run_editor(dataset, "identity", tmp_path / "run", attempts=2, split="test", limit=5)
    info = json.loads((tmp_path / "run" / "run.json").read_text())
    assert info == run.info
    assert info["schema_version"] == 1
    assert info["status"] == "complete"
    assert info["dataset"]["digest"] == Dataset(dataset).digest
    assert info["editor"]["spec"] == "identity"
    assert info["config"] == {"attempts": 2, "split": "test", "limit": 5, "turns": "free"}
    assert info["counts"] == {"samples": 5, "edits": 10, "done": 10, "failed": 0, "refused": 0}
    assert info["timings"]["edits_per_second"] > 0
    assert {"mie", "python", "numpy"} <= set(info["versions"])
    assert info["environment"]["cores"] >= 1
    ids = [row["id"] for row in Dataset(dataset).rows("test", ["id"])][:5]
    assert run.sample_ids() == ids
    assert set(run.edits()) == {(i, k) for i in ids for k in (0, 1)}


def test_seeds_come_from_sample_and_attempt_alone(dataset, tmp_path, recording):
    run_editor(dataset, "test", tmp_path / "a", attempts=3)
    first = sorted(recording.asked)
    recording.asked = []
    run_editor(dataset, "test", tmp_path / "b", attempts=3, split="test", batch_size=4)
    assert set(recording.asked) < set(first)
    seeds = [seed for _, _, seed in first]
    assert len(set(seeds)) == len(seeds)
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_attempts_do_not_see_what_another_did_to_the_image(dataset, tmp_path, use):
    class InPlace(Identity):
        def edit(self, image, instruction, *, seed, history):
            assert tuple(history) == ()
            np.subtract(255, image, out=image)
            return Edited(image)

    use(InPlace)
    run = run_editor(dataset, "test", tmp_path / "run", attempts=3, limit=4)
    for sample in list(Dataset(dataset).samples())[:4]:
        for k in range(3):
            assert np.array_equal(pixels(run, sample.id, k), 255 - sample.input)


def test_only_the_oracle_sees_targets(dataset, tmp_path, use):
    seen = []

    class Curious(Identity):
        def edit_request(self, request):
            seen.append(request.sample.target_image)
            return super().edit_request(request)

    use(Curious)
    run_editor(dataset, "test", tmp_path / "run", limit=3)
    assert seen == [None] * 3


def test_batches_have_the_declared_size(dataset, tmp_path, use):
    sizes = []

    class Batched(Identity):
        batch_size = 7
        workers = 1

        def edit_batch(self, requests):
            sizes.append(len(requests))
            return super().edit_batch(requests)

    use(Batched)
    run = run_editor(dataset, "test", tmp_path / "run", limit=30)
    assert sizes == [7, 7, 7, 7, 2]
    assert run.info["counts"]["done"] == 30
    assert outputs(tmp_path / "run") == outputs(
        run_editor(dataset, "identity", tmp_path / "i", limit=30).folder
    )


def test_a_batch_that_fails_as_a_whole_is_tried_one_by_one(dataset, tmp_path, use):
    bad = Dataset(dataset).table(["id"])["id"][3]

    class Fragile(Identity):
        batch_size = 5

        def edit_batch(self, requests):
            if any(r.sample.id == bad for r in requests):
                raise MemoryError("out of memory")
            return [Edited(r.image) for r in requests] if len(requests) == 5 else [Edited(requests[0].image)]

    use(Fragile)
    run = run_editor(dataset, "test", tmp_path / "run", limit=10)
    failed = [e for e in run.edits().values() if e.state == "failed"]
    assert [(e.sample_id, e.reason) for e in failed] == [(bad, "MemoryError: out of memory")]


def test_a_failed_edit_is_recorded_and_tried_again_when_asked(dataset, tmp_path, recording):
    bad = set(Dataset(dataset).table(["id"])["id"][::4])
    recording.fails = staticmethod(lambda r: r.sample.id in bad and r.attempt == 1)
    folder = tmp_path / "run"
    run = run_editor(dataset, "test", folder, attempts=2)
    failed = {key for key, edit in run.edits().items() if edit.state == "failed"}
    assert failed == {(i, 1) for i in bad}
    assert run.info["counts"]["failed"] == len(bad)
    assert run.info["status"] == "complete"
    for key in failed:
        assert run.edits()[key].reason == "RuntimeError: no such luck"
        assert not run.output_path(*key).exists()

    recording.asked = []
    assert run_editor(dataset, "test", folder, attempts=2).info == run.info
    assert recording.asked == []  # failures stay failures until somebody asks

    still = sorted(bad)[0]
    recording.fails = staticmethod(lambda r: r.sample.id == still)
    progress = []
    again = run_editor(dataset, "test", folder, attempts=2, retry_failed=True, progress=progress.append)
    assert {(i, k) for i, k, _ in recording.asked} == failed
    assert again.info["counts"] == {
        **run.info["counts"],
        "failed": 1,
        "done": run.info["counts"]["edits"] - 1,
    }
    last = progress[-1]
    assert (last.done, last.total, last.failed) == (len(bad), len(bad), 1)
    assert last.earlier == run.info["counts"]["edits"] - len(bad)
    lines = (folder / "edits.jsonl").read_text().splitlines()
    assert len(lines) == run.info["counts"]["edits"] + len(bad)


def test_reading_ahead_is_bounded(dataset, tmp_path, use, monkeypatch):
    """However slow the editor, only a few images are in memory."""
    from mie.editors import run as running

    made, finished, most = [], [], [0]
    real = running.sample_requests

    def counted(*args, **options):
        for request in real(*args, **options):
            made.append(1)
            most[0] = max(most[0], len(made) - len(finished))
            yield request

    class Slow(Identity):
        workers = 1

        def edit(self, image, instruction, *, seed, history):
            finished.append(1)
            return Edited(image)

    monkeypatch.setattr(running, "sample_requests", counted)
    use(Slow)
    run_editor(dataset, "test", tmp_path / "run", attempts=10)
    assert len(made) > 300
    assert most[0] <= 2 + 2 * pipeline._WRITERS + 1


@pytest.mark.parametrize("at", ["write_output", "sync_folder", "append", "write_run_info"])
@pytest.mark.parametrize("when", [0, 3])
def test_stopped_at_any_step_it_goes_on(dataset, tmp_path, monkeypatch, recording, at, when):
    """An exception that nothing catches, at the n-th call of each step that touches the disk."""
    from mie.core.journal import Journal
    from mie.editors import run as running

    whole = run_editor(dataset, "test", tmp_path / "whole")
    monkeypatch.setattr(pipeline, "_GROUP", 5)
    owner = {"append": Journal, "write_run_info": running}.get(at, pipeline)
    calls = []

    def stop(*args, real=getattr(owner, at)):
        calls.append(1)
        if len(calls) > min(when, 1 if at == "write_run_info" else when):
            raise SystemError("power cut, or so")
        return real(*args)

    folder = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(owner, at, stop)
        with pytest.raises(SystemError):
            run_editor(dataset, "test", folder)
    recorded = (
        {e.sample_id for e in Run.open(folder).edits().values()} if (folder / "run.json").exists() else set()
    )
    recording.asked = []
    run = run_editor(dataset, "test", folder)
    assert outputs(folder) == outputs(tmp_path / "whole")
    assert run.info["counts"] == whole.info["counts"]
    assert not {i for i, _, _ in recording.asked} & recorded
    lines = [json.loads(line) for line in (folder / "edits.jsonl").read_text().splitlines()]
    assert sorted(line["sample_id"] for line in lines) == sorted(Dataset(dataset).table(["id"])["id"])


@pytest.mark.parametrize("torn", [b'{"sample_id": "ab', b"\0\0\0\0", b"x" * 200_000])
def test_a_torn_last_line_is_cut_off(dataset, tmp_path, recording, torn):
    folder = tmp_path / "run"
    run_editor(dataset, "test", folder)
    journal = folder / "edits.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    journal.write_bytes(b"".join(lines[:10]) + torn)
    assert len(Run.open(folder).edits()) == 10
    recording.asked = []
    run_editor(dataset, "test", folder)
    assert len(recording.asked) == len(lines) - 10
    assert journal.read_bytes().startswith(b"".join(lines[:10]))
    assert len(Run.open(folder).edits()) == len(lines) == journal.read_bytes().count(b"\n")


def test_an_output_that_vanished_is_made_again(dataset, tmp_path, recording):
    run = run_editor(dataset, "test", tmp_path / "run")
    before = outputs(run.folder)
    victim = next(iter(run.edits().values()))
    (run.folder / victim.path).unlink()
    recording.asked = []
    run_editor(dataset, "test", tmp_path / "run")
    assert [i for i, _, _ in recording.asked] == [victim.sample_id]
    assert outputs(run.folder) == before


def test_an_output_without_a_line_does_not_stay_beside_a_failure(dataset, tmp_path, recording):
    run = run_editor(dataset, "test", tmp_path / "run")
    (run.folder / "edits.jsonl").write_bytes(b"")
    recording.fails = staticmethod(lambda request: True)
    run = run_editor(dataset, "test", tmp_path / "run")
    assert run.info["counts"]["done"] == 0
    assert outputs(run.folder) == {}


def test_leftovers_of_a_kill_are_swept_up(dataset, tmp_path):
    folder = tmp_path / "run"
    (folder / "outputs").mkdir(parents=True)
    (folder / "outputs" / ".x_0.png.tmp").write_bytes(b"half")
    with pytest.raises(MieError, match="something else"):
        run_editor(dataset, "identity", folder)  # without run.json it could be anybody's
    (folder / "outputs" / ".x_0.png.tmp").unlink()
    (folder / "outputs").rmdir()
    (folder / ".lock").write_text("123")
    run_editor(dataset, "identity", folder, limit=2)
    (folder / "outputs" / ".x_0.png.tmp").write_bytes(b"half")
    (folder / "edits.jsonl").write_bytes(b"")
    run_editor(dataset, "identity", folder, limit=2)
    assert len(outputs(folder)) == 2


def test_another_run_is_not_mixed_in(dataset, tmp_path):
    folder = tmp_path / "run"
    run_editor(dataset, "identity", folder, limit=4)
    before = outputs(folder)
    for changes in ({"limit": 5}, {"limit": 4, "attempts": 2}, {"limit": 4, "split": "test"}):
        with pytest.raises(MieError, match="another run"):
            run_editor(dataset, "identity", folder, **changes)
    with pytest.raises(MieError, match="another run") as caught:
        run_editor(dataset, "oracle", folder, limit=4)
    assert (caught.value.expected, caught.value.found) == ("editor oracle", "editor identity")
    info = json.loads((folder / "run.json").read_text())
    info["dataset"]["digest"] = "0" * 64
    (folder / "run.json").write_text(json.dumps(info))
    with pytest.raises(MieError, match="another run"):
        run_editor(dataset, "identity", folder, limit=4)
    assert outputs(folder) == before


def test_limits_of_time_may_change_between_sittings_and_secrets_are_not_stored(dataset, tmp_path):
    folder = tmp_path / "run"
    run_editor(dataset, "command:cp {input} {output} --api-key,timeout=50", folder, limit=2)
    run = run_editor(
        dataset, "command:cp {input} {output} --api-key,timeout=60", folder, limit=2, retry_failed=True
    )
    assert run.info["counts"]["failed"] == 2
    spec = "command:env API_TOKEN=s3cret cp {input} {output}"
    run_editor(dataset, spec, tmp_path / "b", limit=2)
    run_editor(dataset, spec.replace("s3cret", "an0ther"), tmp_path / "b", limit=2)
    assert "s3cret" not in (tmp_path / "b" / "run.json").read_text()


@pytest.mark.parametrize("strange", ["notes.txt", "dataset.json", "outputs/x.png"])
def test_a_folder_with_something_else_is_left_alone(dataset, tmp_path, strange):
    path = tmp_path / "run" / strange
    path.parent.mkdir(parents=True)
    path.write_text("mine")
    with pytest.raises(MieError, match="something else"):
        run_editor(dataset, "identity", tmp_path / "run")
    assert [p for p in (tmp_path / "run").rglob("*") if p.is_file()] == [path]


def test_a_dataset_is_not_written_into(dataset):
    with pytest.raises(MieError, match="something else"):
        run_editor(dataset, "identity", dataset)


def test_two_runs_into_one_folder(dataset, tmp_path):
    script = (
        "import sys, time, pathlib\n"
        "from mie.core.files import folder_lock\n"
        "with folder_lock(pathlib.Path(sys.argv[1])):\n"
        "    print('held', flush=True)\n"
        "    time.sleep(60)\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", script, str(tmp_path / "run")], stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(MieError, match="another process"):
            run_editor(dataset, "identity", tmp_path / "run")
    finally:
        holder.kill()
        holder.wait()


@pytest.mark.parametrize(
    ("options", "word"),
    [
        ({"split": "tset"}, "did you mean 'test'"),
        ({"attempts": 0}, "attempts"),
        ({"limit": 0}, "limit"),
    ],
)
def test_wrong_use_is_refused_before_a_folder_is_made(dataset, tmp_path, options, word):
    with pytest.raises(ConfigError, match=word):
        run_editor(dataset, "identity", tmp_path / "run", **options)
    with pytest.raises(ConfigError):
        run_editor(dataset, "identitty", tmp_path / "run")
    with pytest.raises(ConfigError, match="one edit at a time"):
        run_editor(dataset, "command:cat,jsonl=true", tmp_path / "run", workers=2)
    assert not (tmp_path / "run").exists()


def test_a_damaged_dataset_says_so(dataset, tmp_path):
    import shutil

    broken = shutil.copytree(dataset, tmp_path / "broken")
    shard = sorted((broken / "data").iterdir())[0]
    data = bytearray(shard.read_bytes())
    at = data.index(b"IDAT") + 40  # inside the first image
    data[at : at + 200] = bytes(200)
    shard.write_bytes(data)
    run = run_editor(broken, "oracle", tmp_path / "run")
    (failed,) = [e for e in run.edits().values() if e.state == "failed"]
    assert "the sample cannot be read" in failed.reason
    shard.write_bytes(data[:-100])
    with pytest.raises(MieError, match="cannot be read"):
        run_editor(broken, "oracle", tmp_path / "other")


class Odd(Editor):
    """Returns what a test wants."""

    made: object = None
    meta: object = {}

    def edit(self, image, instruction, *, seed, history: list[Turn]):
        return Edited(self.made(image), self.meta)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda image: None, "NoneType"),
        (lambda image: image.astype(np.float32), "float32"),
        (lambda image: image[None], "(1, 128, 128, 3)"),
        (lambda image: image[..., :2], "1, 3 or 4 channels"),
        (lambda image: image[:15], "128x15"),
        (lambda image: image[:7, :7], "7x7"),
        (lambda image: np.zeros((1025, 128, 3), np.uint8), "128x1025"),
        (lambda image: image[:0], "128x0"),
        (lambda image: 1 / 0, "ZeroDivisionError"),
    ],
)
def test_an_output_that_makes_no_sense_is_a_failed_edit(dataset, tmp_path, use, make, word):
    use(Odd)
    Odd.made, Odd.meta = staticmethod(make), {}
    run = run_editor(dataset, "test", tmp_path / "run", limit=2)
    assert run.info["counts"]["failed"] == 2
    assert all(word in e.reason for e in run.edits().values())
    assert outputs(run.folder) == {}


@pytest.mark.parametrize(
    ("make", "mode"),
    [
        (lambda image: image[..., 0], "L"),
        (lambda image: image[..., :1], "L"),
        (lambda image: np.dstack([image, np.full(image.shape[:2], 100, np.uint8)]), "RGBA"),
        (lambda image: image[:16, :16], None),
        (lambda image: np.zeros((1024, 1024, 3), np.uint8), None),
        (lambda image: image[::-1, ::-1], None),
    ],
)
def test_other_kinds_of_images_become_rgb(dataset, tmp_path, use, make, mode):
    use(Odd)
    Odd.made, Odd.meta = staticmethod(make), {"loss": np.float32(0.5), "bad": float("nan"), "t": (1, object)}
    run = run_editor(dataset, "test", tmp_path / "run", limit=1)
    ((key, edit),) = run.edits().items()
    image = np.asarray(make(next(Dataset(dataset).samples()).input))
    expected = image if image.ndim == 3 else image[..., None]
    if mode == "L":
        expected = np.repeat(expected, 3, axis=2)
    if mode == "RGBA":
        expected = np.floor(expected[..., :3] * 100.0 / 255 + 0.5).astype(np.uint8)
    assert np.array_equal(pixels(run, *key), expected)
    assert edit.size == expected.shape[:2]
    assert edit.meta["loss"] == 0.5
    assert edit.meta["bad"] == "nan"
    assert edit.meta.get("mode") == mode


@pytest.mark.parametrize("outcomes", [[], [None], "x", [EditError("a"), EditError("b")]])
def test_an_editor_that_breaks_its_promise(dataset, tmp_path, use, outcomes):
    class Liar(Identity):
        def edit_batch(self, requests):
            return outcomes

    use(Liar)
    run = run_editor(dataset, "test", tmp_path / "run", limit=2)
    assert all("one outcome per request" in e.reason for e in run.edits().values())


def test_a_folder_of_outputs_gives_the_same_run(dataset, tmp_path):
    first = run_editor(dataset, "oracle", tmp_path / "a", attempts=2)
    second = run_editor(dataset, f"folder:{tmp_path}/a/outputs", tmp_path / "b", attempts=2)
    assert outputs(second.folder) == outputs(first.folder)
