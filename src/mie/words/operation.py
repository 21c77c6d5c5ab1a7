"""What kind of edit a text asks for. A verb decides; nothing is removed or added without one.

Verbs in a question for an opinion, in a quotation, behind a negation or in a history are no request.
"""

from __future__ import annotations

from typing import Final, NamedTuple

from mie.words.scan import Mention, Scan
from mie.words.vocabulary import vocabulary, word_set

# Showing goes along with another request ("find the tumour and remove it"); marking does not.
_WEAK: Final = word_set(
    "show shows see view find finds where display identify fill cover mask look search spot detect locate"
)
_PARTICIPLES: Final = word_set(
    "removed deleted erased eliminated excised resected healed cured inserted added ablated"
)
_NOUNS: Final = word_set("removal deletion addition resection ablation entfernung suppression eliminacion")
_PASSIVE: Final = word_set("be get have want wants needs need gets")
_OVER: Final = word_set(
    "after before post following prior since until during status previous planned for of nach vor "
    "apres avant tras"
)
# What is drawn over an image, and is no part of it.
_MARKS: Final = word_set(
    "overlay overlays mask masks contour contours outline outlines tint label labels arrow arrows box "
    "boxes circle circles marker markers marking markings annotation annotations highlight highlights "
    "color colors highlighting markierung contorno umrandung surlignage line legend caption text "
    "scale"
)
_STRONG: Final = word_set(
    "add adds adding insert inserts inserting introduce introduces implant simulate simulates "
    "simulating inject embed plant hinzufuegen hinzu fuege ergenze ergenzen ergaenze einfuegen "
    "einsetzen simuliere simulieren ajoute ajouter ajoutez insere inserer inserez simule simuler "
    "simulez anade anadir anada agrega agregar agregue inserta insertar inserte simula simular 添 增 加 "
    "插 模 放"
)
# "Take the polyp out": the verb and its particle have the target between them.
_PARTED: Final = word_set("take takes cut edit airbrush wipe mach mache nimm nehme schneide schneid")
_PARTICLES: Final = word_set("away out off weg raus heraus")
_BETWEEN: Final = 7  # tokens from the verb to the particle
# What others want, or what is planned, is no request: "we are going to remove it".
_PLANNED: Final = word_set(
    "wants wanted plans planned planning intends intended decided going suggested suggests recommends "
    "recommended advised hopes scheduled will"
)
_NOTHING: Final = word_set("nothing nichts rien nada")
# "The removal margins" are no removal.
_OF_NOUNS: Final = word_set(
    "margin margins site sites bed cavity scar zone line lines plan date day specimen border borders area"
)
_SKIPPED: Final = word_set("area of new single and")
_LEADS: Final = word_set("show see make give put write")  # before "me what you think"
_STATES: Final = word_set("is are was were has have shows there")


class Decision(NamedTuple):
    operation: str  # with "none": why, in `note`
    note: str | None = None


def decide(found: Scan, transforms: bool) -> Decision:
    """Return the operation; `transforms`: words of a transformation are there."""
    requests = [m for m in found.mentions if not m.negated and not m.excepted and not m.kept]
    opinion = _opinions(found)
    asked = [m for m in requests if found.starts[m.first] not in opinion]
    removal = [m for m in asked if "removal" in m.operations() and _is_request(found, m)]
    removal += _parted(found, asked)
    addition = [m for m in asked if "addition" in m.operations() and _is_request(found, m)]
    perception = [m for m in asked if "perception" in m.operations()]
    strong = [m for m in perception if found.words[m.first] not in _WEAK and not m.says("target")]
    colours = any(m.says("colour") for m in requests)
    white = [m for m in asked if "white" in m.operations()]
    fill = [m for m in asked if "fill" in m.operations()]
    removal = [m for m in removal if m not in white]
    if white and (fill or addition or removal):
        lesion = any(_indefinite(found, m) for m in requests if _is_lesion(m))
        return Decision("simulation" if lesion else "inpainting")
    marks = _object_is_mark(found, removal)
    if marks:
        return Decision("none", "the request is to remove a marking; an image holds none that is known")
    if not removal and _replaced(found, asked):
        removal = fill
    addition = [m for m in addition if _adds(found, m, colours)]
    if not addition and not colours and _shown_with(found, asked):
        addition = perception or fill
    if not removal and not strong and not colours and not addition:
        hesitation = _without(found, asked)
        if hesitation is not None:
            if hesitation.operation == "none" and not transforms:
                return hesitation
            if hesitation.operation == "removal":
                removal = fill or perception or asked[:1]
    if transforms and not (strong and _only_marks(found, strong, removal)):
        return Decision("transformation")
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
    if perception or (colours and not opinion):
        return Decision("perception")
    if opinion:
        return Decision("none", "it asks for an opinion, a diagnosis or a text; an image editor gives none")
    return _without_verb(found)


def _opinions(found: Scan) -> set[int]:
    """The clauses (their first tokens) that begin like a question for an opinion or a text."""
    clauses = set()
    content: set[int] = set()
    for mention in found.mentions:
        start = found.starts[mention.first]
        if "none" in mention.operations() and start not in content and not mention.negated:
            clauses.add(start)
        said = mention.operations() - {"none"} and found.words[mention.first] not in _LEADS
        if said or mention.says("target"):
            content.add(start)
    for at, word in enumerate(found.words):  # "write: remove the tumour" is a text
        if word == ":" and found.starts[at] in clauses:
            clauses.add(at + 1)
    # A Chinese question ends with its particle.
    clauses |= {found.starts[at] for at, word in enumerate(found.words) if word == "吗"}
    return clauses


def _is_request(found: Scan, mention: Mention) -> bool:
    word = found.words[mention.first]
    before = found.before(mention.first, 3)
    if word in _PARTICIPLES:
        possible = {"been", "not", "can", "could"} & set(before)  # "so that it can be removed"
        return bool(_PASSIVE & set(before)) and not possible
    following = found.after(mention.last, 1)
    if word in _NOUNS:
        return not _OVER & set(before) and not _OF_NOUNS & set(following)
    if before and before[-1] == "without":  # "without removing"
        return False
    if _NOTHING & set(following):
        return False
    if before[-1:] == ["to"] and _PLANNED & set(before):
        return False
    if word in ("clear", "resolve"):
        return bool(following) and following[0] in (
            "the",
            "this",
            "these",
            "all",
            "any",
            "away",
            "that",
            "up",
        )
    return not (word == "if" or "if" in before or "whether" in before)


def _parted(found: Scan, asked: list[Mention]) -> list[Mention]:
    """The targets that stand between a verb of removal and its particle: "take the polyp out"."""
    targets = []
    for at, word in enumerate(found.words):
        if word not in _PARTED or found.before(at, 3)[-1:] in (["to"], ["not"]):
            continue
        for mention in asked:
            behind = found.after(mention.last, 2)
            near = mention.says("target") and at < mention.first and mention.last - at <= _BETWEEN
            parted = bool(_PARTICLES & set(behind[:1])) and "of" not in behind
            if near and parted and found.starts[at] == found.starts[mention.first]:
                targets.append(mention)
    return targets


def is_history(found: Scan, mention: Mention) -> bool:
    """Whether a mention stands in a clause that tells what was done: "the tumour was removed last year"."""
    start = found.starts[mention.first]
    if _behind_noun(found, mention):
        return True
    if all(found.starts[m.first] == start for m in found.mentions):
        return False
    clause = [word for at, word in enumerate(found.words) if found.starts[at] == start]
    return bool(_PARTICIPLES & set(clause)) and bool({"was", "were", "been"} & set(clause))


def _behind_noun(found: Scan, mention: Mention) -> bool:
    """Whether it reads "after resection of the tumour"."""
    for at in range(max(0, mention.first - 4), mention.first):
        behind = found.words[at : mention.first]
        if found.words[at] in _NOUNS and _OVER & set(found.before(at, 2)) and "," not in behind:
            return True
    return False


def _indefinite(found: Scan, mention: Mention) -> bool:
    """Whether a mention has "a" before it, or a size alone: "a small polyp", "small liver tumours"."""
    at = mention.first - 1
    while at >= 0:
        here = next((m for m in found.mentions if m.first <= at < m.last), None)
        if here is not None and here.says("size"):
            return here.first == 0 or found.words[here.first - 1] not in ("the", "this")
        counted = found.words[at][0].isdigit() if here is None else here.says("unit")
        if not counted and found.words[at] not in _SKIPPED:
            break
        at -= 1
    return any(m.last == at + 1 and m.says("indefinite") for m in found.mentions)


def _is_lesion(mention: Mention) -> bool:
    known = vocabulary().targets
    return any(known[s.value].kind == "lesion" for s in mention.of("target")) and not mention.negated


def _object_is_mark(found: Scan, verbs: list[Mention]) -> bool:
    """Whether what a verb asks for is a drawing over the image: "remove the red overlay", "add a circle"."""
    for verb in verbs:
        for at in range(verb.last, min(verb.last + 5, len(found.words))):
            mention = next((m for m in found.mentions if m.first <= at < m.last), None)
            if found.words[at] in _MARKS and not (
                mention and (mention.says("sure") or mention.says("target"))
            ):
                return True
            if mention is None or mention.says("target") or mention.says("sure"):
                break
    return False


def _adds(found: Scan, verb: Mention, colours: bool) -> bool:
    if _object_is_mark(found, [verb]):
        return False
    new = any(_indefinite(found, m) for m in found.mentions if _is_lesion(m))
    if colours and not new:  # "add the liver in red" is a marking
        return False
    if any(found.words[at] in _STRONG for at in range(verb.first, verb.last)) or verb.last - verb.first > 1:
        return True
    return not colours and new


def _replaced(found: Scan, asked: list[Mention]) -> bool:
    """Whether a lesion is to be replaced by what is healthy."""
    for mention in asked:
        if found.words[mention.first] in (
            "replace",
            "ersetze",
            "ersetzen",
            "remplace",
            "remplacer",
            "reemplaza",
        ):
            lesion = [m.first for m in asked if _is_lesion(m) and m.first > mention.first]
            healthy = [m.first for m in asked if m.says("healthy") and m.first > mention.first]
            return bool(lesion and healthy and lesion[0] < healthy[0])
    return False


def _shown_with(found: Scan, asked: list[Mention]) -> bool:
    """Whether it reads "show this colon with a small polyp", or "replace healthy tissue by a polyp"."""
    for mention in asked:
        if not _is_lesion(mention) or not _indefinite(found, mention):
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
        if not any(_is_lesion(m) for m in following):
            continue
        before = set(found.words[: mention.first])
        if before & {"need", "want", "look", "looks", "version"}:
            return Decision("removal")
        if before & {"show", "display", "see", "view"}:
            return Decision("none", "it may ask to remove something, or to mark the rest: say which")
    return None


def _only_marks(found: Scan, strong: list[Mention], removal: list[Mention]) -> bool:
    """Whether a marking verb governs, as in "mark the hairs": no word says that anything is to change."""
    changes = [
        "remove",
        "clean",
        "reduce",
        "suppress",
        "restore",
        "correct",
        "denoise",
        "take",
        "get",
        "undo",
        "apply",
        "give",
        "make",
        "turn",
        "convert",
    ]
    if removal or set(changes) & set(found.words):
        return False
    first = found.words[strong[0].first]
    return first in (
        "mark",
        "highlight",
        "segment",
        "outline",
        "delineate",
        "label",
        "annotate",
        "circle",
        "contour",
    )


def _without_verb(found: Scan) -> Decision:
    targets = [m for m in found.mentions if m.says("target")]
    if any(m.negated or m.excepted for m in found.mentions if m.operations()):
        return Decision("none", "it says only what not to do")
    if not targets:
        return Decision("none", "nothing that can be done to an image is asked for")
    if _STATES & set(found.words) or any("removal" in m.operations() for m in found.mentions):
        return Decision(
            "none", "it states something and asks for nothing; say, for example, 'mark the liver'"
        )
    return Decision("perception")
