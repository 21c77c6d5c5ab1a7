"""Files that are whole or absent: atomic writes, checksums, a lock that dies with its process; caches."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import re
import uuid
from collections.abc import Iterator
from pathlib import Path

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


@contextlib.contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary neighbour of `path` to write to; it takes the name, synced, if all goes well."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        yield temporary
        with temporary.open("rb") as handle:
            os.fsync(handle.fileno())
        os.replace(temporary, path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise MieError(
                "the disk is full",
                where=path,
                found=os.strerror(error.errno or 0),
                fix="free some space and run the same command again: it goes on where it stopped",
            ) from error
        raise
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def atomic_write(path: Path, data: bytes | str) -> None:
    """Write the whole file or nothing."""
    with atomic_path(path) as temporary:
        temporary.write_bytes(data.encode() if isinstance(data, str) else data)


def sync_folder(folder: Path) -> None:
    # A rename is only durable once its folder is synced.
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


class FolderTakenError(MieError):
    """Another process holds the folder; it may be free later."""


@contextlib.contextmanager
def folder_lock(folder: Path) -> Iterator[None]:
    """Hold `folder` for this process. The kernel drops the lock when the process dies, however it dies."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / ".lock"
    handle = _locked(path)
    try:
        os.ftruncate(handle, 0)
        os.write(handle, str(os.getpid()).encode())
        yield
    finally:
        path.unlink(missing_ok=True)
        os.close(handle)


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


# Paths that come out of a file: never trusted to stay where they should.


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
