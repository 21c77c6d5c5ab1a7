"""What kind of edit a text asks for. A verb decides; nothing is removed or added without one.

Only verbs that head a request count (`mie.words.clauses`): not those of a question, a report or an aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mie.words.clauses import NOUNS, PARTICIPLES, Clause
from mie.words.objects import (
    DEFINITE,
    FILES,
    TEXTS,
    goes_to_text,
    has_object,
    is_file,
    is_indefinite,
    is_lesion,
    is_mark,
)
from mie.words.requested import is_tissue
from mie.words.scan import Mention, Scan
from mie.words.vocabulary import word_set

# Showing goes along with another request ("find the tumour and remove it"); marking does not.
_WEAK: Final = word_set(
    "show shows see view find finds where display identify fill cover mask look search spot detect locate"
)
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
    "make edit turn change let get give show render generate produce create want need like convert "
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
_INPAINTS: Final = word_set("inpaint inpainting fill simulate simulates sim synthesize")
_SIMULATES: Final = word_set("simulate simulates simulating simulation sim simuliere simulieren simule simuler simula simular 模")
_DISEASES: Final = word_set("disease pathology condition lesion finding krankheit maladie enfermedad")
_EVERY: Final = word_set("everything all anything alles tout todo rest 所")
_BUT: Final = word_set("not isn but except besides other than apart outside non nicht ausser sauf pas menos excepto no 除 不")
_SEGMENTS: Final = word_set("segmentation segmentations annotation annotations mask masks overlay overlays contour contours")
_SENTENCE: Final = frozenset(".?!;。？！；")
_SELVES: Final = word_set("me us myself him her them")
_IT: Final = word_set("it them this that these those ihn sie es le la les lo los las 它 一")
_ABSENT: Final = word_set("without no any ohne kein keine sans sin")
_FILLS: Final = word_set("fill inpaint complete restore reconstruct fuelle rempli remplis rellena 填 补")
_HEALS: Final = word_set("heal heals cure cures resolve resolves treat")
_MARKING: Final = word_set(
    "mark highlight outline segment label circle contour delineate paint trace annotate"
)
_CHANGES: Final = word_set(
    "remove clean reduce suppress restore correct denoise take get undo apply give make turn convert"
)
_GOVERN: Final = word_set("mark highlight segment outline delineate label annotate circle contour")
_REPLACES: Final = word_set("swap exchange substitute replace ersetze ersetzen remplace remplacer reemplaza")
_CLEARED: Final = word_set("the this these all any away that up it them out both those")
_NOTHING: Final = word_set("nothing nichts rien nada")
# "The removal margins" are no removal.
_OF_NOUNS: Final = word_set(
    "margin margins site sites bed cavity scar zone line lines plan date day specimen border "
    "borders area technique planning surgery procedure"
)
_CUTS: Final = word_set("cut strip take crop pull")  # also what a segmentation does
_STATES: Final = word_set("is are was were has have shows there")
_ASKED: Final = ("request", "name")


class Decision(NamedTuple):
    operation: str  # with "none": why, in `note`
    note: str | None = None


def decide(found: Scan, rows: Sequence[Clause], transforms: bool) -> Decision:
    """Return the operation; `transforms`: words of a transformation are there."""
    asked = [m for clause in rows if clause.mood in _ASKED for m in found.within(clause.first, clause.last)]
    requests = [m for m in found.mentions if m.is_free()]
    asked = [m for m in asked if m.is_free()]
    removal = [m for clause in rows for m in _removals(found, clause) if m.is_free()]
    addition = [
        m for clause in rows if clause.mood in _ASKED for m in _additions(found, clause) if m.is_free()
    ]
    perception = [m for m in asked if "perception" in m.operations()]
    strong = [m for m in perception if found.words[m.first] not in _WEAK and not m.says("target")]
    colours = any(m.says("colour") for m in requests)
    white = [m for m in requests if "white" in m.operations()]
    fill = [m for m in asked if "fill" in m.operations()]
    removal = [m for m in removal if m not in white]
    if not perception and _repeats(found, rows):
        perception = [m for m in requests if "perception" in m.operations()]
    region = [m for m in requests if "region" in m.operations()]
    inpaints = [m for m in asked if found.words[m.first] in _INPAINTS]
    if region and (inpaints or addition):
        white += region
    things = any(m.says("target") and not is_tissue(found, m) for m in asked)
    fills = bool(fill) and found.words[fill[0].first] in _FILLS and _named_healthy(found, asked)
    if fills and not white and not things:
        return Decision("inpainting")
    if white and (fill or addition or removal or (not perception and _named_healthy(found, asked))):
        simulates = _fills_with_lesion(found, requests) or _simulates(found, asked)
        return Decision("simulation" if simulates else "inpainting")
    if _simulates_by_key(found, asked):
        return Decision("simulation")
    if (
        any(m.says("hide") and m not in removal for m in asked if not m.says("target"))
        and not removal
        and not strong
    ):
        return Decision("none", "to hide something may mean to remove it or to cover it: say which")
    removal = [m for m in removal if not _has_other_object(found, rows, m)]
    if removal and _removes_the_rest(found, removal):
        return Decision("none", "it asks to remove the rest of the image; say which lesion is to be removed")
    if removal and any(m.says("body") for m in found.mentions):
        return Decision("none", "it asks for a treatment; an editor changes images alone")
    if removal and all(goes_to_text(found, m) for m in removal):
        return Decision("none", "the request is about a text, not about what an image shows")
    if removal and is_file(found, removal, FILES | TEXTS):
        return Decision("none", "the request is about files or records, not about what an image shows")
    marks = [m for m in removal if is_mark(found, [m])]
    if marks and len(marks) == len(removal) and _marks_elsewhere(found, rows, marks):
        removal = []  # "delete the old overlay and mark the liver"
    if removal and marks:
        return Decision("none", "the request is to remove a marking; an image holds none that is known")
    if removal and _is_segmentation(found, removal, colours):
        perception, removal = perception or removal, []
    if not removal and _replaced(found, asked):
        removal = fill
    if addition and all(goes_to_text(found, m) or is_file(found, [m], TEXTS) for m in addition):
        return Decision("none", "it asks to add something to a text; an image editor writes none")
    addition = [
        m
        for m in addition
        if _adds(found, m, colours)
        and not _marks_instead(found, rows, m)
        and not _has_other_object(found, rows, m)
    ]
    addition += [] if colours else _given(found, rows)
    if addition and not _has_lesion(found, asked):
        return Decision("perception" if _SEGMENTS & set(found.words) else "none", "nothing but a lesion is added")
    if not addition and not colours and _shown_with(found, asked):
        addition = perception or fill
    if not removal and not strong and not colours and not addition:
        hesitation = _without(found, asked)
        if hesitation is not None:
            if hesitation.operation == "none" and not transforms:
                return hesitation
            if hesitation.operation == "removal":
                removal = fill or perception or asked[:1]
    if transforms and _two_edits(found, rows):
        return Decision(
            "none", "it asks for two edits, a transformation and a marking; ask for one at a time"
        )
    if transforms and not (strong and _only_marks(found, strong, removal)):
        return Decision("transformation")
    other = [m for m in asked if "other" in m.operations() and not m.says("target")]
    if other and not transforms and not removal and not addition and not strong and not colours:
        name = found.written(other[0].first, other[0].last)
        return Decision("none", f"{name!r} asks for a change that no editor here makes")
    lesions = any(is_lesion(m) for m in requests)
    if not (removal or addition or strong or colours or lesions) and _made_healthy(found, asked):
        return Decision("none", "it asks for something healthy: say which lesion is to be removed")
    if removal and addition:
        return Decision("none", "contradiction: it asks to remove and to add; ask for one at a time")
    if (removal or addition) and strong and colours:
        return Decision(
            "none", "it asks for two edits, a marking and a change of the image; ask for one at a time"
        )
    if removal and [m for m in strong if found.words[m.first] not in ("fill", "paint")]:
        return Decision("none", "it asks for two edits, a marking and a removal; ask for one at a time")
    if removal:
        return Decision("removal")
    if addition:
        return Decision("addition")
    if perception or any(m.says("colour") or (m.says("other colour") and _addressed(asked)) for m in asked):
        return Decision("perception")
    asks_gone = found.words[-1:] in (["?"], ["？"]) and any("gone" in m.operations() for m in found.mentions)
    if asks_gone or any(clause.mood == "question" for clause in rows):
        return Decision("none", "it asks for an opinion, a diagnosis or a text; an image editor gives none")
    return _without_verb(found, rows)


def _fills_with_lesion(found: Scan, requests: list[Mention]) -> bool:
    """Whether a hole is to show a lesion: one with "a", or without article or "healthy"."""
    lesions = [m for m in requests if is_lesion(m) and not _ABSENT & set(found.before(m.first, 3))]
    if any(is_indefinite(found, m) for m in lesions):
        return True
    healthy = any(m.says("healthy") for m in requests)
    return not healthy and any(not DEFINITE & set(found.before(m.first, 2)) for m in lesions)


def _removes_the_rest(found: Scan, removal: list[Mention]) -> bool:
    """Whether it reads "remove everything that is not liver", "delete all but the tumour"."""
    for verb in removal:
        behind = found.words[verb.last : verb.last + 5]
        every = next((at for at, word in enumerate(behind) if word in _EVERY), None)
        if every is not None and _BUT & set(found.words[verb.last + every : verb.last + every + 5]):
            return True
    return False


def _has_other_object(found: Scan, rows: Sequence[Clause], verb: Mention) -> bool:
    """Whether a verb removes nothing that an image shows: "eliminate doubt: show the bleed", "remove me"."""
    clause = next((c for c in rows if c.first <= verb.first < c.last), None)
    if clause is None or verb not in clause.heads:
        return False
    behind = found.words[verb.last : clause.last]
    if behind[:1] and behind[0] in _SELVES - _IT:
        return True
    inside = found.within(clause.first, clause.last)
    named = any(m.says("target") or m.says("sure") or m.says("hint") or m.operations() & {"white"} for m in inside)
    if named or _IT & set(found.words[clause.first : clause.last]) or not any(w.isalpha() for w in behind):
        return False
    return any("perception" in h.operations() for c in rows if c is not clause for h in c.heads)


def _has_lesion(found: Scan, asked: list[Mention]) -> bool:
    """Whether a lesion is named, or something that is not known: an organ is not added."""
    targets = [m for m in asked if m.says("target")]
    strange = any(own is None and len(word) > 3 for own, word in zip(found.covering, found.words, strict=True))
    return strange or not targets or any(is_lesion(m) for m in targets)


def _simulates(found: Scan, asked: list[Mention]) -> bool:
    """Whether something that is not healthy is to be simulated, known or not."""
    return bool(_SIMULATES & set(found.words)) and not any(m.says("healthy") for m in asked)


def _simulates_by_key(found: Scan, asked: list[Mention]) -> bool:
    """Whether it reads "simulate; disease = glioma"."""
    keys = [at for at, word in enumerate(found.words[:-1]) if word in _DISEASES]
    return any(found.words[at + 1] in ("=", ":") for at in keys) and _simulates(found, asked)


def _marks_elsewhere(found: Scan, rows: Sequence[Clause], verbs: list[Mention]) -> bool:
    """Whether another clause than that of `verbs` asks for a marking."""
    others = [c for c in rows if not any(c.first <= verb.first < c.last for verb in verbs)]
    if any(found.words[head.first] in _MARKING for clause in others for head in clause.heads):
        return True
    last = max(verb.last for verb in verbs)  # "clear the overlay and start again with the liver in red"
    last = next((at for at in range(last, len(found.words)) if found.words[at] in ("and", "then", ".", ";")), None)
    if last is None:
        return False
    behind = [m for m in found.within(last, len(found.words)) if m.is_free()]
    return any(m.says("target") for m in behind) and any(m.says("colour") for m in behind)


def _two_edits(found: Scan, rows: Sequence[Clause]) -> bool:
    """Whether one clause asks for a transformation and another one for a marking: "denoise, then mark it"."""
    changed = marked = False
    for clause in rows:
        mentions = found.within(clause.first, clause.last)
        change = any(m.says("sure") or m.says("hint") for m in mentions)
        verbs = [m for m in clause.heads if found.words[m.first] in _MARKING]
        changed |= change and clause.mood in _ASKED
        marked |= bool(verbs) and not change and any(m.says("target") or m.says("colour") for m in mentions)
    return changed and marked


def _addressed(asked: list[Mention]) -> bool:
    return any(m.says("address") for m in asked)


def _marks_instead(found: Scan, rows: Sequence[Clause], verb: Mention) -> bool:
    """Whether the verb's clause names nothing and another one marks: "add: highlight(liver)"."""
    clause = next(clause for clause in rows if clause.first <= verb.first < clause.last)
    mentions = found.within(clause.first, clause.last)
    return not any(m.says("target") for m in mentions) and _marks_elsewhere(found, rows, [verb])


def _repeats(found: Scan, rows: Sequence[Clause]) -> bool:
    """Whether a request stands for what was told before: "I have to mark the liver; kindly do that"."""
    for clause in rows:
        words = found.words[clause.first : clause.last]
        asks = any(m.says("address") for m in found.within(clause.first, clause.last))
        if (
            clause.mood == "request"
            and asks
            and not clause.heads
            and {"do", "make", "redo", "repeat"} & set(words)
        ):
            return bool({"it", "that", "this", "so", "again"} & set(words))
    return False


def _made_healthy(found: Scan, asked: list[Mention]) -> bool:
    """Whether it reads "make the lungs look healthy"."""
    healthy = [m.first for m in asked if m.says("healthy")]
    return bool(healthy) and bool(
        {"make", "turn", "get", "let", "mach", "rends", "haz"} & set(found.words[: healthy[0]])
    )


def _named_healthy(found: Scan, asked: list[Mention]) -> bool:
    """Whether it reads "blank area: healthy lung"."""
    return any(m.says("healthy") for m in asked)


def _removals(found: Scan, clause: Clause) -> list[Mention]:
    """What asks for a removal in a clause: its verb, a passive, a noun, or what a removal leads to."""
    if clause.mood == "aside":
        inside = found.within(clause.first, clause.last)
        return [m for m in inside if _is_gone(found, m) or _is_version(found, clause, m)]
    if clause.mood == "question":
        return [
            m
            for m in found.within(clause.first, clause.last)
            if "gone" in m.operations() and _looks(found, m)
        ]
    return [m for m in found.within(clause.first, clause.last) if _is_removal(found, clause, m)]


def _additions(found: Scan, clause: Clause) -> list[Mention]:
    """What asks for an addition in a clause: its verb, or "I want it added"."""
    result = []
    for mention in found.within(clause.first, clause.last):
        if "addition" not in mention.operations() or _NOTHING & set(found.after(mention.last, 1)):
            continue
        passive = found.words[mention.first] in PARTICIPLES and clause.mood in _ASKED
        if mention in clause.heads or (passive and _is_wished(found, clause, mention)):
            result.append(mention)
    return result


def _is_removal(found: Scan, clause: Clause, mention: Mention) -> bool:
    if "gone" in mention.operations():
        return _is_gone(found, mention)
    word = found.words[mention.first]
    if "removal" not in mention.operations():
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
        others = [m for m in found.within(clause.first, mention.first) if "other" in m.operations()]
        behind = [
            at
            for at in range(mention.last, clause.last)
            if found.covering[at] is None and found.words[at].isalpha()
        ]
        said = not _OVER & set(before) and not _OF_NOUNS & set(following) and not strange and not others
        shown = any("perception" in m.operations() and not m.says("target") for m in found.mentions)
        return said and clause.mood != "report" and not behind and not shown
    if word.endswith("ing"):
        return before[-1:] in (["mind"], ["by"], ["about"])
    if word in ("clear", "resolve") and not _CLEARED & set(following):
        return False
    if word in _HEALS and not any(is_lesion(m) for m in found.mentions):
        return False
    return mention in clause.heads and has_object(found, clause, mention)


def _is_wished(found: Scan, clause: Clause, mention: Mention) -> bool:
    """Whether it reads "should be removed" or "I want it removed"; not "can be", "was" or "will be"."""
    before = set(found.words[clause.first : mention.first])
    behind = set(found.words[mention.last : clause.last])
    if _POSSIBLE & before - {"will"} or clause.mood == "report":
        return False
    end = next((at for at in range(clause.last - 1, len(found.words)) if found.words[at] in _SENTENCE), None)
    if end is not None and found.words[end] in ("?", "？") and not any(
        m.says("address") for m in found.within(clause.first, clause.last)
    ):
        return False  # "La tumeur doit-elle être enlevée ?"
    passive = {"be", "werden", "etre", "ser"} & (before | behind)
    if passive:
        wishes = bool({"want", "like", "wish", "prefer"} & before) and "to" in before
        return bool(_OBLIGED & before) or wishes
    return bool(_WISHES & (before | behind)) and "will" not in before - _WISHES


def _is_version(found: Scan, clause: Clause, mention: Mention) -> bool:
    """Whether it reads "a version in which the polyp is removed"; not "the image before it was removed"."""
    if "removal" not in mention.operations() or mention.negated:
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
    if "gone" not in mention.operations():
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


def _is_segmentation(found: Scan, removal: list[Mention], colours: bool) -> bool:
    """Whether something is cut out as a mask: "cut out the heart as a segmentation"."""
    cuts = all(found.words[m.first] in _CUTS for m in removal)
    return cuts and (colours or bool({"mask", "segmentation", "contour", "overlay"} & set(found.words)))


def _given(found: Scan, rows: Sequence[Clause]) -> list[Mention]:
    """The lesions that an image or a patient is to be given: "give this colon a polyp"."""
    given = []
    for clause in rows:
        words = found.words[clause.first : clause.last]
        if clause.mood not in _ASKED or "give" not in words:
            continue
        at = clause.first + words.index("give")
        if found.after(at + 1, 1) and found.words[at + 1] in (
            "this",
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


def _adds(found: Scan, verb: Mention, colours: bool) -> bool:
    if is_mark(found, [verb]):
        return False
    new = any(is_indefinite(found, m) for m in found.mentions if is_lesion(m))
    if colours and not new:  # "add the liver in red" is a marking
        return False
    if any(found.words[at] in _STRONG for at in range(verb.first, verb.last)) or verb.last - verb.first > 1:
        return True
    return not colours and new


def _replaced(found: Scan, asked: list[Mention]) -> bool:
    """Whether a lesion is to be replaced by what is healthy."""
    for mention in asked:
        if found.words[mention.first] in _REPLACES:
            lesion = [m.first for m in asked if is_lesion(m) and m.first > mention.first]
            healthy = [m.first for m in asked if m.says("healthy") and m.first > mention.first]
            return bool(lesion and healthy and lesion[0] < healthy[0])
    return False


def _shown_with(found: Scan, asked: list[Mention]) -> bool:
    """Whether it reads "show this colon with a small polyp", or "replace healthy tissue by a polyp"."""
    for mention in asked:
        if not is_lesion(mention) or not is_indefinite(found, mention):
            continue
        before = found.words[: mention.first]
        if "with" in before[-6:] and {"show", "this"} <= set(before):
            return True
        if "replace" in before and "by" in before[-6:]:
            return True
    return False


def _without(found: Scan, asked: list[Mention]) -> Decision | None:
    """What "without the lesion" means where no verb tells."""
    for index, mention in enumerate(found.mentions):
        if not mention.says("without") or mention not in asked:
            continue
        following = found.mentions[index + 1 : index + 4]
        if not any(is_lesion(m) for m in following):
            continue
        before = set(found.words[: mention.first])
        if before & {"need", "want", "look", "looks", "version", "picture", "image", "copy"}:
            return Decision("removal")
        if before & {"show", "display", "see", "view"}:
            return Decision("none", "it may ask to remove something, or to mark the rest: say which")
    return None


def _only_marks(found: Scan, strong: list[Mention], removal: list[Mention]) -> bool:
    """Whether a marking verb governs, as in "mark the hairs": no word says that anything is to change."""
    if removal or _CHANGES & set(found.words):
        return False
    first = found.words[strong[0].first]
    return first in _GOVERN


def _instead(found: Scan, rows: Sequence[Clause], forbidden: list[Mention]) -> bool:
    """Whether a marking of one thing is ruled out and another named: "not the spleen, only the liver"."""
    if any(m.operations() & {"removal", "addition"} for m in forbidden):
        return False
    named = [m for c in rows if c.mood in _ASKED for m in found.within(c.first, c.last) if m.says("target")]
    return any(not (m.negated or m.excepted or m.kept) for m in named)


def _names_stranger(found: Scan, rows: Sequence[Clause]) -> bool:
    """Whether it is the bare name of a thing that is not known: "hippocampi please"."""
    if len(rows) != 1 or rows[0].mood not in _ASKED or any(m.operations() for m in found.mentions):
        return False
    strange = [at for at, own in enumerate(found.covering) if own is None and len(found.words[at]) > 3]
    covered = [m for m in found.mentions if not m.is_small() and not m.says("side") and not m.says("place")]
    known = [word for at in strange for word in (found.words[at],) if word.isalpha() and word.isascii()]
    asks = any(m.says("address") or m.says("only") or m.says("side") for m in found.mentions)
    return asks and len(found.words) <= 4 and 0 < len(known) <= 2 and len(known) == len(strange) and not covered


def _without_verb(found: Scan, rows: Sequence[Clause]) -> Decision:
    targets = [m for m in found.mentions if m.says("target")]
    forbidden = [m for m in found.mentions if m.operations() and (m.negated or m.excepted)]
    if forbidden and not _instead(found, rows, forbidden):
        return Decision("none", "it says only what not to do")
    if not targets and _names_stranger(found, rows):
        return Decision("perception")
    if not targets and not any(clause.mood == "name" for clause in rows):
        return Decision("none", "nothing that can be done to an image is asked for")
    named = any(m.says("target") for c in rows if c.mood in _ASKED for m in found.within(c.first, c.last))
    if not targets:
        return Decision("none", "nothing that can be done to an image is asked for")
    if not named or any(m.operations() & {"removal", "gone"} for m in found.mentions):
        return Decision(
            "none", "it states something and asks for nothing; say, for example, 'mark the liver'"
        )
    return Decision("perception")
