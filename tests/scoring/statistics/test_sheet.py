"""Answers to a blind sheet: of any spreadsheet, and refused where they are not this sheet's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.errors import MieError
from mie.scoring.statistics.sheet import Opinion, read_answers
from tests.scoring.statistics.test_quality import key_of

KEY = key_of((100, 4))
HEAD = "sheet,row,answer,reason"


def read(tmp_path, text, encoding="utf-8"):
    path = tmp_path / "answers.csv"
    path.write_bytes(text.encode(encoding))
    return read_answers(path, KEY)


@pytest.mark.parametrize(
    ("delimiter", "encoding", "end"),
    [(",", "utf-8", "\n"), (";", "utf-8-sig", "\r\n"), ("\t", "utf-8", "\r\n")],
)
def test_spreadsheets_of_all_countries_are_read(tmp_path, delimiter, encoding, end):
    lines = [
        HEAD,
        f"{KEY.sheet},2, Good ,",
        f'{KEY.sheet},1,BAD,"überall, daneben"',
        f"{KEY.sheet},3,,",
        ",,,",
        f"{KEY.sheet},4,,only a thought",
    ]
    text = end.join(lines).replace(",", delimiter).replace(f"überall{delimiter} daneben", "überall, daneben")
    assert read(tmp_path, text, encoding) == {2: Opinion("good", ""), 1: Opinion("bad", "überall, daneben")}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("deadbeefdeadbeef,1,good,", "another sheet"),
        (",1,good,", "another sheet"),
        (f"{KEY.sheet},5,good,", "no such row"),
        (f"{KEY.sheet},0,good,", "no such row"),
        (f"{KEY.sheet},1.5,good,", "no such row"),
        (f"{KEY.sheet},one,good,", "no such row"),
        (f"{KEY.sheet},,good,", "no such row"),
        (f"{KEY.sheet},1,okay,", "not an answer"),
        (f"{KEY.sheet},1,good,\n{KEY.sheet},1,good,", "answered twice"),
        (f"{KEY.sheet},1,,\n{KEY.sheet},1,good,", "answered twice"),
    ],
)
def test_what_is_not_this_sheets_is_refused(tmp_path, line, message):
    with pytest.raises(MieError, match=message) as error:
        read(tmp_path, f"{HEAD}\n{line}\n")
    assert ", line " in str(error.value)


def test_other_files_are_refused(tmp_path):
    for text in ("", "id,score\n1,2\n", "\x00\x01"):
        with pytest.raises(MieError, match="not a sheet's answers"):
            read(tmp_path, text)
    (tmp_path / "a.xlsx").write_bytes(b"PK\x03\x04\xff\xfe")
    for name in ("a.xlsx", "missing.csv"):
        with pytest.raises(MieError, match="cannot read the answers"):
            read_answers(tmp_path / name, KEY)


@given(st.text(max_size=200))
def test_any_text_is_read_or_refused(tmp_path_factory, text):
    path = tmp_path_factory.getbasetemp() / "any.csv"
    path.write_bytes(f"{HEAD}\n{text}".encode(errors="replace"))
    try:
        found = read_answers(path, KEY)
    except MieError:
        return
    assert all(1 <= row <= 4 for row in found)
