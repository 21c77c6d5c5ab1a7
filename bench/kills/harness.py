"""One case: a command is killed, or its disk fails, up to four times; then it must end as if undisturbed.

| kind | what happens | what must follow |
| --- | --- | --- |
| kill | SIGKILL to all its processes at a chosen writing call | the same command resumes to the same bytes |
| kill one | SIGKILL to the one process that writes | an error that says so, then as above |
| at random | SIGKILL to all its processes at a random moment | as above |
| full | ENOSPC from a chosen call on | an error with what, where and what to do, then as above |
| broken | EIO at a chosen call | as for full, or success where the call did not matter |
| interrupted | EINTR at a chosen call | success at the first go |
| short | half of the bytes of one write | success at the first go |

After each fault, whole lines of append-only files must still be there at the end, and a judge or a provider's
editor must not be asked for an answer that is on disk. At the end every file must be that of an undisturbed
run, and no other may exist.
"""

from __future__ import annotations

import random
import shutil
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.kills.faults import Control, Fired, compile_injector
from bench.kills.processes import Ended, Processes
from bench.kills.verbs import Material, State, Verb, answer, appended, state, verbs
from tests.editors.providers import providers
from tests.judges.server import JudgeServer

MOST_FAULTS = 4  # in one case
DEADLY = ("kill", "kill one", "at random")
SURVIVED = ("interrupted", "short")


@dataclass
class Outcome:
    """A case: the faults that came, and what was wrong after them."""

    verb: str
    seed: int
    kinds: list[str] = field(default_factory=list)
    where: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)

    def document(self) -> dict[str, Any]:
        return vars(self)


@dataclass(frozen=True)
class Reference:
    """An undisturbed run of a command."""

    state: State
    calls: int  # that write
    seconds: float
    questions: int  # to a server that is paid


class Harness:
    """`with harness(folder) as one:` holds the processes, the servers and the material."""

    def __init__(self, processes: Processes, control: Control, material: Material) -> None:
        self.processes, self.control, self.material = processes, control, material
        self.verbs = verbs(material)
        self._references: dict[str, Reference] = {}

    @property
    def out(self) -> Path:
        return self.material.folder.parent / "case" / "out"

    def reference(self, verb: Verb) -> Reference:
        """Run it twice; the second time its imports are in memory."""
        if verb.name not in self._references:
            ends = [self._undisturbed(verb) for _ in range(2)]
            first, second = (end.state for end in ends)
            assert first == second, f"{verb.name} differs from run to run: {_difference(first, second)}"
            self._references[verb.name] = ends[1]
        return self._references[verb.name]

    def _undisturbed(self, verb: Verb) -> Reference:
        self._begin(verb)
        self.control.arm("count")
        end = self.processes.run(verb.arguments(self.out), self.out, self.control)
        assert end.code in verb.codes, f"{verb.name} failed undisturbed: {end.stderr}"
        questions = len(verb.paid.requests) if verb.paid else 0
        return Reference(state(self.out), self.control.count, end.seconds, questions)

    def _begin(self, verb: Verb) -> None:
        shutil.rmtree(self.out.parent, ignore_errors=True)
        self.out.mkdir(parents=True)
        verb.begin(self.out)
        if verb.paid:
            verb.paid.requests.clear()

    def case(self, verb: Verb, seed: int, kinds: tuple[str, ...] = ()) -> Outcome:
        draw = random.Random(f"{verb.name} {seed}")
        reference = self.reference(verb)
        outcome = Outcome(verb.name, seed)
        self._begin(verb)
        done = False
        for _ in range(draw.randint(1, MOST_FAULTS)):
            kind = draw.choice(kinds or verb.kinds)
            # A disk that fails where a scratch file is removed leaves it to the next run of the command.
            done = self._disturb(verb, kind, draw, reference, outcome) and kind != "broken"
            if done or outcome.failures:
                break
        if not done and not outcome.failures:
            self._finish(verb, reference, outcome)
        if not outcome.failures and (wrong := _difference(reference.state, state(self.out))):
            outcome.failures.append(f"not the bytes of an undisturbed run: {wrong}")
        return outcome

    def _disturb(
        self, verb: Verb, kind: str, draw: random.Random, reference: Reference, outcome: Outcome
    ) -> bool:
        """Run with one fault; true when the command has ended well."""
        before, known = appended(self.out), self._begin_asking(verb)
        at, after = draw.randint(1, reference.calls), draw.uniform(0, reference.seconds)
        at_random = kind == "at random"
        self.control.arm("count" if at_random else kind, at)
        end = self.processes.run(
            verb.arguments(self.out), self.out, self.control, after=after if at_random else None
        )
        fired = self.control.fired
        came = end.killed if at_random else bool(fired.number)
        if came:
            outcome.kinds.append(kind)
            outcome.where.append(_place(kind, fired, after, self.out))
        outcome.failures += _wrong_end(verb, kind, end, came)
        outcome.failures += _lost(before, appended(self.out))
        outcome.failures += self._asked_twice(verb, known)
        return end.code in verb.codes or _finished(end)

    def _finish(self, verb: Verb, reference: Reference, outcome: Outcome) -> None:
        before, known = appended(self.out), self._begin_asking(verb)
        self.control.arm("count")
        end = self.processes.run(verb.arguments(self.out), self.out, self.control)
        if end.hung or not (end.code in verb.codes or _finished(end)):
            outcome.failures.append(f"did not resume: exit code {end.code}: {end.stderr[-1500:]}")
        outcome.failures += _lost(before, appended(self.out))
        outcome.failures += self._asked_twice(verb, known)
        asked = len(verb.paid.requests) if verb.paid else 0
        if asked + known != reference.questions:
            outcome.failures.append(
                f"{known} answers were on disk and {asked} questions asked, of {reference.questions}"
            )

    def _begin_asking(self, verb: Verb) -> int:
        """Forget what the server was asked; how many answers are on disk."""
        if verb.paid is None:
            return 0
        verb.paid.requests.clear()
        return verb.paid.answers(self.out)

    def _asked_twice(self, verb: Verb, known: int) -> list[str]:
        if verb.paid is None:
            return []
        questions = Counter(str(body) for body in verb.paid.requests)
        twice = questions.total() - len(questions)
        return [f"{twice} questions were asked twice in one go, {known} known before"] if twice else []


def _finished(end: Ended) -> bool:
    """Whether the command was killed after its last file, so that the next one finds everything done."""
    return "the output folder is taken" in end.stderr and "found:    a " in end.stderr


def _wrong_end(verb: Verb, kind: str, end: Ended, came: bool) -> list[str]:
    """What is wrong with the way in which a disturbed command ended."""
    if end.hung:
        return [f"{kind}: it hung"]
    if "Traceback" in end.stderr:
        return [f"{kind}: a traceback: {end.stderr[-700:]}"]
    if end.code in verb.codes or _finished(end):
        return []
    if kind in SURVIVED or not came:
        return [f"{kind}: exit code {end.code}: {end.stderr[-1500:]}"]
    if end.killed and kind in DEADLY:
        return []
    if kind in ("kill", "at random"):
        return [f"{kind}: exit code {end.code} instead of a kill: {end.stderr[-1500:]}"]
    message = end.stderr.partition("mie: ")[2]
    if "to do:" not in message or ("where:" not in message and kind != "kill one"):
        return [f"{kind}: exit code {end.code} without a place and a remedy: {end.stderr[-1500:]}"]
    return []


def _lost(before: dict[str, bytes], after: dict[str, bytes]) -> list[str]:
    return [
        f"lines of {name} are lost"
        for name, data in before.items()
        if not after.get(name, b"").startswith(data)
    ]


def _difference(expected: State, found: State) -> str:
    parts = {
        "missing": sorted(set(expected) - set(found)),
        "extra": sorted(set(found) - set(expected)),
        "changed": sorted(name for name in expected if name in found and expected[name] != found[name]),
    }
    text = "; ".join(f"{what}: {', '.join(names[:8])}" for what, names in parts.items() if names)
    for name in parts["changed"][:1]:
        lines = set(found[name].splitlines()) ^ set(expected[name].splitlines())
        text += f"; lines that differ: {sorted(lines)[:4]}"
    return text


def _place(kind: str, fired: Fired, after: float, out: Path) -> str:
    if kind == "at random":
        return f"after {after:.3f} s"
    return f"{fired.call} {fired.path.replace(f'{out}/', '')} (call {fired.number})"


@contextmanager
def harness(folder: Path) -> Iterator[Harness]:
    with JudgeServer(answer) as judge, providers() as editors:
        editors.open = True
        material = Material(folder / "material", judge, editors)
        material.folder.mkdir()
        material.make()
        processes = Processes(compile_injector(folder), folder)
        try:
            yield Harness(processes, Control(folder / "control"), material)
        finally:
            processes.close()
