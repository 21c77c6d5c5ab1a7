"""Questions about medical images: records, a store, templates that masks prove, curation, formats."""

from mie.questions.record import KINDS, PHASES, TASKS, Question, QuestionImage, QuestionMask, Task, phase_of
from mie.questions.store import QuestionSet

__all__ = [
    "KINDS",
    "PHASES",
    "TASKS",
    "Question",
    "QuestionImage",
    "QuestionMask",
    "QuestionSet",
    "Task",
    "phase_of",
]
