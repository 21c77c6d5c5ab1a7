"""A language model that looks at a pair: is the lesion gone, and does its place look like healthy tissue?

For photographs (skin, endoscopy), of which such models have seen many. For others the numbers decide.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from mie.core.spec import parse_spec
from mie.datasets.recipe import ModificationConfig, RecipeConfig
from mie.errors import ConfigError, MieError
from mie.images.families import family_of, nearest_family
from mie.judges.contracts import REPLIED, Answer, Draft, Image, Question, load_prompt
from mie.judges.parsers import yes_no
from mie.perspectives.modification.counterfactual import Candidate, Opinion, Slice, Watch, watch
from mie.perspectives.modification.detectors import make_detector
from mie.perspectives.modification.inpainters import Inpainter, make_inpainter
from mie.perspectives.modification.lesions import Lesion, place_of
from mie.perspectives.perception.phrasings import listed
from mie.records import Case, Unit
from mie.sources.catalog import Entry, deidentification

if TYPE_CHECKING:
    from mie.judges import Judge

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


# Inpainters and detectors by family, opened once in a process: their weights are read but once.


@lru_cache(maxsize=16)
def expert(spec: str, family: str) -> Inpainter:
    """The family's inpainter; `ConfigError` with what to do where its weights are missing."""
    return make_inpainter(spec, family=family)


def inpainter_specs(given: str | Sequence[str]) -> tuple[str, ...]:
    """A recipe names one inpainter, or several that take turns."""
    return (given,) if isinstance(given, str) else tuple(given)


@lru_cache(maxsize=16)
def watcher(spec: str | None, family: str, min_sensitivity: float) -> Watch:
    """The family's detector. Where there is none, that is said in the data, not passed over."""
    if spec is None:
        return watch(None, min_sensitivity=min_sensitivity)
    try:
        return watch(make_detector(spec, family=family), min_sensitivity=min_sensitivity)
    except ConfigError as error:
        if parse_spec(spec, noun="detector").argument is not None:
            raise  # the user's own model
        reason = f"no detector {spec!r} for {family}: {error.what}"
        return watch(None, min_sensitivity=min_sensitivity, reason=reason)


@contextmanager
def one_thread() -> Iterator[None]:
    """One thread for torch, where it is loaded: sums in another order would be other bytes."""
    torch = sys.modules.get("torch")
    if torch is None:
        yield
        return
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


# What a modification build needs besides its recipe: experts that are there, a judge that may be asked.

# A data set, where it lies, and its units.
Listed = tuple[Entry, Path, Iterable[Unit]]


def learnt_weights(config: RecipeConfig, entries: Iterable[Entry]) -> dict[str, dict[str, str]]:
    """Family -> inpainter or "detector" -> SHA-256 of its weights; `ConfigError` where they are missing.

    Another file of weights is another dataset: a build does not go on with it, and `dataset.json` names it.
    """
    recipe = config.recipe
    if not isinstance(recipe, ModificationConfig):
        return {}

    find = nearest_family if recipe.allow_nearest else family_of
    found: dict[str, dict[str, str]] = {}
    for family in sorted({name for entry in entries if (name := find(entry.modality)) is not None}):
        used = [expert(spec, family) for spec in inpainter_specs(recipe.inpainter)]
        digests = {one.name: one.weights for one in used if one.weights is not None}
        detector = watcher(recipe.detector, family, recipe.min_sensitivity).detector
        found[family] = digests if detector is None else {**digests, "detector": detector.weights}
    return found


def check_judge(config: RecipeConfig, sources: Iterable[Listed]) -> None:
    """Before any image is read: a judge that may not see the images is refused."""
    recipe = config.recipe
    if isinstance(recipe, ModificationConfig) and recipe.judge is not None:
        from mie.judges.clients import open_client
        from mie.judges.judge import check_may_leave

        check_may_leave(open_client(recipe.judge), _statement(config, sources), acknowledged=False)


@contextmanager
def part_judge(config: RecipeConfig, sources: Iterable[Listed], folder: Path) -> Iterator[Judge | None]:
    """The recipe's judge with its replies in `folder`, so that a part made again asks nothing twice."""
    recipe = config.recipe
    spec = recipe.judge if isinstance(recipe, ModificationConfig) else None
    listed = [] if spec is None else _photographs(sources)
    if spec is None or not listed:
        yield None
        return
    from mie.judges import JudgeOptions, open_judge

    with open_judge(JudgeOptions(spec), folder, dataset=_statement(config, listed)) as judge:
        yield judge


def _photographs(sources: Iterable[Listed]) -> list[Listed]:
    """The data sets whose images a judge would see."""
    return [item for item in sources if nearest_family(item[0].modality) in PHOTO_LIKE]


def _statement(config: RecipeConfig, sources: Iterable[Listed]) -> Mapping[str, Any]:
    """What `dataset.json` will say about those who may be recognised in the images."""
    stated = {
        entry.name: deidentification(entry, root, units) for entry, root, units in _photographs(sources)
    }
    return {
        "name": config.name,
        "deidentified": all(yes for yes, _ in stated.values()),
        "deidentification": {name: reason for name, (_, reason) in stated.items()},
    }
