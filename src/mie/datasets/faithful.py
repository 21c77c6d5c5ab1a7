"""Does a rephrasing still ask for the same? Checked word by word, without a model.

A sentence is taken apart into what it must not lose: the words that fill its template's places, which colour
goes with which target, numbers, negations, sides, modalities. A rephrasing has exactly the same of each, or
it is faulty. The check is strict on purpose: a good rephrasing that it rejects costs one phrasing, a bad one
that it lets through costs a wrong sample.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any, Final


def _group(**members: str) -> dict[str, str]:
    """Word -> what it stands for."""
    return {word: name for name, words in members.items() for word in (name, *words.split())}


COLOURS: Final = _group(
    red="", green="", blue="", yellow="", orange="", purple="", violet="", pink="", magenta="", cyan="",
    turquoise="", teal="", brown="", black="", white="", grey="gray", gold="golden", silver="", beige="",
    maroon="", crimson="", scarlet="", lime="", navy="", indigo="", amber="", olive="", reddish="",
    greenish="", bluish="", yellowish="", whitish="", blackish="", greyish="grayish", lilac="", rose="",
)  # fmt: skip
ONE_COLOUR: Final = "|".join(COLOURS)
SHADE: Final = re.compile(
    rf"\b(?:light|dark|darker|lighter|pale|bright|deep|faint|vivid|pastel|neon)[ -](?:{ONE_COLOUR})\b",
    re.IGNORECASE,
)
NUMBER_WORDS: Final = _group(
    two="", three="", four="", five="", six="", seven="", eight="", nine="", ten="", eleven="", twelve="",
    twenty="", hundred="", thousand="", twice="", double="doubled doubling", triple="", half="halve halved",
    quarter="", dozen="",
)  # fmt: skip
NEGATIONS: Final = _group(
    **{"not": "cannot avoid avoiding refrain", "except": "excluding"}, only="just solely exclusively merely",
    no="", without="", never="", nothing="", none="", neither="", nor="", unless="", instead="",
)  # fmt: skip
SIDES: Final = _group(
    left="", right="", upper="", lower="", superior="", inferior="", anterior="", posterior="", medial="",
    lateral="", central="centrally", peripheral="", proximal="", distal="", top="", bottom="", bilateral="",
    dorsal="", ventral="", cranial="", caudal="", nasal="", temporal="", quadrant="", lobe="", corner="",
    border="", apical="", basal="",
)  # fmt: skip
MODALITIES: Final = _group(
    ct="tomogram", mri="mr", pet="", oct="", **{"x-ray": "radiograph radiographic"},
    ultrasound="sonogram sonographic sonography ultrasonic", fundus="", dermoscopic="dermoscopy",
    endoscopic="endoscopy", microscopy="microscopic histology", mammogram="mammography", spect="",
)  # fmt: skip
KERNELS: Final = _group(soft="", sharp="")
# What a turn of a conversation refers to, and whether something comes or goes. A rephrasing says the same in
# the same order, so that the turns after it still fit.
REFERENCES: Final = _group(
    larger="bigger greater largest biggest more",
    smaller="smallest lesser less",
    other="second missing",
    outline="contour border edge boundary rim line hollow",
    filled="fill filling solid interior inside entire whole",
    back=(
        "undo undone revert reverted withdraw cancel scrap discard return reset restore previous before "
        "forget original untouched beginning start since"
    ),
    off="unmark unmarked plain clear cleared remove removed erase delete wipe hide drop away",
    same="likewise repeat",
    again="anew reappear reinsert",
    all="every everything whatever",
    later="next future following after default remember note mind always throughout",
    window="windowing",
    first="", third="", fourth="", fifth="", sixth="", seventh="", eighth="", ninth="", tenth="",
)  # fmt: skip
# Which of two numbers is which: the k-th label goes with the k-th number.
LABELS: Final = {
    **dict.fromkeys(("level", "centre", "center", "centred", "centered", "WL", "L", "C"), "level"),
    **dict.fromkeys(("width", "wide", "WW", "W"), "width"),
}
LABEL: Final = re.compile(rf"\b(?:{'|'.join(sorted(LABELS, key=len, reverse=True))})\b")
NUMBER: Final = re.compile(r"(?:(?<![\w.])-)?\d+(?:\.\d+)?")
UNIT: Final = re.compile(r"(\d+(?:\.\d+)?)\s?-?(mm|cm|%|percent\b|o['’]clock)")
WORD: Final = re.compile(r"x-ray|[a-z]+", re.IGNORECASE)
# "Left" and "top" that are no sides, and how "do not" is written short.
NO_SIDE: Final = re.compile(r"\b(?:left (?=un|as\b|intact|alone\b)|on top of)", re.IGNORECASE)
SHORT_NOT: Final = re.compile(r"(?:n['’]t\b|\bcan['’]t\b)", re.IGNORECASE)
ALL_BUT: Final = re.compile(r"\b(?:all|anything|everything|everywhere) but\b", re.IGNORECASE)
KEEPS: Final = re.compile(
    r"\b(?:un(?:touched|changed|altered|affected|modified)|intact|preserv\w+|keep\w*|kept|leav(?:e|es|ing)|left"
    r"|stays?|staying|remain\w*|retain\w*|maintain\w*|as (?:it|they|is|was|before))\b",
    re.IGNORECASE,
)
REMOVES: Final = re.compile(
    r"\b(?:remov\w+|eras\w+|delet\w+|eliminat\w+|excis\w+|wip(?:e|ed|ing)|rid|take\b.*\b(?:out|away))\b",
    re.IGNORECASE,
)
LESSENS: Final = re.compile(
    r"\b(?:de-?nois\w+|de-?speckl\w+|clean\w*|clear\w*|suppress\w*|reduc\w+|retouch\w*|correct\w*"
    r"|undo|filter\w*|free|without|restor\w+|repair\w*|heal\w*|smooth\w*|cancel\w*"
    r"|compensat\w+|even out|flatten|gone|disappear\w*)\b",
    re.IGNORECASE,
)
ADDS: Final = re.compile(
    r"\b(?:add\w*|insert\w*|introduc\w+|implant\w*|simulat\w+|plant\w*|creat(?:e|es|ing))\b", re.IGNORECASE
)
MAKES: Final = re.compile(
    r"\b(?:plac\w+|put\w*|draw\w*|giv\w+|generat\w+|synthesi\w+|render\w*|grow\w*|produc\w+|appear\w*|make)\b",
    re.IGNORECASE,
)
CHATTER: Final = re.compile(
    r"\b(?:sure|certainly|of course|here (?:is|are)|here['’]s|rephras\w+|paraphras\w+|reword\w*|sentences?"
    r"|variants?|version \d|as an ai|sorry|json)\b",
    re.IGNORECASE,
)
ODD: Final = re.compile(r"[^\w\s.,;:!?()'’\"/%°×+=–—−-]")


_GRAMMAR: Final = ("is", "it", "its")  # places that are filled for grammar's sake
_LISTS: Final = ("painted", "names", "key")  # places that hold all classes of a sample
_ARTICLE: Final = re.compile(r"^(?:the|an?)\s+", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A template's sentence and what it must not lose."""

    text: str
    entities: tuple[str, ...] = ()  # words that stay as they stand
    pairs: tuple[tuple[str, str], ...] = ()  # (target, colour), where several are given out
    turn: bool = False  # of a conversation: it may refer to other turns


def take_apart(text: str, template: str, params: Mapping[str, Any]) -> Sentence | None:
    """The sentence that fills a template; None where the template does not lead to the text.

    `params` are the sample's: `classes` (target and colour each), `named` (words that decide the goal) and
    `phrasing`, which a turn of a conversation has.
    """
    spoken = params.get("wide", {}).get("spoken", {})  # synonyms, by target
    names = [str(c["target"]) for c in params.get("classes", ())]
    colours = [str(c["colour"]) for c in params.get("classes", ())]
    classes = [(str(spoken.get(name, name)), colour) for name, colour in zip(names, colours, strict=True)]
    places = filled(template, text)
    if places is None:
        return None
    found = [word for name, word in places.items() if name not in (*_GRAMMAR, *_LISTS)]
    found += [target for target, _ in classes]
    found += [str(word) for word in params.get("named", ())]
    entities = dict.fromkeys(_ARTICLE.sub("", word) for word in found)
    # Numbers have a check of their own: a 4 may stand as "x4".
    kept = tuple(word for word in entities if not NUMBER.fullmatch(_plain(word)))
    return Sentence(text, kept, tuple(classes) if len(classes) > 1 else (), "phrasing" in params)


def filled(template: str, text: str) -> dict[str, str] | None:
    """The words in a template's places; None where the text is not the template filled in.

    >>> filled("Paint the {target} {colour}.", "Paint the optic disc red.")
    {'target': 'optic disc', 'colour': 'red'}
    """
    pattern = ""
    names: list[str] = []
    for literal, name, _, _ in Formatter().parse(template):
        pattern += re.escape(literal)
        if name in names:
            pattern += f"(?P=p{names.index(name)})"
        elif name:
            # "the {target} {colour}" could be cut in two ways.
            pattern += f"(?P<p{len(names)}>{ONE_COLOUR if name == 'colour' else '.+?'})"
            names.append(name)
    match = re.fullmatch(pattern, text, re.IGNORECASE)  # a sentence may begin with a place
    return None if match is None else {name: match[f"p{k}"] for k, name in enumerate(names)}


def any_of(words: Iterable[str]) -> re.Pattern[str] | None:
    """Finds any of the words; the longest first, so that "liver tumour" is not read as "liver"."""
    ordered = sorted(set(words), key=lambda word: (-len(word), word))
    return re.compile("|".join(map(_pattern, ordered)), re.IGNORECASE) if ordered else None


def fault(sentence: Sentence, text: str, others: re.Pattern[str] | None = None) -> str | None:
    """What is wrong with `text` as a rephrasing, as `kind: what`; None where nothing is.

    `others` finds words of the other sentences of a dataset: a target that this sentence does not name.
    """
    return (
        _form(sentence.text, text)
        or _lost_entity(sentence, text)
        or _wrong_words(sentence, _plain(text))
        or _wrong_pairs(sentence, text)
        or _wrong_reference(sentence, text)
        or _other_entity(sentence, text, others)
    )


def _form(old: str, new: str) -> str | None:
    if len(new.splitlines()) != 1 or new != new.strip() or not new.isprintable():
        return "form: it must be one line of plain text"
    odd = ODD.search(new)
    if odd is not None and odd[0] not in old:
        return f"form: the character {odd[0]!r} does not belong there"
    if not 8 <= len(new) <= min(2 * len(old) + 60, 400):
        return f"length: {len(new)} characters for a sentence of {len(old)}"
    if len(re.findall(r"[.!?](?:\s|$)", new)) > len(re.findall(r"[.!?](?:\s|$)", old)) + 1:
        return "length: too many sentences"
    talk = CHATTER.search(new)
    if talk is not None and talk[0].casefold() not in old.casefold():
        return f"form: {talk[0]!r} speaks of the task, not of the image"
    return None


def _lost_entity(sentence: Sentence, new: str) -> str | None:
    for word in sentence.entities:
        if not re.search(_pattern(word), new, re.IGNORECASE):
            return f"{'colour' if word.casefold() in COLOURS else 'entity'}: {word!r} is missing"
    return None


def _wrong_words(sentence: Sentence, new: str) -> str | None:
    old = _plain(sentence.text)
    if _said(old, MODALITIES).keys() != _said(new, MODALITIES).keys():
        return "modality: the imaging modality is not the same"
    # What stands inside an entity is not said by the sentence: "white matter" is no colour, "T1" no number.
    inside = any_of(word for word in sentence.entities if word.casefold() not in COLOURS)
    if inside is not None:
        old, new = inside.sub(" ", old), inside.sub(" ", new)
    for kind, group in (("colour", COLOURS), ("number", NUMBER_WORDS), ("kernel", KERNELS)):
        wrong = _said(old, group).keys() ^ _said(new, group).keys()
        if wrong:
            return f"{kind}: {_either(wrong, old, group)}"
    if bool(SHADE.search(old)) != bool(SHADE.search(new)):
        return "colour: another shade"
    wrong = _said(NO_SIDE.sub(" ", old), SIDES).keys() ^ _said(NO_SIDE.sub(" ", new), SIDES).keys()
    if wrong:
        return f"side: {_either(wrong, old, SIDES)}"
    before, after = (_said(_negated(text), NEGATIONS) for text in (old, new))
    if before != after:
        return f"negation: {_either((before - after) | (after - before), old, NEGATIONS)}"
    return _wrong_numbers(old, new) or _wrong_action(old, new)


def _wrong_reference(sentence: Sentence, new: str) -> str | None:
    if not sentence.turn:
        return None
    before, after = (list(_said(text, REFERENCES)) for text in (sentence.text, new))  # as they first appear
    if before != after:
        words = _either(set(before) ^ set(after), sentence.text, REFERENCES)
        return f"reference: {words or 'the order of ' + ', '.join(before)}"
    return None


def _wrong_numbers(old: str, new: str) -> str | None:
    before, after = NUMBER.findall(old), NUMBER.findall(new)
    if set(before) != set(after):
        return f"number: {', '.join(sorted(set(before) ^ set(after)))} is missing or new"
    if set(UNIT.findall(old)) != set(UNIT.findall(new)):
        return "number: a unit is missing or new"
    if len(set(before)) < 2:
        return None
    old_labels, new_labels = _labels(old), _labels(new)
    if len(old_labels) == len(before):
        wanted = dict(zip(old_labels, before, strict=True))
        found = dict(zip(new_labels, after, strict=False))
        if not len(new_labels) == len(after) == len(found) or found != wanted:
            return "number: it is not clear which number is which"
    elif list(dict.fromkeys(before)) != list(dict.fromkeys(after)):
        return "number: the numbers must keep their order"
    return None


def _wrong_action(old: str, new: str) -> str | None:
    if KEEPS.search(old) and not KEEPS.search(new):
        return "action: what must stay as it is is not said"
    takes, gives = (any(w.search(old) for w in kind) for kind in ((REMOVES, LESSENS), (ADDS,)))
    if takes and not (REMOVES.search(new) or LESSENS.search(new)):
        return "action: what must go is not said"
    if gives and not (ADDS.search(new) or MAKES.search(new)):
        return "action: what must come is not said"
    if REMOVES.search(new) and not takes:
        return "action: nothing is to be removed"
    if ADDS.search(new) and takes and not gives:
        return "action: nothing is to be added"
    return None


def _wrong_pairs(sentence: Sentence, new: str) -> str | None:
    """Each colour stands right behind its target, or right before it; never one so and one so."""
    if not sentence.pairs:
        return None
    colours = {colour for _, colour in sentence.pairs}
    names = any_of([*(target for target, _ in sentence.pairs), *colours])
    said = [match[0].casefold() for match in names.finditer(new)] if names is not None else []
    wanted = sorted((target.casefold(), colour) for target, colour in sentence.pairs)
    behind = said
    while len(behind) > 1 and behind[0] not in colours and behind[1] not in colours:
        behind = behind[1:]  # the targets may be listed first
    for words, targets, given in ((behind, behind[::2], behind[1::2]), (said, said[1::2], said[::2])):
        if len(words) % 2 == 0 and sorted(set(zip(targets, given, strict=True))) == wanted:
            return None
    return "colour: it is not clear which colour goes with which target"


def _other_entity(sentence: Sentence, new: str, others: re.Pattern[str] | None) -> str | None:
    if others is None:
        return None
    own = any_of(sentence.entities)
    rest = new if own is None else own.sub(" ", new)
    for match in others.finditer(rest):
        if not re.search(_pattern(match[0]), sentence.text, re.IGNORECASE):
            return f"entity: {match[0]!r} is new"
    return None


def _said(text: str, group: Mapping[str, str]) -> Counter[str]:
    return Counter(group[w] for w in map(str.casefold, WORD.findall(text)) if w in group)


def _negated(text: str) -> str:
    return ALL_BUT.sub(" except", SHORT_NOT.sub(" not", text))


def _labels(text: str) -> list[str]:
    return [LABELS[match] for match in LABEL.findall(text)]


def _either(words: Iterable[str], old: str, group: Mapping[str, str]) -> str:
    there = _said(old, group)
    return ", ".join(f"{word!r} is {'missing' if word in there else 'new'}" for word in sorted(words))


def _plain(text: str) -> str:
    """One way of writing minus signs and multiplication."""
    return unicodedata.normalize("NFKC", text).translate({0x2212: "-", 0x00D7: "x", 0x2019: "'"})


def _pattern(word: str) -> str:
    parts: Sequence[str] = re.split(r"[\s-]+", word.strip())
    body = r"[\s-]+".join(map(re.escape, parts)) if all(parts) else re.escape(word)
    return rf"(?<![\w.])(?<!\d-){body}(?![\w]|\.\d)"
