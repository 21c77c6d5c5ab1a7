"""One retry policy for every call to a server: how long to wait, and when to give up.

The pause doubles from call to call, with jitter so that clients do not return all at once. A server that says
how long to wait (`Retry-After`) is waited for at least that long.
"""

from __future__ import annotations

import email.utils
import random
import time
from collections.abc import Awaitable, Callable, Mapping
from typing import Final, NoReturn, TypeVar

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt, stop_before_delay

T = TypeVar("T")

FIRST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 60.0
LONGEST_RETRY_AFTER: Final = 600.0


class CallError(Exception):
    """A call without a usable reply.

    Args:
        reason: What went wrong, for people.
        retry: Whether calling again may help.
        retry_after: Seconds that the server asked us to wait.
        at_once: Call again without a pause, because the request was at fault and has been changed.

    """

    def __init__(
        self, reason: str, *, retry: bool = True, retry_after: float | None = None, at_once: bool = False
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.retry = retry
        self.retry_after = retry_after
        self.at_once = at_once


async def call_with_retries(
    call: Callable[[], Awaitable[T]], *, retries: int, seconds: float, draw: random.Random
) -> T:
    """The result of `call`, made again after each `CallError` that says so; the last error where none helps.

    At most `retries` times, and no pause begins that would end more than `seconds` after the first call.
    """

    def pause(state: RetryCallState) -> float:
        error = _error(state)
        if error.at_once:
            return 0.0
        full = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (state.attempt_number - 1))
        return max(error.retry_after or 0.0, full * (0.5 + draw.random() / 2))

    def give_up(state: RetryCallState) -> NoReturn:
        error = _error(state)
        if state.attempt_number <= retries:
            error.reason += f"; no time left to wait {state.upcoming_sleep:.0f} s and try again"
        raise error

    async def attempt() -> T:  # tenacity awaits coroutine functions alone
        return await call()

    retrying = AsyncRetrying(
        retry=retry_if_exception(lambda error: isinstance(error, CallError) and error.retry),
        stop=stop_after_attempt(retries + 1) | stop_before_delay(seconds),
        wait=pause,
        retry_error_callback=give_up,
    )
    return await retrying(attempt)


def retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds from `retry-after-ms` or `Retry-After`, which is a number or a date; None without either."""
    try:
        if "retry-after-ms" in headers:
            return max(0.0, float(headers["retry-after-ms"]) / 1000)
        text = headers.get("retry-after")
        if text is None:
            return None
        if text.strip().replace(".", "", 1).isdecimal():
            return float(text)
        return max(0.0, email.utils.parsedate_to_datetime(text).timestamp() - time.time())
    except (ValueError, TypeError, OverflowError):
        return None


def _error(state: RetryCallState) -> CallError:
    error = None if state.outcome is None else state.outcome.exception()
    assert isinstance(error, CallError)  # noqa: S101 (nothing else is retried)
    return error
