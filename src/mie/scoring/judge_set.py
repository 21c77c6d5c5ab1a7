"""An instruction-tuning set for a judge: a benchmark's questions with the replies of people or of a judge.

    OUT/
      set.json         benchmark, variant, counts, digest
      examples.jsonl   one line for each question: its messages, the reply, grades, patient and fold
      images/          PNG by the digest of their pixels

Patients are on one side: a patient's hash decides whether its questions are trained on or held out.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mie.core.files import atomic_write, make_folder, refuse_foreign
from mie.core.hashing import stable_hash
from mie.editors.runs import Run
from mie.errors import ConfigError, ImageError, MieError
from mie.images.png import encode_png
from mie.judges import Image, ParseError, Question, open_prompts
from mie.scoring.attempts import make_chunks
from mie.scoring.benchmarks import Benchmark, find_benchmark
from mie.scoring.judging import Questions, ReplyForm
from mie.scoring.scored_runs import aliases_of
from mie.scoring.statistics.people import Rating

INFO: Final = "set.json"
EXAMPLES: Final = "examples.jsonl"
TRAIN, HELD_OUT = "train", "held out"
_SHARES: Final = 1000


@dataclass(frozen=True, slots=True)
class _Answered:
    reply: str
    grades: tuple[float, ...]
    source: str  # "people" or "judge"
    raters: int


def write_judge_set(
    runs: Sequence[Path | str],
    out: Path | str,
    benchmark: Benchmark | str = "imgedit",
    *,
    ratings: Sequence[Rating] = (),
    replies: bool = False,
    prompts: str | None = None,
    variant: str = "paper",
    held_out: float = 0.2,
    seed: int = 0,
) -> dict[str, Any]:
    """Write the set and return its `set.json`.

    `ratings` are people's scores, a criterion for each grade that a reply holds, on the judge's own scale;
    several raters are averaged. `replies` adds what the judges of the runs have said, where people said
    nothing.
    """
    chosen = find_benchmark(benchmark)
    questions: Questions | None = chosen.load("questions")
    if questions is None or not questions.forms:
        raise ConfigError(f"no grades of people can be written as a reply to {chosen.name}")
    if not 0 < held_out < 1:
        raise ConfigError("not a share", where="held out", expected="between 0 and 1", found=held_out)
    words = open_prompts(prompts)
    if words.prompts and questions.using is not None:
        questions = questions.using(words)
    folder = Path(out)
    refuse_foreign(folder, "a set for a judge", lambda _: (folder / INFO).is_file())
    make_folder(folder / "images")
    opened = [Run.open(run) for run in runs]
    names = aliases_of(opened, [run.folder.resolve().name for run in opened], list(runs))
    lines: list[dict[str, Any]] = []
    skipped: Counter[str] = Counter()
    for run, known in zip(opened, names, strict=True):
        mine = [r for r in ratings if r.model in known and r.score is not None]
        for line in _examples(run, questions, mine, replies, variant, folder, skipped):
            side = stable_hash("judge set", seed, line["patient"]) % _SHARES
            lines.append({**line, "fold": HELD_OUT if side < held_out * _SHARES else TRAIN})
    if not lines:
        raise MieError(
            "no question has a reply",
            expected="ratings of these runs with a score for every criterion, or replies of a judge",
            found=", ".join(f"{count} {why}" for why, count in skipped.items()) or "no questions",
        )
    body = "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines)
    atomic_write(folder / EXAMPLES, body)
    document = {
        "format": "mie judge set 1",
        "benchmark": chosen.name,
        "variant": variant,
        "prompts": words.record(),
        "examples": len(lines),
        "folds": dict(Counter(line["fold"] for line in lines)),
        "sources": dict(Counter(line["source"] for line in lines)),
        "patients": len({line["patient"] for line in lines}),
        "without_reply": dict(skipped),
        "digest": hashlib.sha256(body.encode()).hexdigest(),
    }
    atomic_write(folder / INFO, json.dumps(document, indent=1) + "\n")
    return document


def _examples(
    run: Run,
    questions: Questions,
    ratings: Sequence[Rating],
    replies: bool,
    variant: str,
    folder: Path,
    skipped: Counter[str],
) -> Iterator[dict[str, Any]]:
    dataset = run.dataset()
    table = dataset.table(["id", "patient_id", "source", "case_id"])
    columns = (table[name] for name in ("id", "patient_id", "source", "case_id"))
    patients = {i: patient or f"{source} {case}" for i, patient, source, case in zip(*columns, strict=True)}
    grades: dict[tuple[str, str], list[float]] = {}
    for rating in ratings:
        grades.setdefault((rating.sample_id, rating.criterion), []).append(float(rating.score or 0.0))
    said = _recorded(run) if replies else {}
    for draft in questions.drafts(make_chunks(run, dataset), variant, {}):
        sample, _, attempt = draft.key.rpartition(":")[0].rpartition("_")
        form = questions.forms.get(draft.prompt.id)
        if form is None:
            skipped["questions of another kind"] += 1
            continue
        answered = _answer(form, sample, attempt, grades, said.get(draft.key))
        if answered is None:
            skipped["without a reply"] += 1
            continue
        try:
            question = draft.make()
        except ImageError:
            skipped["with an unreadable output"] += 1
            continue
        yield {
            "key": draft.key,
            "run": run.folder.resolve().name,
            "sample_id": sample,
            "patient": patients[sample],
            "prompt": draft.prompt.id,
            "source": answered.source,
            "raters": answered.raters,
            "grades": list(answered.grades),
            "messages": _messages(question, folder),
            "reply": answered.reply,
        }


def _answer(
    form: ReplyForm,
    sample: str,
    attempt: str,
    grades: Mapping[tuple[str, str], Sequence[float]],
    recorded: str | None,
) -> _Answered | None:
    """People's grades of the first attempt; else what a judge said."""
    given = [grades.get((sample, name)) for name in form.names] if attempt == "0" else []
    if given and all(given):
        scores = [one for one in given if one]
        means = tuple(sum(one) / len(one) for one in scores)
        low, high = form.scale
        wrong = next((mean for mean in means if not low <= mean <= high), None)
        if wrong is not None:
            raise ConfigError(
                "a score off the judge's scale",
                where=f"sample {sample}",
                expected=f"{low:g} to {high:g}",
                found=wrong,
            )
        return _Answered(form.write(means), means, "people", min(len(one) for one in scores))
    if recorded is None:
        return None
    try:
        return _Answered(recorded, tuple(map(float, form.read(recorded))), "judge", 0)
    except ParseError:
        return None


def _recorded(run: Run) -> dict[str, str]:
    """Key -> the last reply of any judge of the run."""
    found = {}
    for path in sorted((run.folder / "judge").glob("*.jsonl")):
        for line in path.read_text(encoding="utf-8").splitlines():
            body = json.loads(line)
            if isinstance(body.get("reply"), str) and isinstance(body.get("key"), str):
                found[body["key"]] = body["reply"]
    return found


def _messages(question: Question, folder: Path) -> list[dict[str, Any]]:
    parts = []
    for part in question.parts:
        if isinstance(part, Image):
            name = f"images/{part.digest}.png"
            if not (folder / name).is_file():
                atomic_write(folder / name, encode_png(part.pixels))
            parts.append({"type": "image", "image": name})
        else:
            parts.append({"type": "text", "text": part})
    system = [{"type": "text", "text": question.prompt.system}]
    return [{"role": "system", "content": system}, {"role": "user", "content": parts}]


def read_judge_set(folder: Path | str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """`set.json` and the examples; `MieError` where the file has changed since it was written."""
    folder = Path(folder)
    try:
        document = json.loads((folder / INFO).read_text(encoding="utf-8"))
        body = (folder / EXAMPLES).read_bytes()
    except (OSError, ValueError) as error:
        raise MieError(
            "not a set for a judge", where=folder, found=error, fix="see `mie judge-set`"
        ) from None
    if hashlib.sha256(body).hexdigest() != document.get("digest"):
        raise MieError("the set has changed since it was written", where=folder, fix="write it again")
    return document, [json.loads(line) for line in body.decode().splitlines()]


def form_of(document: Mapping[str, Any], prompt: str) -> ReplyForm:
    """How replies to a prompt of a set are read."""
    questions: Questions = find_benchmark(str(document["benchmark"])).load("questions")
    return questions.forms[prompt]
