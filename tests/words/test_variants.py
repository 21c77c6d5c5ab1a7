"""Words that say nothing change nothing, and none turns a request into a change of anatomy."""

from __future__ import annotations

import pytest

from mie.words import parse
from tests.words import blind, variants

SHARES = {"a slip": 0.93}  # of the variants that must be read as before; measured 0.95
SHARE = 0.98


@pytest.mark.parametrize("kind", variants.VARIANTS)
def test_a_variant_is_read_as_the_instruction_itself(kind: str) -> None:
    rows = list(variants.pairs(kind, seed=2))
    wrong = [pair for pair in rows if not variants.same(pair)]
    assert len(rows) > 150
    assert len(wrong) <= (1 - SHARES.get(kind, SHARE)) * len(rows), wrong
    for pair in wrong:
        other = parse(pair.other, pair.modality)
        if other.operation in blind.ALTERING and other.targets:
            assert parse(pair.text, pair.modality).operation == other.operation, pair.other
