"""A loopback server plays the package index; nothing here needs the network."""

import gzip
import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
import urllib.request
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.core.files import cache_folder
from mie.errors import MieError
from mie.sources import fetch as package_index
from mie.sources.fetch import extract, fetch_distribution, fetch_file

NOT_THERE = "/nowhere.whl"


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def wheel(members: dict[str, bytes]) -> bytes:
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as file:
        for name, data in members.items():
            file.writestr(name, data)
    return made.getvalue()


def sdist(members: dict[str, bytes], links: dict[str, str] | None = None) -> bytes:
    made = io.BytesIO()
    with tarfile.open(fileobj=made, mode="w:gz") as file:
        for name, data in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            file.addfile(info, io.BytesIO(data))
        for name, to in (links or {}).items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, to
            file.addfile(info)
    return made.getvalue()


WHEEL = wheel({"real_images/brain.nii": b"voxels" * 1000, "real_images/__init__.py": b"raise SystemExit"})
SDIST = sdist(
    {"real_images-1.0/data/lung.nrrd": b"NRRD" * 1000, "real_images-1.0/setup.py": b"raise SystemExit"}
)


class Index:
    """`pages` and `files` by path; `requests` is what was asked for."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str | None]] = []
        self.answers: dict[str, tuple[str, bytes]] = {}
        self.redirects: dict[str, str] = {}
        index = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                index.requests.append((self.path, self.headers.get("Authorization")))
                if self.path in index.redirects:
                    self.send_response(302)
                    self.send_header("Location", index.redirects[self.path])
                    self.end_headers()
                    return
                if self.path not in index.answers:
                    self.send_error(404)
                    return
                kind, body = index.answers[self.path]
                self.send_response(200)
                self.send_header("Content-Type", kind)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.host = f"127.0.0.1:{self.server.server_port}"
        self.url = f"http://{self.host}/simple"

    def page(self, *files: tuple[str, str], form: str = "html") -> None:
        if form == "html":
            rows = "".join(f'<a href="{url}#sha256=0">{name}</a><br/>' for name, url in files)
            answer = ("text/html", f"<!DOCTYPE html><html><body>{rows}</body></html>".encode())
        else:
            rows = [{"filename": name, "url": url, "hashes": {}} for name, url in files]
            answer = ("application/vnd.pypi.simple.v1+json", json.dumps({"files": rows}).encode())
        self.answers["/simple/real-images/"] = answer


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    made = Index()
    made.answers["/files/real_images-1.0-py3-none-any.whl"] = ("application/octet-stream", WHEEL)
    made.answers["/files/real_images-1.0.tar.gz"] = ("application/octet-stream", SDIST)
    made.page(
        ("real_images-1.0-py3-none-any.whl", "../../files/real_images-1.0-py3-none-any.whl"),
        ("real_images-1.0.tar.gz", "../../files/real_images-1.0.tar.gz"),
        ("real_images-2.0.tar.gz", NOT_THERE),
    )
    thread = threading.Thread(target=made.server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    only(monkeypatch, made.url)
    yield made
    made.server.shutdown()
    made.server.server_close()
    thread.join()


def only(monkeypatch: pytest.MonkeyPatch, url: str) -> None:
    """Makes that index the only one, whatever pip is set up for on this machine."""
    monkeypatch.setattr(package_index, "_pip_settings", dict)
    for name in ("PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX", "PIP_CERT", "REQUESTS_CA_BUNDLE", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setenv("PIP_INDEX_URL", url)


@pytest.mark.parametrize("form", ["html", "json"])
@pytest.mark.parametrize(
    ("filename", "data"), [("real_images-1.0-py3-none-any.whl", WHEEL), ("real_images-1.0.tar.gz", SDIST)]
)
def test_a_file_is_downloaded_once(
    index: Index, tmp_path: Path, form: str, filename: str, data: bytes
) -> None:
    index.page((filename, f"../../files/{filename}"), form=form)
    seen: list[tuple[str, int, int | None]] = []
    path = fetch_distribution(
        "Real_Images", filename, sha256(data), cache=tmp_path / "c", progress=lambda *a: seen.append(a)
    )
    assert path == tmp_path / "c" / filename
    assert path.read_bytes() == data
    assert seen[-1] == (filename, len(data), len(data))
    assert [p for p, _ in index.requests] == ["/simple/real-images/", f"/files/{filename}"]

    again = fetch_distribution("Real_Images", filename, sha256(data), cache=tmp_path / "c")
    assert again == path
    assert len(index.requests) == 2
    assert list(path.parent.iterdir()) == [path]


def test_a_damaged_file_in_the_cache_is_replaced(index: Index, tmp_path: Path) -> None:
    path = tmp_path / "real_images-1.0.tar.gz"
    path.write_bytes(SDIST[:-1])
    fetch_distribution("real-images", path.name, sha256(SDIST), cache=tmp_path)
    assert path.read_bytes() == SDIST


def test_another_checksum_keeps_nothing(index: Index, tmp_path: Path) -> None:
    with pytest.raises(MieError, match="not the one that was published") as caught:
        fetch_distribution("real-images", "real_images-1.0.tar.gz", sha256(b"other"), cache=tmp_path)
    assert sha256(SDIST) in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_download_left_is_removed_by_the_next(index: Index, tmp_path: Path) -> None:
    """A real process is killed while the server makes it wait; one that still runs keeps its file."""
    name = "real_images-1.0.tar.gz"
    code = (
        "import os, sys; from pathlib import Path; from mie.sources import fetch\n"
        "class Stopped:\n"
        "    def open(self, url): print('begun', flush=True); return self\n"
        "    def __enter__(self): return self\n"
        "    def __exit__(self, *_): pass\n"
        "    headers = {}\n"
        "    def read(self, size): print('reading', flush=True); sys.stdin.read(); return b''\n"
        f"fetch._download(Stopped(), '', Path(sys.argv[1]) / {name!r}, '', None)"
    )
    children = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(2)
    ]
    for child in children:
        while child.stdout.readline() != b"reading\n":
            pass
    killed, running = children
    killed.kill()
    killed.wait()
    parts = set(tmp_path.iterdir())
    other = tmp_path / f".{name}.1.abc.tmp"  # an atomic write of somebody else
    fresh = tmp_path / f".{name}.abcdefgh"
    for path in (other, fresh):
        path.touch()
    assert len(parts) == 2
    for path in (*parts, other):
        os.utime(path, (0, 0))
    fetch_distribution("real-images", name, sha256(SDIST), cache=tmp_path)
    left = set(tmp_path.iterdir())
    assert len(left & parts) == 1
    assert {other, fresh, tmp_path / name} < left
    running.communicate()
    assert not parts & set(tmp_path.iterdir())
    for child in children:
        child.stdin.close()
        child.stdout.close()


@pytest.mark.parametrize(
    ("project", "filename"),
    [
        ("no-such-project", "a-1.tar.gz"),
        ("real-images", "real_images-9.tar.gz"),
        ("real-images", "real_images-2.0.tar.gz"),
    ],
)
def test_a_missing_file_says_what_to_do(index: Index, tmp_path: Path, project: str, filename: str) -> None:
    with pytest.raises(MieError) as caught:
        fetch_distribution(project, filename, sha256(b""), cache=tmp_path)
    assert f"{filename}, SHA-256 {sha256(b'')}" in (caught.value.expected or "")
    assert str(tmp_path / filename) in (caught.value.fix or "")
    assert index.url in (caught.value.found or "")
    assert list(tmp_path.iterdir()) == []


def test_a_server_that_is_down(index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    only(monkeypatch, "http://127.0.0.1:9/simple")  # the discard port: nothing listens
    with pytest.raises(MieError, match="cannot get real_images") as caught:
        fetch_distribution("real-images", "real_images-1.0.tar.gz", sha256(SDIST), cache=tmp_path)
    assert str(tmp_path / "real_images-1.0.tar.gz") in (caught.value.fix or "")


def test_a_connection_that_breaks_is_not_a_wrong_checksum(index: Index, tmp_path: Path) -> None:
    class Longer(bytes):
        def __len__(self) -> int:  # the header promises more than comes
            return super().__len__() + 10

    index.answers["/files/real_images-1.0.tar.gz"] = ("application/octet-stream", Longer(SDIST))
    with pytest.raises(MieError, match="cannot get") as caught:
        fetch_distribution("real-images", "real_images-1.0.tar.gz", sha256(SDIST), cache=tmp_path)
    assert "connection broke" in (caught.value.found or "")
    assert list(tmp_path.iterdir()) == []


def test_the_second_index_is_asked_when_the_first_fails(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", index.url)
    path = fetch_distribution("real-images", "real_images-1.0.tar.gz", sha256(SDIST), cache=tmp_path)
    assert path.read_bytes() == SDIST


def test_a_folder_can_be_the_index(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    page = tmp_path / "simple" / "real-images" / "index.html"
    page.parent.mkdir(parents=True)
    page.write_text('<a href="../../real_images-1.0.tar.gz">real_images-1.0.tar.gz</a>')
    (tmp_path / "real_images-1.0.tar.gz").write_bytes(SDIST)
    only(monkeypatch, (tmp_path / "simple").as_uri())
    path = fetch_distribution("real-images", "real_images-1.0.tar.gz", sha256(SDIST), cache=tmp_path / "c")
    assert path.read_bytes() == SDIST


def test_a_password_goes_to_the_index_alone_and_is_never_shown(
    index: Index, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    elsewhere = f"http://localhost:{index.server.server_port}/files/real_images-1.0.tar.gz"
    index.page(("real_images-1.0.tar.gz", elsewhere))
    monkeypatch.setenv("PIP_INDEX_URL", f"http://me:s%40cret@{index.host}/simple")
    with pytest.raises(MieError) as caught:
        fetch_distribution("real-images", "real_images-1.0.tar.gz", sha256(b""), cache=tmp_path)
    assert "cret" not in str(caught.value)
    assert index.requests == [
        ("/simple/real-images/", "Basic bWU6c0BjcmV0"),
        ("/files/real_images-1.0.tar.gz", None),
    ]


@pytest.mark.parametrize("by", ["link", "redirect"])
def test_a_web_index_cannot_point_at_local_files(index: Index, tmp_path: Path, by: str) -> None:
    secret = tmp_path / "real_images-1.0.tar.gz"
    secret.write_bytes(SDIST)
    if by == "link":
        index.page((secret.name, secret.as_uri()))
    else:
        index.redirects[f"/files/{secret.name}"] = secret.as_uri()
    with pytest.raises(MieError, match="cannot get") as caught:
        fetch_distribution("real-images", secret.name, sha256(SDIST), cache=tmp_path / "c")
    assert {"link": "refused to read", "redirect": "is not allowed"}[by] in (caught.value.found or "")


def test_an_https_index_is_never_left_for_http() -> None:
    index = package_index.Index("https://index.example/simple")
    with pytest.raises(ValueError, match="refused to read"):
        index.open("http://index.example/simple/a/")
    redirects = package_index._CheckedRedirects(index)
    with pytest.raises(ValueError, match="refused to read"):
        redirects.redirect_request(
            urllib.request.Request("https://index.example/a"),
            io.BytesIO(),
            302,
            "Found",
            {},
            "http://b.example/a",
        )


def test_pip_settings_are_read_in_pips_order(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL", "PIP_NO_INDEX"):
        monkeypatch.delenv(name, raising=False)
    settings = {
        "global.index-url": "https://a.example/simple",
        "global.extra-index-url": "https://b/s\nhttps://c/s",
    }
    monkeypatch.setattr(package_index, "_pip_settings", lambda: settings)
    assert [str(i) for i in package_index.indexes()] == [
        "https://a.example/simple",
        "https://b/s",
        "https://c/s",
    ]
    monkeypatch.setenv("PIP_INDEX_URL", "https://d.example/simple/")
    assert str(package_index.indexes()[0]) == "https://d.example/simple"
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    assert package_index.indexes() == []


def test_pips_own_words_are_understood(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pip.conf").write_text("[global]\nindex-url = https://it's.example/simple\n")
    monkeypatch.setenv("PIP_CONFIG_FILE", str(tmp_path / "pip.conf"))
    assert package_index._pip_settings()["global.index-url"] == "https://it's.example/simple"


@pytest.mark.parametrize(("name", "data"), [("a.whl", WHEEL), ("a.tar.gz", SDIST)])
def test_only_the_named_members_are_written(tmp_path: Path, name: str, data: bytes) -> None:
    archive = tmp_path / name
    archive.write_bytes(data)
    member = "real_images/brain.nii" if name == "a.whl" else "real_images-1.0/data/lung.nrrd"
    found = extract(archive, {member: tmp_path / "out" / "image"})
    written = (tmp_path / "out" / "image").read_bytes()
    assert written == (b"voxels" if name == "a.whl" else b"NRRD") * 1000
    assert found == {member: sha256(written)}
    assert {p.name for p in tmp_path.rglob("*") if p.is_file()} == {name, "image"}


@pytest.mark.parametrize("member", ["../evil", "/etc/evil", "a/../../evil", "a\\..\\evil"])
def test_members_that_leave_the_archive_are_refused(tmp_path: Path, member: str) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(sdist({member: b"x"}))
    with pytest.raises(MieError, match="leaves the archive"):
        extract(archive, {member: tmp_path / "out"})
    assert not (tmp_path / "out").exists()


def test_links_are_not_followed(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.write_bytes(sdist({"real": b"x"}, links={"image": "real"}))
    with pytest.raises(MieError, match="lacks regular files") as caught:
        extract(archive, {"image": tmp_path / "out"})
    assert caught.value.expected == "image"
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "data",
    [b"", b"not an archive", SDIST[: len(SDIST) // 2], gzip.compress(b"no tar"), WHEEL[:50]],
    # Named: the bytes hold the time, and workers that differ in a test's name do not start.
    ids=["empty", "text", "half an sdist", "no tar", "half a wheel"],
)
def test_broken_archives_are_errors_that_name_the_file(tmp_path: Path, data: bytes) -> None:
    archive = tmp_path / "broken.tar.gz"
    archive.write_bytes(data)
    with pytest.raises(MieError) as caught:
        extract(archive, {"real_images-1.0/setup.py": tmp_path / "out"})
    assert caught.value.where == str(archive)


@given(st.binary(max_size=300), st.sampled_from(["text/html", "application/json"]))
def test_no_page_breaks_the_reader(body: bytes, kind: str) -> None:
    read = package_index._json_links if kind.endswith("json") else package_index._html_links
    try:
        links = read(body)
    except ValueError:
        return
    assert isinstance(links, dict)


def test_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MIE_CACHE", str(tmp_path / "own"))
    assert cache_folder() == tmp_path / "own"
    monkeypatch.delenv("MIE_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    assert cache_folder() == tmp_path / "xdg" / "mie"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_folder() == tmp_path / ".cache" / "mie"


def test_one_file_of_the_web(index: Index, tmp_path: Path) -> None:
    url, path = f"http://{index.host}/files/weights.pth", tmp_path / "new" / "weights.pth"
    index.answers["/files/weights.pth"] = ("application/octet-stream", b"tensors")
    assert fetch_file(url, path, sha256(b"tensors")).read_bytes() == b"tensors"
    assert fetch_file(url, path, sha256(b"tensors")) == path
    assert len(index.requests) == 1  # the second time it was there
    path.write_bytes(b"spoiled")
    assert fetch_file(url, path, sha256(b"tensors")).read_bytes() == b"tensors"


def test_another_file_than_the_published_one_is_not_kept(index: Index, tmp_path: Path) -> None:
    url, path = f"http://{index.host}/files/weights.pth", tmp_path / "weights.pth"
    index.answers["/files/weights.pth"] = ("application/octet-stream", b"something else")
    with pytest.raises(MieError, match="not the one that was published"):
        fetch_file(url, path, sha256(b"tensors"))
    with pytest.raises(MieError, match="cannot get") as caught:
        fetch_file(f"http://{index.host}/nowhere", path, sha256(b"tensors"))
    assert "by hand" in str(caught.value)
    assert list(tmp_path.iterdir()) == []
