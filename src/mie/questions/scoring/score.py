"""`omnibrain`: answers against keys, in two variants.

`paper` reads a reply strictly: what leaves any doubt is unscored, with a reason. `as_released` takes the most
similar option in its place, as the released script does, so that an error or a refusal can be right. The
files are those of every other benchmark: `scores/omnibrain.VARIANT.jsonl`, `summary/omnibrain.VARIANT.json`.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

import mie
from mie.core.files import digest, folder_lock
from mie.core.registry import unknown_name
from mie.errors import MieError
from mie.judges import Draft, JudgeOptions, Question, load_prompt, open_judge, open_prompts
from mie.judges.parsers import yes_no
from mie.questions.answers import AnswerRun, Given
from mie.questions.record import LETTERS
from mie.questions.scoring import text as texts
from mie.questions.scoring.bertscore import BertScore
from mie.questions.scoring.metrics import (
    CLOSED,
    GROUPS,
    MARKED,
    METRICS,
    NAME,
    NOT_MARKED,
    OPEN,
    PARTITIONS,
    VARIANTS,
    VERSION,
)
from mie.questions.scoring.parse import (
    Said,
    closest_option,
    read_letter,
    read_number,
    read_numbers,
    read_text,
)
from mie.scoring.results import Results
from mie.scoring.score import summarise
from mie.scoring.scores import (
    ScoreTable,
    encode_line,
    read_score_table,
    scores_path,
    summary_path,
    write_scores_file,
    write_summary,
)
from mie.scoring.statistics import krippendorff_alpha, macro_interval

NO_ANSWER: Final = "no answer"
OUTSIDE: Final = "a place outside the image"
_COLUMNS: Final = (
    *("id", "kind", "text", "options", "answer", "tolerance", "unit", "task", "phase", "modality"),
    *("submodality", "anatomy", "template", "source", "case_id", "patient_id", "flags"),
)
_MACRO: Final = ("accuracy", "blind", "permuted", "number", "place", "exact", "judged")
Progress = Callable[[int, int], None]
Row = Mapping[str, Any]


@dataclass(slots=True)
class _Scored:
    """One question's numbers, or the reasons why there are none."""

    row: Row
    metrics: dict[str, float] = field(default_factory=dict)
    unscored: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    answer: str = ""  # to an open question, to be judged

    def set(self, metric: str, said: Said, value: float) -> None:
        if said.reason:
            self.unscored[metric] = said.reason
        else:
            self.metrics[metric] = value

    def line(self) -> str:
        row = self.row
        group = {
            "perspective": "questions",
            "target": "",
            **{key: row[key] or "" for key in ("task", "modality", "anatomy", "source", *GROUPS)},
        }
        applies = [name for name in METRICS if name in self.metrics or name in self.unscored]
        return encode_line(
            {
                "id": row["id"],
                "group": group,
                "patient": row["patient_id"],
                "case": row["case_id"] or row["id"],
                "applies": applies,
                "attempts": [{"k": 0, "metrics": self.metrics, "unscored": self.unscored, **self.facts}],
            }
        )


def score_answers(
    run: AnswerRun | Path | str,
    *,
    variant: str = "paper",
    judge: JudgeOptions | str | None = None,
    bertscore: str | None = None,
    questions: Path | str | None = None,
    progress: Progress | None = None,
) -> Results:
    """Score the answers of a run; write `scores/` and `summary/` into its folder; return the results.

    Args:
        run: The run, or its folder.
        variant: `paper`, which reads replies strictly, or `as_released`, with the released fallback.
        judge: A language model that says whether an open answer is right: a spec or `JudgeOptions`.
        bertscore: The folder of an encoder: `FOLDER,layer=40,baseline=0.7`.
        questions: The folder of the set, where it was moved.
        progress: Is told (done, total) questions.

    """
    if variant not in VARIANTS:
        raise unknown_name("variant", variant, VARIANTS, where=f"benchmark {NAME}")
    opened = run if isinstance(run, AnswerRun) else AnswerRun.open(run)
    given = _by_question(opened)
    people = opened.info.get("people")
    rows = _rows(opened, questions, given)
    scored = []
    for at, row in enumerate(rows, start=1):
        answers = given.get(row["id"], {})
        scored.append((_score_people if people else _score)(row, answers, variant))
        if progress is not None and (at % 500 == 0 or at == len(rows)):
            progress(at, len(rows))
    header: dict[str, Any] = {
        "protocol": NAME,
        "variant": variant,
        "version": VERSION,
        "dataset_digest": opened.info["questions"]["digest"],
        "answers_sha256": digest(opened.folder / "answers.jsonl"),
        "mie": mie.__version__,
        "attempts": 1,
        "metrics": list(METRICS),
        "groups": list(GROUPS),
        "missing_as_zero": False,
        "marks": opened.questions(questions).whole.blind_evidence,
        "specs": {name: metric.record() for name, metric in METRICS.items()},
    }
    open_ones = [one for one in scored if one.answer]
    if bertscore is not None and open_ones:
        encoder = BertScore.of(bertscore)
        header["bertscore"] = encoder.record()
        pairs = [(one.answer, one.row["answer"]) for one in open_ones]
        for one, value in zip(open_ones, encoder.scores(pairs), strict=True):
            one.metrics["bertscore"] = value
            one.metrics["text"] = float(
                np.mean([one.metrics[name] for name in ("rouge1", "rougel", "bleu", "bertscore")])
            )
    if judge is not None and open_ones:
        options = JudgeOptions(judge) if isinstance(judge, str) else judge
        header["judge"] = _ask_judge(opened, options, open_ones)
    scores = scores_path(opened.folder, NAME, variant)
    with folder_lock(opened.folder / "scores"):
        write_scores_file(scores, header, (one.line().encode() for one in scored))
        document = _document(opened, read_score_table(scores), scored)
        document = write_summary(summary_path(opened.folder, NAME, variant), document)
    return Results(opened.folder, document)


def estimate_judge(
    run: AnswerRun | Path | str, judge: JudgeOptions, *, variant: str = "paper"
) -> dict[str, Any]:
    """Calls, tokens and cost of a judge's verdicts on open answers. Asks nothing."""
    opened = run if isinstance(run, AnswerRun) else AnswerRun.open(run)
    given = _by_question(opened)
    scored = [_score(row, given.get(row["id"], {}), variant) for row in _rows(opened, None, given)]
    with open_judge(judge, opened.folder / "judge", dataset=None) as asked:
        return asked.estimate(_drafts([one for one in scored if one.answer], judge))


def is_right(row: Row, given: Given) -> bool:
    """Whether one answer is right by the strict variant; an open one by its exact words."""
    scored = _score(row, {"seen": given}, "paper")
    return any(scored.metrics.get(name) == 1.0 for name in ("accuracy", "number", "place", "exact"))


def _by_question(run: AnswerRun) -> dict[str, dict[str, Given]]:
    given: dict[str, dict[str, Given]] = defaultdict(dict)
    for one in run.answers():
        given[one.id][one.way] = one
    return given


def _rows(run: AnswerRun, folder: Path | str | None, given: Mapping[str, Any]) -> list[Row]:
    """The questions that were asked, as far as they count, in the order of the set."""
    columns = run.questions(folder).table(list(_COLUMNS))
    columns["marked"] = _marks(columns["flags"])
    rows: list[Row] = [
        dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)
    ]
    known = {row["id"] for row in rows}
    if strange := sorted(set(given) - known):
        raise MieError(
            "answers to questions that the set does not have", where=run.folder, found=", ".join(strange[:3])
        )
    counted: list[Row] = [r for r in rows if "written" not in (r["flags"] or ()) or "reviewed" in r["flags"]]
    limit = run.info["config"]["limit"]
    return [row for row in counted if row["id"] in given] if run.info.get("people") else counted[:limit]


def _marks(flags: Sequence[Sequence[str] | None]) -> list[str]:
    """The group of each question: whether it is marked as one that needs no image; "" in a set without."""
    blind = ["blind" in (found or ()) for found in flags]
    return [MARKED if one else NOT_MARKED for one in blind] if any(blind) else [""] * len(blind)


# ---- One question ----


def _score(row: Row, given: Mapping[str, Given], variant: str) -> _Scored:
    scored = _Scored(row)
    seen = given.get("seen")
    kind = row["kind"]
    if kind == "closed":
        _score_closed(scored, given, variant)
    elif kind == "number":
        said = _said(seen, variant, partial(read_number, unit=row["unit"] or ""))
        scored.set("number", said, float(_within(said.value, row)))
        scored.facts["said"] = said.value
    elif kind in ("point", "box"):
        said = _in_image(_said(seen, variant, partial(read_numbers, count=2 if kind == "point" else 4)))
        scored.set("place", said, float(_hits(said.value, row)))
        scored.facts["said"] = said.value
    else:
        _score_open(scored, _said(seen, variant, read_text))
    return scored


def _score_closed(scored: _Scored, given: Mapping[str, Given], variant: str) -> None:
    row = scored.row
    key = row["options"].index(row["answer"])
    chosen = {way: _choice(one, row["options"], variant) for way, one in given.items()}
    seen = chosen.get("seen", Said(reason=NO_ANSWER))
    scored.set("accuracy", seen, float(seen.value == key))
    scored.facts["said"] = None if seen.value is None else LETTERS[seen.value]
    if "blind" in chosen:
        scored.set("blind", chosen["blind"], float(chosen["blind"].value == key))
    orders = [said for way, said in chosen.items() if way.startswith("order")]
    if orders:
        read = [said for said in orders if not said.reason]
        first = read[0] if read else orders[0]
        scored.set("permuted", first, float(np.mean([said.value == key for said in read])) if read else 0.0)
        lost = next((said for said in (seen, *orders) if said.reason), Said())
        scored.set("consistent", lost, float(all(said.value == seen.value for said in orders)))


def _choice(given: Given, options: Sequence[str], variant: str) -> Said:
    """The number of the option in the set, whatever order it was shown in."""
    order = given.order or tuple(range(len(options)))
    shown = [options[at] for at in order]
    if variant == "as_released":
        if given.state == "skipped":
            return Said(reason=given.reason)
        return Said(order[closest_option(given.reply, shown)])
    said = _said(given, variant, partial(read_letter, options=shown))
    return said if said.reason else Said(order[said.value])


def _said(given: Given | None, variant: str, read: Callable[[str], Said]) -> Said:
    if given is None:
        return Said(reason=NO_ANSWER)
    if given.state != "done" and not (variant == "as_released" and given.reply):
        if given.state == "skipped":
            return Said(reason=given.reason)
        return Said(reason=f"{given.state}: {given.reason}" if given.reason else given.state)
    return read(given.reply)


def _within(value: float | None, row: Row) -> bool:
    # Nine digits: a tolerance of 0.1 must hold for 0.3 against 0.2.
    return value is not None and round(abs(value - float(row["answer"])) - row["tolerance"], 9) <= 0


def _in_image(said: Said) -> Said:
    if said.value is not None and not all(0 <= value <= 1 for value in said.value):
        return Said(reason=OUTSIDE)
    return said


def _hits(place: tuple[float, ...] | None, row: Row) -> bool:
    if place is None:
        return False
    import json

    key = json.loads(row["answer"])
    if row["kind"] == "point":
        return math.dist(place, key) <= row["tolerance"]
    return _overlap(place, key) >= row["tolerance"]


def _overlap(one: Sequence[float], other: Sequence[float]) -> float:
    """Intersection over union of two boxes."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0 or one[2] <= one[0] or one[3] <= one[1]:
        return 0.0
    areas = [(box[2] - box[0]) * (box[3] - box[1]) for box in (one, other)]
    return width * height / (sum(areas) - width * height)


def _score_open(scored: _Scored, said: Said) -> None:
    reference = str(scored.row["answer"])
    if said.reason:
        scored.unscored |= dict.fromkeys(("exact", "rouge1", "rougel", "bleu"), said.reason)
        return
    words, others = texts.words(said.value), texts.words(reference)
    scored.answer = said.value
    scored.facts["said"] = said.value
    scored.metrics |= {
        "exact": texts.exact_match(said.value, reference),
        "rouge1": texts.rouge_1(words, others),
        "rougel": texts.rouge_l(words, others),
        "bleu": texts.bleu(words, others),
    }


def _score_people(row: Row, given: Mapping[str, Given], variant: str) -> _Scored:
    """The mean over the people who answered the question; each of their answers counts the same."""
    each = [_score(row, {"seen": one}, variant) for one in given.values()]
    scored = _Scored(row)
    for name in (*CLOSED[:1], "number", "place", *OPEN):
        values = [one.metrics[name] for one in each if name in one.metrics]
        reasons = [one.unscored[name] for one in each if name in one.unscored]
        if values:
            scored.metrics[name] = math.fsum(values) / len(values)
        elif reasons:
            scored.unscored[name] = reasons[0]
    scored.facts["people"] = {way: one.facts.get("said") for way, one in zip(given, each, strict=True)}
    return scored


# ---- A judge's verdicts ----


def _drafts(scored: Sequence[_Scored], options: JudgeOptions) -> Iterator[Draft]:
    prompt = open_prompts(options.prompts).of(load_prompt("vqa_verdict", 1))
    for one in scored:
        row = one.row
        text = prompt.fill(question=row["text"], reference=row["answer"], answer=one.answer)
        quotes = (row["text"], row["answer"], one.answer)
        make = partial(Question, prompt, (text,), yes_no(1), None, quotes)
        yield Draft(f"{row['id']}:verdict", make, prompt, characters=len(text))


def _ask_judge(run: AnswerRun, options: JudgeOptions, scored: Sequence[_Scored]) -> dict[str, Any]:
    with open_judge(options, run.folder / "judge", dataset=None) as judge:
        answers = judge.ask(_drafts(scored, options))
        record = judge.record(["judged"])
    for one in scored:
        verdicts = [answer for answer in answers[f"{one.row['id']}:verdict"] if answer.done]
        if verdicts:
            one.metrics["judged"] = math.fsum(answer.value[0] for answer in verdicts) / len(verdicts)
        else:
            (first, *_) = answers[f"{one.row['id']}:verdict"]
            one.unscored["judged"] = f"judge {first.state}: {first.reason}"
    return record


# ---- The summary ----


def _document(run: AnswerRun, table: ScoreTable, scored: Sequence[_Scored]) -> dict[str, Any]:
    document: dict[str, Any] = {
        "protocol": NAME,
        "variant": table.header["variant"],
        "run": str(run.folder),
        "answerer": run.info["answerer"],
        "form": run.info["config"].get("form"),
        "n_samples": len(table.ids),
        "groups": summarise(table, partitions=PARTITIONS),
        "macro": _macro(table),
        "reasons": _reasons(scored),
        "marks": table.header["marks"],
        **({"judge": table.header["judge"]} if "judge" in table.header else {}),
    }
    if run.info.get("people"):
        document["people"] = _people(run, scored)
    return document


def _macro(table: ScoreTable) -> dict[str, Any]:
    """The mean over tasks of their means: a task with many questions weighs as much as one with few."""
    found: dict[str, Any] = {}
    for name in _MACRO:
        if name not in table.values:
            continue
        chosen = table.select(name, 1)
        tasks = table.groups["task"].astype(str)[chosen.scored]
        if not len(tasks):
            continue
        interval = macro_interval(
            chosen.values[chosen.scored], tasks, table.clusters[chosen.scored], bounds=METRICS[name].scale
        )
        unscored = int(chosen.applies.sum() - chosen.scored.sum())
        found[name] = {
            "mean": interval.value,
            "n": len(tasks),
            "unscored": unscored,
            "tasks": len(set(tasks)),
            **interval.entry,
        }
    return found


def _reasons(scored: Sequence[_Scored]) -> dict[str, dict[str, int]]:
    """Metric -> why a reply has no number -> how many; what a server said is left out."""
    counts: dict[str, Counter[str]] = defaultdict(Counter)
    for one in scored:
        for metric, reason in one.unscored.items():
            counts[metric][reason.partition(":")[0]] += 1
    return {metric: dict(found.most_common()) for metric, found in counts.items()}


def _people(run: AnswerRun, scored: Sequence[_Scored]) -> dict[str, Any]:
    """Who answered how many questions, how well and how fast, and how far they agree."""
    raters: list[str] = list(run.info["people"]["raters"])
    seconds: dict[str, list[float]] = defaultdict(list)
    for given in run.answers():
        if given.seconds is not None:
            seconds[given.way].append(given.seconds)
    labels = np.full((len(raters), len(scored)), np.nan)
    right: dict[str, list[bool]] = defaultdict(list)
    for at, one in enumerate(scored):
        if one.row["kind"] != "closed":
            continue
        key = LETTERS[one.row["options"].index(one.row["answer"])]
        for rater, said in one.facts["people"].items():
            if said is not None:
                right[rater].append(said == key)
                labels[raters.index(rater), at] = LETTERS.index(said)
    several = (~np.isnan(labels)).sum(axis=0) > 1
    alpha = krippendorff_alpha(labels[:, several], "nominal") if several.any() else math.nan
    return {
        "raters": [
            {
                "rater": rater,
                "closed": len(right[rater]),
                "accuracy": float(np.mean(right[rater])) if right[rater] else math.nan,
                "median_seconds": float(np.median(seconds[rater])) if seconds[rater] else math.nan,
            }
            for rater in raters
        ],
        "agreement": {"krippendorff_alpha": alpha, "questions": int(several.sum())},
    }
