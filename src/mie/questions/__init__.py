"""Questions about medical images: records, a store, templates that masks prove, curation, formats.

    questions = build_questions(read_question_recipe(Path("recipe.yaml")), "out/questions")
    verify_questions("out/questions").ok
    questions.filter(task="LL")[0].images[0].pixels

What builds, proves and converts is loaded at its first use.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any, Final

from mie.questions.record import KINDS, PHASES, TASKS, Question, QuestionImage, QuestionMask, Task, phase_of
from mie.questions.store import QuestionSet

if TYPE_CHECKING:
    from mie.questions.build import build_questions
    from mie.questions.formats import export_questions, import_questions
    from mie.questions.proof import verify_questions
    from mie.questions.recipe import read_question_recipe
    from mie.questions.stats import question_stats

_LATER: Final = {
    "build_questions": "mie.questions.build",
    "export_questions": "mie.questions.formats",
    "import_questions": "mie.questions.formats",
    "question_stats": "mie.questions.stats",
    "read_question_recipe": "mie.questions.recipe",
    "verify_questions": "mie.questions.proof",
}

__all__ = [
    "KINDS",
    "PHASES",
    "TASKS",
    "Question",
    "QuestionImage",
    "QuestionMask",
    "QuestionSet",
    "Task",
    "build_questions",
    "export_questions",
    "import_questions",
    "phase_of",
    "question_stats",
    "read_question_recipe",
    "verify_questions",
]


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module 'mie.questions' has no attribute {name!r}")
    return getattr(importlib.import_module(_LATER[name]), name)
