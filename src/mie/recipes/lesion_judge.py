"""A language model that looks at a pair: is the lesion gone, and does its place look like healthy tissue?

For photographs (skin, endoscopy), of which such models have seen many. For others the numbers decide.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

from mie.errors import MieError
from mie.judges.contracts import REPLIED, Answer, Draft, Image, Question
from mie.judges.parsers import yes_no
from mie.judges.prompts import load_prompt
from mie.recipes.counterfactual import Candidate, Opinion, Slice
from mie.recipes.lesions import Lesion
from mie.recipes.location import place_of
from mie.recipes.phrasings import listed
from mie.records import Case

PHOTO_LIKE: Final = frozenset({"dermoscopy", "endoscopy"})
_PROMPT: Final = ("lesion_removed", 1)


class Asker(Protocol):
    """What `mie.judges.Judge` offers."""

    def ask(self, drafts: Iterable[Draft]) -> Mapping[str, tuple[Answer, ...]]: ...


def opinion_of(judge: Asker, case: Case, lesion: Lesion) -> Opinion:
    """The judge's word on candidates of one case; a yes to both questions is needed."""
    prompt = load_prompt(*_PROMPT)

    def opinion(at: Slice, candidate: Candidate) -> tuple[str, str] | None:
        place = place_of(
            lesion.mask, at.body, family="", anatomy=case.anatomy, plane=None
        )  # sides of the image, which is what the model sees
        text = prompt.fill(
            lesion=listed([target.name for target in lesion.spoken]),
            location=place.location,
            anatomy=case.anatomy,
            modality=case.modality,
        )
        question = Question(prompt, (text, Image(at.image), Image(candidate.image)), yes_no(2))
        key = f"{case.source}/{case.case_id}:{candidate.number}"
        sizes = (at.image.shape[:2], candidate.image.shape[:2])
        (answer,) = judge.ask([Draft(key, lambda: question, prompt, sizes, len(text))])[key]
        return _verdict(answer, candidate, key)

    return opinion


def _verdict(answer: Answer, candidate: Candidate, key: str) -> tuple[str, str] | None:
    if answer.done:
        gone, natural = answer.value
        candidate.numbers["judge"] = {"gone": gone, "natural": natural, "model": answer.model}
        if gone and natural:
            return None
        wrong = [
            said
            for ok, said in ((gone, "something of the lesion is left"), (natural, "the fill looks unnatural"))
            if not ok
        ]
        return "judge", f"the judge says: {' and '.join(wrong)}"
    if answer.state in REPLIED:
        candidate.numbers["judge"] = {"state": answer.state, "model": answer.model}
        return "judge", f"the judge gave no verdict ({answer.state}): {answer.reason}"
    # No reply is no verdict either way: the build stops, and goes on later with the replies it has.
    raise MieError(
        "the judge cannot be asked",
        where=key,
        found=f"{answer.state}: {answer.reason}",
        fix="run the same command again when the judge can be reached: it goes on where it stopped",
    )
