"""Numbers from a language model that sees images: prompts, clients, one executor, strict parsers."""

from __future__ import annotations

from mie.judges.contracts import (
    Answer,
    Draft,
    Image,
    JudgeOptions,
    ParseError,
    Prompt,
    Question,
    load_prompt,
)
from mie.judges.judge import Combined, Judge, combine, open_judge
from mie.judges.prompt_sets import PromptSet, open_prompts

__all__ = [
    "Answer",
    "Combined",
    "Draft",
    "Image",
    "Judge",
    "JudgeOptions",
    "ParseError",
    "Prompt",
    "PromptSet",
    "Question",
    "combine",
    "load_prompt",
    "open_judge",
    "open_prompts",
]
