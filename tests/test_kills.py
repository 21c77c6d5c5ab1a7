"""A few cases of `python -m bench.kills`: commands that are killed or whose disk fails, and what follows."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace

import pytest

pytest.importorskip("torch", reason="trains, which needs the extra `models`")
pytest.importorskip("fastapi", reason="reviews, which needs the extra `review`")

from bench.kills.faults import compiler
from bench.kills.harness import Harness, harness
from bench.kills.review import review_case

pytestmark = pytest.mark.skipif(
    sys.platform != "linux" or compiler() is None, reason="the fault injector needs Linux and a C compiler"
)


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Harness]:
    with harness(tmp_path_factory.mktemp("kills")) as running:
        yield running


@pytest.mark.parametrize("kind", ["kill", "full", "broken", "interrupted", "short"])
def test_a_run_survives(one: Harness, kind: str) -> None:
    outcome = one.case(one.verbs["run"], seed=1, kinds=(kind,))
    assert set(outcome.kinds) == {kind}
    assert outcome.failures == []


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("build perception", "kill"),
        ("score with a judge", "kill"),
        ("train", "kill"),
        ("run by a provider", "kill"),
        ("edit a folder", "full"),
        ("merge", "kill"),
        ("choose", "full"),
        ("export", "full"),
        ("import", "broken"),
        ("pack", "interrupted"),
        ("vqa build", "kill"),
        ("vqa run", "kill"),
    ],
)
def test_a_command_survives(one: Harness, name: str, kind: str) -> None:
    outcome = one.case(one.verbs[name], seed=4, kinds=(kind,))
    assert set(outcome.kinds) == {kind}
    assert outcome.failures == []


@pytest.mark.parametrize("kind", ["kill", "full"])
def test_no_confirmed_answer_of_a_review_is_lost(one: Harness, kind: str) -> None:
    outcome = review_case(one, seed=1, kinds=(kind,))
    assert outcome.kinds == [kind]
    assert outcome.failures == []


def test_the_harness_sees_what_is_lost(one: Harness) -> None:
    """A command that does not resume, and one that writes other bytes, are failures."""
    verb = one.verbs["run"]
    one.reference(verb)
    other = replace(verb, arguments=lambda out: [*verb.arguments(out)[:-1], "1"])
    assert "missing" in one.case(other, seed=3, kinds=("short",)).failures[0]
    broken = replace(verb, arguments=lambda out: ["run", "nowhere", "-e", "otsu", "-o", str(out)])
    assert "exit code" in one.case(broken, seed=3, kinds=("short",)).failures[0]
