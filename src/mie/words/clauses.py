"""A text in clauses, each with its mood: a request, a question for an opinion, a report, or an aside.

Only a request asks for anything. A verb asks if it heads its clause: before it stand an address ("could you
please"), names and small words, and no subject of its own. So "the polyp that we are going to remove", "after
removing it" and "the surgeon removed it" ask for nothing.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Final

from mie.words.edges import (
    FINITE,
    NOUNS,
    PROFESSIONS,
    PURPOSES,
    RELATIVES,
    SUBJECTS,
    THE,
    VERBS,
    WHERES,
    begins_aside,
    spans,
)
from mie.words.mentions import COMMAS, ENDS, Mention, Scan
from mie.words.vocabulary import word_set

PARTICIPLES: Final = word_set(
    "removed deleted erased eliminated excised resected healed cured inserted added ablated taken "
    "cleared entfernt entfernten geloescht herausgeschnitten reseziert exzidiert retiree retirees "
    "retires enlevee enlevees enleves supprimee supprimees effacee effacees eliminee eliminees "
    "resequee reseque operee extirpado extirpada quitaron extirparon eliminaron sacaron resecaron "
    "extirpados eliminado eliminada quitado quitada retirado retirada resecado resecada borrado "
    "borrada"
)
_STATED: Final = word_set(
    "is are was were has had have shows showed reveals demonstrates there ist sind war waren wurde "
    "wurden hat hatte est sont etait ete ont avait es son fue era hay tiene ha han says said told "
    "states mentions wants 有 是 已 被"
)
_BACKGROUND: Final = word_set(
    "patient pt history hx known status followup follow case post postop preop man woman male "
    "female lady gentleman boy girl indication clinical suspected suspicion query sp ho ro bekannt "
    "bekannte bekannter bekanntes zustand patientin antecedents antecedentes paciente 患者 病史"
)
_PAST: Final = word_set(
    "quitaron extirparon eliminaron sacaron resecaron operaron extirpo entfernten operierten"
)
_VERB_AUXILIARIES: Final = word_set(
    "is are was were do does did has have had should shall must may might would could can will am "
    "ist sind war waren wurde wurden hat haben soll sollen sollte muss muessen darf duerfen wird "
    "kann est sont faut doit peut es esta son fue hay tiene debe deberia puede podemos se"
)


_MEASURES: Final = word_set(
    "size volume diameter ratio width thickness length height score grade stage number density dose "
    "percentage growth age sex prognosis severity groesse volumen taille tamano"
)
_PEOPLE: Final = word_set("did was were had")
_MODALS: Final = word_set("could can may might would will shall")
_END_OF_QUESTION: Final = frozenset(("?", "!", ".", "？", "！", "here", "please", "then"))
_DRAWINGS: Final = word_set(
    "mask masks overlay overlays contour contours annotation annotations label labels"
)
_WRITES: Final = word_set(
    "write print say type dictate spell translate repeat caption poem story report summarize text schreibe "
    "schreib sag ecris ecrivez escribe escriba 写 说"
)
_AUXILIARIES: Final = word_set("did do does was were will would should can could must shall")
_RELAYS: Final = word_set("wants wanted requests requested requires asks asked wishes")
_SAYS: Final = word_set(
    "reads says said states stated wrote writes written asks asked suggests suggested recommends recommended "
    "tells told mentions sagt steht schreibt dit indique dice pone"
)
_IS: Final = word_set("is was isn wasn would will has")
_CHANGES: Final = frozenset(("removal", "addition"))
_POLITE: Final = frozenset(("soft", "address"))
_WISHED: Final = frozenset(("wish", "address"))
_ADDRESSES: Final = _POLITE | _WISHED
_THIRD: Final = word_set(
    "he she they surgeon surgeons radiologist doctor doctors nurse colleague colleagues friend team "
    "oncologist wife husband mother father family er sie chirurg arzt il elle chirurgien ella "
    "cirujano wants"
)
# After these verbs only a question word asks for a text: "show me what you think", but "show where it was".
_LEADS: Final = word_set("show see make give put write tell demonstrate illustrate")
_ASKING: Final = word_set("what how why if whether was wie warum ob comment pourquoi si que por como 什 怎")


@dataclass(slots=True)
class Clause:
    """Tokens `first` to `last` (excluded), and what they do."""

    first: int
    last: int
    mood: str = "request"  # "request", "name" (no verb), "question", "report", "aside"
    heads: tuple[Mention, ...] = ()  # the verbs that ask


def clauses(found: Scan) -> list[Clause]:
    """Return the clauses of a text, in order."""
    result = [Clause(first, last) for first, last in spans(found)]
    for before, clause in zip([None, *result], result, strict=False):
        _set_mood(found, clause)
        if before is None or found.words[clause.first - 1] not in (":", "："):
            continue
        words = set(found.words[before.first : before.last])
        if before.mood == "question" and _WRITES & words:
            clause.mood, clause.heads = "question", ()  # "write: remove the tumour" is a text
        elif (
            _SAYS & words
            and not {"i", "we", "you"} & words
            and any(m.operations & _CHANGES for m in found.within(clause.first, clause.last))
        ):
            clause.mood, clause.heads = "report", ()  # "the form reads: add a nodule"
    return result


def _own_words(found: Scan, clause: Clause) -> list[str]:
    """The words of a clause without those of phrases that say nothing: "when you have a minute"."""
    return [
        found.words[at]
        for at in range(clause.first, clause.last)
        if (own := found.covering[at]) is None
        or own.last - own.first == 1
        or not own.says("filler")
        or own.operations
    ]


def _set_mood(found: Scan, clause: Clause) -> None:
    mentions = found.within(clause.first, clause.last)
    opening = next((m for m in mentions if not m.says("filler") or m.operations), None)
    if _is_aside(found, clause, mentions):
        clause.mood = "name" if _relays(found, clause, mentions) else "aside"
        return
    place = _asks_place(found, clause, mentions)
    if not place and _is_question(found, clause, mentions):
        clause.mood = "question"
        return
    words = _own_words(found, clause)
    clause.heads = tuple(m for m in mentions if m.operations & VERBS and asks(found, clause, m))
    if clause.heads or place:
        return
    if _RELAYS & set(words) and _names_alone(mentions):
        clause.mood = "name"  # "the pathologist asked for the nuclei"
        return
    wish = any(m.says("wish") or m.says("address") for m in mentions)
    if wish and not _THIRD & set(words):
        return
    if any(word.endswith(PROFESSIONS) for word in words):
        clause.mood = "report"
        return
    changes = any(m.operations & {"removal", "addition"} for m in mentions)
    done = any(one in SUBJECTS and other in PARTICIPLES for one, other in itertools.pairwise(words))
    done &= not _DRAWINGS & set(words)  # "I deleted the mask by mistake, make it again"
    relative = words[:2] == ["in", "which"] or words[:1] == ["which"]
    if relative and {"is", "are"} & set(words) and any(m.says("colour") for m in mentions):
        clause.mood = "name"  # "an image in which the liver is red"
        return
    told = _PAST & set(words) or done or (changes and FINITE & set(words) - {"be", "have", "has"})
    if told or _STATED & set(words) or (SUBJECTS & set(words) and FINITE & set(words)):
        clause.mood = "report"
        return
    first = opening and found.words[opening.first]
    clause.mood = "report" if first in _BACKGROUND or (words and words[0] in _BACKGROUND) else "name"


def _names_alone(mentions: list[Mention]) -> bool:
    """Whether a target is named and no change."""
    changes = any(m.operations & {"removal", "addition", "gone"} for m in mentions)
    return not changes and any(m.says("target") for m in mentions)


def _relays(found: Scan, clause: Clause, mentions: list[Mention]) -> bool:
    """Whether it tells what somebody asks for: "Dr Okafor, who would like the spleen in green"."""
    words = found.words[clause.first : clause.last]
    wishes = _RELAYS & set(words) or any(m.says("wish") for m in mentions)
    return words[:1] == ["who"] and bool(wishes) and _names_alone(mentions)


def _is_aside(found: Scan, clause: Clause, mentions: list[Mention]) -> bool:
    first = next(
        (at for at in range(clause.first, clause.last) if found.words[at] not in COMMAS), clause.first
    )
    if any(m.first == first and m.says("aside") for m in mentions):
        return True
    ended = [w for w in found.words[clause.first : clause.last] if w not in COMMAS and w not in ENDS]
    if ended[-1:] in (["后"], ["前"], ["时"]) and len(ended) > 1:
        return True
    word = found.words[first]
    opening = found.covering[first]
    if (
        opening is not None
        and "perception" in opening.operations
        and not any(m.says("target") for m in found.within(0, first))
    ):
        return False  # "hi there, which of these cells are lymphocytes?"
    stretch = found.words[clause.first : clause.last]
    if {"is", "are"} & set(stretch) and any(m.says("colour") for m in mentions):
        return False  # "an image in which the liver is red"
    if word in RELATIVES or (word == "that" and begins_aside(found, first, None)):
        return bool(first) and found.words[first - 1] not in ENDS
    return (
        word in SUBJECTS
        and first == clause.first
        and bool(first)
        and any(m.last == first and m.says("target") for m in found.mentions)
    )


def _is_question(found: Scan, clause: Clause, mentions: list[Mention]) -> bool:
    """Whether it asks for an opinion, a number or a text: by its first words, or by an auxiliary."""
    led = wished = False
    for mention in mentions:
        word = found.words[mention.first]
        before = found.covering[mention.first - 1] if mention.first > clause.first else None
        if (
            word == "have"
            and found.words[clause.last - 1] != "?"
            and (mention.first == clause.first or (before is not None and before.says("address")))
        ):
            continue  # "have the kidneys highlighted"
        if word in ("is", "are") and wished and found.words[clause.last - 1] not in ("?", "？"):
            return False  # "all I need is the trachea"
        wished |= not _WISHED.isdisjoint(mention.kinds)
        if "none" in mention.operations and not mention.negated and (not led or word in _ASKING):
            return not _is_passive_request(found, clause, mention, mentions)
        if mention.says("address") and mention.last - mention.first > 1:
            continue
        if mention.says("soft") or mention.says("target"):
            break
        if mention.operations - {"none"}:
            if word not in _LEADS:
                break
            led = True
            if "how" in found.after(mention.last, 3) and any(m.operations & _CHANGES for m in mentions):
                return True  # "show me how the surgeon will remove it"
    if (
        _is_inverted(found, clause, mentions)
        or _is_measure(found, clause, mentions)
        or _asks_of_change(found, clause, mentions)
    ):
        return True
    return "吗" in found.words[clause.first : clause.last] and not any(m.says("address") for m in mentions)


def _asks_of_change(found: Scan, clause: Clause, mentions: list[Mention]) -> bool:
    """Whether it asks where somebody changes something: "where did the surgeon remove the tumour?"."""
    words = found.words[clause.first : clause.last]
    where = next((at for at, word in enumerate(words) if word in WHERES), None)
    if where is None or not any(m.operations & _CHANGES and not m.says("target") for m in mentions):
        return False
    return words[where + 1 : where + 2] != [] and words[where + 1] in _AUXILIARIES


def _asks_place(found: Scan, clause: Clause, mentions: list[Mention]) -> bool:
    """Whether it asks where or which something is, or for a marking, in the form of a question.

    "Do you know where the spleen is?", "Which structure is the pancreas?", "Might somebody outline it?"
    """
    words = found.words[clause.first : clause.last]
    alters = any(
        m.operations & {"removal", "addition", "gone", "other"} and not m.says("target") for m in mentions
    )
    targets = [m for m in mentions if m.says("target")]
    if alters or not targets:
        return False
    where = next((at for at, word in enumerate(words) if word in WHERES), None)
    if where is not None and targets[0].first > clause.first + where:
        return not _PEOPLE & set(words[where + 1 : where + 3])
    if words[:2] == ["in", "which"] and len(targets) > 1 and {"is", "are"} & set(words):
        return True  # "in which lung is the nodule?"
    if words[0] in ("which", "what") and len(words) > 3:
        verb = next((at for at in (1, 2, 3) if words[at] in ("is", "are", "s")), None)
        last = targets[-1].last
        alone = all(word in _END_OF_QUESTION for word in found.words[last : clause.last])
        first = clause.first + (verb or 0)
        behind = [target for target in targets if target.first > first]
        named = bool(behind) and behind[0].first - first in (2, 3) and found.words[first + 1] in THE
        return verb is not None and named and alone and not _MEASURES & set(words) and words[0] == "which"
    return (
        words[0] in _MODALS
        and words[1:2] in (["i"], ["we"], ["someone"], ["somebody"], ["anyone"], ["anybody"], ["u"])
        and any("perception" in m.operations for m in mentions)
    )


def _is_measure(found: Scan, clause: Clause, mentions: list[Mention]) -> bool:
    """Whether a number is asked for without a verb: "heart size?", "ratio of cup to disc?"."""
    words = found.words[clause.first : clause.last]
    verbs = any(m.operations & VERBS and not m.says("target") for m in mentions)
    return words[-1:] in (["?"], ["？"]) and bool(_MEASURES & set(words)) and not verbs


def _is_inverted(found: Scan, clause: Clause, mentions: list[Mention]) -> bool:
    """Whether an auxiliary comes first and a question mark last: "Soll der Tumor entfernt werden?"."""
    last = found.words[clause.last - 1]
    if last not in ("?", "？"):
        return False
    for at in range(clause.first, clause.last):
        mention = found.covering[at]
        if mention is not None and (
            mention.says("address") or mention.says("soft") or "perception" in mention.operations
        ):
            return False
        if found.words[at] in _VERB_AUXILIARIES:
            opening = Mention(at, at + 1, ())
            return not _is_passive_request(found, clause, opening, mentions)
        if mention is None or not mention.is_small() or mention.operations:
            return False
    return False


def _is_passive_request(found: Scan, clause: Clause, opening: Mention, mentions: list[Mention]) -> bool:
    """Whether it reads "could the glands be outlined"; "could the polyp be removed" asks for an opinion."""
    words = found.words[clause.first : clause.last]
    if found.words[opening.first] not in ("could", "can", "may") or "be" not in words:
        return False
    behind = [m for m in mentions if m.first > clause.first + words.index("be")]
    verbs = [m for m in behind if m.operations & VERBS]
    return bool(verbs) and all("perception" in m.operations for m in verbs)


def asks(found: Scan, clause: Clause, verb: Mention) -> bool:
    """Whether a verb heads its clause."""
    if found.words[verb.first] in NOUNS or found.words[verb.first] in PARTICIPLES:
        return False
    alters = bool(verb.operations & {"removal", "addition"}) and "perception" not in verb.operations
    addressed, strangers = False, 0
    covering = found.covering
    start = clause.first
    if not alters:  # "the doctor wants us to mark the liver"
        polite = [m.last for m in found.within(start, verb.first) if not _POLITE.isdisjoint(m.kinds)]
        start = max(polite, default=start)
    for at in range(start, verb.first):
        mention, word = covering[at], found.words[at]
        if mention is not None and not _ADDRESSES.isdisjoint(mention.kinds):
            if alters and "soft" in mention.kinds and _WISHED.isdisjoint(mention.kinds):
                return False
            addressed = True
            continue
        if word == "one" and found.before(at) == ["no"] and alters:
            return False  # "no one cut out the tumour"
        if word in SUBJECTS or word.endswith(PROFESSIONS) or (word in FINITE and alters):
            return False
        if mention is None and word.isalpha() and word < "\u3400":
            strangers += 1
    if alters and found.words[verb.last : verb.last + 1] and found.words[verb.last] in _IS:
        return False  # "delete is what I would do"
    if found.words[verb.last : verb.last + 1] in (["后"], ["前"], ["时"], ["之"], ["术"]):
        return False  # "肿瘤切除后": after the removal
    before = found.words[verb.first - 1] if verb.first > clause.first else ""
    own = covering[verb.first - 1] if verb.first > clause.first else None
    if alters and before in PURPOSES and not (own is not None and own.says("address")):
        return before == "a" and verb.first - 1 == clause.first  # "tumeur rénale: à effacer"
    return not (alters and strangers and not addressed)
