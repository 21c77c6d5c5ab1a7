"""Run by the tests in a process of its own: `kill.py OUT KILLS SEED` trains in children and kills them.

Torch is imported once; a child is forked for each sitting, before torch has any thread.
"""

import os
import random
import signal
import sys
import time
from pathlib import Path

from mie.training.loop import train
from tests.training.tiny import tiny_config

CHANGES = {"steps": 60, "checkpoint": {"every": 7}, "validate": {"every": 15}, "log_every": 4}


def sitting(out: Path) -> int:
    child = os.fork()
    if child == 0:
        train(tiny_config(**CHANGES), out, device="cpu")
        os._exit(0)
    return child


if __name__ == "__main__":
    out, kills, draw = Path(sys.argv[1]), int(sys.argv[2]), random.Random(int(sys.argv[3]))
    landed = 0
    while landed < kills and not (out / "weights.safetensors").exists():
        child = sitting(out)
        if landed % 2 == 0:  # once a validation more is done
            wanted = len(list(out.glob("grids/*"))) + 1
            while len(list(out.glob("grids/*"))) < wanted and os.waitpid(child, os.WNOHANG) == (0, 0):
                time.sleep(0.002)
        time.sleep(draw.uniform(0, 0.03 if landed % 2 == 0 else 0.5))
        try:
            os.kill(child, signal.SIGKILL)
            _, status = os.waitpid(child, 0)
            landed += os.WIFSIGNALED(status)
        except (ProcessLookupError, ChildProcessError):
            break
    _, status = os.waitpid(sitting(out), 0)
    print(landed)
    sys.exit(os.waitstatus_to_exitcode(status))
