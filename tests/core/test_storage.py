"""A copy of a folder on object storage: what is pulled, in which order it is uploaded, what a kill leaves."""

from __future__ import annotations

import hashlib
import json
import os

import fsspec
import pytest

from mie.core import storage
from mie.core.files import folder_lock
from mie.core.storage import Copy, local, origin, place_of, url_of
from mie.errors import ConfigError, MieError

URL = "memory://bucket/set"


@pytest.fixture(autouse=True)
def memory(tmp_path, monkeypatch):
    """An empty storage, and an empty cache on this machine."""
    monkeypatch.setenv("MIE_CACHE", str(tmp_path / "here"))
    filesystem = fsspec.filesystem("memory")
    filesystem.store.clear()
    filesystem.pseudo_dirs[:] = [""]
    return filesystem


@pytest.fixture
def other_machine(tmp_path, monkeypatch):
    """Call it to continue on a machine with a cache of its own."""
    return lambda: monkeypatch.setenv("MIE_CACHE", str(tmp_path / "there"))


def _write(folder, **files):
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)


def _stored(memory):
    top = "/bucket/set/"
    return {name.removeprefix(top): memory.cat_file(name).decode() for name in memory.find(top)}


def _killed_before(monkeypatch, memory, ending):
    """Let the process die when the object with this ending would be uploaded."""
    put, pipe = memory.put_file, memory.pipe_file

    def dying(upload):
        def run(first, second, *args, **kwargs):
            if (second if upload is put else first).endswith(ending):
                raise KeyboardInterrupt
            return upload(first, second, *args, **kwargs)

        return run

    monkeypatch.setattr(memory, "put_file", dying(put))
    monkeypatch.setattr(memory, "pipe_file", dying(pipe))


@pytest.mark.parametrize(
    ("place", "url"),
    [
        ("s3://bucket/a/b/", "s3://bucket/a/b"),
        ("s3:/bucket/a", "s3://bucket/a"),  # as a `Path` keeps it
        ("memory://x", "memory://x"),
        ("out/run", None),
        ("/data/x", None),
        ("http://127.0.0.1:8000/edit", None),
        ("postgresql://host/base", None),
        ("C:/data", None),
    ],
)
def test_urls_are_told_from_paths(place, url):
    assert url_of(place) == url


def test_credentials_in_a_url_are_refused_and_not_repeated():
    with pytest.raises(ConfigError) as caught:
        url_of("ftp://me:secret@host/data")
    assert "secret" not in str(caught.value)
    assert url_of("abfs://container@account.example/data") == "abfs://container@account.example/data"


def test_a_url_is_never_made_as_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(MieError, match="this is a URL"), folder_lock(storage.Path("memory://bucket/run")):
        pass
    assert not list(tmp_path.iterdir())


def test_what_is_pushed_is_pulled_elsewhere_with_its_checksums(memory, other_machine):
    copy = Copy(URL)
    copy.pull()
    _write(copy.folder, data__a_parquet="shard", stats__x_png="plot", dataset_json="{}", _lock="1")
    _write(copy.folder, data__b_tmp="half")
    assert copy.push() == 3
    assert copy.push() == 0
    stored = _stored(memory)
    assert set(stored) == {"data/a.parquet", "stats/x.png", "dataset.json", "SHA256SUMS"}
    line = f"{hashlib.sha256(b'shard').hexdigest()}  data/a.parquet"
    assert line in stored["SHA256SUMS"].splitlines()
    other_machine()
    folder = local(URL)
    assert (folder / "data/a.parquet").read_text() == "shard"
    assert not (folder / "SHA256SUMS").exists()
    assert origin(folder) == place_of(folder) == URL
    assert origin(folder.parent) is None


def test_only_what_changed_is_pulled_and_what_was_removed_goes(memory):
    memory.pipe({"/bucket/set/a.txt": b"one", "/bucket/set/b/c/d.txt": b"two"})
    folder = local(URL)
    before = (folder / "a.txt").stat().st_ino
    memory.pipe_file("/bucket/set/c.txt", b"three")
    memory.rm_file("/bucket/set/b/c/d.txt")
    local(URL)
    assert {path.name for path in folder.iterdir()} == {"a.txt", "c.txt"}
    assert (folder / "a.txt").stat().st_ino == before
    memory.pipe_file("/bucket/set/a.txt", b"new")
    assert (local(URL) / "a.txt").read_text() == "new"


def test_one_file_is_a_copy_too(memory):
    memory.pipe_file("/bucket/scan.png", b"pixels")
    assert local("memory://bucket/scan.png").read_bytes() == b"pixels"
    out = Copy("memory://bucket/out.png")
    out.pull()
    out.folder.write_bytes(b"edited")
    assert out.push() == 1
    assert memory.cat_file("/bucket/out.png") == b"edited"


def test_an_address_without_anything_is_an_error(memory):
    with pytest.raises(MieError, match="nothing is stored there"):
        local("memory://bucket/absent")


@pytest.mark.parametrize("ending", ["a.parquet", "b.parquet", "SHA256SUMS", "dataset.json"])
def test_a_killed_upload_leaves_nothing_that_opens_and_resumes(memory, monkeypatch, ending):
    copy = Copy(URL)
    copy.pull()
    _write(copy.folder, data__a_parquet="A", data__b_parquet="B", dataset_json="{}")
    with monkeypatch.context() as patch:
        _killed_before(patch, memory, ending)
        with pytest.raises(KeyboardInterrupt):
            copy.push()
    assert "dataset.json" not in _stored(memory)
    with pytest.raises(MieError, match="not uploaded yet"):
        local(URL)
    # The kill also took the record of what was uploaded.
    (copy.home / "state.json").unlink()
    again = Copy(URL)
    again.pull()
    again.push()
    assert set(_stored(memory)) == {"data/a.parquet", "data/b.parquet", "dataset.json", "SHA256SUMS"}
    assert local(URL) == copy.folder


def test_a_dataset_that_is_replaced_does_not_open_meanwhile(memory, monkeypatch, other_machine):
    copy = Copy(URL)
    copy.pull()
    _write(copy.folder, data__a_parquet="A", data__b_parquet="B", dataset_json="old")
    copy.push()
    (copy.folder / "data/b.parquet").unlink()
    _write(copy.folder, data__a_parquet="new A", data__c_parquet="C", dataset_json="new")
    with monkeypatch.context() as patch:
        _killed_before(patch, memory, "dataset.json")
        with pytest.raises(KeyboardInterrupt):
            copy.push()
    assert "dataset.json" not in _stored(memory)
    again = Copy(URL)
    again.pull()
    again.push()
    stored = _stored(memory)
    assert "data/b.parquet" not in stored
    assert (stored["data/a.parquet"], stored["dataset.json"]) == ("new A", "new")
    other_machine()
    assert (local(URL) / "data/c.parquet").read_text() == "C"


def test_an_unfinished_build_is_not_uploaded(memory):
    copy = Copy(URL)
    copy.pull()
    _write(copy.folder, parts__00000_train_parquet="x", rejected_parquet="y")
    assert copy.push() == 0
    assert not _stored(memory)


def test_a_journal_is_uploaded_after_the_files_of_its_lines_and_up_to_a_whole_line(memory, monkeypatch):
    copy = Copy("memory://bucket/set")
    copy.pull()
    _write(copy.folder, outputs__a_png="A", edits_jsonl='{"a": 1}\n{"b"', run_json="running")
    order = []
    for name in ("put_file", "pipe_file"):
        upload = getattr(memory, name)
        at = 1 if name == "put_file" else 0

        def noted(*args, upload=upload, at=at, **kwargs):
            order.append(args[at].removeprefix("/bucket/set/"))
            return upload(*args, **kwargs)

        monkeypatch.setattr(memory, name, noted)
    copy.push()
    assert order == ["outputs/a.png", "edits.jsonl", "run.json"]
    assert _stored(memory)["edits.jsonl"] == '{"a": 1}\n'
    _write(copy.folder, edits_jsonl='{"a": 1}\n{"b": 2}\n')
    assert copy.push() == 1
    assert _stored(memory)["edits.jsonl"].count("\n") == 2


def test_another_machine_resumes_and_the_first_one_sees_it(memory, other_machine, tmp_path, monkeypatch):
    first = Copy(URL)
    first.pull()
    _write(first.folder, edits_jsonl="1\n", run_json="running")
    first.push()
    other_machine()
    second = Copy(URL)
    second.pull()
    _write(second.folder, edits_jsonl="1\n2\n", run_json="complete")
    second.push()
    # The first machine must not write over it, and reads it when it asks.
    monkeypatch.setenv("MIE_CACHE", str(tmp_path / "here"))
    untouched = (first.folder / "run.json").stat()
    _write(first.folder, run_json="running still")
    with pytest.raises(MieError, match="changed here and on the storage"):
        first.push()
    with pytest.raises(MieError, match="changed here and on the storage"):
        Copy(URL).pull()
    _write(first.folder, run_json="running")
    os.utime(first.folder / "run.json", ns=(untouched.st_atime_ns, untouched.st_mtime_ns))
    assert (local(URL) / "edits.jsonl").read_text() == "1\n2\n"


def test_a_kill_between_upload_and_record_is_no_conflict(memory):
    copy = Copy(URL)
    copy.pull()
    _write(copy.folder, edits_jsonl="1\n", run_json="running")
    copy.push()
    state = json.loads((copy.home / "state.json").read_bytes())
    _write(copy.folder, edits_jsonl="1\n2\n", run_json="running, 2 edits")
    copy.push()
    # As if the process had died right after the last upload; then the run was resumed for a while offline.
    state["pending"] = {"run.json": hashlib.sha256(b"running, 2 edits").hexdigest()}
    (copy.home / "state.json").write_text(json.dumps(state))
    _write(copy.folder, edits_jsonl="1\n2\n3\n", run_json="running, 3 edits")
    again = Copy(URL)
    again.pull()
    again.push()
    assert _stored(memory)["edits.jsonl"] == "1\n2\n3\n"
    assert _stored(memory)["run.json"] == "running, 3 edits"


def test_damaged_and_hostile_objects_are_refused(memory, other_machine):
    copy = Copy(URL)
    copy.pull()
    _write(copy.folder, data__a_parquet="shard", dataset_json="{}")
    copy.push()
    memory.pipe_file("/bucket/set/data/a.parquet", b"SHARD")
    other_machine()
    with pytest.raises(MieError, match="damaged") as caught:
        local(URL)
    assert "data/a.parquet" in str(caught.value.where)
    memory.store["/bucket/evil/../../x"] = memory.store["/bucket/set/dataset.json"]
    with pytest.raises(MieError, match="path leaves its folder"):
        local("memory://bucket/evil")


def test_files_that_may_not_leave_stop_the_upload(memory):
    copy = Copy(URL)
    copy.pull()
    _write(copy.folder, a_txt="x")
    seen = []

    def refuse(paths):
        seen.extend(paths)
        raise MieError("no")

    with pytest.raises(MieError, match="no"):
        copy.push(refuse)
    assert seen == [copy.folder / "a.txt"]
    assert not _stored(memory)


def test_copies_are_bounded_and_unsaved_work_is_never_evicted(memory, monkeypatch):
    memory.pipe({"/bucket/old/a": b"x" * 3000, "/bucket/work/a": b"x" * 3000, "/bucket/new/a": b"x" * 3000})
    old, work = local("memory://bucket/old"), local("memory://bucket/work")
    (work / "b").write_text("not uploaded")
    for handle in storage._in_use.values():
        os.close(handle)  # as if the commands had ended
    storage._in_use.clear()
    monkeypatch.setenv("MIE_STORAGE_GIB", str(8000 / 2**30))
    assert local("memory://bucket/new").exists()
    assert not old.exists()
    assert (work / "b").exists()
    memory.pipe_file("/bucket/more/a", b"x" * 3000)
    with pytest.raises(MieError, match="no room for a local copy"):
        local("memory://bucket/more")
