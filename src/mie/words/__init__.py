"""What an instruction asks for: its words, and a parser that says what it understood."""

from __future__ import annotations

from mie.words.canonical import canonical
from mie.words.parse import LONGEST, Parse, named_modality, parse
from mie.words.requested import Requested
from mie.words.vocabulary import Vocabulary, vocabulary

__all__ = [
    "LONGEST",
    "Parse",
    "Requested",
    "Vocabulary",
    "canonical",
    "named_modality",
    "parse",
    "vocabulary",
]
