"""A text as a row of mentions: known phrases, longest first, each with what is said about it."""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from mie.words.spelling import corrected
from mie.words.vocabulary import Sense, TargetWords, Token, Vocabulary, phrase, tokens, vocabulary, word_set

_QUOTED: Final = re.compile(r"[\"“„«»”][^\"“„«»”]*[\"“„«»”]")
ENDS: Final = frozenset(".;:!?。；：！？¿¡()[]")
COMMAS: Final = frozenset(",，、")
TAKEN_BACK: Final = "the request is taken back"
_SMALL: Final = frozenset(("filler", "address", "aside", "indefinite", "only", "unit"))
# Signs that stand for words or part them as a comma does.
_SIGNS: Final = (
    (re.compile(r"\s*(?:-+>|=+>|>>|→|⇒)\s*"), " to "),
    (re.compile(r"\b(mri?|ct|pet|t1|t2|flair)2(?=(?:mri?|ct|pet|t1|t2|flair)\b)", re.IGNORECASE), r"\1 to "),
    (re.compile(r"\s+[-–—]+\s+|\s*—\s*"), " , "),
    (re.compile(r"\bre\.(?=\s+[A-ZÄÖÜ][A-Zäöüa-z])"), "rechts"),
    (re.compile(r"\bli\.(?=\s+[A-ZÄÖÜ][A-Zäöüa-z])"), "links"),
    (
        re.compile(
            r"\b(rt|lt|excl|incl|approx|resp|seg|dr|mr|mrs|prof|ca|bzw|ggf|evtl)\.(?=\s)", re.IGNORECASE
        ),
        r"\1",
    ),
    (re.compile(r"\bw/o\b", re.IGNORECASE), "without"),
    (re.compile(r"\bw/(?=\s|[a-z]{3})"), "with "),
    (re.compile(r"\b([shf])/([pou])\b", re.IGNORECASE), r"\1\2"),
    (re.compile(r"(?<=\w)\s*(?:\+|&)\s*(?=[^\W\d])(?!E\b)"), " and "),
)
# "Take the polyp out", "leave the tumour out", "Polyp weg": verb and particle have the target between them.
_PARTED: Final = {
    "removal": word_set(
        "take takes get cut edit airbrush wipe rub scrub strip crop photoshop make mach mache nimm nehme "
        "schneide schneid lass lasse lassen fais faites faire haz haga hacer"
    ),
    "except": word_set("leave leaving keep lass lasse"),
}
_PARTICLES: Final = {
    "removal": word_set("away out off weg raus heraus verschwinden disappear vanish disparaitre desaparecer"),
    "except": word_set("out weg aus"),
}
_ALONE: Final = word_set("weg raus")
_LETTER_SIDES: Final = {"l": "left", "r": "right"}
_BETWEEN: Final = 7  # tokens from the verb to the particle
# What a word of another language must not say in an English text: "PAS" is a stain there, "pas" is French.
_ARTICLES: Final = word_set("the le la el der die das den dieser diese einer eine")
_NONE: Final[frozenset[str]] = frozenset()
_TELLING: Final = frozenset(("target", "not", "except", "other colour"))
_ALTERS: Final = ("removal", "addition", "gone")
_VERBS: Final = word_set("perception removal addition fill")
_LISTED: Final = word_set("and or nor und oder noch et ou ni y o 和 或")
_TURNS: Final = word_set("but just instead rather then aber sondern mais pero sino")


@dataclass(slots=True, eq=False)  # two mentions of the same phrase are two
class Mention:
    """A phrase in the text. `first` and `last` are tokens, the last one excluded."""

    first: int
    last: int
    senses: tuple[Sense, ...]
    negated: bool = False
    kept: bool = False  # what must stay as it is
    excepted: bool = False
    _kinds: frozenset[str] = field(init=False)  # parsing asks for them a thousand times
    _operations: frozenset[str] = field(init=False)

    def __post_init__(self) -> None:
        self.set_senses(self.senses)

    def set_senses(self, senses: tuple[Sense, ...]) -> None:
        self.senses = senses
        self._kinds = frozenset([sense.kind for sense in senses])
        self._operations = (
            frozenset([sense.value for sense in senses if sense.kind == "operation"])
            if "operation" in self._kinds
            else _NONE
        )

    def of(self, kind: str) -> list[Sense]:
        return [sense for sense in self.senses if sense.kind == kind]

    def says(self, kind: str, value: str | None = None) -> bool:
        if value is None or kind not in self._kinds:
            return kind in self._kinds
        return any(sense.kind == kind and sense.value == value for sense in self.senses)

    def is_free(self) -> bool:
        """Whether it is neither negated nor excepted nor to be kept."""
        return not (self.negated or self.excepted or self.kept)

    def is_small(self) -> bool:
        """Whether it says nothing about what is asked for."""
        return self._kinds <= _SMALL

    def is_all(self, kinds: frozenset[str]) -> bool:
        """Whether it names a place and nothing else: all of these kinds, and more than a small word."""
        return self._kinds <= kinds and not self.is_small()

    def operations(self) -> frozenset[str]:
        return self._operations


def _first(mention: Mention) -> int:
    return mention.first


@dataclass(slots=True)
class Scan:
    text: str
    tokens: list[Token]
    words: list[str]  # folded, misspelt ones corrected
    mentions: list[Mention]
    starts: list[int]  # by token: the first token of its clause
    notes: list[str] = field(default_factory=list)
    covering: list[Mention | None] = field(default_factory=list)  # by token
    english: bool = True

    def within(self, first: int, last: int) -> list[Mention]:
        low = bisect_left(self.mentions, first, key=_first)
        return self.mentions[low : bisect_left(self.mentions, last, low, key=_first)]

    def before(self, at: int, count: int = 1) -> list[str]:
        return self.words[max(0, at - count) : at]

    def after(self, at: int, count: int = 1) -> list[str]:
        return self.words[at : at + count]

    def all_of(self, kind: str) -> list[Mention]:
        return [mention for mention in self.mentions if mention.says(kind)]

    def written(self, first: int, last: int) -> str:
        return self.text[self.tokens[first].start : self.tokens[last - 1].end]


def clean(text: str) -> str:
    """Return the text in one way of writing, without control and formatting characters."""
    text = unicodedata.normalize("NFKC", text)
    text = "".join(
        " " if unicodedata.category(c) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp") else c for c in text
    )
    for sign, word in _SIGNS:
        text = sign.sub(word, text)
    return text


def scan(text: str) -> Scan:
    """Find every known phrase of a text that is `clean`."""
    known = vocabulary()
    notes: list[str] = []
    text = _QUOTED.sub(lambda match: _quoted(match[0], known, notes), text)
    row = tokens(text)
    words = corrected(text, row, known, notes)
    mentions = _with_ones(list(_mentions(row, words, known)), words, known)
    mentions = _with_parted(mentions if known.languages(words) else _with_letters(mentions, row, words), words)
    for mention in mentions:
        if mention.says("injection"):
            start = row[mention.first].start
            notes.append("an instruction about instructions is text and is not followed")
            result = scan(text[:start])
            return replace(result, notes=result.notes + notes)
    covering: list[Mention | None] = [None] * len(words)
    for mention in mentions:
        covering[mention.first : mention.last] = [mention] * (mention.last - mention.first)
    result = Scan(text, row, words, mentions, _sentences(words), notes, covering, not known.languages(words))
    _mark_scopes(result)
    _retract(result)
    return result


def _quoted(quoted: str, known: Vocabulary, notes: list[str]) -> str:
    """Keep a quoted name; blank out a quoted instruction."""
    row = tokens(quoted)
    words = corrected(quoted, row, known, [])
    if any(mention.operations() or mention.says("injection") for mention in _mentions(row, words, known)):
        notes.append(f"quoted text is not followed: {quoted}")
        return " " * len(quoted)
    return " " + quoted[1:-1] + " "


def _mentions(row: Sequence[Token], words: list[str], known: Vocabulary) -> Iterator[Mention]:
    at = 0
    languages = known.languages(words)
    while at < len(words):
        foreign = known.homographs.get(words[at], "en") not in languages and words[at] in known.homographs
        for length, senses in known.longest(words, at):
            capitals = length > 1 or row[at].capitals
            slip = length > 1 and any(words[i] != row[i].text for i in range(at, at + length))
            valid = tuple(
                sense
                for sense in senses
                if (capitals or not sense.capitals)
                and not (foreign and length == 1 and sense.kind in _TELLING)
                and not (slip and sense.kind == "operation" and sense.value in _ALTERS)  # "ppint out"
                and not (words[at] == "stelle" and sense.kind == "operation" and at and words[at - 1] in _ARTICLES)
            )
            if valid:
                if length > 1 and _is_side(known, words[at]) and _reaches(known, words, at + 1) > length - 1:
                    continue  # "left kidney stones" are kidney stones
                yield Mention(at, at + length, valid)
                at += length
                break
        else:
            at += 1


def _with_ones(mentions: list[Mention], words: list[str], known: Vocabulary) -> list[Mention]:
    """With "one" as the target before it: "the right kidney red and the left one green"."""
    result: list[Mention] = []
    pair: tuple[Sense, ...] = ()
    for mention in mentions:
        after_side = bool(result) and result[-1].says("side") and result[-1].last == mention.first
        if pair and after_side and words[mention.first : mention.last] == ["one"]:
            mention = Mention(mention.first, mention.last, pair)
        for sense in mention.of("target"):
            target = known.targets[sense.value]
            name = target.parents[0] if target.side else target.name
            if target.side or target.sides:
                pair = tuple(s for s in known.senses[phrase(name)] if s.kind == "target")
        result.append(mention)
    return _with_sides(result, words, pair)


def _with_sides(mentions: list[Mention], words: list[str], pair: tuple[Sense, ...]) -> list[Mention]:
    """With a side that stands for its target: "both kidneys, the left in green and the right in blue"."""
    if not pair:
        return mentions
    seen = False
    behind: list[Mention | None] = [None] * len(mentions)
    for at in range(len(mentions) - 2, -1, -1):
        behind[at] = behind[at + 1] if mentions[at + 1].is_small() else mentions[at + 1]
    for at, mention in enumerate(mentions):
        following = behind[at]
        coloured = following is not None and (following.says("colour") or following.says("other colour"))
        near = following is not None and following.first - mention.last <= 2
        sided = mention.says("side", "left") or mention.says("side", "right")
        ends = mention.last == len(words) or words[mention.last] in ENDS or words[mention.last] in COMMAS
        named = ends and mention.first > 0 and words[mention.first - 1] in _ARTICLES
        if seen and sided and ((coloured and near) or named) and not mention.says("target"):
            alone = (
                mention.first == 0
                or not mentions[at - 1].says("target")
                or mentions[at - 1].last < mention.first
            )
            if alone and not {"on", "auf"} & set(words[max(0, mention.first - 2) : mention.first]):
                mentions[at] = Mention(mention.first, mention.last, (*mention.senses, *pair))
        seen |= mention.says("target")
    return mentions


def _with_letters(mentions: list[Mention], row: Sequence[Token], words: list[str]) -> list[Mention]:
    """With "l" and "r" as sides beside a target: "outline l kidney", "kidneys (l=red)"."""
    sided = []
    for at, word in enumerate(words):
        if word not in _LETTER_SIDES or row[at].end - row[at].start > 1:
            continue
        named = any(
            m.says("target") and (m.first == at + 1 or m.last == at or words[at + 1 : at + 2] == ["="])
            for m in mentions
        )
        if named and not any(m.first <= at < m.last and not m.is_small() for m in mentions):
            sided.append(Mention(at, at + 1, (Sense("side", _LETTER_SIDES[word]),)))
    places = {m.first for m in sided}
    return sorted([*(m for m in mentions if m.first not in places), *sided], key=_first) if sided else mentions


def _with_parted(mentions: list[Mention], words: list[str]) -> list[Mention]:
    """With verbs that are parted from their particle: "take the polyp out" takes it out."""
    result = list(mentions)
    known_targets = vocabulary().targets
    for target in mentions:
        if not target.says("target") or target.last >= len(words):
            continue
        particle, behind = words[target.last], words[target.last + 1 : target.last + 2]
        if (
            behind == ["of"]
            and particle == "out"
            and not {"image", "picture", "view"} & set(words[target.last :])
            and not (words[target.first - 2] == "take" and _is_lesion(known_targets, target))
        ):
            continue
        for kind, verbs in _PARTED.items():
            if particle not in _PARTICLES[kind]:
                continue
            first = next(
                (
                    at
                    for at in range(target.first - 1, max(-1, target.first - 1 - _BETWEEN), -1)
                    if words[at] in verbs or words[at] in ENDS
                ),
                None,
            )
            sense = Sense(kind, kind) if kind == "except" else Sense("operation", kind)
            if first is not None and words[first] in verbs:
                covered = [m for m in result if m.first <= first < m.last]
                if all(m.is_small() or m.says("keep") or m.last - m.first == 1 for m in covered):
                    result = [m for m in result if m not in covered] + [Mention(first, first + 1, (sense,))]
                break
        else:
            closed = not behind or behind[0] in COMMAS or behind[0] in ENDS or behind == ["please"]
            if particle in _ALONE or (particle == "out" and closed):  # "Polyp weg", "stone out, please"
                result = [m for m in result if m.first != target.last]
                result.append(Mention(target.last, target.last + 1, (Sense("operation", "removal"),)))
    return sorted(result, key=lambda mention: mention.first)


def _is_lesion(targets: Mapping[str, TargetWords], mention: Mention) -> bool:
    return any(targets[sense.value].kind == "lesion" for sense in mention.of("target"))


def _is_side(known: Vocabulary, word: str) -> bool:
    return any(sense.kind == "side" for sense in known.senses.get((word,), ()))


def _reaches(known: Vocabulary, words: list[str], at: int) -> int:
    """Return how many tokens the longest target that begins here has."""
    for length, senses in known.longest(words, at) if at < len(words) else ():
        if any(sense.kind == "target" for sense in senses):
            return length
    return 0


def _sentences(words: Sequence[str]) -> list[int]:
    starts, start = [], 0
    for at, word in enumerate(words):
        starts.append(start)
        if word in ENDS:
            start = at + 1
    return starts


def _mark_scopes(found: Scan) -> None:
    """Say of each mention whether it is negated, excepted or to be kept."""
    for index, mention in enumerate(found.mentions):
        if mention.says("left_out"):
            start = _stretch(found, mention)
            for other in found.mentions[:index]:  # "Ödem aussparen", "oedema excluded"
                other.excepted |= other.says("target") and other.first >= start
            continue
        if mention.says("stays"):
            for other in found.mentions[:index]:  # "take the hairs off, the lesion stays"
                other.kept |= other.last == mention.first and other.says("target")
            continue
        kept = mention.says("keep")
        excepted = mention.says("except")
        negates = mention.says("not") or mention.says("instead")
        if not (kept or excepted or negates) or mention.kept:
            continue
        if negates and _answers(found, mention):
            for other in found.mentions[:index]:  # "liver? no. spleen? yes"
                other.negated |= found.starts[other.first] == found.starts[mention.first - 1]
            mention.set_senses((Sense("filler", "filler"),))
            continue
        if negates and _is_interjection(found, mention):
            mention.set_senses((Sense("correction", "correction"),))  # "the spleen, no, the liver"
            continue
        if found.words[mention.first] in ("ne", "n") and _restricts(found, mention):
            continue  # "ne marque que le rein droit"
        if negates and _stands_behind(found, mention):  # "liver yes, spleen no"
            found.mentions[index - 1].negated = True
            continue
        if not kept and not excepted and found.words[mention.first] in ("no", "kein", "keine", "keinen"):
            for other in found.mentions[index + 1 :]:  # "no lesion": the next thing alone
                if other.says("target"):
                    same = found.starts[other.first] == found.starts[mention.first]
                    other.negated |= same and other.first - mention.last <= 2
                    break
            if not _verb_follows(found, index):
                continue
        end = _scope_end(found, index)
        if negates and found.words[mention.first] in ("nicht", "not") and end == index + 1:
            start = _stretch(found, mention)
            for other in found.mentions[:index]:  # "entferne den Tumor nicht"
                other.negated |= other.first >= start
        for other in found.mentions[index + 1 : end]:
            other.kept |= kept
            other.excepted |= excepted
            other.negated |= negates and not kept


def _answers(found: Scan, mention: Mention) -> bool:
    """Whether "no" alone answers a question before it that has no verb."""
    if not mention.first or found.words[mention.first - 1] not in ("?", "？"):
        return False
    start = found.starts[mention.first - 1]
    asked = found.within(start, mention.first)
    after = found.after(mention.last)
    alone = not after or after[0] in COMMAS or after[0] in ENDS or after[0] == "thanks"
    return alone and any(m.says("target") for m in asked) and not any(m.operations() for m in asked)


def _is_interjection(found: Scan, mention: Mention) -> bool:
    after = found.after(mention.last)
    alone = bool(after) and (after[0] in COMMAS or after[0] == ".")
    before = found.before(mention.first)
    parted = (
        not before
        or before[0] in COMMAS
        or before[0] in ENDS
        or before[0] in ("actually", "oh", "wait", "sorry")
    )
    return alone and parted and found.words[mention.first] in ("no", "nein", "non", "nope")


def _verb_ahead(found: Scan, index: int) -> bool:
    """Whether a verb follows before the next comma, and nothing that negates it."""
    for at in range(index, len(found.mentions)):
        mention = found.mentions[at]
        previous = found.mentions[at - 1]
        if at > index and (COMMAS | ENDS) & set(found.words[previous.last : mention.first]):
            return False
        if mention.says("not") or mention.says("except") or mention.says("keep"):
            return False
        if mention.operations() & {"perception", "removal", "addition"} and not mention.says("target"):
            return True
    return False


def _restricts(found: Scan, mention: Mention) -> bool:
    """Whether French "ne" goes with "que" (only) and not with "pas"."""
    words = set(found.words[mention.first : mention.first + 12])
    return "que" in words and not words & {"pas", "jamais", "rien", "plus", "aucun", "aucune"}


def _stretch(found: Scan, mention: Mention) -> int:
    """The first token behind the last comma before a mention, in its sentence."""
    at = mention.first
    while at > found.starts[mention.first] and found.words[at - 1] not in COMMAS:
        at -= 1
    return at


def _retract(found: Scan) -> None:
    """Leave out what is taken back: "mark the liver, scratch that, the spleen", "liver, I mean spleen"."""
    for index, mention in enumerate(found.mentions):
        following = [m for m in found.mentions[index + 1 :] if not m.negated and not m.excepted]
        earlier = found.mentions[:index]
        if mention.says("retraction"):
            kinds = {"operation", "target"} if any(m.says("target") for m in following) else {"operation"}
            if not any(m.says("target") or m.operations() & _VERBS for m in following):
                kinds = {"operation", "target", "colour"}
                found.notes.append(TAKEN_BACK)
            for other in earlier:
                other.kept |= any(other.says(kind) for kind in kinds)
        elif mention.says("correction") and not _is_degree(found, mention):
            same = [m for m in following if found.starts[m.first] == found.starts[mention.first]]
            for kind in ("target", "colour", "side"):
                if any(m.says(kind) for m in same):
                    free = [m for m in earlier if m.says(kind) and not (m.kept or m.excepted or m.negated)]
                    for other in free[-1:]:
                        other.kept = True
                    if kind == "target":
                        break


def _is_degree(found: Scan, mention: Mention) -> bool:
    """Whether "rather" or "actually" only shades what follows: "the rather large tumour"."""
    if found.words[mention.first : mention.last] not in (["rather"], ["actually"]):
        return False
    around = {*found.before(mention.first), *found.after(mention.last)}
    return not around & (COMMAS | ENDS | {"or", "but", "no", "und", "oh"}) and mention.first > 0


def _stands_behind(found: Scan, mention: Mention) -> bool:
    """Whether "no" ends what a target begins."""
    target = next((m for m in found.mentions if m.last == mention.first and m.says("target")), None)
    after = found.after(mention.last, 1)
    ends = not after or after[0] in COMMAS or after[0] in ENDS or after[0] in ("to", "thanks", "asap", "please")
    return target is not None and ends and found.words[mention.first] in ("no", "not", "nicht", "non")


def _verb_follows(found: Scan, index: int) -> bool:
    following = found.mentions[index + 1 : index + 2]
    return bool(following) and bool(following[0].operations() & _VERBS) and not following[0].says("target")


def _other_named(found: Scan, index: int, at: int) -> bool:
    """Whether "not this, that" names what is meant: nothing before it, one thing behind, and no list."""
    if any(m.says("target") or m.operations() & _VERBS for m in found.mentions[:index]):
        return False
    start = found.starts[found.mentions[index].first]
    behind = [m for m in found.mentions[at:] if found.starts[m.first] == start]
    words = set(found.words[found.mentions[index].last : behind[-1].last if behind else None])
    targets = [m for m in behind if m.says("target") and not m.operations()]
    verbs = any(m.operations() & _VERBS and not m.says("target") for m in behind)
    return len(targets) == 1 and not verbs and not words & _LISTED


def _scope_end(found: Scan, index: int) -> int:
    """The mention at which what begins at mention `index` ends: the clause does, or a new verb follows."""
    start = found.mentions[index]
    seen_verb = broken = False
    following = next((m for m in found.mentions[index + 1 :] if not m.is_small()), None)
    named = following is not None and following.says("target")
    for at in range(index + 1, len(found.mentions)):
        mention = found.mentions[at]
        between = found.words[found.mentions[at - 1].last : mention.first]
        if found.starts[mention.first] != found.starts[start.first]:
            return at
        first = found.words[mention.first]
        if named and mention.says("colour") and broken | bool(COMMAS & set(between)):
            return at  # "the liver, not the spleen, in green"
        verb = mention.operations() & _VERBS and not mention.says("target")
        if verb and start.says("instead") and any(m.says("target") for m in found.mentions[index + 1 : at]):
            return at  # "instead of the left kidney show the right one"
        if named and COMMAS & set(between) and _other_named(found, index, at):
            return at  # "not the right kidney, the left one"
        if COMMAS & set(between) and not broken and _verb_ahead(found, at):
            return at  # "不要动肿瘤，把肝脏标红"
        broken |= bool(COMMAS & set(between))
        if at > index + 1 and ((first in _TURNS and not _is_degree(found, mention)) or (broken and mention.says("only"))):
            return at
        if verb and broken and not (mention.says("not") or mention.says("except")):
            return at
        joined = found.before(mention.first) and found.before(mention.first)[-1] in (
            "and",
            "und",
            "et",
            "y",
            "then",
        )
        if verb and joined and seen_verb and not mention.operations() & {"removal", "addition"}:
            return at
        seen_verb |= bool(verb)
    return len(found.mentions)
