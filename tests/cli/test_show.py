"""Progress where there is no terminal: a line now and then, and time left by the pace of the last minute."""

from __future__ import annotations

import pytest

from mie.cli import _show


def test_time_left_is_by_the_pace_of_the_last_minute(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = {"now": 0.0}
    monkeypatch.setattr(_show.time, "monotonic", lambda: clock["now"])
    with _show.progress_bar("training") as bar:
        for clock["now"] in (100.0, 102.0, 200.0):
            bar(0, 1000, "reading")
        for step in range(1, 31):
            clock["now"] = 200.0 + 10 * step
            bar(10 * step, 1000)
    lines = capsys.readouterr().err.splitlines()
    assert lines[:2] == ["training: 0/1000. reading"] * 2, (
        "nothing is known yet, and two seconds are not enough"
    )
    assert lines[-1] == "training: 300/1000, about 700 s left"
    assert len(lines) == 32


def test_what_an_earlier_run_did_says_nothing_of_the_pace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    clock = {"now": 0.0}
    monkeypatch.setattr(_show.time, "monotonic", lambda: clock["now"])
    with _show.progress_bar("building") as bar:
        bar(0, 0, "reading folders")
        for clock["now"], done in ((1.0, 900), (10.0, 900), (20.0, 910)):
            bar(done, 1000)
    assert capsys.readouterr().err.splitlines() == [
        "building: 900/1000",
        "building: 910/1000, about 180 s left",
    ]
