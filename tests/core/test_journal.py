"""Append-only lines: whole after a kill, nothing half written after an error."""

from __future__ import annotations

import errno
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mie.core.journal import _BLOCK, Journal
from mie.errors import MieError

_LINES = st.lists(st.binary(max_size=50).map(lambda line: line.replace(b"\n", b"")), max_size=8)


@given(_LINES, st.binary(max_size=99))
def test_a_torn_last_line_is_cut_off(tmp_path_factory, lines, torn):
    path = tmp_path_factory.mktemp("journal") / "a.jsonl"
    whole = b"".join(line + b"\n" for line in lines)
    path.write_bytes(whole + torn.replace(b"\n", b""))
    journal = Journal(path)
    assert path.read_bytes() == whole
    assert journal.size == len(whole)
    journal.append(b"last\n")
    journal.close()
    assert path.read_bytes() == whole + b"last\n"


def test_a_torn_line_longer_than_a_block_is_cut_off(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"first\n" + b"x" * (2 * _BLOCK + 7))
    journal = Journal(path)
    assert list(journal.lines()) == [b"first\n"]
    journal.close()


def test_every_append_is_synced_before_it_returns(tmp_path, monkeypatch):
    journal = Journal(tmp_path / "a.jsonl")
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_size), real(handle)))
    journal.append(b"one\n")
    journal.append(b"two\n")
    assert synced == [4, 8]
    journal.close()


def test_after_a_full_disk_the_file_ends_with_the_last_whole_line(tmp_path, monkeypatch):
    path = tmp_path / "a.jsonl"
    journal = Journal(path)
    journal.append(b"one\n")
    real = os.write
    writes = []

    def full(handle, data):
        if writes:
            raise OSError(errno.ENOSPC, "No space left on device")
        writes.append(real(handle, bytes(data)[:2]))
        return writes[0]

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(MieError, match="the disk is full"):
        journal.append(b"two\n")
    monkeypatch.setattr(os, "write", real)
    assert path.read_bytes() == b"one\n"
    journal.append(b"three\n")
    journal.close()
    assert path.read_bytes() == b"one\nthree\n"
