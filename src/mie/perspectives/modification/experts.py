"""The experts of a modification build: inpainters and detectors by family, and a judge that looks at pairs.

Inpainters and detectors are opened once in a process, so that their weights are read but once. The judge, a
language model, says whether the lesion is gone and its place looks like healthy tissue. It is asked about
photographs alone (skin, endoscopy), of which such models have seen many; elsewhere the numbers decide.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final, Protocol

from mie.core.spec import parse_spec
from mie.errors import ConfigError, MieError
from mie.images.families import family_of, nearest_family
from mie.judges.contracts import REPLIED, Answer, Draft, Image, Question, load_prompt
from mie.judges.parsers import yes_no
from mie.perspectives.modification import ModificationConfig
from mie.perspectives.modification.counterfactual import Candidate, Opinion, Slice, Watch, watch
from mie.perspectives.modification.detectors import make_detector
from mie.perspectives.modification.health import check_lesion, painter_of
from mie.perspectives.modification.inpainters import Inpainter, NoExpertError, make_inpainter
from mie.perspectives.modification.lesions import Lesion, place_of
from mie.perspectives.perception.phrasings import listed
from mie.perspectives.perspective import BuildFacts, SourceFacts
from mie.records import Case

PHOTO_LIKE: Final = frozenset({"dermoscopy", "endoscopy"})
_PROMPT: Final = ("lesion_removed", 1)


class Asker(Protocol):
    """What `mie.judges.Judge` offers."""

    def ask(self, drafts: Iterable[Draft]) -> Mapping[str, tuple[Answer, ...]]: ...


def opinion_of(judge: Asker, case: Case, name: str, lesion: Lesion) -> Opinion:
    """The judge's word on candidates of one case, called `name`; a yes to both questions is needed."""
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
        parts = (text, Image(at.image), Image(candidate.image))
        question = Question(prompt, parts, yes_no(2), quotes=(text,))
        key = f"{case.source}/{name}:{candidate.number}"
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
    # No reply is no verdict either way: the build stops, and resumes later with the replies it has.
    raise MieError(
        "the judge cannot be asked",
        where=key,
        found=f"{answer.state}: {answer.reason}",
        fix="run the same command again when the judge can be reached: it resumes where it stopped",
    )


@lru_cache(maxsize=16)
def expert(spec: str, family: str) -> Inpainter:
    """The family's inpainter; `ConfigError` with what to do where its weights are missing."""
    return make_inpainter(spec, family=family)


def experts(given: str | Sequence[str], family: str) -> list[Inpainter]:
    """Those of a recipe's inpainters that know the family; `NoExpertError` where none does."""
    found, unknown = [], []
    for spec in inpainter_specs(given):
        try:
            found.append(expert(spec, family))
        except NoExpertError as error:
            unknown.append(error)
    if not found:
        raise unknown[0]
    return found


def inpainter_specs(given: str | Sequence[str]) -> tuple[str, ...]:
    """A recipe names one inpainter, or several that take turns."""
    return (given,) if isinstance(given, str) else tuple(given)


@lru_cache(maxsize=16)
def watcher(spec: str | tuple[str, ...] | None, family: str, min_sensitivity: float) -> Watch:
    """The family's detector, or several behind each other. Where there is none, that is said in the data."""
    if isinstance(spec, tuple):
        first, *others = (watcher(one, family, min_sensitivity) for one in spec)
        return replace(first, others=tuple(others))
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


def learnt_weights(
    config: ModificationConfig, modalities: Iterable[str], healthy: Iterable[tuple[str, str]] = ()
) -> dict[str, dict[str, str]]:
    """Family -> inpainter, "detector" or "painter" -> SHA-256 of its weights; `ConfigError` where they are
    missing. `healthy`: (modality, lesion) of what is painted into healthy images.

    Other weights make another dataset: a build is not resumed with them, and `dataset.json` names them.
    """
    find = nearest_family if config.allow_nearest else family_of
    found: dict[str, dict[str, str]] = {}
    for family in sorted({name for modality in modalities if (name := find(modality)) is not None}):
        used = experts(config.inpainters, family)
        digests = {one.name: one.weights for one in used if one.weights is not None}
        watch = watcher(config.detector, family, config.min_sensitivity)
        for one in (watch, *watch.others):
            if one.detector is not None:
                # The first has no name of its own here, as in datasets of before there were several.
                name = "detector" if one is watch else f"detector {one.detector.name}"
                digests[name] = one.detector.weights
        found[family] = digests
    for modality, lesion in healthy:
        if (name := find(modality)) is not None:
            painter = painter_of(config.painter, name)
            check_lesion(painter, lesion)
            found[name]["painter"] = painter.weights
    return found


def check_judge(spec: str | None, build: BuildFacts) -> None:
    """Raise, before any image is read, where the judge may not see the images."""
    if spec is not None:
        from mie.judges.clients import open_client
        from mie.privacy.gate import Gate, Policy

        client = open_client(spec)
        if client.remote:
            gate = Gate(Policy(allow_remote=build.allow_remote), client.provider)
            gate.check_consent()
            gate.check_statement(_statement(build))


def open_part_judge(spec: str | None, build: BuildFacts) -> Asker | None:
    """The recipe's judge, its replies in the build's folder: a part that is made again asks nothing twice.

    None where no judge is named, or no data set has images that it would see.
    """
    if spec is None or build.folder is None or not _photographs(build):
        return None
    from mie.judges import JudgeOptions, open_judge

    return build.resources.enter_context(
        open_judge(
            JudgeOptions(spec, allow_remote=build.allow_remote), build.folder, dataset=_statement(build)
        )
    )


def _photographs(build: BuildFacts) -> list[SourceFacts]:
    """The data sets whose images a judge would see."""
    return [source for source in build.sources if nearest_family(source.modality) in PHOTO_LIKE]


def _statement(build: BuildFacts) -> Mapping[str, Any]:
    """What `dataset.json` will say about those who may be recognised in the images."""
    stated = {source.name: source.deidentification() for source in _photographs(build)}
    return {
        "name": build.dataset,
        "deidentified": all(yes for yes, _ in stated.values()),
        "deidentification": {name: reason for name, (_, reason) in stated.items()},
    }
