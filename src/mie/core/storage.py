"""Folders on object storage: a local copy that is pulled, worked on, uploaded and committed.

Everything else in `mie` reads and writes local folders, and its order of writing makes a folder safe at any
kill. A copy keeps that order on the storage: an object appears whole or not at all, as a renamed file does,
and objects are uploaded in an order in which each one relies only on those before it. Shards and outputs
come first, journals next, then `SHA256SUMS`, and the documents that say that the folder is whole last.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import threading
import time
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

from mie.core.environment import install_hint
from mie.core.files import (
    URL,
    FolderTakenError,
    atomic_write,
    cache_folder,
    check_relative,
    digest,
    folder_lock,
    make_folder,
    sync,
    write_errors,
)
from mie.errors import ConfigError, MieError

SUMS: Final = "SHA256SUMS"
COMMITS: Final = ("dataset.json", "questions.json")  # without one of these a set does not open
_NOT_STORAGE: Final = ("http", "https", "data", "file", "local", "cached", "blockcache", "filecache")
# An object appears whole when its upload ends. Elsewhere a file is uploaded under another name and renamed.
_OBJECT_STORES: Final = ("s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "oss", "oci", "memory", "hf")
_CREDENTIALS: Final = re.compile(r"[^/@]*:[^/@]*@")
_TAGS: Final = ("ETag", "etag", "md5Hash", "content_md5", "last_modified", "created", "mtime")
_THREADS: Final = 8
_WAIT: Final = 0.1  # seconds between two tries for the lock
_SAVE_EVERY: Final = 5.0  # seconds between two records of what has been transferred
_LIMIT_GIB: Final = 200.0
_SPARE: Final = 2**30  # bytes of the disk that stay free
Report = Callable[[int, int], None]
_in_use: dict[Path, int] = {}  # the shared locks of this process


class _Known(NamedTuple):
    """A file at its last transfer: the storage's tag, and the local file's size and time."""

    tag: str
    size: int
    time: int


def url_of(place: str | os.PathLike[str]) -> str | None:
    """The URL that `place` is, None for a local path. A `Path` has lost one slash: `s3:/bucket` is one too.

    >>> url_of("memory://bucket/run"), url_of("out/run")
    ('memory://bucket/run', None)
    """
    match = URL.fullmatch(os.fspath(place))
    if match is None or match[1].lower() in _NOT_STORAGE or Path(place).exists():
        return None
    try:
        from fsspec import available_protocols
    except ModuleNotFoundError:
        raise ConfigError("object storage needs fsspec", where=place, fix=install_hint("storage")) from None
    scheme, rest = match[1].lower(), match[2].rstrip("/")
    if scheme not in available_protocols():
        return None
    if _CREDENTIALS.match(rest):
        raise ConfigError(
            "credentials in a URL end up in logs",
            where=f"{scheme}://...",
            fix="give them in fsspec's configuration or in the environment, as the storage's client expects",
        )
    return f"{scheme}://{rest}"


def local(place: str | os.PathLike[str], progress: Report = lambda done, total: None) -> Path:
    """The folder or file itself, or an up-to-date local copy of what a URL holds."""
    url = url_of(place)
    if url is None:
        return Path(place)
    copy = Copy(url)
    copy.pull(progress, reading=True)
    return copy.folder


def origin(folder: Path) -> str | None:
    """The URL of which this folder is the local copy."""
    state = folder.parent / "state.json"
    if folder.parent.parent != _root() or not state.is_file():
        return None
    return str(json.loads(state.read_bytes())["url"])


def place_of(folder: Path) -> str:
    """The URL or absolute path under which a folder can be found again."""
    return origin(folder.resolve()) or str(folder.resolve())


def _root() -> Path:
    return Path(os.path.realpath(cache_folder())) / "storage"


class Copy:
    """The local copy of one URL: `folder` holds its files, or is the file that the URL names."""

    def __init__(self, url: str) -> None:
        self.url = url
        with self._errors("open"):
            from fsspec.core import url_to_fs

            self.storage, path = url_to_fs(url)
        self._top = path.rstrip("/")
        self.home = _root() / hashlib.sha256(url.encode()).hexdigest()[:16]
        self.folder = self.home / self._top.rsplit("/", 1)[-1]
        self._guard, self._recording = threading.Lock(), threading.Lock()
        self._known: dict[str, _Known] = {}
        self._pending: dict[str, str] = {}  # SHA-256 of documents whose upload has begun

    def pull(self, progress: Report = lambda done, total: None, *, reading: bool = False) -> None:
        """Bring what has changed on the storage here. Local work that is not uploaded yet stays.

        With `reading`, raise if there is such work on a document that says that the folder is whole: a reader
        must see what the storage has.
        """
        with self._held():
            with self._errors("read"):
                remote = self._listing()
                sums = self._sums() if SUMS in remote else {}
            remote.pop(SUMS, None)
            if reading and not remote and not self.folder.exists():
                raise MieError("nothing is stored there", where=self.url, fix="check the address")
            fetch = []
            for name, (tag, size) in remote.items():
                known, stat = self._known.get(name), self._stat(name)
                if stat is None or (known is not None and known[1:] == stat and known.tag != tag):
                    fetch.append((name, tag, size))
                elif known is None or known.tag != tag:
                    self._reconcile(name, tag, size)
            for name in self._known.keys() - remote.keys():
                if self._stat(name) == self._known[name][1:]:
                    self._unlink(name)
                del self._known[name]
            if reading:
                self._refuse_unfinished()
            self._make_room(sum(size for _, _, size in fetch))
            jobs = [(size, partial(self._fetch, name, tag, size, sums)) for name, tag, size in fetch]
            self._transfer(jobs, "read", progress)

    def push(
        self,
        release: Callable[[list[Path]], None] = lambda paths: None,
        progress: Report = lambda done, total: None,
    ) -> int:
        """Upload what has changed, and return the number of files. An unfinished dataset is not uploaded.

        `release` gets the files first and raises where they must not leave. May be called while a run is
        being written: a journal is uploaded as far as it went before the other files were listed.
        """
        with self._held():
            data = {name: _lines(self._path(name)) for name in self._names() if name.endswith(".jsonl")}
            stats = {name: stat for name in self._names() if (stat := self._stat(name)) is not None}
            if (self.folder / "parts").is_dir() and not any(name in stats for name in COMMITS):
                return 0
            # What is known of a journal is how far it was uploaded.
            stats |= {name: (len(lines), stats[name][1]) for name, lines in data.items() if name in stats}
            changed = [name for name in stats if self._known.get(name, (None,))[1:] != stats[name]]
            gone = [name for name in self._known if name not in stats]
            if not changed and not gone:
                return 0
            release([self._path(name) for name in changed])
            self._refuse_others(name for name in changed if name in self._known)
            last = [name for name in changed if name.endswith(".json") and "/" not in name]
            then = [name for name in changed if name in data]
            first = [name for name in changed if name not in {*last, *then}]
            committed = [name for name in COMMITS if name in self._known]
            if committed and (gone or any(name in self._known for name in first)):
                self._remove([*committed, SUMS])  # from here on no half of a dataset opens
                last = list(dict.fromkeys([*last, *(name for name in committed if name in stats)]))
            data |= {name: self._path(name).read_bytes() for name in last}
            self._pending = {name: hashlib.sha256(data[name]).hexdigest() for name in last}
            self._save()
            names = [*first, *then, *last]
            total, done = sum(stats[name][0] for name in names), 0
            for group in (first, then, last):
                if group is last:
                    self._remove(gone)
                    if any(name in stats for name in COMMITS):
                        self._write_sums(stats)
                jobs = [
                    (stats[name][0], partial(self._put, name, stats[name], data.get(name))) for name in group
                ]

                def report(part: int, _: int, before: int = done) -> None:
                    progress(before + part, total)

                self._transfer(jobs, "write", report)
                done += sum(size for size, _ in jobs)
            return len(names)

    # The storage.

    @contextlib.contextmanager
    def _errors(self, verb: str) -> Iterator[None]:
        """Turn whatever the storage's client raises into one error for people."""
        try:
            yield
        except MieError:
            raise
        except Exception as error:  # every client has exceptions of its own
            line = str(error).strip().splitlines()
            raise MieError(
                f"cannot {verb} on this storage",
                where=self.url,
                found=f"{type(error).__name__}: {line[0][:200] if line else ''}",
                fix="check the address, and the credentials in fsspec's configuration or the environment; "
                "then run the same command again: it resumes",
            ) from error

    def _remote(self, name: str) -> str:
        return f"{self._top}/{name}" if name else self._top

    def _listing(self) -> dict[str, tuple[str, int]]:
        """(tag, size) of each object, by its name below the URL; the name of a single file is empty."""
        self.storage.invalidate_cache()
        listing = {}
        try:
            found = self.storage.find(self._top, detail=True)
        except FileNotFoundError:
            return {}
        for path, info in found.items():
            name = path[len(self._top) :].lstrip("/")
            if info["type"] == "file" and not path.endswith("/") and not _is_scratch(name):
                listing[check_relative(name) if name else ""] = (_tag(info), int(info["size"]))
        return listing

    def _sums(self) -> dict[str, str]:
        lines = self.storage.cat_file(self._remote(SUMS)).decode().splitlines()
        return {name: value for value, _, name in (line.partition("  ") for line in lines)}

    def _write_sums(self, stats: Iterable[str]) -> None:
        """The checksums of all that never changes once the folder is whole, as `sha256sum -c` reads them."""
        names = sorted(name for name in stats if not name.endswith(".jsonl"))
        text = "".join(f"{digest(self._path(name))}  {name}\n" for name in names)
        with self._errors("write"):
            self.storage.pipe_file(self._remote(SUMS), text.encode())

    @contextlib.contextmanager
    def _fetched(self, name: str) -> Iterator[Path]:
        """The object in a temporary file; the next holder of the lock removes what a kill leaves of it."""
        temporary = self.home / "transfers" / f".{uuid.uuid4().hex}.tmp"
        try:
            self.storage.get_file(self._remote(name), str(temporary))
            yield temporary
        finally:
            temporary.unlink(missing_ok=True)

    def _fetch(self, name: str, tag: str, size: int, sums: dict[str, str]) -> None:
        path = self._path(name)
        make_folder(path.parent)
        with self._fetched(name) as temporary, write_errors(path):
            found = temporary.stat().st_size
            if found != size or (name in sums and digest(temporary) != sums[name]):
                raise MieError(
                    "a stored file is damaged, or was replaced while it was read",
                    where=f"{self.url}/{name}",
                    expected=f"{size:,} bytes" + (f", SHA-256 {sums[name]}" if name in sums else ""),
                    found=f"{found:,} bytes" if found != size else "other content",
                    fix="run the same command again; if it stays so, upload the folder again",
                )
            sync(temporary)
            os.replace(temporary, path)
        self._record(name, tag)

    def _put(self, name: str, stat: tuple[int, int], data: bytes | None) -> None:
        path, target = str(self._path(name)), self._remote(name)
        part = target if self.url.partition(":")[0] in _OBJECT_STORES else f"{target}.tmp"
        if part != target:
            self.storage.makedirs(target.rpartition("/")[0], exist_ok=True)
        if data is not None:
            self.storage.pipe_file(part, data)
        else:
            self.storage.put_file(path, part)
        if part != target:
            self.storage.mv(part, target)
        self.storage.invalidate_cache()
        self._record(name, _tag(self.storage.info(target)), stat)

    def _remove(self, names: list[str]) -> None:
        with self._errors("write"):
            for name in names:
                with contextlib.suppress(FileNotFoundError):
                    self.storage.rm_file(self._remote(name))
                self._known.pop(name, None)
        self._save()

    def _refuse_others(self, names: Iterable[str]) -> None:
        """Raise if somebody else has written a journal or a document of this folder since it was read."""
        for name in names:
            if name.endswith((".json", ".jsonl")):
                with self._errors("read"), contextlib.suppress(FileNotFoundError):
                    self.storage.invalidate_cache()
                    if _tag(self.storage.info(self._remote(name))) != self._known[name].tag:
                        raise self._conflict(name)

    def _conflict(self, name: str) -> MieError:
        return MieError(
            "this folder was changed here and on the storage",
            where=f"{self.url}/{name}" if name else self.url,
            expected="one machine that writes at a time",
            found=f"other content than in {self._path(name)}",
            fix=f"keep what the storage has: `rm -r {self.home}`; or write to another address",
        )

    def _transfer(self, jobs: Sequence[tuple[int, Callable[[], None]]], verb: str, progress: Report) -> None:
        """Do the jobs, several at a time; what is done is recorded, whatever happens to the rest."""
        total, done, saved = sum(size for size, _ in jobs), 0, time.monotonic()
        with self._errors(verb), ThreadPoolExecutor(_THREADS) as pool:
            futures = [(size, pool.submit(job)) for size, job in jobs]
            try:
                for size, future in futures:
                    future.result()
                    done += size
                    progress(done, total)
                    if time.monotonic() - saved > _SAVE_EVERY:
                        self._save()
                        saved = time.monotonic()
            finally:
                for _, future in futures:
                    future.cancel()
                pool.shutdown(wait=True)
                self._save()

    # The local copy.

    @contextlib.contextmanager
    def _held(self) -> Iterator[None]:
        """Hold the copy for one pull or push, and mark it as in use for as long as this process lives."""
        with self._guard, contextlib.ExitStack() as stack:
            while True:  # the lock lies beside the folder, in which another command may be writing
                try:
                    stack.enter_context(folder_lock(self.home / "transfers"))
                    break
                except FolderTakenError:
                    time.sleep(_WAIT)
            if self.home not in _in_use:
                handle = os.open(self.home / "in-use", os.O_RDWR | os.O_CREAT, 0o644)
                fcntl.flock(handle, fcntl.LOCK_SH)
                _in_use[self.home] = handle
            path = self.home / "state.json"
            state = json.loads(path.read_bytes()) if path.exists() else {"files": {}, "pending": {}}
            self._known = {name: _Known(*values) for name, values in state["files"].items()}
            self._pending = state["pending"]
            yield
            self._pending = {}
            self._save()

    def _save(self) -> None:
        with self._recording:
            body = {"url": self.url, "files": dict(self._known), "pending": self._pending}
        atomic_write(self.home / "state.json", json.dumps(body))

    def _record(self, name: str, tag: str, stat: tuple[int, int] | None = None) -> None:
        with self._recording:
            self._known[name] = _Known(tag, *(stat or self._stat(name) or (0, 0)))

    def _path(self, name: str) -> Path:
        return self.folder / name if name else self.folder

    def _stat(self, name: str) -> tuple[int, int] | None:
        try:
            found = self._path(name).stat()
        except OSError:
            return None
        return found.st_size, found.st_mtime_ns

    def _unlink(self, name: str) -> None:
        """Remove a file, and the folders that it leaves empty."""
        path = self._path(name)
        path.unlink()
        with contextlib.suppress(OSError):  # not empty
            while path != self.folder:
                path = path.parent
                path.rmdir()

    def _names(self) -> list[str]:
        """The files to upload: not those of an unfinished build, nor locks, nor what is being written."""
        if self.folder.is_file():
            return [""]
        names = (
            path.relative_to(self.folder).as_posix()
            for path in self.folder.rglob("*")
            if path.is_file() and not path.is_symlink()
        )
        return sorted(name for name in names if not _is_scratch(name) and not name.startswith("parts/"))

    def _reconcile(self, name: str, tag: str, size: int) -> None:
        """Take up an upload that a kill left unrecorded; raise if the two files really differ."""
        path = self._path(name)
        with self._errors("read"), self._fetched(name) as temporary:
            sha256 = digest(temporary)
            same = sha256 == digest(path)
            # A journal only grows: the storage may have less of it. A document may have been written anew.
            behind = name.endswith(".jsonl") and _begins(path, temporary)
            ours = behind or self._pending.get(name) == sha256
        if not same and not ours:
            raise self._conflict(name)
        self._record(name, tag, self._stat(name) if same else (size, 0))

    def _refuse_unfinished(self) -> None:
        for path in self.folder.glob("*.json"):
            if self._known.get(path.name, (None,))[1:] != self._stat(path.name):
                raise MieError(
                    "this folder was written here and is not uploaded yet",
                    where=self.url,
                    found=f"{path.name} in {self.folder}",
                    fix="run the command that wrote it again: it uploads what is missing; or drop the local "
                    f"work with `rm -r {self.home}`",
                )

    def _make_room(self, needed: int) -> None:
        """Remove the copies that were used least recently where the limit or the disk asks for it."""
        root, limit = _root(), float(os.environ.get("MIE_STORAGE_GIB", _LIMIT_GIB)) * 2**30
        sizes: Counter[Path] = Counter()
        for path in filter(Path.is_file, root.rglob("*") if needed else ()):
            sizes[root / path.relative_to(root).parts[0]] += path.lstat().st_size
        oldest = sorted(sizes.keys() - _in_use.keys(), key=lambda home: home.stat().st_mtime)
        while sizes:
            used, free = sizes.total(), shutil.disk_usage(root).free
            if used + needed <= limit and free - needed >= _SPARE:
                return
            if not oldest:
                raise MieError(
                    "there is no room for a local copy",
                    where=self.url,
                    expected=f"{needed:,} bytes on this disk, and at most {limit / 2**30:g} GiB of copies",
                    found=f"{free:,} bytes free, {used:,} bytes of copies in {root}",
                    fix="free some space, set MIE_CACHE to a larger disk, or raise MIE_STORAGE_GIB",
                )
            if _evict(home := oldest.pop(0)):
                del sizes[home]


def _evict(home: Path) -> bool:
    """Remove a copy that no process uses and that holds nothing but what the storage has."""
    handle = os.open(home / "in-use", os.O_RDWR | os.O_CREAT, 0o644)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        body = json.loads((home / "state.json").read_bytes())
        copy = Copy(body["url"])
        known = {name: (size, at) for name, (_, size, at) in body["files"].items()}
        if (copy.folder / "parts").exists() or {name: copy._stat(name) for name in copy._names()} != known:
            return False
        shutil.rmtree(home)
        return True
    except (OSError, ValueError, KeyError):
        return False
    finally:
        os.close(handle)


def _tag(info: dict[str, Any]) -> str:
    """What changes when an object is written again."""
    value = next((info[key] for key in _TAGS if info.get(key) is not None), info["size"])
    return str(value.timestamp() if isinstance(value, datetime) else value)


def _is_scratch(name: str) -> bool:
    leaf = name.rpartition("/")[2]
    return leaf == ".lock" or leaf.endswith(".tmp")


def _begins(path: Path, beginning: Path) -> bool:
    with path.open("rb") as whole, beginning.open("rb") as part:
        while block := part.read(2**20):
            if whole.read(len(block)) != block:
                return False
    return True


def _lines(path: Path) -> bytes:
    """The whole lines of a journal that may be growing."""
    data = path.read_bytes()
    return data[: data.rfind(b"\n") + 1]
