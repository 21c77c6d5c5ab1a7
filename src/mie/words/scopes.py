"""What is said about a phrase: negated, excepted, to be kept, or taken back."""

from __future__ import annotations

from typing import Final

from mie.words.mentions import COMMAS, ENDS, Mention, Scan
from mie.words.vocabulary import Sense, word_set

TAKEN_BACK: Final = "the request is taken back"
_SCOPES: Final = frozenset(("left_out", "stays", "keep", "except", "not", "instead", "retraction"))
_TAKES_BACK: Final = frozenset(("retraction", "correction"))
_VERBS: Final = word_set("perception removal addition fill")
_KEEPS: Final = word_set(  # verbs of their own: "ignore the spleen and mark the liver"
    "leave keep preserve retain maintain ignore skip omit disregard exclude spare forget lass lasse laisse "
    "laissez deja deje"
)
_PARTS: Final = COMMAS | ENDS | word_set("but and while whereas aber und mais et pero y sondern 但 而")
_MUST: Final = word_set("must should shall may can to is are has have needs need ought soll sollen doit debe")
_NEED: Final = word_set("need needed wanted required necessary brauche noetig 要 用 需")
_FAR: Final = 6  # tokens from what takes back to its object
_POLITE: Final = word_set("please pls thanks thank you bitte danke svp merci por favor gracias")
_CHANGES: Final = frozenset(("removal", "addition", "gone", "other"))
_TURNS: Final = word_set("but just instead rather then aber sondern mais pero sino")
_LISTED: Final = word_set("and or nor und oder noch et ou ni y o 和 或")


def mark_scopes(found: Scan) -> None:
    """Say of each mention whether it is negated, excepted or to be kept."""
    for index, mention in enumerate(found.mentions):
        if _SCOPES.isdisjoint(mention.kinds):
            continue
        if mention.says("left_out"):
            start = _stretch(found, mention)
            for other in found.mentions[:index]:  # "Ödem aussparen", "oedema excluded"
                other.excepted |= other.says("target") and other.first >= start
            continue
        if mention.says("stays"):
            first = mention.first
            while first and found.words[first - 1] in _MUST:
                first -= 1
            for other in found.mentions[:index]:  # "take the hairs off, the lesion must stay"
                other.kept |= other.last == first and other.says("target")
            continue
        if mention.says("retraction") and _has_object(found, index):
            mention.set_senses((Sense("except", "except"),))  # "never mind the heart, mark the lungs"
        topic = _topic(found, index)
        if topic:
            for other in topic:  # "the spleen need not be marked", "脾脏不要标"
                other.excepted = True
            continue
        kept = mention.says("keep") and not _is_remaining(found, mention)
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
        if found.words[mention.first : mention.last] == ["before", "i"]:  # "before I mark it, denoise it"
            end = min(end, _behind_comma(found, index))
        if negates and found.words[mention.first] in ("nicht", "not") and end == index + 1:
            start = _stretch(found, mention)
            for other in found.mentions[:index]:  # "entferne den Tumor nicht"
                other.negated |= other.first >= start
        for other in found.mentions[index + 1 : end]:
            other.kept |= kept
            other.excepted |= excepted
            other.negated |= negates and not kept


def _has_object(found: Scan, index: int) -> bool:
    """Whether a target follows what else takes back the whole request: "forget about the spleen"."""
    mention = found.mentions[index]
    following = next((m for m in found.mentions[index + 1 :] if m.says("target")), None)
    if following is None or following.first - mention.last > _FAR:
        return False
    between = found.within(mention.last, following.first)
    parted = _PARTS & set(found.words[mention.last : following.first])
    return not parted and not any(m.operations for m in between)


def _topic(found: Scan, index: int) -> list[Mention]:
    """The targets before a negation that it is about: it has none behind, and no verb stands before them.

    Behind it is nothing in its stretch, or what it rules out: "spleen I don't need", "die Milz nicht
    markieren". A report rules out nothing: "the liver is not enlarged".
    """
    mention = found.mentions[index]
    if not (mention.says("not") or mention.says("except")):
        return []
    first, last = mention.first, mention.last
    while first and found.words[first - 1] not in _PARTS:
        first -= 1
    while last < len(found.words) and found.words[last] not in _PARTS:
        last += 1
    before = found.within(first, mention.first)
    targets = [m for m in before if m.says("target")]
    if not targets or any(m.operations & _VERBS and not m.says("target") for m in before):
        return []
    behind = found.within(mention.last, last)
    if any(m.says("target") or m.says("side") or m.operations & _CHANGES for m in behind):
        return []
    ruled_out = any("perception" in m.operations or m.says("wish") for m in behind)
    needed = found.words[mention.last - 1] in _NEED
    empty = all(word in _POLITE for word in found.words[mention.last : last])
    says = needed or ruled_out or (empty and found.words[mention.first] not in ("no", "never"))
    return targets if says and found.words[last - 1 : last + 1][-1:] != ["?"] else []


def _behind_comma(found: Scan, index: int) -> int:
    """The number of the first mention behind the comma that follows a mention."""
    start = found.mentions[index].last
    comma = next((at for at in range(start, len(found.words)) if found.words[at] in COMMAS), len(found.words))
    later = (at for at, m in enumerate(found.mentions) if at > index and m.first > comma)
    return next(later, len(found.mentions))


def _is_remaining(found: Scan, mention: Mention) -> bool:
    """Whether "the remaining" only describes a target: "mark the remaining lung"."""
    if found.words[mention.first : mention.last] != ["the", "remaining"]:
        return False
    verb = found.within(found.starts[mention.first], mention.first)
    return any("perception" in m.operations for m in verb)


def _answers(found: Scan, mention: Mention) -> bool:
    """Whether "no" alone answers a question before it that has no verb."""
    if not mention.first or found.words[mention.first - 1] not in ("?", "？"):
        return False
    start = found.starts[mention.first - 1]
    asked = found.within(start, mention.first)
    after = found.after(mention.last)
    alone = not after or after[0] in COMMAS or after[0] in ENDS or after[0] == "thanks"
    if any("perception" in m.operations or m.says("address") for m in asked):
        return False
    return alone and any(m.says("target") for m in asked)


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
        if mention.operations & {"perception", "removal", "addition"} and not mention.says("target"):
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


def retract(found: Scan) -> None:
    """Leave out what is taken back: "mark the liver, scratch that, the spleen", "liver, I mean spleen"."""
    for index, mention in enumerate(found.mentions):
        if _TAKES_BACK.isdisjoint(mention.kinds):
            continue
        following = [m for m in found.mentions[index + 1 :] if not m.negated and not m.excepted]
        earlier = found.mentions[:index]
        if mention.says("retraction"):
            kinds = {"operation", "target"} if any(m.says("target") for m in following) else {"operation"}
            if not any(m.says("target") or m.operations & _VERBS for m in following):
                kinds = {"operation", "target", "colour"}
                found.notes.append(TAKEN_BACK)
            for other in earlier:
                other.kept |= any(other.says(kind) for kind in kinds)
        elif mention.says("correction") and not _is_degree(found, mention):
            same = [m for m in following if found.starts[m.first] == found.starts[mention.first]]
            if any(m.operations & _VERBS and not m.says("target") for m in same):
                for other in earlier:  # "remove the polyp, no wait, highlight it"
                    other.kept |= bool(other.operations & {"removal", "addition"})
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
    ends = (
        not after or after[0] in COMMAS or after[0] in ENDS or after[0] in ("to", "thanks", "asap", "please")
    )
    return target is not None and ends and found.words[mention.first] in ("no", "not", "nicht", "non")


def _verb_follows(found: Scan, index: int) -> bool:
    following = found.mentions[index + 1 :]
    while following and following[0].is_small() and not following[0].operations:
        if COMMAS & set(found.after(following[0].last)):
            return False
        following = following[1:]  # "no quiero que elimines el tumor"
    return bool(following) and bool(following[0].operations & _VERBS) and not following[0].says("target")


def _other_named(found: Scan, index: int, at: int) -> bool:
    """Whether "not this, that" names what is meant: nothing before it, one thing behind, and no list."""
    if any(m.says("target") or m.operations & _VERBS for m in found.mentions[:index]):
        return False
    start = found.starts[found.mentions[index].first]
    behind = [m for m in found.mentions[at:] if found.starts[m.first] == start]
    words = set(found.words[found.mentions[index].last : behind[-1].last if behind else None])
    targets = [m for m in behind if m.says("target") and not m.operations]
    verbs = any(m.operations & _VERBS and not m.says("target") for m in behind)
    return len(targets) == 1 and not verbs and not words & _LISTED


def _scope_end(found: Scan, index: int) -> int:
    """The mention at which what begins at mention `index` ends: the clause does, or a new verb follows."""
    start = found.mentions[index]
    seen_verb, broken = found.words[start.first] in _KEEPS, False
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
        verb = mention.operations & _VERBS and not mention.says("target")
        if verb and start.says("instead") and any(m.says("target") for m in found.mentions[index + 1 : at]):
            return at  # "instead of the left kidney show the right one"
        if named and COMMAS & set(between) and _other_named(found, index, at):
            return at  # "not the right kidney, the left one"
        if COMMAS & set(between) and not broken and _verb_ahead(found, at):
            return at  # "不要动肿瘤，把肝脏标红"
        broken |= bool(COMMAS & set(between))
        wished = mention.says("wish") or (mention.says("address") and mention.last - mention.first > 1)
        if broken and wished and not start.says("except"):
            return at  # "I don't want it removed, I want it in blue"
        if at > index + 1 and (
            (first in _TURNS and not _is_degree(found, mention)) or (broken and mention.says("only"))
        ):
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
        changes = mention.operations & {"removal", "addition"} and not start.says("keep")
        if verb and joined and seen_verb and not changes:
            return at  # "leave the liver alone and paint the stomach red"
        seen_verb |= bool(verb)
    return len(found.mentions)
