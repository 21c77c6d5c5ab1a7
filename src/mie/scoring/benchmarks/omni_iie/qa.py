"""Where a sample stands in Omni IIE Bench, and the questions that verify its edit.

Its place comes from its own record, or from what it is:

| Omni IIE Bench | elsewhere |
| --- | --- |
| `level` low (an attribute), high (an entity) | low; modification: high |
| `level` a number: the turn | `turn` |
| shared context: one `sample_id` | `group`, else one image (data set and case) |
| masks | mask, every class inside |
| `qa_pairs` | a judge writes them |
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

from mie.images.png import png_size
from mie.judges import Answer, Draft, Image, ParseError, Prompt, PromptSet, Question, load_prompt
from mie.judges.contracts import Parser
from mie.judges.parsers import json_list_of, visible
from mie.scoring.attempts import Chunk, Output
from mie.scoring.benchmarks.omni_iie import BENCHMARK, CLIP, LPIPS
from mie.scoring.benchmarks.omni_iie.pixels import overall
from mie.scoring.judging import JudgeAnswers, Questions, SampleAnswer, output_drafts, sample_drafts
from mie.scoring.reference import changes_content, read_output, read_stored

COLUMNS: Final = BENCHMARK.columns
ATTRIBUTE, ENTITY = "A", "E"
_LEVELS: Final = {"low": ATTRIBUTE, "high": ENTITY}


def places_of(row: Mapping[str, Any]) -> dict[str, str]:
    """The group keys of a line: track, level, kind (A, E or ""), turn and context."""
    single = row["turn"] is None
    level = level_of(row) if single else ""
    return {
        "track": "single" if single else "multi",
        "level": level,
        "kind": _LEVELS[level] if single else _kind(row),
        "turn": "" if single else f"{row['turn']:02d}",
        "context": row["group"] or f"{row['source']}/{row['case_id']}",
    }


def level_of(row: Mapping[str, Any]) -> str:
    stated = str(own(row).get("level", "")).lower()
    if stated in _LEVELS:
        return stated
    return "high" if changes_content(row["perspective"]) else "low"


def _kind(row: Mapping[str, Any]) -> str:
    """What a turn edits; a foreign record that does not say it is of no kind."""
    stated = str(own(row).get("edit_type", "")).lower()
    if stated:
        return ATTRIBUTE if stated.startswith("a") else ENTITY if stated.startswith("e") else ""
    if own(row):
        return ""
    known = json.loads(row["params"]).get("kind")  # conversations of ours say it for each turn
    if known in (ATTRIBUTE, ENTITY):
        return str(known)
    return ENTITY if changes_content(row["perspective"]) else ATTRIBUTE


def stated_questions(row: Mapping[str, Any]) -> list[tuple[str, str]]:
    """(question, right answer) as the record has them; none elsewhere."""
    pairs = own(row).get("qa_pairs")
    if not isinstance(pairs, list):
        return []
    found = [(pair.get("question"), pair.get("correct_answer")) for pair in pairs if isinstance(pair, dict)]
    return [(str(question), str(answer)) for question, answer in found if question and answer is not None]


def own(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found = json.loads(row["params"]).get("omni-iie")
    return found if isinstance(found, Mapping) else {}


# Questions that verify an edit, and the strict veto: 1 only if every answer is right, 0 if one is wrong.
#
# Questions come with the record, or a judge writes one to three for each sample, once for the dataset. Where
# nothing is wrong but the image does not let the judge tell, the attempt is unscored.

WRITE: Final = load_prompt("omni_iie_questions", 2)
CHECK: Final = load_prompt("omni_iie_answers", 2)
_WRITTEN: Final = json_list_of(("question", "answer"), 1, 3)
_VERDICT: Final = re.compile(
    r"[\s>*#_-]*(?:[A-Za-z]{0,12}\s?\d+\s*[.):]\s*)?[\s*_\"'(]*(yes|no|unclear)\b", re.I
)
_NEEDED: Final = (*LPIPS, *CLIP, "qa", "ssim")

Pairs = list[tuple[str, str]]


def written_questions(reply: str) -> Pairs:
    return [(pair["question"], pair["answer"]) for pair in _WRITTEN(reply)]


def verdicts(count: int) -> Parser:
    """`count` lines that begin with yes, no or unclear -> a tuple of True, False and None."""

    def parse(reply: str) -> tuple[bool | None, ...]:
        found = [m[1].lower() for line in visible(reply).splitlines() if (m := _VERDICT.match(line))]
        if len(found) != count:
            raise ParseError(
                f"exactly {count} lines that begin with yes, no or unclear are needed, not {len(found)}"
            )
        return tuple({"yes": True, "no": False, "unclear": None}[word] for word in found)

    return parse


def veto(found: Iterable[bool | None]) -> float | None:
    """0 where an answer is wrong, 1 where all are right, None where it cannot be told.

    >>> veto([True, None, False]), veto([True, True]), veto([True, None])
    (0.0, 1.0, None)
    """
    verdict = list(found)
    if False in verdict:
        return 0.0
    return None if None in verdict else 1.0


def write_key(sample: str) -> str:
    return f"{sample}:questions"


def write_drafts(chunks: Iterable[Chunk], prompt: Prompt = WRITE) -> Iterator[Draft]:
    """A question for each sample that has no questions."""
    return sample_drafts(
        chunks,
        ("id", *COLUMNS),
        prompt,
        key=write_key,
        question=_write,
        wanted=lambda row: not stated_questions(row),
        wanted_by=["params"],
    )


def _write(row: Mapping[str, Any], prompt: Prompt, text: str) -> Question:
    before, after = (Image(read_stored(row[name]["bytes"])) for name in ("input", "target_image"))
    return Question(prompt, (text, "Before:", before, "Correct result:", after), written_questions)


def check_drafts(
    chunks: Iterable[Chunk], variant: str, samples: Mapping[str, SampleAnswer], prompt: Prompt = CHECK
) -> Iterator[Draft]:
    """One call for each output, with all its questions."""
    draft = partial(_drafts, variant=variant, samples=samples, prompt=prompt)
    return output_drafts(chunks, ("id", *COLUMNS), draft)


def _drafts(
    row: Mapping[str, Any],
    output: Output,
    *,
    variant: str,
    samples: Mapping[str, SampleAnswer],
    prompt: Prompt,
) -> Iterator[Draft]:
    pairs = stated_questions(row)
    if not pairs:
        found = samples.get(write_key(row["id"]))
        if found is not None and found.value is None:
            return
        # Nothing yet: a dry run, which counts the call.
        pairs = [("?" * 60, "yes")] if found is None else found.value
    lines = [f"{n}. {question} Right answer: {answer}" for n, (question, answer) in enumerate(pairs, start=1)]
    text = prompt.fill(questions="\n".join(lines))
    make = partial(_check, prompt, text, lines, Path(output.path or ""), variant)
    size = png_size(row["input"]["bytes"])
    yield Draft(check_key(row["id"], output.k), make, prompt, sizes=(size,), characters=len(text))


def _check(prompt: Prompt, text: str, lines: Sequence[str], path: Path, variant: str) -> Question:
    shown = Image(read_output(path, variant))
    return Question(prompt, (text, shown), verdicts(len(lines)), quotes=tuple(lines))


def check_key(sample: str, k: int) -> str:
    return f"{sample}_{k}:qa"


def record(
    line: dict[str, Any], attempt: dict[str, Any], answers: JudgeAnswers, prompt: Prompt = CHECK
) -> None:
    """QA and Overall of one attempt, or the reasons why there are none."""
    written = answers.samples.get(write_key(line["id"]))
    if written is not None:
        stamp = dict(written.stamp or {})
        line["questions"] = {"pairs": written.value, "reason": written.reason, "judge": stamp}
    if written is not None and written.value is None:
        attempt["unscored"]["qa"] = f"no questions: {written.reason}"
    else:
        _record_qa(attempt, check_key(line["id"], attempt["k"]), answers, prompt)
    if "overall" not in line["applies"]:
        return
    values, reasons = attempt["metrics"], attempt["unscored"]
    missing = next((name for name in _NEEDED if name not in values), None)
    if missing is None:
        values["overall"] = overall(values)
    else:
        reasons["overall"] = f"no {missing}: {reasons[missing]}"


def _record_qa(attempt: dict[str, Any], key: str, answers: JudgeAnswers, prompt: Prompt) -> None:
    given: tuple[Answer, ...] = answers.answers.get(key, ())
    told = [verdict for answer in given if answer.done and (verdict := veto(answer.value)) is not None]
    attempt.setdefault("judge", {})["qa"] = {
        **answers.judge.stamp(given, prompt),
        "repeats": len(told),
        "verdicts": [list(answer.value) for answer in given if answer.done],
    }
    if told:
        attempt["metrics"]["qa"] = math.fsum(told) / len(told)
        return
    reasons = [f"judge {answer.state}: {answer.reason}" for answer in given if not answer.done]
    unclear = any(answer.done for answer in given)
    attempt["unscored"]["qa"] = (
        "the image does not let the judge tell"
        if unclear
        else "; ".join(dict.fromkeys(reasons)) or "the judge was not asked"
    )


def questions(prompts: PromptSet) -> Questions:
    """The questions in the words of a set of prompts."""
    check, write = prompts.of(CHECK), prompts.of(WRITE)
    return Questions(
        ("qa", "overall"),
        partial(check_drafts, prompt=check),
        partial(record, prompt=check),
        partial(write_drafts, prompt=write),
        using=questions,
    )


QUESTIONS: Final = questions(PromptSet())
