"""The task of a question, told by its words: for imports that do not say, and to check those that do."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

from mie.vocabulary import UNKNOWN

# The first rule that fits decides; those of narrow wording come first.
_RULES: Final[tuple[tuple[str, str], ...]] = (
    (
        "DRP",
        r"respon(se|d|ds) to (treatment|therapy|the drug|medication)|drug response|(dose|medication) effect",
    ),
    ("POA", r"post-?operativ|after (the )?(surgery|operation|resection)|surgical outcome|residual tumou?r"),
    ("PA", r"pre-?operativ|before (the )?(surgery|operation)|surgical (approach|planning|access)|resectab"),
    ("TPS", r"\b(treat(ment|ed)?|therapy|therapeutic|manage(ment|d)?|intervention|next step)\b"),
    ("PFA", r"prognos(tic|is)|survival|factor .*(outcome|survival)"),
    ("RS", r"\brisk\b|\bseverity\b|\bgrade\b|\bgrading\b|\bstage\b|\bstaging\b|likelihood of"),
    ("CSP", r"\b(symptom|clinical sign|present with|complain|deficit|manifestation)s?\b"),
    ("PMC", r"mechanism|pathophysiolog|\bcaus(e|es|ed|al)\b|\bdue to\b|aetiolog|etiolog|explain"),
    (
        "IMI",
        r"modalit|imaging (technique|method)|\bsequence\b|how was this medical image|weighted|"
        r"\bplane\b|orientation of this|kind of imaging|MRI contrast",
    ),
    ("AFU", r"\bfunctions?\b|responsible for|role (of|does)|controls? "),
    ("DDR", r"diagnos|(kind|type)s? of |classif|what disease|which disease|condition is"),
    (
        "LFD",
        r"how many|count the|number of|diameter|how large|what size|share of the image|"
        r"how much of|part of the "
        r"(lesion|.*tumou?r|.*stroke)|shape|outline (does|of|have)|how bright|brighter|"
        r"brightness|appear compared|"
        r"appear next|look compared|look next|percentage of|largest share|largest part|"
        r"order .* by|rank|sort these|"
        r"area of the|covered by|component|describe|characteri|texture|density|enhanc",
    ),
    (
        "LL",
        r"bounding box|box(es)?\b|which (part|quadrant|side|lobe|hemisphere)|what (part|quadrant|side|lobe)|"
        r"where is the .*(lesion|tumou?r|polyp|haemorrhage|hemorrhage|mass|stone|oedema|"
        r"exudate|stroke|metasta|"
        r"carcinoma)|where are the|locat|localis|localiz|(middle|centre|"
        r"center) of the .*(lesion|tumou?r|polyp|mass|"
        r"haemorrhage|hemorrhage|stroke|carcinoma|stones?|oedema)",
    ),
    (
        "ASI",
        r"structure|organ\b|outlined in|outline (enclose|surround|mark)|which region is|"
        r"anatom|relative to the|"
        r"in relation to|seen from the|viewed from the|direction from|nearest to|"
        r"closest to|(middle|centre|center) "
        r"of the|lie(s)? from the|name what is",
    ),
    (
        "AS",
        r"\b(is|are|can|does|do) .*(visible|present|seen|show|contain|find|found|abnormal)|would you report|"
        r"shows? (a|an|the) |abnormal|normal or|two images|which .*(shows|contains)|"
        r"any (lesion|tumou?r|sign)",
    ),
)
_COMPILED: Final = tuple((task, re.compile(rule, re.IGNORECASE)) for task, rule in _RULES)


def label_task(text: str) -> str:
    """The task that the words of a question suggest; "unknown" where no rule fits.

    >>> label_task("Which imaging modality produced this image?"), label_task("Is a polyp visible?")
    ('IMI', 'AS')
    """
    return next((task for task, rule in _COMPILED if rule.search(text)), UNKNOWN)


def agreement(given: Sequence[str], labelled: Sequence[str]) -> dict[str, float | int]:
    """How often the words lead to the given task: share, and Cohen's kappa, over what both label."""
    pairs = [(a, b) for a, b in zip(given, labelled, strict=True) if UNKNOWN not in (a, b)]
    if not pairs:
        return {"questions": 0}
    same = sum(a == b for a, b in pairs) / len(pairs)
    first, second = Counter(a for a, _ in pairs), Counter(b for _, b in pairs)
    chance = sum(first[task] * second[task] for task in first) / len(pairs) ** 2
    kappa = 1.0 if chance == 1 else (same - chance) / (1 - chance)
    return {"questions": len(pairs), "agree": round(same, 4), "kappa": round(kappa, 4)}
