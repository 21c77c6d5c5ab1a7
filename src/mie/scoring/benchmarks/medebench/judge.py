"""What MedEBench needs of a sample, and what it asks a judge.

Its own records, or any other sample, give:

| MedEBench | elsewhere |
| --- | --- |
| `Organ` | anatomy |
| `Task` | task and target |
| `detailed_prompt`, the change description | description; where it is empty a judge writes one |
| `previous_mask`, soft | mask, every class inside |
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from PIL import Image

from mie.images.png import png_size
from mie.judges import Draft, ParseError, Prompt, PromptSet, Question, load_prompt
from mie.judges import Image as JudgeImage
from mie.judges.contracts import Parser
from mie.judges.parsers import labelled_scores, visible
from mie.records import Pixels
from mie.scoring.attempts import Chunk, Output
from mie.scoring.benchmarks.medebench import BENCHMARK
from mie.scoring.judging import (
    JudgeAnswers,
    Questions,
    ReplyForm,
    SampleAnswer,
    output_drafts,
    record_numbers,
    sample_drafts,
)
from mie.scoring.reference import in_colour, read_output, read_stored

COLUMNS: Final = BENCHMARK.columns


def organ_of(row: Mapping[str, Any]) -> str:
    return str(_own(row).get("organ") or row["anatomy"])


def task_of(row: Mapping[str, Any]) -> str:
    """The record's own task, else `structure: optic disc`."""
    return str(_own(row).get("task") or f"{row['task']}: {row['target']}")


def mask_of(row: Mapping[str, Any]) -> Pixels | None:
    """`(H, W) uint8`, 255 inside. MedEBench's masks are soft; class values of ours are all inside."""
    if row["mask"] is None:
        return None
    mask = read_stored(row["mask"]["bytes"])
    return mask if _own(row) else np.where(mask > 0, np.uint8(255), np.uint8(0))


def at_size(output: Pixels, size: tuple[int, int]) -> Pixels:
    """An output at (height, width), bicubic with antialiasing, as the released script has it (Pillow)."""
    if output.shape[:2] == size:
        return output
    return np.asarray(Image.fromarray(output).resize(size[::-1], Image.Resampling.BICUBIC))


def _own(row: Mapping[str, Any]) -> Mapping[str, Any]:
    found = json.loads(row["params"]).get("medebench")
    return found if isinstance(found, Mapping) else {}


# Editing accuracy and visual quality: a judge sees I, O and M, twice.
#
# Once with the change description (D: `ea`, `vq`) and once with the plain instruction (P: `ea_plain`,
# `vq_plain`); 0 to 10, scaled to 0 to 1. A sample without a description gets one from the judge first, which
# is stored in the dataset's folder with its provenance and stands in every line that rests on it.

EDIT: Final = load_prompt("medebench_edit", 2)
DESCRIBE: Final = load_prompt("medebench_describe", 2)
LABELS: Final = {"ea": "Editing Accuracy", "vq": "Visual Quality"}
CONTEXT: Final = {"cp_judge": "Contextual Preservation"}  # where the words of the prompt ask for it too
OUT_OF: Final = 10
# Question -> the ending of its metrics.
ASKED: Final = {"ea": "", "ea_plain": "_plain"}
METRICS: Final = tuple(f"{name}{ending}" for ending in ASKED.values() for name in LABELS)


def labels_of(prompt: Prompt) -> dict[str, str]:
    """The scores that a prompt asks for: metric -> label."""
    text = f"{prompt.system}\n{prompt.user}"
    return {**LABELS, **{name: label for name, label in CONTEXT.items() if label in text}}


_LONGEST: Final = 1500  # characters of a description


def as_released(reply: str, labels: Mapping[str, str] = LABELS) -> dict[str, float]:
    """The public script's reading: the last line that holds a label counts, the number stands between the
    line's first colon and the next slash. It sees no bold type, and takes any number.
    """
    found: dict[str, float] = {}
    for line in reply.split("\n"):
        name = next((name for name, label in labels.items() if label in line), None)
        pieces = line.split(":")
        if name is None or len(pieces) < 2:
            continue
        try:
            number = float(pieces[1].split("/")[0].strip())
        except ValueError:
            continue
        if math.isfinite(number):
            found[name] = number
    missing = [label for name, label in labels.items() if name not in found]
    if missing:
        raise ParseError(f"no line `{missing[0]}: x/{OUT_OF}`")
    return {name: found[name] for name in labels}


PARSERS: Final = {"paper": labelled_scores(LABELS, out_of=OUT_OF), "as_released": as_released}


def parser_of(prompt: Prompt, variant: str) -> Parser:
    """The reader of the replies to a prompt."""
    labels = labels_of(prompt)
    if variant == "as_released":
        return partial(as_released, labels=labels)
    return labelled_scores(labels, out_of=OUT_OF)


def description_text(reply: str) -> str:
    """The description: one paragraph of words."""
    text = " ".join(visible(reply).split())
    if len(text) < 20 or len(text) > _LONGEST:
        raise ParseError(f"one sentence is needed, of 20 to {_LONGEST} characters, not {len(text)}")
    return text


def describe_key(sample: str) -> str:
    return f"{sample}:description"


def describe_drafts(chunks: Iterable[Chunk], prompt: Prompt = DESCRIBE) -> Iterator[Draft]:
    """A question for each sample that has no description of its change."""
    return sample_drafts(
        chunks,
        ("id", *COLUMNS),
        prompt,
        key=describe_key,
        question=_describe,
        wanted=lambda row: not row["description"].strip(),
        wanted_by=["description"],
    )


def _describe(row: Mapping[str, Any], prompt: Prompt, text: str) -> Question:
    before, after = (JudgeImage(read_stored(row[name]["bytes"])) for name in ("input", "target_image"))
    return Question(prompt, (text, "Before:", before, "After:", after), description_text)


def edit_drafts(
    chunks: Iterable[Chunk], variant: str, samples: Mapping[str, SampleAnswer], prompt: Prompt = EDIT
) -> Iterator[Draft]:
    """Two questions for each output; none with a description where there is none."""
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
    size = png_size(row["input"]["bytes"])
    changes = {
        "ea": ("Change description", _described(row, samples)),
        "ea_plain": ("Instruction", row["prompt"]),
    }
    for asked, (label, change) in changes.items():
        if change is None:
            continue
        text = prompt.fill(label=label, change=change)
        make = partial(_question, row, prompt, text, change, Path(output.path or ""), variant)
        key = f"{row['id']}_{output.k}:{asked}"
        yield Draft(key, make, prompt, sizes=(size, size, size), characters=len(text))


def _described(row: Mapping[str, Any], samples: Mapping[str, SampleAnswer]) -> str | None:
    text = row["description"].strip()
    if not text:
        found = samples.get(describe_key(row["id"]))
        if found is not None and found.value is None:
            return None
        text = "" if found is None else found.value  # nothing yet: a dry run, which counts the question
    return str(text)


def _question(
    row: Mapping[str, Any], prompt: Prompt, text: str, change: str, path: Path, variant: str
) -> Question:
    before, reference = (read_stored(row[name]["bytes"]) for name in ("input", "target_image"))
    shown = {"Before:": before, "Reference:": reference, "Edit to be graded:": read_output(path, variant)}
    parts = [part for label, pixels in shown.items() for part in (label, JudgeImage(in_colour(pixels)))]
    return Question(prompt, (text, *parts), parser_of(prompt, variant), quotes=(change,))


def record(
    line: dict[str, Any], attempt: dict[str, Any], answers: JudgeAnswers, prompt: Prompt = EDIT
) -> None:
    """EA and VQ of one attempt, and where it was asked for CP, or the reasons why there are none."""
    found = answers.samples.get(describe_key(line["id"]))
    if found is not None:
        line["description"] = {"text": found.value, "reason": found.reason, "judge": dict(found.stamp or {})}
    labels = labels_of(prompt)
    for asked, ending in ASKED.items():
        names = [f"{name}{ending}" for name in labels]
        if asked == "ea" and found is not None and found.value is None:
            attempt["unscored"] |= dict.fromkeys(names, f"no change description: {found.reason}")
            continue
        key = f"{line['id']}_{attempt['k']}:{asked}"
        record_numbers(attempt, key, names, answers, prompt, partial(_scaled, labels=tuple(labels)))


def _scaled(value: Mapping[str, float], labels: tuple[str, ...]) -> tuple[float, ...]:
    return tuple(value[name] / OUT_OF for name in labels)


def _form(prompt: Prompt) -> ReplyForm:
    labels = labels_of(prompt)
    read = parser_of(prompt, "paper")
    return ReplyForm(
        tuple(labels),
        (0.0, float(OUT_OF)),
        lambda grades: "\n".join(
            f"{label}: {grade:g}/{OUT_OF}" for label, grade in zip(labels.values(), grades, strict=True)
        ),
        lambda reply: [read(reply)[name] for name in labels],
    )


def questions(prompts: PromptSet) -> Questions:
    """The questions in the words of a set of prompts."""
    edit, describe = prompts.of(EDIT), prompts.of(DESCRIBE)
    added = tuple(
        f"{name}{ending}" for ending in ASKED.values() for name in labels_of(edit) if name not in LABELS
    )
    return Questions(
        (*METRICS, *added),
        partial(edit_drafts, prompt=edit),
        partial(record, prompt=edit),
        partial(describe_drafts, prompt=describe),
        using=questions,
        forms={EDIT.id: _form(edit)},
        adds=added,
    )


QUESTIONS: Final = questions(PromptSet())
