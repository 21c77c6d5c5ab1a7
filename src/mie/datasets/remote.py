"""Work on a folder at a URL: pulled to this machine, uploaded and committed when the work is done."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from mie.core.documents import plural
from mie.core.storage import Copy, Report, local, url_of
from mie.datasets.dataset import Dataset
from mie.datasets.exports import row_findings
from mie.datasets.schema import read_rows
from mie.errors import MieError
from mie.privacy.endpoints import environment_proxy, is_loopback
from mie.privacy.gate import LOG, Finding, Gate, Policy
from mie.privacy.scan import scan_files

SYNC_EVERY: Final = 30.0  # seconds between two uploads of a run that is being made
_HERE: Final = ("memory", "file", "local")  # file systems of this process or machine


@contextmanager
def work_folder(
    place: str | Path,
    policy: Policy | None = None,
    *,
    exists: bool = False,
    upload: bool = True,
    progress: Callable[[str], Report] = lambda title: lambda done, total: None,
    tell: Callable[[str], None] = lambda text: None,
    sync_every: float = SYNC_EVERY,
) -> Iterator[Path]:
    """A local folder with what a URL holds. What is written there is uploaded at the end.

    A dataset is uploaded when it is whole. A run is uploaded at intervals and at its end, also after an
    error, so that another machine can resume it. A local path is given back as it is.

    Args:
        place: A URL such as `s3://bucket/run`, or a local path.
        policy: What may leave this machine: `Policy(allow_remote=True)`. A server on this machine needs none.
        exists: Raise unless something is stored there.
        upload: Whether what is written is uploaded.
        progress: Gives a function of (bytes done, bytes in all) for a title.
        tell: Is told what was uploaded, and why an upload in between failed, after which the run continues.
        sync_every: Seconds between two uploads of a run.

    """
    url = url_of(place)
    if url is None:
        yield Path(place)
        return
    copy = Copy(url)
    if not upload:
        copy.pull(progress("downloading"), reading=exists)
        yield copy.folder
        return
    gate, destination = None, _destination(copy)
    if destination is not None:
        # A dataset is uploaded as it is or not at all: its digest covers every pixel.
        gate = Gate(replace(policy or Policy(), redact=False), destination, copy.home / LOG)
        gate.check_consent("files")
    copy.pull(progress("downloading"), reading=exists)
    release = _Release(copy.folder, gate)
    ended = threading.Event()

    def sync() -> None:
        while not ended.wait(sync_every):
            if (copy.folder / "run.json").is_file():
                try:
                    copy.push(release)
                except MieError as error:
                    tell(f"{url} is not up to date: {error.reason}")

    thread = threading.Thread(target=sync, daemon=True)
    thread.start()
    try:
        yield copy.folder
    except BaseException:
        _join(ended, thread)
        if (copy.folder / "run.json").is_file():
            try:
                copy.push(release)
            except MieError as error:
                tell(f"{url} is not up to date: {error.reason}")
        raise
    else:
        _join(ended, thread)
        if files := copy.push(release, progress("uploading")):
            tell(f"uploaded {plural(files, 'file')} to {url}")
    finally:
        _join(ended, thread)
        if gate is not None:
            gate.close()


def leaves_this_machine(place: str | Path) -> bool:
    """Whether what is written to this path or URL goes to another machine."""
    url = url_of(place)
    return url is not None and _destination(Copy(url)) is not None


def _join(ended: threading.Event, thread: threading.Thread) -> None:
    ended.set()
    thread.join()


def _destination(copy: Copy) -> str | None:
    """Where the files go, None if they stay on this machine."""
    storage = copy.storage
    names = (storage.protocol,) if isinstance(storage.protocol, str) else tuple(storage.protocol)
    if any(name in _HERE for name in names):
        return None
    endpoint = _endpoint(storage)
    if endpoint is not None:
        host = urlsplit(endpoint if "//" in endpoint else f"//{endpoint}").hostname or ""
        if is_loopback(host) and environment_proxy(endpoint) is None:
            return None
    return copy.url


def _endpoint(storage: Any) -> str | None:
    """The address of the server, where the client says it; of S3 the one that was resolved."""
    if "s3" in storage.protocol:
        return str(storage.s3.meta.endpoint_url)
    host = getattr(storage, "host", None)  # SFTP, FTP, SMB, HDFS
    return host if isinstance(host, str) else None


class _Release:
    """Look at files before they leave. The same pixels are looked at once."""

    def __init__(self, folder: Path, gate: Gate | None) -> None:
        self.folder = folder
        self.gate = gate

    def __call__(self, paths: list[Path]) -> None:
        if self.gate is None:
            return
        self.gate.check_statement(_statement(self.folder))
        findings: list[Finding] = []
        for path in paths:
            if path.suffix == ".parquet" and path.parent == self.folder / "data" and self._is_dataset():
                for row in read_rows(path):
                    findings += row_findings(row, self.gate)
            else:
                findings += scan_files(path, self.gate, lambda done, total: None).findings
        self.gate.release_files(findings, len(paths))

    def _is_dataset(self) -> bool:
        return (self.folder / "dataset.json").is_file()


def _statement(folder: Path) -> Any:
    """What the dataset of this folder, or the one that a run edits, says of itself."""
    try:
        if (folder / "dataset.json").is_file():
            return Dataset(folder).info
        if (folder / "run.json").is_file():
            recorded = json.loads((folder / "run.json").read_bytes())["dataset"]
            dataset = Dataset(local(recorded["path"]))
            return dataset.info if dataset.digest == recorded["digest"] else None
    except (MieError, ValueError, KeyError, TypeError):
        pass
    return None
