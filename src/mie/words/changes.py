"""Which words ask for a removal or an addition, and which only speak of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from mie.words.clauses import PARTICIPLES, Clause
from mie.words.edges import NOUNS
from mie.words.mentions import Mention, Scan
from mie.words.objects import (
    DEFINITE,
    has_object,
    is_indefinite,
    is_lesion,
    is_mark,
)
from mie.words.vocabulary import word_set

_OBLIGED: Final = word_set("should must needs need has have ought soll sollte sollen muss doit debe")
_POSSIBLE: Final = word_set("can could will would may might been not going is was were are being kann wurde")
_WISHES: Final = word_set(
    "want need like love have get prefer see please pls bitte svp wish moechte will haette brauche "
    "require with"
)
_OVER: Final = word_set(
    "after before post following prior since until during status previous planned for of nach vor "
    "apres avant tras no not"
)
# What "gone", "back to normal" or "disappear" needs before it to be a request.
_MAKES: Final = word_set(
    "make edit turn change let get give pretend show render generate produce create want need like convert "
    "alter modify transform restore bring set put return revert have see look replace fill wish "
    "prefer mach mache lass lasse zeig zeige fais faire faites rends montre haz hacer deja muestra "
    "should must soll sollen sollte doit doivent debe deben 让 使 把 将"
)
_STRONG: Final = word_set(
    "add adds adding insert inserts inserting introduce introduces implant simulate simulates "
    "simulating sim stick added inserted inject embed plant hinzufuegen hinzu fuege ergenze "
    "ergenzen ergaenze einfuegen einsetzen simuliere simulieren ajoute ajouter ajoutez insere "
    "inserer inserez simule simuler simulez anade anadir anada agrega agregar agregue inserta "
    "insertar inserte simula simular 添 增 加 插 模 放"
)
_MADE: Final = word_set("create creates generate generates produce fabricate invent")
_EVERY: Final = word_set("everything all anything alles tout todo rest 所")
_BUT: Final = word_set(
    "not isn but except besides other than apart outside non nicht ausser sauf pas menos excepto no 除 不"
)
_SENTENCE: Final = frozenset(".?!;。？！；")
_SELVES: Final = word_set("me us myself him her them")
_IT: Final = word_set("it them this that these those ihn sie es le la les lo los las 它 一")
_HEALS: Final = word_set("heal heals cure cures resolve resolves treat")
_REPLACES: Final = word_set("swap exchange substitute replace ersetze ersetzen remplace remplacer reemplaza")
_CLEARED: Final = word_set("the this these all any away that up it them out both those")
_NOTHING: Final = word_set("nothing nichts rien nada")
# "The removal margins" are no removal.
_OF_NOUNS: Final = word_set(
    "margin margins site sites bed cavity scar zone line lines plan date day specimen border "
    "borders area technique planning surgery procedure"
)
ASKED: Final = ("request", "name")


def removals(found: Scan, clause: Clause) -> list[Mention]:
    """What asks for a removal in a clause: its verb, a passive, a noun, or what a removal leads to."""
    if clause.mood == "aside":
        inside = found.within(clause.first, clause.last)
        return [m for m in inside if _is_gone(found, m) or _is_version(found, clause, m)]
    if clause.mood == "question":
        return [
            m for m in found.within(clause.first, clause.last) if "gone" in m.operations and _looks(found, m)
        ]
    return [m for m in found.within(clause.first, clause.last) if _is_removal(found, clause, m)]


def additions(found: Scan, clause: Clause) -> list[Mention]:
    """What asks for an addition in a clause: its verb, or "I want it added"."""
    result = []
    for mention in found.within(clause.first, clause.last):
        if "addition" not in mention.operations or _NOTHING & set(found.after(mention.last, 1)):
            continue
        passive = found.words[mention.first] in PARTICIPLES and clause.mood in ASKED
        gerund = found.words[mention.first].endswith("ing")
        if gerund and not _is_proposed(found.words[clause.first : mention.first]):
            continue  # "stop adding tumours"
        if mention in clause.heads or (passive and _is_wished(found, clause, mention)):
            result.append(mention)
    return result


def _is_removal(found: Scan, clause: Clause, mention: Mention) -> bool:
    if "gone" in mention.operations:
        return _is_gone(found, mention)
    word = found.words[mention.first]
    if "removal" not in mention.operations:
        return False
    before = found.words[clause.first : mention.first]
    following = found.after(mention.last, 1)
    if _NOTHING & {*following, *before[-2:]}:
        return False
    if word in PARTICIPLES and (before or word not in ("entfernt",)):
        return _is_wished(found, clause, mention)
    if word in NOUNS:
        strange = [
            w
            for w, m in zip(before, found.covering[clause.first :], strict=False)
            if m is None and w.isalpha()
        ]
        others = [m for m in found.within(clause.first, mention.first) if "other" in m.operations]
        behind = [
            at
            for at in range(mention.last, clause.last)
            if found.covering[at] is None and found.words[at].isalpha()
        ]
        said = not _OVER & set(before) and not _OF_NOUNS & set(following) and not strange and not others
        shown = any("perception" in m.operations and not m.says("target") for m in found.mentions)
        return said and clause.mood != "report" and not behind and not shown
    if word.endswith("ing"):
        return _is_proposed(before)
    if word in ("clear", "resolve") and not _CLEARED & set(following):
        return False
    if word in _HEALS and not any(is_lesion(m) for m in found.mentions):
        return False
    return mention in clause.heads and has_object(found, clause, mention)


def _is_proposed(before: list[str]) -> bool:
    """Whether "removing" is asked for: "would you mind removing", "how about removing"."""
    return before[-1:] in (["mind"], ["by"]) or before[-2:] in (["how", "about"], ["what", "about"])


def _is_wished(found: Scan, clause: Clause, mention: Mention) -> bool:
    """Whether it reads "should be removed" or "I want it removed"; not "can be", "was" or "will be"."""
    following = found.covering[mention.last] if mention.last < len(found.words) else None
    article = DEFINITE & set(found.before(mention.first))
    if article and following is not None and following.says("target"):
        return False  # "the removed polyp, please"
    before = set(found.words[clause.first : mention.first])
    behind = set(found.words[mention.last : clause.last])
    if _POSSIBLE & before - {"will"} or clause.mood == "report":
        return False
    end = next((at for at in range(clause.last - 1, len(found.words)) if found.words[at] in _SENTENCE), None)
    if (
        end is not None
        and found.words[end] in ("?", "？")
        and not any(m.says("address") for m in found.within(clause.first, clause.last))
    ):
        return False  # "La tumeur doit-elle être enlevée ?"
    passive = {"be", "werden", "etre", "ser"} & (before | behind)
    if passive:
        wishes = bool({"want", "like", "wish", "prefer"} & before) and "to" in before
        return bool(_OBLIGED & before) or wishes
    return bool(_WISHES & (before | behind)) and "will" not in before - _WISHES


def _is_version(found: Scan, clause: Clause, mention: Mention) -> bool:
    """Whether it reads "a version in which the polyp is removed"; not "the image before it was removed"."""
    if "removal" not in mention.operations or mention.negated:
        return False
    words = set(found.words[clause.first : mention.first])
    before = found.words[found.starts[mention.first] : clause.first]
    which = found.words[clause.first : clause.first + 1] == ["which"] or before[-1:] == ["where"]
    return (
        which
        and bool({"version", "image", "copy", "slice", "picture", "scan"} & set(before[-4:]))
        and bool(_MAKES & set(before))
        and bool({"is", "are", "been"} & words)
        and not {"was", "were", "had", "not"} & words
    )


def _is_gone(found: Scan, mention: Mention) -> bool:
    """Whether something is to lead to what a removal leads to."""
    if "gone" not in mention.operations:
        return False
    start = found.starts[mention.first]
    if found.words[mention.first] == "free" and not any(
        m.last == mention.first and m.says("target") for m in found.mentions
    ):
        return False
    before = set(found.words[start : mention.first])
    if "sure" in before:
        return False  # "make sure that it is gone" asks for a look
    if found.words[-1] in ("?", "？") and {"should", "must", "soll", "sollen", "doit", "debe"} & before:
        return False
    if found.words[-1] in ("?", "？") and not before & _MAKES:
        return False  # "cancer gone?"
    if before & {"when", "was", "were", "whether"} or ("if" in before and "as" not in before):
        return False
    return bool(before & _MAKES) or _looks(found, mention) or found.words[mention.first] == "make"


def _looks(found: Scan, mention: Mention) -> bool:
    """Whether it is "look like without", the healthy version, or another phrase that asks by itself."""
    words = set(found.words[mention.first : mention.last + (found.words[mention.first] == "free")])
    return bool(
        words & {"look", "looks", "version", "image", "picture", "scan", "slice", "copy", "counterpart"}
    ) or ("been" in words and "look" in found.words)


def given(found: Scan, rows: Sequence[Clause]) -> list[Mention]:
    """The lesions that an image or a patient is to be given: "give this colon a polyp"."""
    given = []
    for clause in rows:
        words = found.words[clause.first : clause.last]
        if clause.mood not in ASKED or "give" not in words:
            continue
        at = clause.first + words.index("give")
        if found.after(at + 1, 1) and found.words[at + 1] in (
            "this",
            "these",
            "the",
            "him",
            "her",
            "it",
            "that",
            "my",
        ):
            lesions = [m for m in found.within(at, clause.last) if is_lesion(m) and is_indefinite(found, m)]
            given += lesions
    return given


def adds(found: Scan, verb: Mention, colours: bool) -> bool:
    if is_mark(found, [verb]):
        return False
    new = any(is_indefinite(found, m) or _is_made(found, verb, m) for m in found.mentions if is_lesion(m))
    if colours and not new:  # "add the liver in red" is a marking
        return False
    if any(found.words[at] in _STRONG for at in range(verb.first, verb.last)) or verb.last - verb.first > 1:
        return True
    return not colours and new


def _is_made(found: Scan, verb: Mention, lesion: Mention) -> bool:
    """Whether lesions without an article are what a verb makes: "create microaneurysms in this retina"."""
    return found.words[verb.first] in _MADE and verb.last == lesion.first


def replaced(found: Scan, asked: list[Mention]) -> bool:
    """Whether a lesion is to be replaced by what is healthy."""
    for mention in asked:
        if found.words[mention.first] in _REPLACES:
            lesion = [m.first for m in asked if is_lesion(m) and m.first > mention.first]
            healthy = [m.first for m in asked if m.says("healthy") and m.first > mention.first]
            return bool(lesion and healthy and lesion[0] < healthy[0])
    return False


def shown_with(found: Scan, asked: list[Mention]) -> bool:
    """Whether it reads "show this colon with a small polyp", or "replace healthy tissue by a polyp"."""
    for mention in asked:
        if not is_lesion(mention) or not is_indefinite(found, mention):
            continue
        before = found.words[: mention.first]
        if "with" in before[-6:] and "show" in before and {"this", "these"} & set(before):
            return True
        if "replace" in before and "by" in before[-6:]:
            return True
    return False


def has_other_object(found: Scan, rows: Sequence[Clause], verb: Mention) -> bool:
    """Whether a verb removes nothing that an image shows: "eliminate doubt: show the bleed", "remove me"."""
    clause = next((c for c in rows if c.first <= verb.first < c.last), None)
    if clause is None or verb not in clause.heads:
        return False
    behind = found.words[verb.last : clause.last]
    if behind[:1] and behind[0] in _SELVES - _IT:
        return True
    inside = found.within(clause.first, clause.last)
    named = any(
        m.says("target") or m.says("sure") or m.says("hint") or m.operations & {"white"} for m in inside
    )
    if named or _IT & set(found.words[clause.first : clause.last]) or not any(w.isalpha() for w in behind):
        return False
    return any("perception" in h.operations for c in rows if c is not clause for h in c.heads)


def removes_the_rest(found: Scan, removal: list[Mention]) -> bool:
    """Whether it reads "remove everything that is not liver", "delete all but the tumour"."""
    for verb in removal:
        behind = found.words[verb.last : verb.last + 5]
        every = next((at for at, word in enumerate(behind) if word in _EVERY), None)
        if every is not None and _BUT & set(found.words[verb.last + every : verb.last + every + 5]):
            return True
    return False
