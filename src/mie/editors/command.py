"""A program as an editor, in any language and any environment.

One process per edit, with `{input}`, `{instruction}`, `{output}` and `{seed}` filled in:

    command:python my.py --image {input} --prompt={instruction} --out {output} --seed {seed}

`{request}` is a JSON file with all of them, and with earlier turns and reference images where there are any.
With `jsonl=true` one process makes all edits, so that a model is loaded once: it reads an object per line,
writes a picture to its `output`, and answers with a line (`mie.editors.worker`).

There is no shell: the template is split into words once, and each value is put into its word as it is. A word
of its own for `{instruction}` could be taken for a flag when it begins with `-`; `--prompt={instruction}`
cannot. After the time limit the program is killed with everything that it started.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mie.core.registry import nearest_name
from mie.core.spec import mask_secrets
from mie.editors.base import Edited, EditError, Editor, RefusedError, Request, Turn
from mie.editors.outputs import read_output
from mie.editors.worker import OutputTail, Worker, exit_status, kill_group, start, with_tail
from mie.errors import ConfigError
from mie.images.png import encode_png
from mie.records import Pixels

PLACEHOLDERS: Final = ("input", "instruction", "output", "seed", "request")
_IN_REQUEST: Final = ("history", "references")  # lists: no word of a command line can hold them
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")


class Command(Editor):
    """Runs a program of yours for every edit, or one that reads JSON lines (`jsonl=true`).

    `timeout` and `startup` are in seconds; `startup` is added for the first reply of a `jsonl` process, and
    `batch` is how many requests it gets before its replies are waited for.
    """

    takes_references = True
    tuning = frozenset({"timeout", "startup"})

    def __init__(
        self,
        command: str,
        *,
        jsonl: bool = False,
        batch: int = 1,
        timeout: float = 300.0,
        startup: float = 600.0,
    ) -> None:
        if timeout <= 0 or startup < 0:
            raise ConfigError("the time limit must be above 0", expected="seconds", found=timeout)
        if batch < 1 or (batch > 1 and not jsonl):
            raise ConfigError("a batch needs jsonl=true", where="batch", expected="1 or more", found=batch)
        self._argv = _split(command, jsonl=jsonl)
        self._timeout = timeout
        self._worker = Worker(self._argv, timeout=timeout, startup=startup) if jsonl else None
        self.batch_size = batch
        self.thread_safe = not jsonl
        self._running: set[subprocess.Popen[bytes]] = set()
        self._lock = threading.Lock()
        self._closed = False

    def about(self) -> dict[str, Any]:
        return {"program": shutil.which(self._argv[0])}

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        return self.edit_request(Request(image, instruction, seed, history=history))

    def edit_request(self, request: Request) -> Edited:
        (outcome,) = self.edit_batch([request])
        if isinstance(outcome, EditError):
            raise outcome
        return outcome

    def edit_batch(self, requests: Sequence[Request]) -> list[Edited | EditError]:
        with tempfile.TemporaryDirectory(prefix="mie-edit-", ignore_cleanup_errors=True) as folder:
            # The first edit's files lie in the folder itself, those of others in folders of their own.
            places = [Path(folder, *([str(at)] if at else [])) for at in range(len(requests))]
            lines = [_line(request, place) for request, place in zip(requests, places, strict=True)]
            if self._worker is not None:
                replies = self._worker.ask(lines)
            else:
                replies = [self._run_once(line, place) for line, place in zip(lines, places, strict=True)]
            outcomes = [
                _outcome(reply, request, place)
                for reply, request, place in zip(replies, requests, places, strict=True)
            ]
        for outcome in outcomes:
            if isinstance(outcome, EditError) and outcome.found is not None:
                # The folder has another name each time; without it equal failures are counted as one.
                outcome.found = outcome.found.replace(folder, "FOLDER")
        return outcomes

    def _run_once(self, line: Mapping[str, Any], place: Path) -> dict[str, Any] | EditError:
        request = place / "request.json"
        if any("{request}" in word for word in self._argv):
            request.write_text(json.dumps(line), encoding="utf-8")
        try:
            self._run(fill(self._argv, {**line, "request": request}))
            if not Path(line["output"]).exists():
                raise EditError("the command wrote no output", expected="a picture at {output}")
        except EditError as error:
            return error
        return {"output": line["output"]}

    def _run(self, argv: Sequence[str]) -> None:
        with self._lock:
            if self._closed:
                raise EditError("interrupted")
            process = start(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self._running.add(process)
        assert process.stdout is not None  # noqa: S101
        tail = OutputTail(process.stdout)
        try:
            code = process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            kill_group(process)
            raise EditError(
                "the command ran past its time limit",
                expected=f"an end within {self._timeout:g} s",
                found=with_tail("killed", tail.text()),
            ) from None
        finally:
            kill_group(process)  # when we are interrupted ourselves
            self._running.discard(process)
        if code:
            raise EditError("the command failed", found=with_tail(exit_status(code), tail.text()))

    def close(self) -> None:
        with self._lock:
            self._closed = True
            for process in list(self._running):
                kill_group(process)
        if self._worker is not None:
            self._worker.close()


def fill(argv: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """Fill in the placeholders of each word. A value is never searched for placeholders itself."""
    return [_PLACEHOLDER.sub(lambda match: str(values.get(match[1], match[0])), word) for word in argv]


def _split(command: str, *, jsonl: bool) -> list[str]:
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise ConfigError(
            "cannot split this command into words", where=_shown(command), found=error
        ) from None
    if not argv:
        raise ConfigError("the command is empty", expected="command:PROGRAM {input} {output}")
    if shutil.which(argv[0]) is None:
        raise ConfigError("no such program", where=_shown(command), found=argv[0])
    named = {name for word in argv for name in _PLACEHOLDER.findall(word)}
    for name in sorted(named.intersection(_IN_REQUEST)):
        raise ConfigError(
            f"unknown placeholder {{{name}}}",
            where=_shown(command),
            fix="use {request}, a JSON file that lists them, or jsonl=true",
        )
    for name in sorted(named.difference(PLACEHOLDERS)):
        # Other words in braces may be meant for the program itself.
        near = nearest_name(name, PLACEHOLDERS)
        if near:
            raise ConfigError(
                f"unknown placeholder {{{name}}}", where=_shown(command), fix=f"did you mean {{{near}}}?"
            )
    if jsonl and named & set(PLACEHOLDERS):
        raise ConfigError(
            "a jsonl command takes no placeholders", where=_shown(command), expected="requests on its stdin"
        )
    missing = [name for name in ("input", "output") if name not in named]
    if missing and not jsonl and "request" not in named:
        raise ConfigError(
            f"the command has no {{{missing[0]}}}",
            where=_shown(command),
            expected="{input} and {output}, usually {instruction}, optionally {seed}; or {request}",
            fix="add jsonl=true if it reads its requests from stdin",
        )
    return argv


def _line(request: Request, place: Path) -> dict[str, Any]:
    """What the program is told; its images lie in `place`. There is no key for what is not there."""
    place.mkdir(exist_ok=True)
    sample = request.sample

    def file(name: str, image: Pixels) -> str:
        path = place / name
        path.write_bytes(encode_png(image))
        return str(path)

    line: dict[str, Any] = {
        "id": place.name if sample is None else f"{sample.id}_{request.attempt}",
        "input": file("input.png", request.image),
        "instruction": request.instruction,
        "output": str(place / "output.png"),
        "seed": request.seed,
    }
    if request.history:
        line["history"] = [
            {"instruction": turn.instruction, "image": file(f"history-{at}.png", turn.image)}
            for at, turn in enumerate(request.history)
        ]
    if request.references:
        line["references"] = [
            file(f"reference-{at}.png", image) for at, image in enumerate(request.references)
        ]
    return line


def _outcome(reply: Mapping[str, Any] | EditError, request: Request, place: Path) -> Edited | EditError:
    try:
        if isinstance(reply, EditError):
            return reply
        if reply.get("refused") is not None:
            return RefusedError("the model declined", found=str(reply["refused"])[:2000])
        if reply.get("error") is not None:
            return EditError("the command reports an error", found=str(reply["error"])[:2000])
        output = reply.get("output")
        if not isinstance(output, str) or "\0" in output:
            return EditError("the command's reply names no file", found=repr(output)[:200])
        return read_output(place / output, like=request.image.shape)
    except EditError as error:
        return error


def _shown(command: str) -> str:
    return mask_secrets(command)[:200]
