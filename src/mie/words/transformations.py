"""Which transformation a text asks for: by the words that name it, the modality, and where it is to lead."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Final, NamedTuple

from mie.words.mentions import COMMAS, ENDS, Mention, Scan
from mie.words.vocabulary import vocabulary, word_set

_SURE: Final = 3  # weight of a phrase that names a transformation, beside 1 of a hint
_BEFORE_GOAL: Final = word_set(
    "into to as on like missing synthetic matching corresponding no zu ins als en vers como a 成 为"
)
_SOURCE: Final = word_set("this from instead only have dieses diesem aus statt cette depuis esta desde 这")
_FROM: Final = word_set("from aus depuis desde 从")
_TRANSFER: Final = word_set(
    "turn convert synth synthesize synthesise translate generate predict render make show change "
    "give estimate look switch transform get need want wandle erzeuge mach convertis transforme "
    "convierte transforma 转换 转 变 生"
)
_WISHES: Final = word_set("need want give get prefer brauche veux quiero")
_NUMBER: Final = r"(-?\d+(?:\.\d+)?)"
_LEVEL: Final = re.compile(
    rf"\b(?:wl|level|l|c|cent(?:er|re)(?:ed|d)?(?: at)?|niveau|nivel|zentrum|窗位)\s*[:=]?\s*{_NUMBER}",
    re.IGNORECASE,
)
_WIDTH: Final = re.compile(
    rf"\b(?:ww|width|w|breite|largeur|ancho)\s*[:=]?\s*{_NUMBER}|{_NUMBER}\s*wide", re.IGNORECASE
)
_SLASH: Final = re.compile(rf"\bww?\s*/\s*w?l\s*[:=]?\s*{_NUMBER}\s*/\s*{_NUMBER}", re.IGNORECASE)
_FACTOR: Final = re.compile(
    rf"(?:factor(?: of)?|acceleration(?: factor)?|accelerated|undersampled by|x|1/)\s*{_NUMBER}\b"
    rf"|{_NUMBER}\s*(?:x\b|-?fold|times|mal\b|倍)",
    re.IGNORECASE,
)
_VIEWS: Final = re.compile(rf"{_NUMBER}[ -]*(?:views?|projections?)", re.IGNORECASE)
_ARTIFACTS: Final = "dermoscopy_artifacts"


class Wish(NamedTuple):
    """A transformation; `key` is None where the words fit several, whose names are `choices`."""

    key: str | None
    task: str
    attributes: dict[str, str]
    note: str | None = None
    choices: tuple[str, ...] = ()


def wished(found: Scan, modality: str | None) -> Wish | None:
    """Return the transformation that a text asks for; None where it asks for none."""
    transfer = _transfer(found)
    if transfer is not None:
        return transfer
    known = vocabulary().transformations
    scores: Counter[str] = Counter()
    for kind, weight in (("sure", _SURE), ("hint", 1)):
        for mention in found.all_of(kind):
            if not _stays(mention) and not _is_another_change(found, mention):
                scores.update({sense.value: weight for sense in mention.of(kind)})
    if not scores:
        return None
    fitting = {k: v for k, v in scores.items() if modality is None or modality in known[k].modalities}
    if not fitting:
        names = ", ".join(sorted({known[k].name for k in scores}))
        best = max(scores, key=lambda k: scores[k])
        return Wish(None, known[best].task, {}, f"{names}: not for {modality}")
    top = max(fitting.values())
    best_keys = [key for key, score in fitting.items() if score == top]
    if len(best_keys) == 1:
        key = best_keys[0]
        return Wish(key, known[key].task, _attributes(key, found))
    tasks = {known[key].task for key in best_keys}
    choices = tuple(known[key].name for key in best_keys)
    task = tasks.pop() if len(tasks) == 1 else known[best_keys[0]].task
    note = f"this may mean one of: {', '.join(choices)}; say which, or give the modality"
    return Wish(None, task, {}, note, choices)


def _stays(mention: Mention) -> bool:
    """Whether it is ruled out: "keep the hairs"; but "keep the sharp kernel's detail" names a kernel."""
    return mention.excepted or (mention.kept and mention.says("sure", _ARTIFACTS))


def _is_another_change(found: Scan, mention: Mention) -> bool:
    """Whether it is a verb that asks for what no editor does: "blur the face" is no blurry image."""
    before = found.covering[mention.first - 1] if mention.first else None
    sign = mention.first > 0 and found.words[mention.first - 1] in ENDS | COMMAS
    heads = not mention.first or sign or (before is not None and before.says("address"))
    return heads and "other" in mention.operations


def _transfer(found: Scan) -> Wish | None:
    """A modality, sequence or contrast phase that the image is to become."""
    images = [m for m in found.all_of("image") if not m.kept]
    if (
        not images
        or "put" in found.words[: images[-1].first]
        or (
            not _arrow(found, images)
            and not _TRANSFER & set(found.words)
            and not any(m.says("operation", "none") for m in found.mentions)
        )
    ):
        return None
    kinds = vocabulary().images
    for kind in ("phase", "sequence"):
        special = [m for m in images if kinds[_image(m)] == kind]
        if special:
            goal, source = _two(found, special)
            if goal is not None:
                break
            if kind == "phase":
                continue
            return None if len(images) == len(special) else _modal(found, images)
    else:
        return _modal(found, images)
    attributes = {"goal": goal, **({"source": source} if source else {})}
    if kind == "phase":
        return Wish("ct_phase", "contrast", attributes)
    return Wish("mri_sequence", "modality transfer", attributes)


def _arrow(found: Scan, images: list[Mention]) -> bool:
    """Whether it reads "CT to MRI"."""
    return any(
        found.words[one.last : other.first]
        in (["to"], ["to", "a"], ["to", "the"], ["zu"], ["vers"], ["into"])
        for one, other in itertools.pairwise(images)
    )


def _modal(found: Scan, images: list[Mention]) -> Wish | None:
    goal, source = _two(found, images)
    if goal is None or goal == source:
        return None
    attributes = {"goal": goal, **({"source": source} if source else {})}
    if goal == "PET":
        return Wish("mri_pet", "modality transfer", attributes)
    if vocabulary().images[goal] == "sequence":
        return Wish("mri_sequence", "modality transfer", attributes)
    if goal in ("CT", "MRI") and source not in ("PET",):
        return Wish("ct_mri", "modality transfer", attributes)
    return None


def _is_wished(mention: Mention) -> bool:
    """Whether it is a phase or a sequence, which an image may be wished in: "I need the venous phase"."""
    return vocabulary().images[_image(mention)] in ("phase", "sequence")


def _image(mention: Mention) -> str:
    return mention.of("image")[0].value


def _two(found: Scan, images: list[Mention]) -> tuple[str | None, str | None]:
    """Return (goal, source). Words before a mention tell which it is; of two, one tells the other."""
    goals, sources, neither = [], [], []
    derived = any(_FROM & set(found.before(m.first, 2)) for m in images)
    for mention in images:
        before = found.words[max(found.starts[mention.first], mention.first - 3) : mention.first]
        near = [w for w in before if w in _BEFORE_GOAL or w in _SOURCE]
        last = near[-1] if near else ""
        follows = found.after(mention.last, 5)
        if found.before(mention.first, 2)[:1] == ["in"] and found.before(mention.first) in (
            ["ein"],
            ["eine"],
            ["einen"],
        ):
            last = "into"
        acquired = {"acquired", "done"} & set(follows)
        if derived and last == "this" and len(images) > 1 and not {"from", "to", "into"} & set(before):
            goals.append(_image(mention))  # "make this T2 from T1"
        elif last in _SOURCE and not acquired:
            sources.append(_image(mention))
        elif last in _BEFORE_GOAL or acquired:
            goals.append(_image(mention))
        else:
            neither.append(_image(mention))
    goals += [] if goals else [name for name in neither if name not in sources][:1]
    sources += [name for name in neither if name not in goals]
    goal = goals[-1] if goals else None
    source = next((name for name in sources if name != goal), None)
    if (
        goal is not None
        and not sources
        and len(images) == 1
        and neither
        and not {"would", "like"} <= set(found.words)
        and not (_WISHES & set(found.words) and not found.all_of("target") and _is_wished(images[0]))
        and not ({"need", "want"} & set(found.words) and "this" in found.words[: images[0].first])
    ):
        return None, None
    return goal, source


def _attributes(key: str, found: Scan) -> dict[str, str]:
    text = found.text
    if key == "ct_window":
        values = {}
        windows = [s.value for m in found.mentions for s in m.of("window")]
        # "Re-window this brain CT for bone": the anatomy comes before, the window's name next to its word.
        near = _window(found)
        if near or windows:
            values["window"] = near or windows[-1]
        slash = _SLASH.search(text)
        if slash:
            return {**values, "level": slash[2], "width": slash[1]}
        level, width = _LEVEL.search(text), _WIDTH.search(text)
        if level:
            values["level"] = level[1]
        if width:
            values["width"] = width[1] or width[2]
        return values
    if key in ("mri_undersampling", "super_resolution"):
        factor = _FACTOR.search(text)
        return {"factor": factor[1] or factor[2]} if factor else {}
    if key == "ct_sparse_view":
        views = _VIEWS.search(text)
        return {"views": views[1]} if views else {}
    if key == _ARTIFACTS:
        return {"artifacts": _artifacts(found)}
    return {}


def _window(found: Scan) -> str | None:
    """The window's name that stands next to "window", "preset", "settings", or behind "for" and "to"."""
    for mention in found.mentions:
        if not mention.says("window"):
            continue
        after, before = found.after(mention.last, 1), found.before(mention.first, 1)
        if (after and after[0] in ("window", "preset", "settings", "fenster")) or before in (["for"], ["to"]):
            return mention.of("window")[0].value
    return None


def _artifacts(found: Scan) -> str:
    named = [m for m in found.mentions if m.says("sure", _ARTIFACTS)]
    return found.written(named[0].first, named[-1].last).lower() if named else "overlay artifacts"
