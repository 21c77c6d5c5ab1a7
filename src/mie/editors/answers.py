"""What a provider was paid for: each answer is on disk before it is read, and money has a limit.

`RUN/answers/<sample>_<attempt>-<digest>.answer` is the raw answer to one request, synced before it is read.
A run that was killed takes it instead of asking again; once the edit is in `edits.jsonl` the file is removed.
`RUN/answers/paid.jsonl` has a line for each answer with its cost, and stays.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
import threading
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, Final

from mie.core.files import atomic_write, make_folder
from mie.core.hashing import file_stem
from mie.core.journal import Journal
from mie.core.yaml_files import read_mapping
from mie.editors.base import Request, StopRunError
from mie.errors import ConfigError, MieError
from mie.judges.contracts import Usage
from mie.judges.cost import Price

FOLDER: Final = "answers"
_ENDING: Final = ".answer"
_NAME: Final = re.compile(r"([0-9a-f]+_\d+)-[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class ImagePrice:
    """US dollars for one edit, and for tokens where an answer counts them."""

    image: float
    tokens: Price | None = None
    noted: str | None = None  # when somebody read it; None: the user says so

    def of(self, usage: Usage | None) -> float:
        return self.image if usage is None or self.tokens is None else self.tokens.of(usage)


def find_image_price(
    model: str, size: str, quality: str | None, table: Path | str | None = None
) -> ImagePrice | None:
    """The price of an edit by this model; None where it is unknown. The user's own table comes first."""
    form = "MODEL: {noted: 2026-11-16, image: 0.04}"
    tables = [] if table is None else [Path(table)]
    with resources.as_file(resources.files("mie.editors") / "prices.yaml") as builtin:
        for path in (*tables, builtin):
            entry = read_mapping(path, "price table", expected=form).get(model)
            if entry is not None:
                return _price(entry, size, quality, where=f"{path}: {model}", form=form)
    return None


def _price(entry: Any, size: str, quality: str | None, *, where: str, form: str) -> ImagePrice | None:
    try:
        image = entry["image"]
        if isinstance(image, Mapping):
            keys = (f"{size} {quality}", size, str(quality), "any")
            image = next((image[key] for key in keys if key in image), None)
        tokens = Price(float(entry["input"]), float(entry["output"])) if "input" in entry else None
        price = None if image is None else ImagePrice(float(image), tokens, str(entry["noted"]))
        numbers = [] if price is None else [price.image, *((tokens.input, tokens.output) if tokens else ())]
        if not all(0 <= number < math.inf for number in numbers):
            raise ValueError("not a price")
    except (KeyError, TypeError, ValueError, AttributeError):
        raise ConfigError("not a price", where=where, expected=form, found=repr(entry)[:200]) from None
    return price


def answer_name(request: Request, url: str, body: bytes) -> str:
    """The file name for the answer to one request: whose it is, and a digest of all that was asked.

    The seed and the attempt are part of it: some providers take no seed, and each attempt has its own answer.
    """
    asked = hashlib.sha256(f"{url}\n{request.seed}\n{request.attempt}\n".encode())
    asked.update(body)
    sample = "0" if request.sample is None else request.sample.id
    return f"{_owner(sample, request.attempt)}-{asked.hexdigest()[:32]}"


def _owner(sample_id: str, attempt: int) -> str:
    return f"{file_stem(sample_id)}_{attempt}"


class Answers:
    """The answers of one run, and what they cost. Without a folder nothing outlives the process.

    `usage` reads the tokens that an answer says it took.
    """

    def __init__(
        self,
        price: ImagePrice | None,
        limit: float | None,
        usage: Callable[[bytes], Usage | None],
    ) -> None:
        self.price = price
        self._limit = limit
        self._usage = usage
        self._lock = threading.Lock()
        self._freed = threading.Condition(self._lock)
        self._spent = self._reserved = 0.0
        self._paid = self._in_progress = 0
        self._folder: Path | None = None
        self._journal: Journal | None = None
        self._names: dict[str, set[str]] = {}  # owner -> answers on disk

    @property
    def spent(self) -> float | None:
        return None if self.price is None else round(self._spent, 6)

    def keep_in(self, folder: Path) -> None:
        """Begin with what earlier sessions left in the run's folder."""
        self.close()  # of another run by the same editor
        self._spent, self._paid, self._names = 0.0, 0, {}
        self._folder = folder / FOLDER
        if not self._folder.is_dir():
            return
        paid = set()
        for line in self._open_journal().lines():
            entry = _entry(line, self._folder)
            if not entry.get("lost"):
                paid.add(entry["answer"])
            self._count(float(entry["usd"] or 0.0))
        for path in sorted(self._folder.glob(f"*{_ENDING}")):
            name = path.name.removesuffix(_ENDING)
            owner = _NAME.fullmatch(name)
            if owner is None:
                continue
            self._names.setdefault(owner[1], set()).add(name)
            if name not in paid:  # killed between the answer and its line
                self._pay(name, path.read_bytes())

    def find(self, name: str) -> bytes | None:
        """An answer that was paid for and not used yet."""
        if self._folder is None or name not in self._names.get(name.partition("-")[0], ()):
            return None
        return (self._folder / f"{name}{_ENDING}").read_bytes()

    @contextlib.contextmanager
    def reserved(self) -> Iterator[None]:
        """Reserve the price of an edit while it is in progress; `StopRunError` beyond the limit.

        Where edits have cost more than the price on average, that is reserved. Where only the edits in
        progress stand in the way, they are waited for: a refusal may cost nothing.
        """
        dollars = 0.0
        with self._lock:
            while True:
                if self._limit is not None and self.price is not None:
                    dollars = max(self.price.image, self._spent / max(1, self._paid))
                if not self._in_progress or self._covers(dollars):
                    break
                self._freed.wait()
            self._check_budget(dollars)
            self._in_progress += 1
            self._reserved += dollars
        try:
            yield
        finally:
            with self._lock:
                self._in_progress -= 1
                self._reserved -= dollars
                self._freed.notify_all()

    def keep(self, name: str, body: bytes) -> None:
        """Put an answer on disk before anything is made of it, and count its cost."""
        try:
            if self._folder is not None:
                atomic_write(make_folder(self._folder) / f"{name}{_ENDING}", body)
                with self._lock:
                    self._names.setdefault(name.partition("-")[0], set()).add(name)
            self._pay(name, body)
        except (OSError, MieError) as error:  # else an answer that was paid for would count as a failed edit
            raise _unwritable(error) from error

    def lost(self, name: str) -> None:
        """Count a call that got no answer: the provider may charge for it.

        `StopRunError` where the budget does not cover asking again.
        """
        try:
            self._write({"answer": name, "usd": self.price and self.price.image, "lost": True})
        except (OSError, MieError) as error:
            raise _unwritable(error) from error
        with self._lock:
            self._check_budget(0.0)

    def drop(self, sample_id: str, attempt: int) -> None:
        """Remove the answers of an edit that is on record."""
        with self._lock:
            names = self._names.pop(_owner(sample_id, attempt), set())
        for name in names:
            if self._folder is not None:
                (self._folder / f"{name}{_ENDING}").unlink(missing_ok=True)

    def close(self) -> None:
        with self._lock:
            if self._journal is not None:
                self._journal.close()
                self._journal = None

    def _covers(self, dollars: float) -> bool:
        """Whether what is spent, what edits in progress may cost and `dollars` stay within the limit."""
        return self._limit is None or self._spent + self._reserved + dollars <= self._limit + 1e-9

    def _check_budget(self, dollars: float) -> None:
        if not self._covers(dollars):
            raise StopRunError(
                "the budget does not cover another edit",
                expected=f"at most {self._limit:g} USD",
                found=f"{self._spent:.4g} USD spent, {self._reserved:.4g} USD for edits in progress, "
                f"{dollars:.4g} USD for the next",
                fix="give a larger budget= and run the same command again: it resumes where it stopped",
            )

    def _pay(self, name: str, body: bytes) -> None:
        usage = self._usage(body)
        dollars = None if self.price is None else round(self.price.of(usage), 6)
        tokens = None if usage is None else {"input": usage.input, "output": usage.output}
        self._write({"answer": name, "usd": dollars, "tokens": tokens})

    def _write(self, entry: Mapping[str, Any]) -> None:
        with self._lock:
            self._count(float(entry["usd"] or 0.0))
            if self._folder is not None:
                self._open_journal().append(json.dumps(entry).encode() + b"\n")

    def _count(self, dollars: float) -> None:
        self._spent += dollars
        self._paid += 1

    def _open_journal(self) -> Journal:
        assert self._folder is not None  # noqa: S101
        if self._journal is None:
            self._journal = Journal(self._folder / "paid.jsonl")
        return self._journal


def _entry(line: bytes, folder: Path) -> dict[str, Any]:
    try:
        entry = json.loads(line)
        if isinstance(entry["answer"], str) and isinstance(entry["usd"], int | float | None):
            return dict(entry)
    except (ValueError, KeyError, TypeError):
        pass
    raise MieError(
        "not a line of what was paid", where=folder / "paid.jsonl", expected="a JSON object", found=line[:120]
    )


def _unwritable(error: OSError | MieError) -> StopRunError:
    if isinstance(error, MieError):
        return StopRunError(error.what, where=error.where, found=error.found, fix=error.fix)
    return StopRunError(
        "an answer cannot be stored", found=error, fix="run the same command again: it resumes"
    )
