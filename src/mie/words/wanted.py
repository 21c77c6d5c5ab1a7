"""Which mentions of targets are asked for, which are excluded, and which only say where something is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mie.words.clauses import Clause
from mie.words.mentions import COMMAS, Mention, Scan
from mie.words.requested import is_lesion, is_place, is_tissue, meaning
from mie.words.vocabulary import phrase, vocabulary, word_set

MODIFICATIONS: Final = ("removal", "addition", "inpainting", "simulation")
_PRONOUNS: Final = word_set("it them that those these one ihn sie es la le les lo los las 它")
_CLITICS: Final = ("alo", "ala", "alos", "alas")  # "márcalo"
_LISTS: Final = word_set("and or und oder et ou y o 和 与 及 as well also plus")
_CASES: Final = word_set(
    "follow followup patient patients case cases stain stains protocol staging surveillance workup screening "
    "clinic history survey series cohort study"
)
_STOPS: Final = frozenset(".:!。：")
_PLAIN: Final = (
    "able",
    "ible",
    "ful",
    "less",
    "ish",
    "ious",
    "uous",
    "ed",
    "ing",
    "ly",
    "looking",
)  # adjectives
_GENERIC: Final = ("bones", "artery", "cells", "glands", "blood vessels", "cell membranes", "lung lesion")
_NEAR: Final = 3  # tokens between a lesion and the organ that it lies in, without a preposition
_FAR: Final = 8  # and with one


class Wanted(NamedTuple):
    mentions: list[Mention]
    excluded: list[Mention]
    places: list[Mention]  # organs that tell where a lesion is


def wanted(found: Scan, rows: Sequence[Clause], operation: str, modality: str | None) -> Wanted:
    """Return what a request is about. A request that names nothing is about what was named before it."""
    alters = operation in MODIFICATIONS
    every = found.all_of("target")
    without = set() if alters else _without(found)
    mentions: list[Mention] = []
    excluded: list[Mention] = []
    told: list[Mention] = []
    places: list[Mention] = []
    told_places: list[Mention] = []
    for mention in every:
        if mention.kept and not alters and _is_resumed(found, rows, mention):
            told.append(mention)
            continue
        if mention.kept or is_tissue(found, mention) or _is_compound(found, mention, modality):
            continue
        if (
            _is_told(rows, mention)
            or (not alters and _belongs_to_a_change(rows, mention))
            or (not alters and mention.negated and _is_spared(found, rows, mention))
            or (mention.is_free() and _is_context(found, rows, mention))
        ):
            (told_places if is_place(found, mention, every, alters) else told).append(mention)
        elif mention.negated or mention.excepted or mention.first in without:
            excluded.append(mention)
        elif (
            alters
            and is_lesion(mention)
            and found.before(mention.first)[:1] in (["of"], ["de"], ["von"], ["d"])
        ):
            mentions.append(mention)  # "una mancha de melanoma"
        elif is_place(found, mention, every, alters) or _lies_beside(found, mention, every, modality):
            places.append(mention)
        else:
            mentions.append(mention)
    if not mentions and excluded and _is_taken_up(found, rows, excluded[-1]):
        mentions, excluded = [m for m in excluded if m.negated], [m for m in excluded if not m.negated]
    if not mentions and not places and (told or told_places) and not _has_stranger(found, rows):
        mentions, places = _last(rows, told or told_places), told_places if told else []
    if not (mentions or places or told or told_places or excluded):
        mentions = _organs(found, modality)
    if alters:
        lesions = [m for m in mentions if _kind(m, modality) == "lesion"]
        if not lesions:  # "complete the white area so that it shows a glioma"
            lesions = _last(rows, [m for m in told if _kind(m, modality) == "lesion"])
        others = [m for m in mentions if m not in lesions]
        if lesions:
            places, mentions = [*places, *others], lesions
        excluded = []
    elif not mentions and places:  # "the upper pole of the kidney": the kidney is meant
        mentions, places = places, []
    mentions = _specific_ones(found, mentions, modality)
    return Wanted(mentions, excluded, places)


def _is_told(rows: Sequence[Clause], mention: Mention) -> bool:
    """Whether a mention belongs to what is told or asked aside, and not to the request."""
    return any(
        row.first <= mention.first < row.last and row.mood in ("question", "report", "aside") for row in rows
    )


def _belongs_to_a_change(rows: Sequence[Clause], mention: Mention) -> bool:
    """Whether its clause only removes something, and is not what is done: "drop the liver from your list"."""
    row = next((row for row in rows if row.first <= mention.first < row.last), None)
    return row is not None and bool(row.heads) and all(head.operations == {"removal"} for head in row.heads)


def _is_spared(found: Scan, rows: Sequence[Clause], mention: Mention) -> bool:
    """Whether only a change of it is ruled out: "I do not want a tumour inserted, outline the tumour"."""
    row = next((row for row in rows if row.first <= mention.first < row.last), None)
    if row is None or any(head.is_free() and "perception" in head.operations for head in row.heads):
        return False  # "delimita el tumor sin incluir el edema"
    inside = [m for m in found.within(row.first, row.last) if m.negated]
    changed = any(m.operations & {"removal", "addition"} for m in inside)
    return changed and not any("perception" in m.operations for m in inside)


def _is_resumed(found: Scan, rows: Sequence[Clause], mention: Mention) -> bool:
    """Whether a verb of showing takes up what must stay: "don't touch the tumour; outline it"."""
    verbs = [
        head
        for row in rows
        for head in row.heads
        if "perception" in head.operations and head.is_free() and head.first >= mention.last
    ]
    return bool(verbs) and bool(_PRONOUNS & set(found.words[verbs[0].last : verbs[0].last + 3]))


def _is_context(found: Scan, rows: Sequence[Clause], mention: Mention) -> bool:
    """Whether a mention says what a case is about: "glioma follow-up", "PAS, kidney. Ring the glomeruli".

    So does a name before the colon in "White blood cells: nucleus red", and one in a sentence without a verb
    or a colour before a request that names something else.
    """
    if found.words[mention.last : mention.last + 1] and found.words[mention.last] in _CASES:
        return True
    at = next((i for i, row in enumerate(rows) if row.first <= mention.first < row.last), None)
    if at is None or at + 1 == len(rows) or rows[at].mood != "name":
        return False
    row, following = rows[at], rows[at + 1]
    if _introduces(found, row):
        return True  # "Pathology here. Please tint every glomerulus blue"
    if any(m.says("modality") for m in found.within(row.first, row.last)) and not row.heads:
        behind = [m for m in found.within(row.last, len(found.words)) if m.says("target") and m.is_free()]
        colours = any(m.says("colour") for m in found.within(row.first, row.last))
        if behind and not colours and found.words[row.last - 1] in _STOPS:
            return True  # "Brain MRI, glioma. Enhancing part green"
    end = found.words[row.last - 1]
    inside = found.within(row.first, row.last)
    if end not in _STOPS or any(m.says("colour") or m.says("address") or m.says("only") for m in inside):
        return False
    behind = found.within(following.first, following.last)
    named = [m for m in behind if m.says("target") and m.is_free()]
    if not named or _PRONOUNS & set(found.words[following.first : following.last]):
        return False
    if end in (":", "："):
        first = next((m for m in behind if not m.is_small()), None)
        return following.mood in ("name", "request") and first is not None and not first.says("colour")
    if any(m.says("colour") for m in behind) and _has_part(mention, named):
        return True  # "Ischaemic stroke. Core red, penumbra green"
    wishes = bool(following.heads) or any(m.says("wish") for m in behind)
    return wishes and found.words[following.first] not in _LISTS


def _introduces(found: Scan, row: Clause) -> bool:
    """Whether somebody says who speaks, before a request: "radiology here, mark the liver"."""
    words = [word for word in found.words[row.first : row.last] if word.isalpha()]
    return not row.heads and 1 < len(words) <= 4 and words[-1] in ("here", "calling", "speaking")


def _has_part(mention: Mention, others: list[Mention]) -> bool:
    """Whether another mention names a kind or a part of what this one names."""
    known = vocabulary()
    own = {sense.value for sense in mention.of("target")}
    return any(own & (known.ancestors(s.value) - {s.value}) for m in others for s in m.of("target"))


def _organs(found: Scan, modality: str | None) -> list[Mention]:
    """Organs that only an adjective names, where nothing else is: "the left pulmonary lobe"."""
    known = vocabulary()
    organs = []
    for mention in found.all_of("organ"):
        for sense in mention.of("organ"):
            senses = tuple(s for s in known.senses.get(phrase(sense.value), ()) if s.kind == "target")
            there = meaning(Mention(mention.first, mention.last, senses), modality, "").name
            if there and modality in (None, *known.targets[there].modalities) and mention.is_free():
                organs.append(Mention(mention.first, mention.last, senses))
    return organs[:1]


def _has_stranger(found: Scan, rows: Sequence[Clause]) -> bool:
    """Whether the request names something that is not known, and no pronoun: "Where is the scar?"."""
    heads = any(row.heads for row in rows)
    asked = [
        at
        for row in rows
        if row.mood == "request" or (row.mood == "name" and not heads)
        for at in range(row.first, row.last)
    ]
    strange = any(
        found.covering[at] is None
        and found.words[at].isalpha()
        and len(found.words[at]) > 2
        and found.may_name(at)
        for at in asked
    )
    return strange and not any(found.words[at] in _PRONOUNS for at in asked)


def _last(rows: Sequence[Clause], told: list[Mention]) -> list[Mention]:
    """The targets of the last clause that has any: "There is a polyp. Mark it"."""
    for row in reversed(rows):
        inside = [m for m in told if row.first <= m.first < row.last]
        if inside:
            return inside
    return []


def _fits(mention: Mention, modality: str | None) -> bool:
    """Whether a mention names something of the modality, or a general word."""
    name = meaning(mention, modality, "").name
    where = vocabulary().targets[name].modalities if name else ()
    return modality is None or not where or modality in where


def _is_compound(found: Scan, mention: Mention, modality: str | None) -> bool:
    """Whether an unknown noun follows, so that something else is meant: an IVC filter is no vena cava.

    So it is with an unknown word before a general noun: collar bones are not all bones.
    """
    before = found.covering[mention.first - 1] if mention.first else mention
    if (
        before is None
        and found.words[mention.first - 1].isalpha()
        and not found.words[mention.first - 1].endswith(_PLAIN)
        and found.english
        and (
            any(sense.value in _GENERIC for sense in mention.of("target"))
            and mention.last - mention.first == 1
        )
    ):
        return True
    if mention.last >= len(found.words):
        return False
    following = found.covering[mention.last]
    if following is not None:  # "clear cell carcinoma" in a CT
        return following.says("target") and not _fits(mention, modality) and _fits(following, modality)
    word = found.words[mention.last]
    return (
        word.isascii()
        and word.isalpha()
        and (len(word) > 2 or found.tokens[mention.last].capitals)
        and not word.endswith(("ly", "ed", "ing"))
        and found.english
        and not _is_where(found, mention)
        and found.tokens[mention.last].text.isalpha()
    )


def _is_where(found: Scan, mention: Mention) -> bool:
    """Whether a verb may follow a mention: "show where the polyp hides", not "where is the bile duct"."""
    if "where" not in found.words[: mention.first]:
        return False
    at = found.words.index("where")
    return not {"is", "are"} & set(found.words[at + 1 : at + 3])


def _lies_beside(found: Scan, mention: Mention, every: list[Mention], modality: str | None) -> bool:
    """Whether an organ stands behind its lesion and tells where that is: "RCC left kidney"."""
    near = [m for m in every if 0 <= mention.first - m.last <= _NEAR and not (m.negated or m.excepted)]
    lesions = [m for m in near if _kind(m, modality) == "lesion"]
    if not lesions or _kind(mention, modality) == "lesion":
        return False
    for other in lesions:
        words, between = found.words[other.last : mention.first], found.within(other.last, mention.first)
        if _LISTS & set(words) or any(m.says("colour") or m.operations for m in between):
            continue
        sided = any(m.says("side") for m in between) or _own_side(mention, modality)
        if sided or not COMMAS & set(words):
            return _belongs(other, mention, modality)
    return False


def _own_side(mention: Mention, modality: str | None) -> bool:
    return meaning(mention, modality, "").side is not None


def _belongs(lesion: Mention, organ: Mention, modality: str | None) -> bool:
    """Whether a lesion may lie in an organ: it is one of it, or a general one."""
    known = vocabulary()
    own, where = meaning(lesion, modality, "").name, meaning(organ, modality, "").name
    if own is None or where is None:
        return False
    if not known.targets[own].modalities:
        return True
    stems = {word[:5] for word in phrase(where)}
    return any(word[:5] in stems for word in phrase(own))


def _specific_ones(found: Scan, mentions: list[Mention], modality: str | None) -> list[Mention]:
    """Without general words for what is also named: in "RCC: fill the tumour" both are one."""
    known = vocabulary()
    names = {id(m): meaning(m, modality, "").name for m in mentions}
    result = []
    for mention in mentions:
        name = names[id(mention)]
        of = mention.last < len(found.words) and found.words[mention.last] in ("of", "de", "von", "d")
        behind = found.covering[mention.last + 1] if mention.last + 1 < len(found.words) else None
        of &= behind is None or not behind.says("colour")  # "el izquierdo de verde"
        general = name is not None and (of or not known.targets[name].modalities)
        if general and any(
            other is not mention
            and (own := names[id(other)]) is not None
            and own != name
            and name in known.ancestors(own)
            for other in mentions
        ):
            continue
        result.append(mention)
    return result


def _is_taken_up(found: Scan, rows: Sequence[Clause], mention: Mention) -> bool:
    """Whether the request is about a mention that was excluded: "do not remove the tumour, highlight it".

    So it is if only a change was excluded, or if a pronoun stands for it: in Chinese none, in Spanish within
    the verb.
    """
    words = found.words
    row = next((r for r in rows if r.first <= mention.first < r.last), None)
    inside = found.within(row.first, row.last) if row else []
    changes = [m for m in inside if m.negated and m.operations & {"removal", "addition"}]
    if changes and not any("perception" in m.operations for m in inside if m.negated):
        return True
    verbs = [
        words[m.first]
        for m in found.mentions
        if m.first >= mention.last and "perception" in m.operations and not m.negated
    ]
    silent = any(verb >= "\u3400" or verb.endswith(_CLITICS) for verb in verbs)
    return silent or bool(_PRONOUNS & set(words[mention.last :]))


def _without(found: Scan) -> set[int]:
    """Targets behind "without", where something is marked."""
    starts = set()
    for mention in found.all_of("without"):
        for other in found.all_of("target"):
            between = found.within(mention.last, other.first)
            changes = any(m.operations & {"removal", "addition"} for m in between)  # "without removing it"
            if 0 <= other.first - mention.last <= _NEAR and not changes:
                starts.add(other.first)
    return starts


def _kind(mention: Mention, modality: str | None) -> str:
    choice = meaning(mention, modality, "")
    return vocabulary().targets[choice.name].kind if choice.name else "lesion"
