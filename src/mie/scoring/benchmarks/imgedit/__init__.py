"""ImgEdit-Bench: three grades by a judge for each edit, a hard suite, and conversations.

`imgedit@1` over everything is the mean over kinds of edit (macro); `micro` beside it is that over samples.
"""

from __future__ import annotations

from typing import Final

from mie.scoring.benchmarks import Benchmark, Board, Column
from mie.scoring.metric import GRADES, SHARE, Metric

# The kinds of edit, in the order of the leaderboard.
TYPES: Final = (
    "add",
    "adjust",
    "extract",
    "replace",
    "remove",
    "background",
    "style",
    "compose",
    "action",
)
CRITERIA: Final = ("adherence", "quality", "preservation")
# What is asked about each turn of a conversation.
CONVERSATION: Final = ("memory", "understanding", "backtracking")
_JUDGE: Final = {"judge"}


def _grade(name: str, label: str, meaning: str) -> Metric:
    return Metric(name, label, meaning, decimals=2, needs=_JUDGE, scale=GRADES)


BENCHMARK: Final = Benchmark(
    name="imgedit",
    version=2,
    title="ImgEdit",
    meaning="instruction adherence, quality and preservation, graded by a judge",
    metrics=(
        _grade("imgedit", "Overall", "mean over the kinds of edit"),
        *(_grade(name, name.capitalize(), "as given, before the cap") for name in CRITERIA),
        _grade("uge", "Hard suite", "one score, 1 to 5"),
        *(
            Metric(
                name,
                name.capitalize(),
                "conversations, share of yes",
                decimals=2,
                needs=_JUDGE,
                scale=SHARE,
                binary=True,
            )
            for name in CONVERSATION
        ),
    ),
    columns=("params", "group", "turn"),
    measure="mie.scoring.benchmarks.imgedit.score:measure",
    questions="mie.scoring.benchmarks.imgedit.judge:QUESTIONS",
    aggregate="mie.scoring.benchmarks.imgedit.score:aggregate",
    groups=("suite", "edit_type", "turn", "dialogue"),
    partitions=("suite", "edit_type", "turn", "modality", "source"),
    tables="mie.scoring.benchmarks.imgedit.score:tables",
    published="mie.scoring.benchmarks.imgedit.score:PUBLISHED",
    boards=(
        Board(
            "Basic suite by kind of edit, 1 to 5, first attempt",
            (*TYPES, "imgedit"),
            spread=("imgedit", "edit_type"),
        ),
        Board("Criteria, hard suite, conversations", (*CRITERIA, "uge", *CONVERSATION)),
    ),
    model_columns=(
        *(Column("imgedit", ("edit_type", kind), kind.capitalize()) for kind in TYPES),
        Column("imgedit"),
    ),
    main=("imgedit",),
    curves=CONVERSATION,
    same_scale=frozenset({"imgedit"}),
    people={"memory": "content_memory", "understanding": "understanding", "backtracking": "backtracking"},
    importer="mie.scoring.benchmarks.imgedit.importer:read",
)
