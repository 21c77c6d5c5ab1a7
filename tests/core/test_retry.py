"""The retry policy, with a clock of its own: no test waits."""

import asyncio
import random
import time
from email.utils import formatdate

import pytest

from mie.core import retry
from mie.core.retry import CallError, call_with_retries, retry_after


@pytest.fixture
def pauses(monkeypatch):
    """Every pause that would be made, in seconds; none is."""
    made = []

    async def sleep(seconds):
        made.append(seconds)

    monkeypatch.setattr(
        retry, "AsyncRetrying", lambda real=retry.AsyncRetrying, **options: real(sleep=sleep, **options)
    )
    return made


def attempts(errors, **options):
    """What comes of a call that fails with each of `errors` in turn and then works."""
    left = list(errors)

    async def call():
        if left:
            raise left.pop(0)
        return "reply"

    options = {"retries": 6, "seconds": float("inf"), "draw": random.Random(1), **options}
    return asyncio.run(call_with_retries(call, **options)), left


def test_pauses_double_with_jitter_up_to_the_longest(pauses):
    assert attempts([CallError("busy") for _ in range(9)], retries=9)[0] == "reply"
    full = [min(retry.LONGEST_PAUSE, retry.FIRST_PAUSE * 2**n) for n in range(9)]
    assert all(f / 2 <= pause <= f for pause, f in zip(pauses, full, strict=True))
    assert len(set(pauses)) == 9
    assert full[-1] == retry.LONGEST_PAUSE


def test_the_server_is_waited_for_and_our_own_mistake_is_not(pauses):
    attempts(
        [CallError("busy", retry_after=30), CallError("busy", retry_after=0), CallError("x", at_once=True)]
    )
    assert pauses[0] == 30
    assert 1 <= pauses[1] <= 2
    assert pauses[2] == 0


def test_it_gives_up_after_the_retries_with_the_last_error(pauses):
    errors = [CallError(f"error {n}") for n in range(5)]
    with pytest.raises(CallError) as caught:
        attempts(errors, retries=2)
    assert (caught.value.reason, len(pauses)) == ("error 2", 2)


def test_it_gives_up_rather_than_wait_past_the_limit(pauses):
    with pytest.raises(CallError) as caught:
        attempts([CallError("busy", retry_after=500)], seconds=100)
    assert caught.value.reason == "busy; no time left to wait 500 s and try again"
    assert pauses == []


@pytest.mark.parametrize("error", [CallError("no", retry=False), KeyError("a bug")])
def test_other_errors_are_not_retried(pauses, error):
    with pytest.raises(type(error)):
        attempts([error])
    assert pauses == []


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"retry-after": "7"}, 7),
        ({"retry-after": " 1.5 "}, 1.5),
        ({"retry-after-ms": "250", "retry-after": "7"}, 0.25),
        ({"retry-after-ms": "-1"}, 0),
        ({"retry-after": "soon"}, None),
        ({"retry-after-ms": "soon"}, None),
        ({"retry-after": formatdate(time.time() - 50, usegmt=True)}, 0),
    ],
)
def test_retry_after(headers, seconds):
    assert retry_after(headers) == seconds


def test_retry_after_as_a_date_to_come():
    found = retry_after({"retry-after": formatdate(time.time() + 3600, usegmt=True)})
    assert 3000 < found <= 3600
