"""What the compact editor makes of words, on real images: three trials, with figures and contact sheets.

    python examples/words.py FOLDER -o OUT [--trial wordings|sides|tumour] [--style short|long] [--images 6]

FOLDER holds data/ and data-extra/, one folder per data set, as `examples/perception.yaml` expects. Without a
data set its part is skipped, with the reason.

wordings  the same image and target asked for in eight ways, five languages among them: DICE of the masks.
          `--style long`: whole sentences, as people write to people
sides     left and right of lungs and kidneys, against the halves of the data set's mask
tumour    "Where is the tumour?" on ten images of six modalities
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from itertools import combinations, islice
from pathlib import Path
from typing import NamedTuple

import cv2
import numpy as np
from PIL import Image

from mie.editors import Edited, Editor, open_editor
from mie.images.overlay import dice
from mie.records import Case, Mask, Pixels, Rejection
from mie.sources.catalog import catalog
from mie.sources.source import open_source
from mie.words import vocabulary

AGREE = 0.95
CELL = 256
WORDINGS = (  # the target's set, its folder, its name
    ("kvasir_seg_polyp", "data-extra", "polyp"),
    ("isic2018_skin_more", "data-extra", "skin lesion"),
    ("busi_breast_us_more", "data-extra", "breast lesion"),
    ("dsb2018_nuclei_more", "data-extra", "cell nuclei"),
    ("cxr_shenzhen_lung_more", "data-extra", "lungs"),
    ("curvas_abdomen_ct", "data-extra", "liver"),
    ("curvas_abdomen_ct", "data-extra", "kidneys"),
    ("kidney_t2_mri", "data-extra", "kidneys"),
    ("smdg_disc_cup", "data-extra", "optic disc"),
    ("glomeruli_histology", "data-extra", "glomeruli"),
    ("figshare_brain_tumor_more", "data-extra", "brain tumour"),
)
SIDES = (
    ("cxr_shenzhen_lung_more", "data-extra", "lungs"),
    ("curvas_abdomen_ct", "data-extra", "kidneys"),
    ("kidney_t2_mri", "data-extra", "kidneys"),
)
TUMOURS = (
    ("figshare_brain_tumor_more", "data-extra", "brain tumour"),
    ("brisc2025_brain_tumor", "data-extra", "meningioma"),
    ("breastdm_dce_mri", "data-extra", "malignant breast tumour"),
    ("kits19_kidney_ct_more", "data-extra", "kidney tumour"),
    ("liver_tumor_ct", "data-extra", "liver tumours"),
    ("busi_breast_us_more", "data-extra", "breast lesion"),
    ("ovarian_tumor_us", "data-extra", "ovarian tumour"),
    ("kvasir_seg_polyp", "data-extra", "polyp"),
    ("isic2018_skin_more", "data-extra", "skin lesion"),
    ("inbreast_mammo", "data", "breast lesion"),
)


class Shown(NamedTuple):
    """A row of a contact sheet."""

    title: str
    pictures: list[Pixels]


def cases(folder: Path, row: tuple[str, str, str], count: int) -> list[Case]:
    """Return the first cases of a set that have the target; print why there are none."""
    name, part, target = row
    root = folder / part / name
    if not root.is_dir():
        print(f"skipped: {name}, no folder {root}")
        return []
    return list(islice(_with_target(name, root, target), count))


def _with_target(name: str, root: Path, target: str) -> Iterator[Case]:
    source = open_source(catalog()[name], root)
    for unit in source.scan():
        if isinstance(unit, Rejection):
            continue
        for case in source.load(unit):
            if isinstance(case, Case) and target in case.masks and (case.masks[target] > 0).any():
                yield case


def truth(case: Case, target: str) -> Mask:
    mask: Mask = case.masks[target] > 0
    return mask


def wordings(target: str, style: str) -> list[str]:
    """Eight ways to ask for a target: name, question, synonym, slip of the pen, and four other languages."""
    words = vocabulary().targets[target]
    synonym = words.synonyms["en"][0]
    if style == "long":
        return _long_wordings(target)
    german, french, spanish, chinese = (words.synonyms[language][0] for language in ("de", "fr", "es", "zh"))
    longest = max(target.split(), key=len)
    middle = len(longest) // 2
    swapped = longest[: middle - 1] + longest[middle] + longest[middle - 1] + longest[middle + 1 :]
    slip = target.replace(longest, swapped)
    return [
        f"Highlight the {target} in red.",
        f"Where {'are' if words.plural else 'is'} the {target}?",
        f"pls mark the {synonym}",
        f"outline {slip} in red for me",
        f"Markiere bitte {german} in Rot",
        f"Montre-moi {french} en rouge",
        f"¿Dónde está {spanish}?",
        f"请用红色标出{chinese}",
    ]


def _long_wordings(target: str) -> list[str]:
    words = vocabulary().targets[target]
    synonym = words.synonyms["en"][-1]
    german, french, spanish, chinese = (words.synonyms[language][-1] for language in ("de", "fr", "es", "zh"))
    is_ = "are" if words.plural else "is"
    return [
        f"Hi, I'm preparing a talk for tomorrow and need the {target} outlined in red, nothing else.",
        f"could u show me where the {target} {is_} on this picture? red would be great",
        f"{target.capitalize()}, red please. Do not remove or change anything.",
        f"My colleague asked if the {synonym} can be seen. Would you colour the {synonym} red for him?",
        f"Könnten Sie mir bitte {german} rot umranden? Vielen Dank!",
        f"Bonjour, est-ce que vous pouvez entourer {french} en rouge, s'il vous plaît ?",
        f"¿Me podrías colorear {spanish} de rojo, por favor? No quites nada.",
        f"您好，麻烦把{chinese}用红色圈出来，谢谢",
    ]


def painted(edited: Edited, image: Pixels) -> Mask:
    changed: Mask = (edited.image != image).any(2)
    return changed


def try_wordings(editors: dict[str, Editor], folder: Path, count: int, out: Path, style: str) -> None:
    agreed, empty, total = 0, 0, 0
    rows: list[Shown] = []
    for row in WORDINGS:
        texts = wordings(row[2], style)
        for at, case in enumerate(cases(folder, row, count)):
            edits = [ask(editors, case, text) for text in texts]
            masks = [painted(edited, case.image) for edited in edits]
            total += 1
            if at == 0:
                rows.append(Shown(f"{case.modality}: {row[2]}", [case.image, *(e.image for e in edits)]))
            if not any(mask.any() for mask in masks):
                empty += 1
                print(f"nothing painted by any wording: {case.case_id}: {edits[0].meta.get('note')}")
                continue
            worst = min(_agreement(a, b) for a, b in combinations(masks, 2))
            agreed += worst >= AGREE
            if worst < AGREE:
                print(f"{worst:.3f}: {case.case_id}, {row[2]}")
                for text, edited, mask in zip(texts, edits, masks, strict=True):
                    note = edited.meta.get("note")
                    print(f"    {text!r}: {mask.mean():.4f} {edited.meta.get('asked')} {note}")
        print(f"after {row[0]}: {total} images, {agreed} at DICE {AGREE} or more, {empty} empty", flush=True)
    print(f"wordings: {agreed} of {total} images at DICE {AGREE} or more between all eight; {empty} empty")
    sheet(rows, out / "wordings.png")


def _agreement(one: Mask, other: Mask) -> float:
    return float(dice(one, other)) if one.any() or other.any() else 1.0


def _is_pair(mask: Mask) -> bool:
    """Whether the second largest region has a tenth of the pixels of the largest."""
    _, _, figures, _ = cv2.connectedComponentsWithStats(mask.astype(np.uint8))
    areas = sorted(figures[1:, cv2.CC_STAT_AREA])
    return len(areas) > 1 and bool(areas[-2] >= 0.1 * areas[-1])


def try_sides(editors: dict[str, Editor], folder: Path, count: int, out: Path) -> None:
    rows: list[Shown] = []
    right = total = 0
    for row in SIDES:
        singular = row[2].removesuffix("s")
        for case in cases(folder, row, count):
            wanted = truth(case, row[2])
            if not _is_pair(wanted):
                print(f"{case.modality}, {case.case_id}: left out, its mask shows one of the pair alone")
                continue
            whole = ask(editors, case, f"Highlight the {row[2]}")
            halves = [ask(editors, case, f"Highlight the {side} {singular}") for side in ("left", "right")]
            columns = np.flatnonzero(wanted.any(0))
            middle = (columns[0] + columns[-1]) // 2  # of the pair in the data set's own mask
            scores = []
            for side, edited in zip(("left", "right"), halves, strict=True):
                half = wanted.copy()
                # The patient's left is on the image's right.
                half[:, : middle + 1] &= side == "right"
                half[:, middle + 1 :] &= side == "left"
                other = wanted & ~half
                mask = painted(edited, case.image)
                scores.append((_agreement(mask, half), _agreement(mask, other)))
            joined = painted(halves[0], case.image) | painted(halves[1], case.image)
            total += 1
            good = all(own > wrong for own, wrong in scores) and np.array_equal(
                joined, painted(whole, case.image)
            )
            right += good
            text = ", ".join(f"{own:.2f} (other side {wrong:.2f})" for own, wrong in scores)
            print(
                f"{case.modality}, {case.case_id}: left, right DICE {text}{'' if good else '  WRONG'}",
                flush=True,
            )
            pictures = [case.image, whole.image, *(edited.image for edited in halves)]
            rows.append(Shown(f"{case.modality}: image, both, left, right", pictures))
    print(f"sides: {right} of {total} images right: own side better, both sides together the whole")
    sheet(rows, out / "sides.png")


def try_tumour(editors: dict[str, Editor], folder: Path, out: Path) -> None:
    rows: list[Shown] = []
    for row in TUMOURS:
        for case in cases(folder, row, 1):
            edited = ask(editors, case, "Where is the tumour?")
            marked = case.image.copy()
            wanted = truth(case, row[2])
            outline, _ = cv2.findContours(wanted.astype(np.uint8), cv2.RETR_LIST, cv2.CHAIN_APPROX_NONE)
            cv2.drawContours(marked, outline, -1, (255, 255, 0), 2)
            mask = painted(edited, case.image)
            asked = edited.meta.get("asked")
            print(
                f"{case.modality}, {row[2]}: DICE {_agreement(mask, wanted):.2f}, {asked}; "
                f"{edited.meta.get('note')}",
                flush=True,
            )
            rows.append(
                Shown(f"{case.modality}, {row[2]}: image, edit, data set", [case.image, edited.image, marked])
            )
    sheet(rows, out / "tumour.png", columns=2)


def ask(editors: dict[str, Editor], case: Case, text: str) -> Edited:
    return editors[case.modality].edit(case.image, text, seed=0, history=())


def sheet(rows: list[Shown], path: Path, columns: int = 1) -> None:
    """Write the rows below each other, `columns` of them side by side."""
    if not rows:
        return
    strips = []
    for row in rows:
        cells = [cv2.resize(picture, (CELL, CELL), interpolation=cv2.INTER_AREA) for picture in row.pictures]
        strip = np.concatenate(cells, 1)
        title = np.full((22, strip.shape[1], 3), 255, np.uint8)
        cv2.putText(title, row.title, (4, 16), cv2.FONT_HERSHEY_SIMPLEX, 0.5, (0, 0, 0), 1, cv2.LINE_AA)
        strips.append(np.concatenate([title, strip]))
    while len(strips) % columns:
        strips.append(np.full_like(strips[0], 255))
    lines = [np.concatenate(strips[at : at + columns], 1) for at in range(0, len(strips), columns)]
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.concatenate(lines)).save(path)
    print(f"wrote {path}: look at it")


class _Editors(dict[str, Editor]):
    """One editor for each modality, opened when it is asked for."""

    def __init__(self, spec: str) -> None:
        super().__init__()
        self._spec = spec

    def __missing__(self, modality: str) -> Editor:
        self[modality] = open_editor(f"{self._spec},modality={modality}")
        return self[modality]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True, help="folder for the PNG files")
    parser.add_argument("--trial", choices=("wordings", "sides", "tumour"), help="one of them alone")
    parser.add_argument("--style", choices=("short", "long"), default="short", help="of the wordings (short)")
    parser.add_argument("--images", type=int, default=6, help="of each data set and target (6)")
    parser.add_argument("--editor", default="compact", help="a spec of the compact editor (compact)")
    options = parser.parse_args()
    editors = _Editors(options.editor)
    if options.trial in (None, "tumour"):
        try_tumour(editors, options.folder, options.output)
    if options.trial in (None, "sides"):
        try_sides(editors, options.folder, options.images, options.output)
    if options.trial in (None, "wordings"):
        try_wordings(editors, options.folder, options.images, options.output, options.style)


if __name__ == "__main__":
    main()
