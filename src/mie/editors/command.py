"""A program as an editor, in any language and any environment.

One process per edit, with `{input}`, `{instruction}`, `{output}` and `{seed}` filled in:

    command:python my.py --image {input} --prompt={instruction} --out {output} --seed {seed}

or, with `jsonl=true`, one process for all edits (a model is loaded once). It reads one JSON object per line,
`{"id", "input", "instruction", "output", "seed"}`, writes a PNG to `output`, and answers with one line,
`{"output": path}` or `{"error": text}`. Lines on its stdout that are no JSON object are ignored.

There is no shell: the template is split into words once, and each value goes into its word as it is. A word
of its own for `{instruction}` could be taken for a flag when it begins with `-`; `--prompt={instruction}`
cannot. Past the time limit the program is killed with everything that it started.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from mie.editors.base import Edited, EditError, Editor, Request, Turn
from mie.editors.decode import read_output
from mie.editors.jsonl import LineProcess
from mie.editors.processes import Tail, ending, kill_group, last_words, start
from mie.errors import ConfigError
from mie.images.png import encode_png
from mie.records import Pixels
from mie.spec import mask_secrets
from mie.vocabulary import nearest_name

PLACEHOLDERS: Final = ("input", "instruction", "output", "seed")
_PLACEHOLDER: Final = re.compile(r"\{(\w+)\}")


class Command(Editor):
    """`timeout` and `startup` in seconds; `startup` is added for the first reply of a `jsonl` process."""

    tuning = frozenset({"timeout", "startup"})

    def __init__(
        self, command: str, *, jsonl: bool = False, timeout: float = 300.0, startup: float = 600.0
    ) -> None:
        if timeout <= 0 or startup < 0:
            raise ConfigError("time limit does not make sense", expected="seconds above 0", found=timeout)
        self._argv = _split(command, jsonl=jsonl)
        self._timeout = timeout
        self._lines = LineProcess(self._argv, timeout=timeout, startup=startup) if jsonl else None
        self.thread_safe = not jsonl
        self._running: set[subprocess.Popen[bytes]] = set()
        self._guard = threading.Lock()
        self._closed = False

    def about(self) -> dict[str, Any]:
        return {"program": shutil.which(self._argv[0])}

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        return self.edit_request(Request(image, instruction, seed, history=history))

    def edit_request(self, request: Request) -> Edited:
        with tempfile.TemporaryDirectory(prefix="mie-edit-", ignore_cleanup_errors=True) as folder:
            source, target = Path(folder, "input.png"), Path(folder, "output.png")
            source.write_bytes(encode_png(request.image))
            values = {
                "input": str(source),
                "instruction": request.instruction,
                "output": str(target),
                "seed": request.seed,
            }
            try:
                if self._lines is not None:
                    name = None if request.sample is None else f"{request.sample.id}_{request.attempt}"
                    target = Path(folder, _reply(self._lines.ask({"id": name, **values})))
                else:
                    self._run(fill(self._argv, values))
                    if not target.exists():
                        raise EditError("the command wrote no output", expected="a picture at {output}")
                return read_output(target, like=request.image.shape)
            except EditError as error:
                # The folder has another name each time; without it equal failures are counted as one.
                error.found = None if error.found is None else error.found.replace(folder, "FOLDER")
                raise

    def _run(self, argv: Sequence[str]) -> None:
        with self._guard:
            if self._closed:
                raise EditError("interrupted")
            process = start(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
            self._running.add(process)
        assert process.stdout is not None  # noqa: S101
        tail = Tail(process.stdout)
        try:
            code = process.wait(self._timeout)
        except subprocess.TimeoutExpired:
            kill_group(process)
            raise EditError(
                "the command ran past its time limit",
                expected=f"an end within {self._timeout:g} s",
                found=last_words("killed", tail.text()),
            ) from None
        finally:
            kill_group(process)  # when we are interrupted ourselves
            self._running.discard(process)
        if code:
            raise EditError("the command failed", found=last_words(ending(code), tail.text()))

    def close(self) -> None:
        with self._guard:
            self._closed = True
            for process in list(self._running):
                kill_group(process)
        if self._lines is not None:
            self._lines.close()


def fill(argv: Sequence[str], values: Mapping[str, object]) -> list[str]:
    """The words with their placeholders filled in; what is filled in is never looked at again."""
    return [_PLACEHOLDER.sub(lambda found: str(values.get(found[1], found[0])), word) for word in argv]


def _split(command: str, *, jsonl: bool) -> list[str]:
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise ConfigError(
            "cannot split this command into words", where=_shown(command), found=error
        ) from None
    if not argv:
        raise ConfigError("no command", expected="command:PROGRAM {input} {output}")
    if shutil.which(argv[0]) is None:
        raise ConfigError("no such program", where=_shown(command), found=argv[0])
    named = {name for word in argv for name in _PLACEHOLDER.findall(word)}
    for name in sorted(named.difference(PLACEHOLDERS)):
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
    if missing and not jsonl:
        raise ConfigError(
            f"the command has no {{{missing[0]}}}",
            where=_shown(command),
            expected="{input} and {output}, most often {instruction}, perhaps {seed}",
            fix="say jsonl=true if it reads its requests from stdin",
        )
    return argv


def _reply(reply: Mapping[str, Any]) -> str:
    if reply.get("error") is not None:
        raise EditError("the command reports an error", found=str(reply["error"])[:2000])
    if not isinstance(reply.get("output"), str) or "\0" in reply["output"]:
        raise EditError("the command's reply names no file", found=repr(reply.get("output"))[:200])
    return str(reply["output"])


def _shown(command: str) -> str:
    return mask_secrets(command)[:200]
