"""The command line, run in a folder of its own, and what it leaves on disk in a form that can be compared."""

from __future__ import annotations

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

REPOSITORY = Path(__file__).parents[2]
# Keys whose values change from one run to the next, or with a library's version.
VOLATILE = {
    "at", "created", "data_wait", "edits_per_second", "edits_sha256", "environment", "images_per_second",
    "memory_gb", "mie", "seconds", "started", "timings", "validation_seconds", "versions",
}  # fmt: skip
TEXT = {".csv", ".html", ".json", ".jsonl", ".md", ".tex", ".txt", ".yaml"}


class CommandLine:
    """`python -m mie` in `folder`: paths in commands are relative to it, so documents do not depend on it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder.resolve()
        self.folder.mkdir(parents=True, exist_ok=True)
        path = [str(Path(p).resolve()) for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p]
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith("OPENAI_")},
            "PYTHONPATH": os.pathsep.join(path),
            "PYTHONHASHSEED": "0",
            "OMP_NUM_THREADS": "1",
            "COLUMNS": "160",
            "MIE_WEIGHTS": str(self.folder / "weights"),  # empty: metrics with published weights say so
        }
        cache = os.environ.get("MIE_CACHE") or os.environ.get("XDG_CACHE_HOME", "~/.cache") + "/mie"
        self._places = {str(self.folder): "WORK", str(Path(cache).expanduser()): "CACHE"}
        self._places[str(REPOSITORY)] = "REPOSITORY"
        self._made: set[str] = set()

    def __call__(self, *words: object, codes: Sequence[int] = (0, 3)) -> str:
        """What the command prints; exit code 3 says that something was rejected or has no score."""
        command = [sys.executable, "-m", "mie", *map(str, words)]
        done = subprocess.run(
            command, cwd=self.folder, env=self.environment, capture_output=True, text=True, check=False
        )
        if done.returncode not in codes:
            raise SystemExit(
                f"mie {' '.join(map(str, words))}: exit {done.returncode}\n{done.stderr[-3000:]}"
            )
        return done.stdout

    def json(self, *words: object, codes: Sequence[int] = (0, 3)) -> Any:
        """The JSON document that the command prints with `--json`, without what is volatile."""
        return stable(json.loads(self.plain(self(*words, "--json", codes=codes))))

    def plain(self, text: str) -> str:
        """The text without places on this machine."""
        for place, name in self._places.items():
            text = text.replace(place, name)
        return re.sub(r"127\.0\.0\.1:\d+", "127.0.0.1:0", text)

    def sha256(self, path: Path) -> str:
        """Of the file's bytes; of a text file without places on this machine."""
        data = path.read_bytes()
        if path.suffix in TEXT:
            data = self.plain(data.decode()).encode()
        return hashlib.sha256(data).hexdigest()

    def tree(self, folder: Path | str) -> dict[str, str]:
        """Relative path -> SHA-256 of every file."""
        root = self.folder / folder
        files = sorted(path for path in root.rglob("*") if path.is_file() and path.name != ".lock")
        return {path.relative_to(root).as_posix(): self.sha256(path) for path in files}

    def text(self, path: Path | str) -> str:
        return self.plain((self.folder / path).read_text(encoding="utf-8"))

    def document(self, path: Path | str) -> Any:
        """A JSON file, without what is volatile."""
        return stable(json.loads(self.text(path)))

    def lines(self, path: Path | str) -> list[Any]:
        """A file of JSON lines, without what is volatile."""
        return [stable(json.loads(line)) for line in self.text(path).splitlines()]

    def dataset(self, folder: Path | str) -> dict[str, Any]:
        """What a dataset is: its digest, counts, what was rejected, and the SHA-256 of its files."""
        info = self.document(Path(folder) / "dataset.json")
        rejected = pq.read_table(self.folder / folder / "rejected.parquet").to_pylist()
        verified = self.json("verify", folder, codes=(0, 1))
        return {
            "info": info,
            "rejected": json.loads(self.plain(json.dumps(rejected, default=str))),
            "verify": verified,
            "files": {
                name: digest
                for name, digest in self.tree(folder).items()
                if name.startswith("data/") or name == "README.md"
            },
        }

    def rows(self, folder: Path | str) -> list[dict[str, Any]]:
        """The samples of a dataset, in its order; images as PNG bytes."""
        files = sorted((self.folder / folder / "data").glob("*.parquet"))
        return [row for file in files for row in pq.read_table(file).to_pylist()]

    def write(self, path: Path | str, content: bytes | str | list[Any] | dict[str, Any]) -> Path:
        """A file in the work folder: bytes, text, or a document as JSON (which YAML readers take too)."""
        place = self.folder / path
        place.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(content, bytes | str):
            content = json.dumps(content, indent=1)
        place.write_bytes(content.encode() if isinstance(content, str) else content)
        return place

    def make(self, folder: str, fill: Callable[[], object]) -> str:
        """Have `fill` make the folder, unless the same code made it before and its files are as they were.

        What was added to it since then, such as the scores of a run, is removed.
        """
        if folder in self._made:
            return folder
        stamp = self.folder / "made" / f"{folder.replace('/', '+')}.json"
        before = json.loads(stamp.read_text(encoding="utf-8")) if stamp.exists() else {}
        if before.get("by") == self._fingerprint and self._restore(folder, before["files"]):
            print(f"  {folder}: reused", flush=True)
        else:
            stamp.unlink(missing_ok=True)
            self.remove(folder)
            fill()
            self.write(stamp, {"by": self._fingerprint, "files": self.tree(folder)})
        self._made.add(folder)
        return folder

    def _restore(self, folder: str, files: dict[str, str]) -> bool:
        """Whether the folder holds these files; others are removed then."""
        found = self.tree(folder)
        if not files or any(found.get(name) != digest for name, digest in files.items()):
            return False
        for name in found.keys() - files.keys():
            (self.folder / folder / name).unlink()
        return True

    @cached_property
    def _fingerprint(self) -> str:
        """Of all that decides what is made: the code of mie and of this proof, libraries, and the folder."""
        spec = importlib.util.find_spec("mie")
        assert spec is not None
        assert spec.origin is not None
        package = Path(spec.origin).parent
        code = [path for path in package.rglob("*") if path.is_file() and path.suffix != ".pyc"]
        own = [*Path(__file__).parent.glob("*.py"), *(REPOSITORY / "examples").glob("*.py")]
        digests = sorted(
            (path.relative_to(root).as_posix(), file_digest(path))
            for root, paths in ((package, code), (REPOSITORY, own))
            for path in paths
        )
        libraries = sorted(f"{one.name} {one.version}" for one in importlib.metadata.distributions())
        return sha256([str(self.folder), sys.version, libraries, digests])

    def remove(self, folder: Path | str) -> None:
        shutil.rmtree(self.folder / folder, ignore_errors=True)

    @contextmanager
    def judge(self, port: int = 0) -> Iterator[str]:
        """The specification of a judge on this machine, `examples/loopback_judge.py`; 0: any free port."""
        script = REPOSITORY / "examples" / "loopback_judge.py"
        log = self.folder / "requests.jsonl"
        command = [sys.executable, str(script), "--log", str(log), "--delay", "0", "--port", str(port)]
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=self.environment)
        try:
            assert server.stdout is not None
            yield f"openai:loopback,base_url={server.stdout.readline().strip()}"
        finally:
            server.terminate()
            server.wait()


def file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def stable(document: Any) -> Any:
    """The document without volatile keys."""
    if isinstance(document, dict):
        return {key: stable(value) for key, value in document.items() if key not in VOLATILE}
    if isinstance(document, list):
        return [stable(value) for value in document]
    return document


def sha256(document: Any) -> str:
    """Of a document as JSON, in the order of its keys."""
    return hashlib.sha256(json.dumps(document, ensure_ascii=False).encode()).hexdigest()


class _Tables(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tables: list[dict[str, Any]] = []
        self._open: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "table":
            self.tables.append({"caption": "", "rows": []})
        if tag == "tr" and self.tables:
            self.tables[-1]["rows"].append([])
        if tag in ("td", "th") and self.tables and self.tables[-1]["rows"]:
            self.tables[-1]["rows"][-1].append("")
        if tag in ("table", "caption", "td", "th"):
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self._open:
            while self._open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if not self._open or not data.strip():
            return
        table, words = self.tables[-1], " ".join(data.split())
        if self._open[-1] == "caption":
            table["caption"] = f"{table['caption']} {words}".strip()
        elif self._open[-1] in ("td", "th"):
            row = table["rows"][-1]
            row[-1] = f"{row[-1]} {words}".strip()


def html_tables(text: str) -> list[dict[str, Any]]:
    """The caption and the text of every cell of each table on a page."""
    parser = _Tables()
    parser.feed(text)
    return parser.tables
