"""From candidates to a set: domain, duplicates, one-sided answers, clusters, and what a blind guess answers.

Every step says how many questions it left, in `questions.json`, for the funnel.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from mie.core.allocation import allocate_equally
from mie.core.hashing import stable_hash
from mie.datasets.choose import clusters, unit
from mie.images.hashes import near_pairs
from mie.questions.label import agreement, label_task
from mie.questions.recipe import CurateConfig
from mie.records import Rejection

_WORDS: Final = 128  # dimensions of a sentence
_FOLDS: Final = 5
_BLIND_SHARE: Final = 0.6  # of other patients' questions that had the guessed answer
_BLIND_LEAST: Final = 5  # such questions
_POSITIONS: Final = ("Image ", "Box ")  # answers that name a place among the images, which is drawn
_FEW: Final = 4  # of one answer are kept, however one-sided the rest is
# Words by which a question without a label tells the part of the body that it is about.
_PARTS: Final[dict[str, str]] = {
    "brain": r"brain|cerebr|cranial|neuro|glioma|mening|ventric(le|ular) system|stroke|haemorrhage|"
    r"hemorrhage|head|cortex|thalam|hippocamp|pituitary|multiple sclerosis|white matter|"
    r"grey matter|gray matter",
    "chest": r"chest|lung|pulmonary|thora|pleura",
    "abdomen": r"abdom|liver|hepat|kidney|renal|spleen|pancrea|bowel|colon|stomach|gastr",
    "retina": r"retina|fundus|optic disc|macula|ocular|eye\b",
    "skin": r"skin|derm|melanoma|naev|nev(us|i)",
    "breast": r"breast|mammo",
    "heart": r"heart|cardiac|ventricular cavity|myocard|atri(um|al)|aort",
}
_DOMAINS: Final = {name: re.compile(rule, re.IGNORECASE) for name, rule in _PARTS.items()}

Line = Mapping[str, Any]  # one line of a part's index


@dataclass(frozen=True, slots=True)
class Curation:
    """What is kept, what became of the rest, and the counts of each step."""

    kept: list[int]  # places among the candidates
    blind: set[int]  # places of those that a blind guess answers
    rejections: list[Rejection]
    funnel: list[dict[str, Any]]


@dataclass
class _State:
    lines: Sequence[Line]
    left: list[int]
    rejections: list[Rejection] = field(default_factory=list)
    funnel: list[dict[str, Any]] = field(default_factory=list)

    def drop(self, gone: Mapping[int, str], gate: str) -> None:
        for at in sorted(gone):
            line = self.lines[at]
            numbers = {"id": line["id"], "template": line["template"]}
            self.rejections.append(Rejection(line["source"], line["case_id"], gate, gone[at], None, numbers))
        self.left = [at for at in self.left if at not in gone]

    def note(self, step: str, text: str) -> None:
        self.funnel.append({"step": step, "questions": len(self.left), "note": text})


def curate(
    lines: Sequence[Line],
    images: Mapping[str, Line],
    leaks: Mapping[str, Rejection],
    config: CurateConfig,
    seed: int,
) -> Curation:
    """Decide which candidates are kept.

    Args:
        lines: The candidates, in the order of the build.
        images: What is known of each image (hash, thumbnail, split), by key.
        leaks: Images that must go, by key, with the reason.
        config: The recipe's `curate:`.
        seed: Of the build.

    """
    state = _State(lines, list(range(len(lines))))
    state.note("candidates", "questions whose evidence is sound")
    state.drop(
        {
            at: next(leaks[key].reason for key in lines[at]["cases"] if key in leaks)
            for at in state.left
            if any(key in leaks for key in lines[at]["cases"])
        },
        "leak",
    )
    state.note("splits", "without images or patients that are on two sides of a split, or twice there")
    state.drop(_outside(state, config.domain), "domain")
    state.note("domain", f"about {', '.join(config.domain)}" if config.domain else "every part of the body")
    state.drop(_exact(state), "duplicate")
    state.note("duplicates", "without the same question about the same pixels")
    if config.near_duplicates:
        state.drop(_near(state, images), "duplicate")
    state.note("near duplicates", "without the same question about nearly equal images")
    agreed = agreement(
        [lines[at]["task"] for at in state.left], [label_task(lines[at]["text"]) for at in state.left]
    )
    told = (
        f"{agreed['agree']:.0%} of the words lead to the same task (kappa {agreed['kappa']:.2f})"
        if agreed["questions"]
        else "no task is told by the words"
    )
    state.note("task labels", told)
    state.drop(_one_sided(state, config.most_same_answer, seed), "answers")
    state.note("answers", f"at most {config.most_same_answer:.0%} of a template and subject with one answer")
    state.drop(_guessable(state, config, seed), "options")
    state.note(
        "options",
        f"no option of a template is right over {config.most_above_chance:g} times as often as by chance",
    )
    state.drop(_beyond_quota(state, images, config), "cluster")
    state.note("clusters", f"the nearest to the centre of each cluster, {config.keep or 'all'} in all")
    blind = _blind(state) if config.blind != "off" else set()
    if config.blind == "refuse":
        state.drop(dict.fromkeys(blind, "a blind guess from other patients' answers is right"), "blind")
        blind = set()
    marked = f"{len(blind)} marked" if config.blind == "mark" else config.blind
    state.note("blind", f"questions that a guess without the image answers: {marked}")
    return Curation(state.left, blind & set(state.left), state.rejections, state.funnel)


def in_domain(text: str, anatomy: str, domain: Sequence[str]) -> bool:
    """Whether a question is about one of the parts of the body, by its label or by its words."""
    if not domain or anatomy in domain:
        return True
    rules = [
        _DOMAINS[name] if name in _DOMAINS else re.compile(re.escape(name), re.IGNORECASE) for name in domain
    ]
    if anatomy not in ("", "unknown"):
        return any(rule.search(anatomy) for rule in rules)
    return any(rule.search(text) for rule in rules)


def _outside(state: _State, domain: Sequence[str]) -> dict[int, str]:
    gone = {}
    for at in state.left:
        line = state.lines[at]
        words = " ".join((line["text"], *(line["options"] or ()), line["answer"]))
        if not in_domain(words, line["anatomy"], domain):
            gone[at] = f"about {line['anatomy']}, expected {', '.join(domain)}"
    return gone


def _exact(state: _State) -> dict[int, str]:
    first: dict[str, int] = {}
    gone = {}
    for at in state.left:
        other = first.setdefault(state.lines[at]["content"], at)
        if other != at:
            gone[at] = f"the same question as {state.lines[other]['id']}"
    return gone


def _near(state: _State, images: Mapping[str, Line]) -> dict[int, str]:
    """Questions of one template, subject and answer about images that are nearly equal."""
    stands_for = _representatives(images)
    first: dict[tuple[Any, ...], int] = {}
    gone = {}
    for at in state.left:
        line = state.lines[at]
        cases = tuple(stands_for.get(key, key) for key in line["cases"])
        said = line["template"] or " ".join(line["text"].casefold().split())
        key = (line["split"], said, line["subject"], line["kind"], line["answer"], cases)
        other = first.setdefault(key, at)
        if other != at and state.lines[other]["cases"] != line["cases"]:
            gone[at] = f"nearly the same question as {state.lines[other]['id']}"
    return gone


def _representatives(images: Mapping[str, Line]) -> dict[str, str]:
    """Each image -> the first of those that nearly equal it, in its split."""
    found: dict[str, str] = {}
    by_split: dict[str, list[str]] = defaultdict(list)
    for key in sorted(images):
        by_split[images[key]["split"]].append(key)
    for keys in by_split.values():
        hashes = np.array([images[key]["hash"] for key in keys], np.uint64)
        thumbs = np.frombuffer(b"".join(images[key]["thumb"] for key in keys), np.uint8).reshape(-1, 256)
        for a, b in near_pairs(hashes, thumbs, hashes, thumbs):
            if a < b:
                found.setdefault(keys[b], found.get(keys[a], keys[a]))
    return found


def _one_sided(state: _State, most: float, seed: int) -> dict[int, str]:
    """Answers that a template gives too often for one subject: who reads no image would know them."""
    groups: dict[tuple[str, str, str], dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for at in state.left:
        line = state.lines[at]
        if (
            line["kind"] in ("closed", "open")
            and not line["answer"].startswith(_POSITIONS)
            and line["template"]
        ):
            groups[line["split"], line["template"], line["subject"]][line["answer"]].append(at)
    gone = {}
    for (_, template, subject), answers in groups.items():
        total = sum(map(len, answers.values()))
        for answer, places in answers.items():
            allowed = max(_FEW, int((total - len(places)) * most / (1 - most))) if most < 1 else total
            order = sorted(places, key=lambda at: stable_hash("answers", seed, state.lines[at]["id"]))
            for at in order[allowed:]:
                gone[at] = f"{template} about {subject or 'any image'} has the answer {answer!r} too often"
    return gone


def _guessable(state: _State, config: CurateConfig, seed: int) -> dict[int, str]:
    """Answers that are right too often where they are offered: who knows this needs no image.

    Of one template, an option may be the key in at most `most_above_chance / options` of the questions that
    offer it, and never in more than `most_same_answer`. The answer that is furthest above goes first, since
    every question that goes also takes wrong options with it.
    """
    groups: dict[tuple[str, str], list[int]] = defaultdict(list)
    for at in state.left:
        line = state.lines[at]
        if line["kind"] == "closed" and line["template"] and not line["answer"].startswith(_POSITIONS):
            groups[line["split"], line["template"]].append(at)
    gone: dict[int, str] = {}
    for (_, template), places in groups.items():
        keys: dict[str, list[int]] = defaultdict(list)
        offered: Counter[str] = Counter()
        for at in sorted(places, key=lambda at: stable_hash("options", seed, state.lines[at]["id"])):
            keys[state.lines[at]["answer"]].append(at)
            offered.update(state.lines[at]["options"])
        while True:
            above = {answer: _above(state, found, offered[answer], config) for answer, found in keys.items()}
            answer = max(sorted(above), key=lambda answer: above[answer][0])
            if above[answer][0] <= 1:
                break
            allowed = above[answer][1]
            for at in keys[answer][allowed:]:
                gone[at] = f"{template} has the answer {answer!r} too often where it is offered"
                offered.subtract(state.lines[at]["options"])
            del keys[answer][allowed:]
    return gone


def _above(state: _State, places: Sequence[int], offered: int, config: CurateConfig) -> tuple[float, int]:
    """(How many times too often an answer is the key, how often it may be)."""
    options = sum(len(state.lines[at]["options"]) for at in places) / len(places)
    share = min(config.most_same_answer, config.most_above_chance / options)
    if share >= 1:
        return 0.0, len(places)
    allowed = max(_FEW, int(share * (offered - len(places)) / (1 - share)))
    return len(places) / allowed, allowed


def features_of(lines: Sequence[Line], images: Mapping[str, Line]) -> NDArray[np.float32]:
    """Sentence and image of each question as one vector: hashed words beside a thumbnail, equal in weight."""
    blank = bytes(256)
    thumbs = b"".join(
        images[line["cases"][0]]["thumb"] if line["cases"] and line["cases"][0] in images else blank
        for line in lines
    )
    pictures = unit(np.frombuffer(thumbs, np.uint8).reshape(-1, 256))
    sentences = np.zeros((len(lines), _WORDS), np.float32)
    places: dict[str, tuple[int, float]] = {}
    for row, line in enumerate(lines):
        for word in re.findall(r"\w+", line["text"].casefold()):
            if word not in places:
                value = stable_hash("word", word)
                places[word] = value % _WORDS, 1.0 if value >> 63 else -1.0
            at, sign = places[word]
            sentences[row, at] += sign
    sentences /= np.maximum(np.linalg.norm(sentences, axis=1, keepdims=True), 1e-6)
    return np.concatenate([pictures, sentences], axis=1)


def _beyond_quota(state: _State, images: Mapping[str, Line], config: CurateConfig) -> dict[int, str]:
    if config.keep is None or config.keep >= len(state.left):
        return {}
    groups: dict[tuple[str, ...], list[int]] = defaultdict(list)
    for at in state.left:
        line = state.lines[at]
        groups[tuple(str(line[name]) for name in config.strata)].append(at)
    wanted = allocate_equally({name: len(groups[name]) for name in sorted(groups)}, config.keep)
    gone = {}
    for name, places in groups.items():
        kept = set(_nearest_to_centres([state.lines[at] for at in places], images, wanted[name]))
        for number, at in enumerate(places):
            if number not in kept:
                gone[at] = f"another question of its cluster is nearer to the centre ({', '.join(name)})"
    return gone


def _nearest_to_centres(lines: Sequence[Line], images: Mapping[str, Line], count: int) -> list[int]:
    """One question of each of `count` clusters."""
    if count >= len(lines):
        return list(range(len(lines)))
    if not count:
        return []
    labels, distances = clusters(features_of(lines, images), count)
    order = sorted(range(len(lines)), key=lambda at: (int(labels[at]), float(distances[at]), at))
    first: dict[int, int] = {}
    for at in order:
        first.setdefault(int(labels[at]), at)
    chosen = list(first.values())
    # Equal features leave clusters without a member: the nearest of the rest fill them.
    taken = set(chosen)
    rest = sorted(
        (at for at in range(len(lines)) if at not in taken), key=lambda at: (float(distances[at]), at)
    )
    return chosen + rest[: count - len(chosen)]


def _blind(state: _State) -> set[int]:
    """Places of closed questions whose answer other patients' questions give away."""
    seen: dict[tuple[str, str], list[Counter[str]]] = defaultdict(lambda: [Counter() for _ in range(_FOLDS)])
    folds = {}
    for at in state.left:
        line = state.lines[at]
        who = line["patient_id"] or f"{line['source']}//{line['case_id']}"
        folds[at] = stable_hash("fold", who) % _FOLDS
        if line["kind"] == "closed":
            seen[line["template"], line["subject"]][folds[at]][line["answer"]] += 1
    blind = set()
    for at in state.left:
        line = state.lines[at]
        if line["kind"] != "closed":
            continue
        counts: Counter[str] = Counter()
        for fold, answers in enumerate(seen[line["template"], line["subject"]]):
            if fold != folds[at]:
                counts.update({option: answers[option] for option in line["options"]})
        total = counts.total()
        guess, times = max(sorted(counts.items()), key=lambda item: item[1], default=("", 0))
        if total >= _BLIND_LEAST and times >= _BLIND_SHARE * total and guess == line["answer"]:
            blind.add(at)
    return blind
