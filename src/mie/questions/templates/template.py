"""What a template is: drafts of questions about views, and what is true of them.

`holds` says of one option whether it is true of the images; of all options exactly one must be. It is asked
when a question is made, which refuses a question with two true options, and when a set is verified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np

from mie.questions.views import View
from mie.records import Pixels

Params: TypeAlias = Mapping[str, Any]
MOST_OPTIONS: Final = 5


@dataclass(frozen=True)
class Draft:
    """One possible question about some views."""

    params: Params  # what `holds` and `value` need beside the views; JSON
    words: Mapping[str, str]  # for the phrasing
    right: str = ""  # of a closed or open question
    wrong: Sequence[str] = ()  # candidates, the better ones first
    fixed: bool = False  # the options keep this order: right first, then wrong, sorted as they are given
    tolerance: float | None = None  # of a number, point or box
    unit: str = ""
    task: str | None = None  # where it differs from the template's
    shown: Sequence[Pixels] | None = field(default=None, repr=False)  # images with marks drawn on them
    subject: str = ""  # what the text names: the answer should not follow from it alone


@dataclass(frozen=True)
class Template:
    """A kind of question, its phrasings, and the rule that gives its key."""

    name: str
    task: str
    kind: str  # "closed", "number", "point" or "box"
    phrasings: tuple[str, ...]
    rule: str  # one sentence for readers: how the key is computed
    # Drafts about one view, or about several of one split (`several`).
    drafts: Callable[[View, np.random.Generator], Iterator[Draft]] | None = None
    several: (
        Callable[[Sequence[View], np.random.Generator], Iterator[tuple[Sequence[View], Draft]]] | None
    ) = None
    holds: Callable[[Sequence[View], Params, str], bool] | None = None
    value: Callable[[Sequence[View], Params], str] | None = None
    opens: bool = False  # may also be asked without options: the answer is a name
    tail: str = ""  # how to answer, behind every phrasing
    # What else a stored image must show (marks that the text speaks of); raises `MieError` where it does not.
    check: Callable[[Sequence[View], Params], None] | None = None


def only_answer(
    template: Template, views: Sequence[View], params: Params, options: Sequence[str]
) -> list[str]:
    """The options that are true of the views."""
    if template.holds is None:
        return []
    return [option for option in options if template.holds(views, params, option)]
