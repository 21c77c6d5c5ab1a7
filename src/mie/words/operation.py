"""What kind of edit a text asks for. A verb decides; nothing is removed or added without one.

Only verbs that head a request count (`mie.words.clauses`): not those of a question, a report or an aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from mie.words.changes import (
    ASKED,
    additions,
    adds,
    given,
    has_other_object,
    removals,
    removes_the_rest,
    replaced,
    shown_with,
)
from mie.words.clauses import Clause
from mie.words.mentions import COMMAS, Mention, Scan
from mie.words.objects import (
    DEFINITE,
    FILES,
    TEXTS,
    goes_to_text,
    is_file,
    is_indefinite,
    is_lesion,
    is_mark,
)
from mie.words.requested import is_tissue
from mie.words.vocabulary import word_set

# Showing goes along with another request ("find the tumour and remove it"); marking does not.
_WEAK: Final = word_set(
    "show shows see view find finds where display identify fill cover mask look search spot detect locate"
)
_INPAINTS: Final = word_set("inpaint inpainting fill simulate simulates sim synthesize")
_SIMULATES: Final = word_set(
    "simulate simulates simulating simulation sim simuliere simulieren simule simuler simula simular 模"
)
_DISEASES: Final = word_set("disease pathology condition lesion finding krankheit maladie enfermedad")
_BECOMES: Final = word_set(
    "make turn change convert transform alter modify replace exchange swap substitute mach mache rends "
    "rendez haz cambia"
)
_SHOWN: Final = word_set(
    "visible obvious prominent conspicuous noticeable apparent recognizable evident clear clearer seen pop "
    "glow shine out sichtbar deutlich visibles evidente easy easier"
)
_PICTURES: Final = word_set("picture image drawing map visible")
_ARTICLES: Final = word_set("the this that these those my his her a an all both every")
_PARTICLES: Final = word_set("up down out off in over away")
_PRONOUNS: Final = word_set("it them this that these those one ones")
_STATES: Final = word_set("is are was were been")
_SEGMENTS: Final = word_set(
    "segmentation segmentations annotation annotations mask masks overlay overlays contour contours"
)
_HOLES: Final = word_set("area region part bit patch section piece square hole spot zone")
_CUT: Final = word_set("was were is are been the")
_ABSENT: Final = word_set("without no any ohne kein keine sans sin")
_FILLS: Final = word_set("fill inpaint complete restore reconstruct fuelle rempli remplis rellena 填 补")
_MARKING: Final = word_set(
    "mark highlight outline segment label circle contour delineate paint trace annotate"
)
_CHANGES: Final = word_set(
    "remove clean reduce suppress restore correct denoise take get undo apply give make turn convert"
)
_GOVERN: Final = word_set("mark highlight segment outline delineate label annotate circle contour")
_CUTS: Final = word_set("cut strip take crop pull")  # also what a segmentation does


class Decision(NamedTuple):
    operation: str  # with "none": why, in `note`
    note: str | None = None


def decide(found: Scan, rows: Sequence[Clause], transforms: bool) -> Decision:
    """Return the operation; `transforms`: words of a transformation are there."""
    asked = [m for clause in rows if clause.mood in ASKED for m in found.within(clause.first, clause.last)]
    requests = [m for m in found.mentions if m.is_free()]
    asked = [m for m in asked if m.is_free()]
    removal = [m for clause in rows for m in removals(found, clause) if m.is_free()]
    addition = [m for clause in rows if clause.mood in ASKED for m in additions(found, clause) if m.is_free()]
    perception = [m for m in asked if "perception" in m.operations and not _states(found, m)]
    strong = [m for m in perception if found.words[m.first] not in _WEAK and not m.says("target")]
    colours = any(m.says("colour") for m in requests)
    white = [m for m in requests if "white" in m.operations and not _cuts_out(found, m)]
    fill = [m for m in asked if "fill" in m.operations]
    removal = [m for m in removal if m not in white]
    if not perception and _repeats(found, rows):
        perception = [m for m in requests if "perception" in m.operations]
    region = [m for m in requests if "region" in m.operations]
    inpaints = [m for m in asked if found.words[m.first] in _INPAINTS]
    if region and (inpaints or addition):
        white += region
    things = any(m.says("target") and not is_tissue(found, m) for m in asked)
    fills = bool(fill) and found.words[fill[0].first] in _FILLS and _named_healthy(found, asked)
    if fills and not white and not things:
        return Decision("inpainting")
    if white and (fill or addition or removal or (not perception and _named_healthy(found, asked))):
        simulates = _fills_with_lesion(found, requests) or _simulates(found, asked)
        if simulates and not _has_lesion(found, asked):
            return Decision("none", "nothing but a lesion is added")
        return Decision("simulation" if simulates else "inpainting")
    if _simulates_by_key(found, asked):
        return Decision("simulation")
    if (
        any(m.says("hide") and m not in removal for m in asked if not m.says("target"))
        and not removal
        and not strong
    ):
        return Decision("none", "to hide something may mean to remove it or to cover it: say which")
    removal = [m for m in removal if not has_other_object(found, rows, m)]
    if removal and removes_the_rest(found, removal):
        return Decision("none", "it asks to remove the rest of the image; say which lesion is to be removed")
    if removal and any(m.says("body") for m in found.mentions):
        return Decision("none", "it asks for a treatment; an editor changes images alone")
    in_text = [m for m in removal if goes_to_text(found, m)]
    if in_text and len(in_text) == len(removal) and not _marks_elsewhere(found, rows, in_text):
        return Decision("none", "the request is about a text, not about what an image shows")
    removal = [m for m in removal if m not in in_text]
    if removal and is_file(found, removal, FILES | TEXTS):
        return Decision("none", "the request is about files or records, not about what an image shows")
    if removal and _is_segmentation(found, removal, colours):
        perception, removal = perception or removal, []
    marks = [m for m in removal if is_mark(found, [m])]
    if marks and len(marks) == len(removal) and _marks_elsewhere(found, rows, marks):
        removal = []  # "delete the old overlay and mark the liver"
    if removal and marks:
        return Decision("none", "the request is to remove a marking; an image holds none that is known")
    if not removal and replaced(found, asked):
        removal = fill
    if addition and all(goes_to_text(found, m) or is_file(found, [m], TEXTS) for m in addition):
        return Decision("none", "it asks to add something to a text; an image editor writes none")
    addition = [
        m
        for m in addition
        if adds(found, m, colours)
        and not _marks_instead(found, rows, m)
        and not has_other_object(found, rows, m)
    ]
    addition += [] if colours else given(found, rows)
    if addition and not _has_lesion(found, asked):
        return Decision(
            "perception" if _SEGMENTS & set(found.words) else "none", "nothing but a lesion is added"
        )
    if not addition and not colours and shown_with(found, asked):
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
    other = [m for m in asked if "other" in m.operations and not m.says("target")]
    other = [m for m in other if not _is_apart(found, rows, m)]
    if other and not transforms and not removal and not addition and not strong and not colours:
        name = found.written(other[0].first, other[0].last)
        return Decision("none", f"{name!r} asks for a change that no editor here makes")
    lesions = any(is_lesion(m) for m in requests)
    if not (removal or addition or strong or colours or lesions) and _made_healthy(found, asked):
        return Decision("none", "it asks for something healthy: say which lesion is to be removed")
    if not (removal or addition or perception or colours) and _makes_otherwise(found, rows):
        return Decision("none", "it asks for a change that no editor here makes")
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
    asks_gone = found.words[-1:] in (["?"], ["？"]) and any("gone" in m.operations for m in found.mentions)
    if asks_gone or any(clause.mood == "question" for clause in rows):
        return Decision("none", "it asks for an opinion, a diagnosis or a text; an image editor gives none")
    return _without_verb(found, rows)


def _states(found: Scan, mention: Mention) -> bool:
    """Whether a participle only states something: "removal is indicated"."""
    return found.words[mention.first].endswith("ed") and bool(_STATES & set(found.before(mention.first)))


def _fills_with_lesion(found: Scan, requests: list[Mention]) -> bool:
    """Whether a hole is to show a lesion: one with "a", or without article or "healthy"."""
    lesions = [m for m in requests if is_lesion(m) and not _ABSENT & set(found.before(m.first, 3))]
    if any(is_indefinite(found, m) for m in lesions):
        return True
    healthy = any(m.says("healthy") for m in requests)
    return not healthy and any(not DEFINITE & set(found.before(m.first, 2)) for m in lesions)


def _cuts_out(found: Scan, mention: Mention) -> bool:
    """Whether "cut out" is a verb with an object, and no hole: "the surgeon cut out the polyp"."""
    hole = _HOLES & set(found.after(mention.last)) or _CUT & set(found.before(mention.first))
    return "removal" in mention.operations and not hole


def _has_lesion(found: Scan, asked: list[Mention]) -> bool:
    """Whether a lesion is named, or something that is not known: an organ is not added."""
    targets = [m for m in asked if m.says("target")]
    firsts = {m.first for m in targets}
    strange = any(
        own is None and len(found.words[at]) > 3 and at + 1 not in firsts  # "the well-perfused liver"
        for at, own in enumerate(found.covering)
    )
    return strange or not targets or any(is_lesion(m) for m in found.mentions if m.is_free())


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
    start = max(verb.last for verb in verbs)  # "clear the overlay and start again with the liver in red"
    joins = [at for at in range(start, len(found.words)) if found.words[at] in ("and", "then", ".", ";")]
    if not joins:
        return False
    behind = [m for m in found.within(joins[0], len(found.words)) if m.is_free()]
    return any(m.says("target") for m in behind) and any(m.says("colour") for m in behind)


def _two_edits(found: Scan, rows: Sequence[Clause]) -> bool:
    """Whether one clause asks for a transformation and another one for a marking: "denoise, then mark it"."""
    changed = marked = False
    for clause in rows:
        mentions = found.within(clause.first, clause.last)
        change = any(m.says("sure") or m.says("hint") for m in mentions)
        verbs = [m for m in clause.heads if found.words[m.first] in _MARKING]
        changed |= change and clause.mood in ASKED
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


def _makes_otherwise(found: Scan, rows: Sequence[Clause]) -> bool:
    """Whether something is to become what no editor makes it: "make the heart rounder"."""
    for clause in rows:
        verb = next((at for at in range(clause.first, clause.last) if found.words[at] in _BECOMES), None)
        if verb is None or clause.mood not in ASKED:
            continue
        targets = [m for m in found.within(verb + 1, clause.last) if m.says("target")]
        if not targets or not all(m.is_small() for m in found.within(clause.first, verb)):
            continue
        drawn = (_PICTURES | _SEGMENTS) & set(found.words[verb : targets[0].first])
        if not drawn and not (_SHOWN | _SEGMENTS) & set(found.words[targets[0].last : clause.last]):
            return True
    return False


def _is_apart(found: Scan, rows: Sequence[Clause], verb: Mention) -> bool:
    """Whether its clause names no target and another one shows one: "kill the music. Where is the polyp?"."""
    own = next((clause for clause in rows if clause.first <= verb.first < clause.last), None)
    if own is None or _PRONOUNS & set(found.words[own.first : own.last]):
        return False
    shows = [clause for clause in rows if any("perception" in head.operations for head in clause.heads)]
    return not _names(found, own) and any(_names(found, clause) for clause in shows)


def _names(found: Scan, clause: Clause) -> bool:
    return any(m.says("target") for m in found.within(clause.first, clause.last))


def _named_healthy(found: Scan, asked: list[Mention]) -> bool:
    """Whether it reads "blank area: healthy lung"."""
    return any(m.says("healthy") for m in asked)


def _is_segmentation(found: Scan, removal: list[Mention], colours: bool) -> bool:
    """Whether something is cut out as a mask: "cut out the heart as a segmentation"."""
    cuts = all(found.words[m.first] in _CUTS for m in removal)
    return cuts and (colours or bool({"mask", "segmentation", "contour", "overlay"} & set(found.words)))


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
    if any(m.operations & {"removal", "addition"} for m in forbidden):
        return False
    named = [m for c in rows if c.mood in ASKED for m in found.within(c.first, c.last) if m.says("target")]
    return any(not (m.negated or m.excepted or m.kept) for m in named)


def _names_stranger(found: Scan, rows: Sequence[Clause]) -> bool:
    """Whether it is the bare name of a thing that is not known: "hippocampi please"."""
    if len(rows) != 1 or rows[0].mood not in ASKED or any(m.operations for m in found.mentions):
        return False
    strange = [at for at, own in enumerate(found.covering) if own is None and len(found.words[at]) > 3]
    covered = [m for m in found.mentions if not m.is_small() and not m.says("side") and not m.says("place")]
    known = [word for at in strange for word in (found.words[at],) if word.isalpha() and word.isascii()]
    asks = any(m.says("address") or m.says("only") or m.says("side") for m in found.mentions)
    return (
        asks and len(found.words) <= 4 and 0 < len(known) <= 2 and len(known) == len(strange) and not covered
    )


def _unknown_verb(found: Scan, rows: Sequence[Clause]) -> str | None:
    """The word that stands where a verb asks, before an article, and is not known: "rename the polyp"."""
    for clause in rows:
        if not found.english or clause.mood not in ASKED:
            continue
        commas = [at + 1 for at in range(clause.first, clause.last) if found.words[at] in COMMAS]
        for at in (clause.first, *commas):
            while at < clause.last and (own := found.covering[at]) is not None and own.says("address"):
                at = own.last
            word = found.words[at] if at < clause.last else ""
            following = found.words[at + 1 : at + 3]
            if following and following[0] in _PARTICLES:
                following = following[1:]
            unknown = word.isalpha() and not word.endswith("ly") and found.covering[at] is None
            if unknown and following and following[0] in _ARTICLES:
                return found.written(at, at + 1)
    return None


def _without_verb(found: Scan, rows: Sequence[Clause]) -> Decision:
    targets = [m for m in found.mentions if m.says("target")]
    forbidden = [m for m in found.mentions if m.operations and (m.negated or m.excepted)]
    if forbidden and not _instead(found, rows, forbidden):
        return Decision("none", "it says only what not to do")
    verb = _unknown_verb(found, rows)
    if verb is not None:
        return Decision("none", f"I do not know what {verb!r} asks for")
    if not targets and _names_stranger(found, rows):
        return Decision("perception")
    if not targets and not any(clause.mood == "name" for clause in rows):
        return Decision("none", "nothing that can be done to an image is asked for")
    named = any(m.says("target") for c in rows if c.mood in ASKED for m in found.within(c.first, c.last))
    if not targets:
        return Decision("none", "nothing that can be done to an image is asked for")
    if not named or any(m.operations & {"removal", "gone"} for m in found.mentions):
        return Decision(
            "none", "it states something and asks for nothing; say, for example, 'mark the liver'"
        )
    return Decision("perception")
