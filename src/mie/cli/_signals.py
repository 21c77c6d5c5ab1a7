"""Signals that end a command in order."""

from __future__ import annotations

import signal
import sys
from types import FrameType


def end_in_order() -> None:
    """End on SIGTERM (a scheduler) and SIGHUP (a closed terminal) as on Ctrl-C.

    What is finished is recorded, programs that were started are ended, temporary images are removed. A
    SIGHUP that is ignored, as under `nohup`, stays ignored.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)
