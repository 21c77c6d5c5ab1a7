"""The card of a question set: its README.md, with the front matter that the Hugging Face Hub reads.

Everything comes from `questions.json`; equal sets give equal cards.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import yaml

from mie.core.documents import markdown_cell, markdown_table
from mie.datasets.card import hub_license, hub_size
from mie.questions.record import PHASES, TASKS
from mie.vocabulary import SPLITS

_UNSTATED: Final = {"name": "not stated", "use": "unknown", "basis": "stated"}
MEANINGS: Final[dict[str, str]] = {
    "id": "name of the question, derived from its content",
    "kind": "closed, open, number, point or box",
    "text": "the question",
    "images": "one or more images, in the order in which the question speaks of them",
    "options": "of a closed question, in their order",
    "answer": "the key; of a closed question the text of the right option",
    "letter": "of a closed question, the letter of the right option",
    "tolerance": "of a number: how far off is right, in `unit`; of a point: distance in fractions; "
    "of a box: the least overlap (IoU)",
    "unit": "of a number",
    "task": "one of the fifteen tasks below",
    "phase": "the clinical phase of the task",
    "modality": "how the image was taken",
    "submodality": "sequence, stain or view, where it is known",
    "anatomy": "part of the body",
    "template": "what made the question; empty for an import",
    "source": "the data set that the images come from",
    "case_id": "the image inside its data set, by a pseudonym unless names were kept",
    "patient_id": "the patient, by a pseudonym unless names were kept; null: the data set does not tell",
    "split": "train, val or test; no patient is in two of them",
    "evidence": "JSON: the rule and the numbers that give the answer",
    "masks": "what the evidence was computed from; never to be shown to a model that answers",
    "seed": "the question's own seed",
    "license": "licence of the source data set",
    "flags": "reviewed, written (by a language model), blind (answered without the image), counterfactual",
    "sha256": "digest of all fields and of the decoded pixels",
}


def question_card(info: Mapping[str, Any]) -> str:
    """README.md of the set that `info` (the content of `questions.json`) describes."""
    head = yaml.safe_dump(_front_matter(info), sort_keys=False, allow_unicode=True, width=10_000)
    counts = info["counts"]
    parts = [
        f"# {info['name']}",
        f"{counts['questions']:,} questions about {counts['images']:,} medical images. "
        + " ".join(str(info["description"]).split()),
        "## Open it\n\n" + _opening(info),
        "## What is in it\n\n" + _tables(counts),
        "## From candidates to this set\n\n" + _funnel(info),
        "## Columns\n\n"
        + markdown_table(("column", "meaning"), [(f"`{n}`", m) for n, m in MEANINGS.items()]),
        "## Terms of use\n\n" + _terms(info),
        f"## Digest\n\nContent digest (SHA-256): `{info['digest']}`",
    ]
    return f"---\n{head}---\n\n" + "\n\n".join(parts) + "\n"


def _front_matter(info: Mapping[str, Any]) -> dict[str, Any]:
    counts = info["counts"]
    return {
        "pretty_name": info["name"],
        "language": ["en"],
        **hub_license([{**_UNSTATED, **terms} for terms in info["licenses"].values()]),
        "task_categories": ["visual-question-answering"],
        "tags": ["medical", *(name.lower().replace(" ", "-") for name in counts["by_modality"])],
        "size_categories": [hub_size(counts["questions"])],
        # `datasets` caches by this front matter alone: a rebuilt set must not open as the old one.
        "dataset_info": {"config_name": "default", "description": f"digest {info['digest']}"},
        "configs": [
            {
                "config_name": "default",
                "data_files": [
                    {"split": split, "path": f"data/{split}-*.parquet"}
                    for split in SPLITS
                    if counts["by_split"].get(split)
                ],
            }
        ],
    }


def _opening(info: Mapping[str, Any]) -> str:
    split = next((name for name in SPLITS if info["counts"]["by_split"].get(name)), "test")
    return (
        "```python\nfrom mie.questions import QuestionSet\n\n"
        f'for question in QuestionSet("{info["name"]}").split("{split}"):\n'
        "    question.text, question.options, question.letter, question.images[0].pixels\n```\n\n"
        "```python\nfrom datasets import load_dataset\n\n"
        f'load_dataset("{info["name"]}")["{split}"][0]["images"]  # PIL images\n```'
    )


def _tables(counts: Mapping[str, Any]) -> str:
    tasks = [
        (f"`{code}`", task.name, PHASES[task.phase], f"{counts['by_task'][code]:,}")
        for code, task in TASKS.items()
        if code in counts["by_task"]
    ]
    tables = [markdown_table(("task", "name", "phase", "questions"), tasks)] if tasks else []
    for title in ("split", "kind", "modality", "letter", "source"):
        rows = [(markdown_cell(str(name)), f"{n:,}") for name, n in counts[f"by_{title}"].items()]
        if rows:
            tables.append(markdown_table((title, "questions"), rows))
    tables.append(f"Patients told apart by their data sets: {counts['patients_known']:,}.")
    return "\n\n".join(tables)


def _funnel(info: Mapping[str, Any]) -> str:
    rows = [(one["step"], f"{one['questions']:,}", markdown_cell(one["note"])) for one in info["funnel"]]
    return (
        markdown_table(("step", "questions left", "what it does"), rows) if rows else "Nothing was removed."
    )


def _terms(info: Mapping[str, Any]) -> str:
    lines = ["**Not for clinical use**: not for diagnosis, treatment or triage."]
    terms = {name: {**_UNSTATED, **one} for name, one in info["licenses"].items()}
    lines += [
        f"- `{markdown_cell(name)}`: {markdown_cell(one['name'])} ({one['use']})"
        for name, one in terms.items()
    ]
    stated = (
        "Every provider states that no patient can be identified."
        if info.get("deidentified")
        else "Not every provider states that its images are de-identified: look before you share them."
    )
    return lines[0] + ("\n\n" + "\n".join(lines[1:]) if terms else "") + "\n\n" + stated
