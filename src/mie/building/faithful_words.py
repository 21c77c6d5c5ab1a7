"""The words that a rephrasing must not add, lose or change, by what they say."""

from __future__ import annotations

import re
from typing import Final


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
