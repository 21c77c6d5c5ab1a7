"""Thresholds: chosen on some patients, judged on others."""

from __future__ import annotations

import pytest

from mie.perspectives.modification.detectors.quality import (
    DEFAULT,
    LEVELS,
    Counts,
    Hits,
    Measured,
    best_level,
    choose,
)


def image(patient: str, best: float, *, elsewhere: float = 0.2, at_best: float = 0.9) -> Measured:
    """One lesion, found at every level; DICE is high at one level alone."""
    counts = tuple(Counts(1, 1, 1, 0, at_best if level == best else elsewhere) for level in LEVELS)
    return Measured(patient, 0.5, counts)


def test_the_level_with_the_best_dice_is_chosen() -> None:
    assert LEVELS[best_level([image("a", 0.3), image("b", 0.3)], "dice")] == 0.3


def test_among_equals_the_middle() -> None:
    assert LEVELS[best_level([image("a", 2.0)], "dice")] == DEFAULT


def test_each_half_is_judged_at_the_threshold_of_the_other() -> None:
    # Patients a and c fall into one half, b and d into the other. Each half is best where the other is bad.
    measured = [image("a", 0.2), image("b", 0.7), image("c", 0.2), image("d", 0.7, at_best=0.95)]
    chosen = choose(measured, by="dice")
    assert chosen.quality is not None
    assert chosen.quality.dice == pytest.approx(0.2)
    assert chosen.threshold == 0.7  # what is used is the best on all
    assert (chosen.patients, chosen.crossed) == (4, True)


def test_a_threshold_that_holds_everywhere_keeps_its_worth() -> None:
    chosen = choose([image(name, 0.25) for name in "abcd"], by="dice")
    assert (chosen.threshold, chosen.quality.dice) == (0.25, pytest.approx(0.9))
    body = chosen.as_json()
    assert (body["threshold"], body["patients"], body["images"]) == (0.25, 4, 4)
    assert "cross-fitted" in body["threshold_chosen"]


def test_images_of_one_patient_stay_together() -> None:
    measured = [image("a", 0.2), image("a", 0.7, at_best=0.95), image("b", 0.2)]
    # b is judged at what is best for a's two images, a's at what is best for b.
    assert [c.dice for c in choose(measured, by="dice").counts] == [0.9, 0.2, 0.2]


def test_by_lesions_finding_counts_as_much_as_outlining() -> None:
    def lesions(level: float) -> Counts:
        return Counts(2, 2, 2, 0, 0.6) if level == 0.3 else Counts(2, 1, 4, 3, 0.7)

    measured = [Measured(name, 0.5, tuple(map(lesions, LEVELS))) for name in "ab"]
    assert choose(measured, by="lesions").threshold == 0.3
    assert choose(measured, by="dice").threshold == DEFAULT


def test_one_patient_or_none_chooses_nothing() -> None:
    alone = choose([image("a", 0.2)], by="dice")
    assert (alone.threshold, alone.quality.dice, alone.crossed) == (DEFAULT, 0.2, False)
    assert alone.as_json()["threshold_chosen"] == "not chosen"
    nobody = choose([], by="dice")
    assert (nobody.threshold, nobody.quality, nobody.as_json()) == (DEFAULT, None, None)


def found(patient, *findings):
    """One image with one lesion; `findings` is (found, false) at each threshold, the last from there on."""
    rows = [*findings, *[findings[-1]] * (len(LEVELS) - len(findings))]
    counts = tuple(Counts(1, hit, hit + false, false, 0.5) for hit, false in rows)
    name = "cyst" if patient < "d" else "tumour"
    return Measured(patient, 0.5, counts, {name: tuple(Hits(1, hit) for hit, _ in rows)})


def test_for_lesions_the_lowest_threshold_with_one_false_finding_an_image():
    several = [found("a", (1, 3), (1, 2), (1, 1), (0, 0)), found("b", (1, 2), (1, 1), (1, 1), (0, 0))]
    assert best_level(several, "lesions") == 2
    noisy = [found("a", (1, 2), (0, 2))]  # never so few: what is worth most
    assert best_level(noisy, "lesions") == 0


def test_what_is_found_is_told_by_name():
    """Each patient at the threshold of the other half; a name that nobody had is not there."""
    few = [found(name, (1, 0), (0, 0)) for name in "abcdef"]
    few[1] = found("b", (0, 0))
    few[4] = found("e", (1, 4), (1, 0))  # pushes the other half to the next threshold
    chosen = choose(few, by="lesions")
    share = pytest.approx(sensitivity(chosen, few, "abc"))
    assert chosen.targets["cyst"] == {"lesions": 3, "images": 3, "patients": 3, "sensitivity": share}
    assert chosen.as_json()["targets"].keys() == {"cyst", "tumour"}


def sensitivity(chosen, measured, names):
    pairs = [pair for pair in zip(measured, chosen.counts, strict=True) if pair[0].patient in names]
    return sum(counts.found for _, counts in pairs) / len(pairs)
