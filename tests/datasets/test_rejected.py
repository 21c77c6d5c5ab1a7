from __future__ import annotations

from pathlib import Path

from mie.datasets.rejected import frequent_reasons, nothing_kept, read_rejected, write_rejected
from mie.records import Rejection


def small(pixels: int, case: str) -> Rejection:
    reason = f"the region is too small: {pixels} px, at least 24"
    return Rejection("discs", case, "area", reason, "disc", {"pixels": pixels})


REFUSALS = [
    Rejection("discs", "x", "image", "not an image; expected PNG; found b'GIF'"),
    small(3, "a"),
    small(17, "b"),
    Rejection("discs", "y", "image", "not an image; expected PNG; found b'PK'"),
    small(20, "c"),
    Rejection("discs", "z", "leak", "patient d/1 is also in test"),
    Rejection("discs", "w", "blank", "the image has a single colour"),
]


def test_they_come_back_in_order(tmp_path: Path) -> None:
    assert write_rejected(tmp_path / "r.parquet", REFUSALS) == 7
    assert read_rejected(tmp_path / "r.parquet") == REFUSALS


def test_reasons_that_differ_in_numbers_alone_count_together() -> None:
    reasons = frequent_reasons(REFUSALS)
    assert [(r.count, r.example.gate, r.example.where) for r in reasons] == [
        (3, "area", "a"),
        (2, "image", "x"),
        (1, "leak", "z"),
    ]
    assert len(frequent_reasons(REFUSALS, most=9)) == 4


def test_reasons_that_differ_in_a_name_alone_count_together() -> None:
    """Names of files, and pseudonyms: otherwise the most frequent reasons would never be shown."""
    same = [
        Rejection("d", str(n), "duplicate", f"same image and region as d/{name} ({name})")
        for n, name in enumerate(("607fd2f1eabe8734", "edf978d6e95bdb7f"))
    ]
    lost = [
        Rejection("d", name, "source", f"no file matches masks/{name}_seg.png")
        for name in ("ann", "ben", "cho")
    ]
    counts = [(r.count, r.example.gate) for r in frequent_reasons([REFUSALS[0], *same, *lost])]
    assert counts == [(3, "source"), (2, "duplicate"), (1, "image")]


def test_the_same_words_of_two_gates_count_apart() -> None:
    both = [Rejection("d", "a", gate, "too dark") for gate in ("one", "two", "two")]
    assert [(r.count, r.example.gate) for r in frequent_reasons(both)] == [(2, "two"), (1, "one")]


def test_a_dataset_without_samples_says_why(tmp_path: Path) -> None:
    error = nothing_kept(tmp_path, REFUSALS, "do this")
    assert error.found is not None
    first, *_ = error.found.splitlines()
    assert first == "3 × area: the region is too small: 3 px, at least 24 (for example discs/a)"
    assert error.fix == "do this; rejected.parquet lists every rejection"
