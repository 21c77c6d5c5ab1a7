"""Files that are whole or absent: atomic writes, checksums, locks, folders that are ours, safe paths."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import shutil
import stat
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from mie.errors import MieError


def cache_folder() -> Path:
    """`$MIE_CACHE`, else `$XDG_CACHE_HOME/mie`, else `~/.cache/mie`."""
    own = os.environ.get("MIE_CACHE")
    if own:
        return Path(own).expanduser()
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "mie"


def digest(path: Path) -> str:
    """The file's SHA-256 in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read_regular(path: Path, most: int) -> bytes:
    """The bytes of a plain file, at most one more than `most`. A link, a pipe or a device is an OSError.

    Nothing is followed, and nothing is waited for: the folder may come from a stranger.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        return file.read(most + 1)


# Errors of the file system that a user can put right, and what to do about each.
FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_FORBIDDEN: Final = (errno.EACCES, errno.EPERM, errno.EROFS)
_IN_THE_WAY: Final = (errno.EEXIST, errno.ENOTDIR, errno.EISDIR)


class WriteError(MieError):
    """Nothing can be written there: what follows would fail in the same way."""


def disk_error(error: OSError, where: object) -> WriteError | None:
    """The error for people if the disk is full or fails, None for any other."""
    if error.errno in FULL:
        what, fix = "the disk is full", "free some space"
    elif error.errno == errno.EIO:
        what, fix = "the disk has an error", "check the disk (the system's log may say more)"
    else:
        return None
    fix += " and run the same command again: it resumes where it stopped"
    return WriteError(what, where=where, found=os.strerror(error.errno), fix=fix)


@contextlib.contextmanager
def disk_errors(where: Path) -> Iterator[None]:
    """Turn a full or failing disk into a `MieError` about `where`; every other error passes."""
    try:
        yield
    except OSError as error:
        explained = disk_error(error, where)
        if explained is None:
            raise
        raise explained from error


@contextlib.contextmanager
def write_errors(where: Path) -> Iterator[None]:
    """Turn a disk that is full or fails, a missing permission or a file in the way into a `MieError`."""
    try:
        with disk_errors(where):
            yield
    except OSError as error:
        if error.errno in _FORBIDDEN:
            found, fix = os.strerror(error.errno), "choose a folder that you may write to"
        elif error.errno in _IN_THE_WAY:
            found, fix = f"a file at {_in_the_way(Path(error.filename or where))}", "choose another folder"
        else:
            raise
        raise WriteError("cannot write here", where=where, found=found, fix=fix) from error


def _in_the_way(path: Path) -> Path:
    """The file that `path` is, or that one of its parents is."""
    return next((part for part in (path, *path.parents) if part.exists()), path)


# A `Path` of a URL has lost one slash.
URL: Final = re.compile(r"([a-z][a-z0-9+.-]+):/{1,2}(?!/)(.+)", re.IGNORECASE)


def make_folder(path: Path) -> Path:
    """The folder, made with its parents where it is missing. `MieError` for a URL, which is no folder."""
    if URL.fullmatch(str(path)) and not Path(path.parts[0]).exists():
        raise MieError(
            "this is a URL, and a folder on this machine is expected",
            where=path,
            fix="in Python, `with mie.work_folder(URL) as folder:` gives one, and uploads what is written",
        )
    with write_errors(path):
        path.mkdir(parents=True, exist_ok=True)
    return path


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary neighbour of `path`, to become a file or a folder; it takes the name if all goes well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        with write_errors(path):
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
            sync_folder(path.parent)
    except BaseException:
        _remove(temporary)
        raise


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write the whole file or nothing."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def sync_folder(folder: Path) -> None:
    # A rename is only durable once its folder is synced.
    sync(folder)


def sync(path: Path) -> None:
    """Wait until the file's bytes, or the folder's names, are on the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FolderTakenError(MieError):
    """Another process holds the folder; it may be free later."""


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process. The kernel drops the lock when the process dies, however it dies.

    What killed processes left half written in it is removed. A disk that runs full or fails while the folder
    is held becomes a `MieError`.
    """
    path = make_folder(folder) / ".lock"
    with write_errors(path):
        handle = _locked(path)
    with disk_errors(folder):
        try:
            os.ftruncate(handle, 0)
            os.write(handle, str(os.getpid()).encode())
            remove_scratch(folder)
            yield
        finally:
            path.unlink(missing_ok=True)
            os.close(handle)


def refuse_foreign(folder: Path, holds: str, ours: Callable[[Path], bool]) -> None:
    """Raise unless `folder` is absent, empty, or holds only what `ours` accepts.

    `holds` says what may be there ("a run"). Call it before the lock, which would leave its file in a folder
    that is not ours, and again under the lock.
    """
    if not folder.exists():
        return
    if not folder.is_dir():
        raise MieError(
            "the output is not a folder",
            where=folder,
            expected="a new folder",
            found="a file",
            fix="choose another folder",
        )
    with write_errors(folder):
        strange = sorted(path.name for path in folder.iterdir() if not (_is_scratch(path) or ours(path)))
    if strange:
        raise MieError(
            "the output folder holds something else",
            where=folder,
            expected=f"a new folder, or one with {holds}",
            found=", ".join(strange[:5]),
            fix="choose another folder",
        )


def remove_scratch(folder: Path, *names: str) -> None:
    """Remove what interrupted atomic writes, of the files `names` or of all, left in the folder and below."""
    ours = tuple(f".{name}." for name in names) or (".",)
    for place, folders, files in os.walk(folder):
        entries = (*folders, *files)
        scratch = [entry for entry in entries if entry.startswith(ours) and entry.endswith(".tmp")]
        folders[:] = set(folders).difference(scratch)
        for entry in scratch:
            _remove(Path(place, entry))


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _is_scratch(path: Path) -> bool:
    """The lock, or what an interrupted atomic write left behind."""
    return path.name == ".lock" or (path.name.startswith(".") and path.name.endswith(".tmp"))


def _locked(path: Path) -> int:
    while True:
        handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            holder = os.read(handle, 32).decode(errors="replace").strip() or "unknown"
            os.close(handle)
            raise FolderTakenError(
                "another process is writing to this folder",
                where=path.parent,
                found=f"process {holder} holds {path.name}",
                fix="wait for it to end, or choose another output folder",
            ) from None
        try:
            if os.path.samestat(os.fstat(handle), path.stat()):
                return handle
        except FileNotFoundError:
            pass
        os.close(handle)  # the last holder removed the file between our opening and our locking it


def check_relative(text: object) -> str:
    """The text, if it is a relative path without a way out (on any system); `MieError` if not."""
    if not isinstance(text, str) or not text.strip("./"):
        raise MieError("not a file's path", expected="text such as input/0.png", found=repr(text)[:80])
    leaves = text.startswith("/") or ".." in text.split("/") or re.match(r"[A-Za-z]:", text)
    if leaves or "\\" in text or "\0" in text:
        raise MieError(
            "path leaves its folder", expected="a relative path with / and without ..", found=repr(text)[:80]
        )
    return text


def inside(root: Path, base: Path, text: object) -> Path:
    """The existing file `base / text`, refused when it, or a link on the way, lies outside `root`."""
    path = base / check_relative(text)
    top, real = os.path.realpath(root), os.path.realpath(path)
    if os.path.commonpath([top, real]) != top:
        raise MieError(
            "path leaves its folder",
            where=str(text)[:200],
            expected="a file inside the folder",
            found="a link out of it",
            fix="copy the file into the folder instead of linking to it",
        )
    if not os.path.isfile(path):  # noqa: PTH113 (`Path.is_file` raises on names that are too long)
        raise MieError("file is missing", expected=str(text)[:200])
    return path
