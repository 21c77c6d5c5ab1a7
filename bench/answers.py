"""Answers to questions: how fast they are scored, and how near a run comes to what its connections allow.

    python -m bench.answers [--scored 100000] [--asked 20000] [--concurrency 16]

The model is a server on this machine that waits 50 ms. What its connections allow is one answer per connection
and 50 ms; the ratio to it is printed. Scoring is timed against reading and writing the same lines as JSON.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from pathlib import Path

from bench import title  # type: ignore[attr-defined]
