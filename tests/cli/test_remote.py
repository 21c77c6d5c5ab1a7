"""`mie run`, `mie score` and `mie report` with the four providers' editors, from the command line."""

from __future__ import annotations

import csv
import json

import pytest
from typer.testing import CliRunner

from mie.cli import app
from mie.errors import MieError
from tests.editors.conftest import make_dataset
from tests.editors.providers import KEY, KEYS, REFUSALS, providers


def mie(*words, code=0):
    done = CliRunner().invoke(app, [str(word) for word in words])
    if isinstance(done.exception, MieError):
        raise done.exception
    assert done.exit_code == code, done.output
    return done.output


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    return make_dataset(tmp_path_factory.mktemp("remote"), 12)


@pytest.fixture(scope="module")
def runs(small, tmp_path_factory):
    """A run by each editor: of four samples one is refused and one fails."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch, providers() as server:
        for name, variable in KEYS.items():
            patch.setenv(variable, KEY)
            server.seen.clear()
            status, body = REFUSALS[name]

            def fault(handler, number, fields, refusal=(body, status)):
                return number <= 2 and (handler.reply(*(refusal if number == 1 else (b"{}",))) or True)

            server.fault = fault
            words = ("-e", server.spec(name, ",price=0.1,budget=5"), "-o", folder / name)
            text = mie("run", small, *words, "--limit", 4, "--workers", 1, code=3)
            assert "2 edits of 4 samples" in text
            assert "1 edit failed; edits.jsonl says why, --retry-failed tries again" in text
            assert "1 edit refused; edits.jsonl says why, --retry-refused tries again" in text
            assert server.wrong == []
            mie("score", folder / name, "--workers", 1, code=3)
    return [folder / name for name in KEYS]


def test_a_refused_sample_is_unscored_with_its_own_reason(runs):
    for run in runs:
        lines = (run / "scores" / "miedb.paper.jsonl").read_text().splitlines()[1:]
        reasons = [
            attempt.get("unscored", {}).get("*") for line in lines for attempt in json.loads(line)["attempts"]
        ]
        assert len(reasons) == 4
        assert sum(str(reason).startswith("edit refused: the model declined") for reason in reasons) == 1
        assert sum(str(reason).startswith("edit failed: the provider's answer") for reason in reasons) == 1
        assert reasons.count(None) == 2
        document = json.loads((run / "summary" / "miedb.paper.json").read_text())
        assert document["groups"][0]["metrics"]["dice@1"]["n"] == 2


def test_the_report_shows_refused_apart_from_failed(runs, tmp_path):
    mie("report", *runs, "-o", tmp_path / "report")
    with next((tmp_path / "report").rglob("failures.csv")).open() as file:
        rows = list(csv.DictReader(file))
    assert sorted((row["run"], row["state"], row["attempts"]) for row in rows) == sorted(
        (name, state, "1") for name in KEYS for state in ("failed", "refused")
    )
    page = (tmp_path / "report" / "index.html").read_text()
    assert "Refused attempts" in page
    assert page.count("the model declined") >= len(runs)


def test_a_dry_run_lists_what_would_leave(small, tmp_path):
    words = ("run", small, "-e", "fal:m,price=0.1", "-o", tmp_path / "r", "--limit", 3, "--dry-run")
    text = mie(*words)
    assert "to fal.run: 3 images and 3 different instructions" in text.replace(
        "1 different instruction,", "3"
    )
    assert "about 0.30 USD" in text
    found = json.loads(mie(*words, "--json"))
    assert (found["destination"], found["images"], found["edits"]) == ("fal.run", 3, 3)
    assert "the cost is unknown" in mie("run", small, "-e", "fal:m", "-o", tmp_path / "r", "--dry-run")
    assert "nothing leaves" in mie("run", small, "-e", "otsu", "-o", tmp_path / "r", "--dry-run")
    assert not (tmp_path / "r").exists()


def test_without_consent_nothing_leaves(small, tmp_path, monkeypatch):
    monkeypatch.delenv("FAL_KEY", raising=False)
    words = ("run", small, "-e", "fal:m", "-o", tmp_path / "r", "--deidentified")
    with pytest.raises(MieError, match="another machine"):
        mie(*words)
    with pytest.raises(MieError, match="no key"):
        mie(*words, "--allow-remote", "--allow-phi", "--limit", 1)
