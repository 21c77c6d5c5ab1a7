"""The metrics of `omnibrain`, with what tables and plots need to know about each."""

from __future__ import annotations

from typing import Final

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
CLOSED: Final = ("accuracy", "blind", "permuted", "consistent")
OPEN: Final = ("exact", "rouge1", "rougel", "bleu", "bertscore", "text", "judged")
