"""Answerers of the user's own: a program, or a Python function. Both are asked as a judge's client is.

    command:python my.py --question={prompt} {images}       one process per question; its output is the reply
    command:python my.py {request}                          a JSON file with `id`, `prompt` and `images`
    command:python my.py,jsonl=true                         one process for all: JSON lines, as for editors

There is no shell: the template is split into words once, and each value is put into its word as it is.
`{images}` becomes as many words as there are images.
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import os
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mie.core.spec import mask_secrets
from mie.editors.base import EditError
from mie.editors.command import fill
from mie.editors.worker import OutputTail, Worker, exit_status, kill_group, start, with_tail
from mie.errors import ConfigError
from mie.images.png import encode_png
from mie.judges.contracts import CallError, CallLimits, Image, Reply, Request
from mie.records import Pixels

_LONGEST: Final = 2**20  # bytes of a reply
AnswerFunction = Callable[[str, list[Pixels]], str]


class Command:
    """A program that answers. `jsonl=true` keeps one process, which reads `{"id", "prompt", "images"}`
    and writes `{"id", "output": reply}`.
    """

    provider = "command"
    remote = False
    free = True

    def __init__(
        self, command: str, *, jsonl: bool = False, timeout: float = 300.0, startup: float = 600.0
    ) -> None:
        if timeout <= 0 or startup < 0:
            raise ConfigError("the time limit must be above 0", expected="seconds", found=timeout)
        self._argv = _split(command, jsonl=jsonl)
        self.model = Path(self._argv[0]).name
        self.parameters: Mapping[str, Any] = {"command": mask_secrets(command)}
        self.at_once: int | None = 1 if jsonl else os.cpu_count() or 1
        self.limits = CallLimits(timeout + startup if jsonl else timeout + 5, retries=0, total=1e9)
        self._timeout = timeout
        self._worker = Worker(self._argv, timeout=timeout, startup=startup) if jsonl else None

    def ready(self) -> None:
        pass

    async def ask(self, request: Request) -> Reply:
        return await asyncio.to_thread(self._ask, request)

    async def close(self) -> None:
        if self._worker is not None:
            self._worker.close()

    def _ask(self, request: Request) -> Reply:
        prompt, images = spoken(request)
        with tempfile.TemporaryDirectory(prefix="mie-answer-", ignore_cleanup_errors=True) as folder:
            paths = []
            for at, pixels in enumerate(images):
                paths.append(str(Path(folder, f"image-{at}.png")))
                Path(paths[-1]).write_bytes(encode_png(pixels))
            line = {"id": request.key, "prompt": prompt, "images": paths}
            try:
                text = self._run(line, Path(folder)) if self._worker is None else self._told(line)
            except EditError as error:
                raise CallError("failed", str(error).replace(folder, "FOLDER"), retry=False) from None
        return Reply(text, model=self.model)

    def _told(self, line: Mapping[str, Any]) -> str:
        assert self._worker is not None  # noqa: S101
        (reply,) = self._worker.ask([line])
        if isinstance(reply, EditError):
            raise reply
        if reply.get("refused") is not None:
            raise CallError("refused", str(reply["refused"])[:2000], retry=False)
        if not isinstance(reply.get("output"), str):
            raise EditError("the command reports an error", found=str(reply.get("error"))[:2000])
        return str(reply["output"])

    def _run(self, line: Mapping[str, Any], folder: Path) -> str:
        request = folder / "request.json"
        request.write_text(json.dumps(line), encoding="utf-8")
        words: list[str] = []
        for word in self._argv:
            words += line["images"] if word == "{images}" else fill([word], {**line, "request": request})
        with (folder / "reply.txt").open("w+b") as output:
            process = start(words, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE)
            assert process.stderr is not None  # noqa: S101
            tail = OutputTail(process.stderr)
            try:
                code = process.wait(self._timeout)
            except subprocess.TimeoutExpired:
                raise EditError(
                    "the command ran past its time limit", expected=f"an end within {self._timeout:g} s"
                ) from None
            finally:
                kill_group(process)
            if code:
                raise EditError("the command failed", found=with_tail(exit_status(code), tail.text()))
            output.seek(0)
            return output.read(_LONGEST).decode(errors="replace").strip()


class Function:
    """A Python function `(prompt, images) -> reply`, images as `(H, W, 3) uint8` arrays."""

    provider = "python"
    remote = False
    free = True
    at_once: int | None = 1
    limits = CallLimits(3600.0, retries=0, total=1e9)

    def __init__(self, function: AnswerFunction) -> None:
        self._function = function
        self.model = getattr(function, "__name__", type(function).__name__)
        try:  # a changed function has other replies
            source = inspect.getsource(function)
        except (OSError, TypeError):
            source = ""
        self.parameters: Mapping[str, Any] = {"source": hashlib.sha256(source.encode()).hexdigest()[:16]}

    def ready(self) -> None:
        pass

    async def ask(self, request: Request) -> Reply:
        prompt, images = spoken(request)
        reply = await asyncio.to_thread(self._function, prompt, images)
        if not isinstance(reply, str):
            raise ConfigError(
                "the answerer returns no text", where=self.model, expected="str", found=type(reply).__name__
            )
        return Reply(reply, model=self.model)

    async def close(self) -> None:
        pass


def spoken(request: Request) -> tuple[str, list[Pixels]]:
    """The words and images of the user's message."""
    parts = request.messages[-1].parts
    words = "\n".join(part for part in parts if isinstance(part, str))
    return words, [part.pixels for part in parts if isinstance(part, Image)]


def _split(command: str, *, jsonl: bool) -> Sequence[str]:
    shown = mask_secrets(command)[:200]
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise ConfigError("cannot split this command into words", where=shown, found=error) from None
    if not argv:
        raise ConfigError("the command is empty", expected="command:PROGRAM {request}")
    if shutil.which(argv[0]) is None:
        raise ConfigError("no such program", where=shown, found=argv[0])
    asked = any(name in word for word in argv for name in ("{prompt}", "{request}"))
    if asked == jsonl:
        raise ConfigError(
            "a jsonl command takes no placeholders" if jsonl else "the command is not told the question",
            where=shown,
            expected="questions on its stdin" if jsonl else "{prompt} and {images}, or {request}",
            fix=None if jsonl else "add jsonl=true if it reads its questions from stdin",
        )
    return argv
