"""The metrics of `omnibrain`, with what tables and plots need to know about each."""

from __future__ import annotations

from typing import Final

from mie.scoring.benchmarks import PublishedRows
from mie.scoring.metric import SHARE, Metric

NAME: Final = "omnibrain"
VERSION: Final = 1
VARIANTS: Final = ("paper", "as_released")
PARTITIONS: Final = ("phase", "task", "modality", "submodality", "kind", "template", "source", "marked")
GROUPS: Final = ("phase", "kind", "submodality", "template", "marked")
MARKED, NOT_MARKED = "blind", "not blind"  # of the group `marked`: what is answered without the image


def _share(name: str, label: str, meaning: str) -> Metric:
    return Metric(name, label, meaning, unit="", scale=SHARE, binary=True)


def _text(name: str, label: str, meaning: str) -> Metric:
    return Metric(name, label, meaning, scale=SHARE)


METRICS: Final[dict[str, Metric]] = {
    metric.name: metric
    for metric in (
        _share("accuracy", "Accuracy", "closed questions: the option that was chosen is the key"),
        _share("blind", "Blind", "the same without the images"),
        _text("permuted", "Permuted", "closed questions with their options in other orders"),
        _share("consistent", "Same choice", "the same option was chosen in every order"),
        _share("number", "Number", "the number lies within the tolerance of the key"),
        _share("place", "Place", "the point lies near enough, or the box overlaps enough"),
        _share("exact", "Exact match", "open questions: the same words but for case and punctuation"),
        _text("rouge1", "ROUGE-1", "F1 of stemmed words"),
        _text("rougel", "ROUGE-L", "F1 of the longest common subsequence of stemmed words"),
        _text("bleu", "BLEU", "of one sentence, smoothing 4 of Chen and Cherry"),
        Metric("bertscore", "BERTScore", "F1 of matched hidden states"),
        Metric("text", "Mean of four", "the mean of ROUGE-1, ROUGE-L, BLEU and BERTScore"),
        Metric("judged", "Judged right", "a judge finds that the answer says what the reference says",
               needs=frozenset({"judge"}), scale=SHARE, binary=True),
    )
}  # fmt: skip
_TASK = "closed questions of the task"
# From the project's page, and InternVL3 and Janus-Pro from a summary of the paper; None: not found as text.
PUBLISHED: Final = PublishedRows(
    "Published accuracies on OmniBrainBench's own 6,823 closed questions",
    (METRICS["accuracy"], _share("IMI", "IMI", _TASK), _share("RS", "RS", _TASK)),
    (
        ("physicians", (0.9135, None, None)),
        ("Gemini-2.5-Pro", (0.6658, None, None)),
        ("HuatuoGPT-Vision-34B", (0.6356, 0.6955, 0.4084)),
        ("GPT-5", (0.6337, None, None)),
        ("InternVL3-8B", (0.5325, None, None)),
        ("MedGemma-4B", (0.4804, None, None)),
        ("Janus-Pro-7B", (0.4511, None, None)),
        ("LLaVA-Med-7B", (0.3884, None, None)),
    ),
    note="They are on other questions than the rows above, unless these are the benchmark's own. Accuracies "
    "by task and phase are published as a picture: those that are not here were not found as text.",
    source="https://arxiv.org/abs/2511.00846",
)
CLOSED: Final = ("accuracy", "blind", "permuted", "consistent")
OPEN: Final = ("exact", "rouge1", "rougel", "bleu", "bertscore", "text", "judged")
