"""Answering a question set, and the answers on disk.

    RUN/
      run.json          status, digest of the questions, answerer, settings, counts, versions, machine
      answers.jsonl     one line per question and pass, in the order of the set
      replies/*.jsonl   every reply of a model, synced before it counts and never paid for again

`answers.jsonl` follows from the set and the replies alone and is written at the end: killed at any point, the
same call asks for what is missing and ends with the same bytes.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeAlias, cast

from mie.core.documents import read_document, write_document
from mie.core.environment import environment, versions
from mie.core.files import atomic_path, folder_lock, refuse_foreign
from mie.core.registry import unknown_name
from mie.core.spec import Spec, construct, parse_spec
from mie.core.storage import local, place_of
from mie.errors import ConfigError, MieError
from mie.judges import Answer, JudgeOptions, open_judge, open_prompts
from mie.judges.contracts import REPLIED, Client
from mie.questions.actors import on_engine, open_answerer
from mie.questions.asking import FORMS, Pass, drafts, passes, prompt_of, rotated
from mie.questions.baselines import BASELINES, Baseline, Words, read_words, training_words
from mie.questions.programs import AnswerFunction, Function
from mie.questions.record import Question
from mie.questions.store import QuestionSet, QuestionSubset

SCHEMA_VERSION: Final = 1
KIND: Final = "answers"  # of a run: `mie run` writes others
RUN_FILES: Final = ("run.json", "answers.jsonl", "replies", "scores", "summary", "judge")
_NO_OPTIONS: Final = "this baseline answers questions with options alone"
_UNSEEN: Final = "no question of this kind in training"
_UNCHANGING: Final = ("questions", "answerer", "config")  # what a run must have in common with its resumption

Answerer: TypeAlias = str | AnswerFunction | Client
Progress: TypeAlias = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Given:
    """One answer: the reply to one question in one pass, or why there is none."""

    id: str
    way: str  # the pass
    state: str  # as a judge's answer: done, refused, failed, ...
    reply: str = ""
    reason: str = ""
    model: str = ""
    order: tuple[int, ...] = ()  # which option stood at each letter; empty: as in the set
    seconds: float | None = None  # that a person took

    def line(self) -> str:
        body: dict[str, Any] = {"id": self.id, "pass": self.way, "state": self.state, "reply": self.reply}
        extra = {"reason": self.reason, "model": self.model, "order": list(self.order)}
        body |= {key: value for key, value in extra.items() if value}
        if self.seconds is not None:
            body["seconds"] = self.seconds
        return json.dumps(body, ensure_ascii=False, separators=(",", ":")) + "\n"


class AnswerRun:
    """The folder of answers, finished or not."""

    def __init__(self, folder: Path, info: dict[str, Any]) -> None:
        self.folder = folder
        self.info = info

    @classmethod
    def open(cls, folder: Path | str) -> AnswerRun:
        """Open the answers in `folder`; `MieError` for the run of an editor."""
        folder = Path(folder)
        info = read_document(folder / "run.json", "run", version=SCHEMA_VERSION)
        if info.get("kind") != KIND:
            raise MieError(
                "not a run of answers",
                where=folder,
                expected="a folder that `mie vqa run` wrote",
                found="the run of an editor" if "editor" in info else "another run",
                fix="use `mie score` and `mie report` for the run of an editor",
            )
        return cls(folder, info)

    def __fspath__(self) -> str:
        return str(self.folder)

    def __repr__(self) -> str:
        return f"{self.name} on {self.info['questions']['name']}: {self.info['status']}, in {self.folder}"

    @property
    def name(self) -> str:
        return str(self.info["answerer"]["name"])

    @property
    def complete(self) -> bool:
        return bool(self.info["status"] == "complete")

    def questions(self, folder: Path | str | None = None) -> QuestionSubset:
        """The questions that were asked; `MieError` where the set is gone or has changed since."""
        known = self.info["questions"]
        places = [local(known["path"] if folder is None else folder)]
        if folder is None:
            places.append(Path(os.path.normpath(self.folder.absolute() / known["relative_path"])))
        place = next((p for p in places if (p / "questions.json").is_file()), places[0])
        found = QuestionSet(place)
        if found.digest != known["digest"]:
            raise MieError(
                "the question set has changed since it was answered",
                where=place,
                expected=f"digest {known['digest'][:16]}",
                found=f"digest {found.digest[:16]}",
                fix="answer it again into a new folder",
            )
        return QuestionSubset(found, {k: tuple(v) for k, v in (self.info["config"]["where"] or {}).items()})

    def answers(self) -> Iterator[Given]:
        """Every line, in the order of the set."""
        path = self.folder / "answers.jsonl"
        try:
            with path.open(encoding="utf-8") as file:
                for number, text in enumerate(file, start=1):
                    yield _given(text, f"{path}:{number}")
        except FileNotFoundError:
            raise MieError(
                "this run has no answers yet",
                where=self.folder,
                found=self.info["status"],
                fix="run the same `mie vqa run` again: it resumes",
            ) from None


def _given(text: str, where: str) -> Given:
    try:
        body = json.loads(text)
        return Given(
            str(body["id"]),
            str(body["pass"]),
            str(body["state"]),
            str(body["reply"]),
            str(body.get("reason", "")),
            str(body.get("model", "")),
            tuple(map(int, body.get("order", ()))),
            body.get("seconds"),
        )
    except (ValueError, KeyError, TypeError) as error:
        raise MieError("not an answer", where=where, found=f"{type(error).__name__}: {error}") from None


def answer_questions(
    questions: QuestionSet | QuestionSubset | Path | str,
    answerer: Answerer,
    folder: Path | str,
    *,
    form: str = "direct",
    blind: bool = False,
    orders: int = 0,
    limit: int | None = None,
    options: JudgeOptions | None = None,
    name: str | None = None,
    engine: str = "local",
    workers: int | None = None,
    progress: Progress | None = None,
) -> AnswerRun:
    """Answer a question set, or resume answers that were interrupted.

    Args:
        questions: A set, its folder, or a part of one (`qs.split("test")`).
        answerer: A spec: `constant:B`, `prior`, `text-only`, `openai:MODEL`, `local:FOLDER`, `replay:FILE`,
            `command:PROGRAM {request}`; `text-only:` before a model withholds the images. Or a function
            `(prompt, images) -> reply`, or a client of your own.
        folder: A new folder, or one with these very answers.
        form: "direct" asks for the answer alone, "reasoning" for steps and then the answer.
        blind: Ask each question a second time without its images.
        orders: Ask closed questions so many more times, each time with the options rotated.
        limit: At most this many questions.
        options: Price, limits and consent for a model: the fields of `JudgeOptions`; its spec is ignored.
        name: What tables call the answerer; by default its spec.
        engine: "local", or "ray": `workers` actors answer, by default one per GPU of the cluster. The
            answerer must be a spec of a model or a program; baselines need no cluster.
        workers: Calls at the same time, in place of the options' `concurrency`; on Ray the actors.
        progress: Is told (done, total) questions.

    """
    plan = _Plan(
        questions, answerer, Path(folder), form, passes(blind=blind, orders=orders), limit, options, name
    )
    plan.refuse_other()
    plan.work_on(engine, workers)
    with folder_lock(plan.folder):
        plan.begin()
        given = plan.baseline_answers() if plan.baseline is not None else plan.model_answers(progress)
        counts: dict[str, Counter[str]] = {}
        with atomic_path(plan.folder / "answers.jsonl") as temporary, temporary.open("w") as file:
            for one in given:
                counts.setdefault(one.way, Counter())[one.state] += 1
                file.write(one.line())
        return plan.finish(counts)


def estimate_answers(
    questions: QuestionSet | QuestionSubset | Path | str,
    answerer: str | Client,
    folder: Path | str,
    *,
    form: str = "direct",
    blind: bool = False,
    orders: int = 0,
    limit: int | None = None,
    options: JudgeOptions | None = None,
) -> dict[str, Any]:
    """Calls, tokens and cost of what has no reply yet. Asks nothing."""
    plan = _Plan(
        questions, answerer, Path(folder), form, passes(blind=blind, orders=orders), limit, options, None
    )
    if plan.baseline is not None:
        raise ConfigError("a baseline costs nothing", where=plan.spec.name, fix="leave out --dry-run")
    fresh = not plan.folder.exists()
    with plan.judge(dry_run=True) as judge:
        found = judge.estimate(plan.drafts())
    if fresh:  # nothing was done: leave nothing behind
        for path in (plan.folder / "replies", plan.folder):
            for left in path.iterdir():
                left.unlink()
            path.rmdir()
    return found


class _Plan:
    """What is asked of whom, and where it is kept."""

    def __init__(
        self,
        questions: QuestionSet | QuestionSubset | Path | str,
        answerer: Answerer,
        folder: Path,
        form: str,
        ways: tuple[Pass, ...],
        limit: int | None,
        options: JudgeOptions | None,
        name: str | None,
    ) -> None:
        if form not in FORMS:
            raise unknown_name("form of a prompt", form, FORMS)
        if limit is not None and limit < 1:
            raise ConfigError("the limit must be above 0", found=limit)
        self.part = (
            questions if isinstance(questions, QuestionSet | QuestionSubset) else QuestionSet(questions)
        )
        self.folder, self.form, self.ways, self.limit = folder, form, ways, limit
        self.baseline: Baseline | None = None
        self.client: Client | None = None
        self.withhold = False
        self._train: str | None = None
        self._model: Spec | None = None  # of the client, where another process can open it
        self.spec = self._open(answerer)
        self.options = replace(options or JudgeOptions(""), spec=str(self.spec), repeats=1)
        self.prompts = open_prompts(self.options.prompts)
        self.name = name or str(self.spec.masked())
        words = read_words(self.part)[:limit]
        self.words: list[Words] = words
        if not words:
            raise ConfigError("no question to answer", where=self.part.whole.folder, found="none that counts")

    def _open(self, answerer: Answerer) -> Spec:
        if not isinstance(answerer, str):
            self.client = (
                cast(Client, answerer) if hasattr(answerer, "ask") else Function(cast(Any, answerer))
            )
            return Spec(self.client.provider, self.client.model)
        spec = parse_spec(answerer, noun="answerer")
        if spec.name == "text-only" and spec.argument is not None:
            self.withhold = True
            inner = self._model = parse_spec(answerer.partition(":")[2], noun="answerer")
            self.client = open_answerer(inner)
            return Spec("text-only", str(inner))
        if spec.name in BASELINES:
            self._train = spec.options.get("train") if spec.name != "constant" else None
            self.baseline = construct(BASELINES[spec.name], spec.without(["train"]), noun="answerer")
            return spec
        self._model = spec
        self.client = open_answerer(spec)
        return spec

    def work_on(self, engine: str, workers: int | None) -> None:
        """Let the answerer work on the engine of this name, with so many calls at the same time."""
        if self.client is not None:
            self.client = on_engine(engine, self.client, self._model, workers)
        if workers is not None:
            self.options = replace(self.options, concurrency=workers)

    # ---- On disk ----

    def refuse_other(self) -> None:
        refuse_foreign(self.folder, "these answers", lambda path: path.name in RUN_FILES)
        path = self.folder / "run.json"
        if not path.exists():
            return
        info, mine = AnswerRun.open(self.folder).info, self._info("running")
        for key in _UNCHANGING:
            before = {k: v for k, v in info[key].items() if k not in ("path", "relative_path")}
            now = {k: v for k, v in mine[key].items() if k not in ("path", "relative_path")}
            if before != now:
                differ = [k for k in {*before, *now} if before.get(k) != now.get(k)]
                raise ConfigError(
                    f"the folder holds answers with another {key}",
                    where=self.folder,
                    expected=", ".join(f"{k} {before.get(k)}" for k in sorted(differ)),
                    found=", ".join(f"{k} {now.get(k)}" for k in sorted(differ)),
                    fix="choose another folder",
                )

    def begin(self) -> None:
        self.refuse_other()
        if not (self.folder / "run.json").exists():
            write_document(self.folder / "run.json", self._info("running"))

    def finish(self, counts: Mapping[str, Counter[str]]) -> AnswerRun:
        whole = all(state in (*REPLIED, "skipped") for states in counts.values() for state in states)
        info = {
            **self._info("complete" if whole else "incomplete"),
            "counts": {way: dict(sorted(states.items())) for way, states in counts.items()},
            **({"judge": self._record} if self.client is not None else {}),
            "versions": versions(),
            "environment": environment(),
        }
        write_document(self.folder / "run.json", info)
        return AnswerRun(self.folder, info)

    def _info(self, status: str) -> dict[str, Any]:
        whole = self.part.whole
        prompt = prompt_of(self.form, self.prompts)
        return {
            "schema_version": SCHEMA_VERSION,
            "kind": KIND,
            "status": status,
            "questions": {
                "name": whole.name,
                "digest": whole.digest,
                "path": place_of(whole.folder),
                "relative_path": os.path.relpath(whole.folder.absolute(), self.folder.absolute()),
            },
            "answerer": {"name": self.name, "spec": str(self.spec.masked())},
            "config": {
                "form": self.form,
                "passes": [way.name for way in self.ways],
                "limit": self.limit,
                "where": {k: list(v) for k, v in self.part.where.items()} or None,
                "prompt": None if self.client is None else {"name": prompt.name, "sha256": prompt.sha256},
                "questions": len(self.words),
            },
        }

    # ---- Answers ----

    def judge(self, *, dry_run: bool = False) -> Any:
        options = replace(self.options, dry_run=dry_run)
        # Without an image nothing has to be de-identified.
        shown = None if self.withhold else self.part.whole.info
        return open_judge(options, self.folder / "replies", dataset=shown, client=self.client)

    def drafts(self) -> Iterator[Any]:
        return drafts(self._chosen(), self.ways, self.form, self.prompts, withhold=self.withhold)

    def _chosen(self) -> Iterator[Question]:
        wanted = {words.id for words in self.words}
        left = len(wanted)
        for question in self.part:
            if question.id in wanted:
                yield question
                left -= 1
                if not left:
                    return

    def model_answers(self, progress: Progress | None) -> Iterator[Given]:
        total = sum(way.applies(w.kind, len(w.options)) for w in self.words for way in self.ways)
        with self.judge() as judge:
            report = None if progress is None else lambda done: progress(done, total)
            found: Mapping[str, tuple[Answer, ...]] = judge.ask(self.drafts(), report)
            self._record = judge.record(())
        for words, way in self._asked():
            (answer,) = found[f"{words.id}:{way.name}"]
            reply = answer.reply if answer.value is None else str(answer.value)
            order = tuple(rotated(len(words.options), way.rotation)) if way.rotation else ()
            yield Given(words.id, way.name, answer.state, reply, answer.reason, answer.model, order)

    def baseline_answers(self) -> Iterator[Given]:
        assert self.baseline is not None  # noqa: S101
        if self.baseline.fitted:
            self.baseline.fit(training_words(self.part, self._train))
        for words, way in self._asked():
            order = rotated(len(words.options), way.rotation)
            reply = self.baseline.answer(words, [words.options[at] for at in order])
            none = _UNSEEN if self.baseline.fitted else _NO_OPTIONS
            state, reason = ("done", "") if reply is not None else ("skipped", none)
            shown = tuple(order) if way.rotation else ()
            yield Given(words.id, way.name, state, reply or "", reason, order=shown)

    def _asked(self) -> Iterator[tuple[Words, Pass]]:
        for words in self.words:
            for way in self.ways:
                if way.applies(words.kind, len(words.options)):
                    yield words, way
