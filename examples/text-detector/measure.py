"""Measure the shipped text detector: `python measure.py PICTURES FONTS`.

PICTURES has one folder per data set; `sets.json` says which ones are for the measurement. Each picture is
looked at as it is, with side markers and rulers, and with lettering in fonts that were not trained with.
"""

from __future__ import annotations

import sys
from pathlib import Path

import cv2
import lettering
import numpy as np
from train import read, split_of

from mie.privacy.text import text_boxes


def main() -> None:
    pictures, fonts = Path(sys.argv[1]), sorted(Path(sys.argv[2]).iterdir())
    cv2.setNumThreads(1)
    print("modality,pictures,false alarms,false alarms with markers,found,text pixels covered", flush=True)
    totals = np.zeros(4)
    for modality, names in split_of("test").items():
        counts, cover = np.zeros(4), []
        for name, images in read(pictures, names).items():
            for number, image in enumerate(images):
                rng = np.random.default_rng((7, number, sum(map(ord, name))))
                text, mask = lettering.draw_lettering(rng, image, fonts)
                if not mask.any():
                    continue
                text = lettering.degrade(rng, text)
                marks = lettering.degrade(rng, lettering.draw_distractors(rng, image, fonts))
                found = [text_boxes(one) for one in (image, marks, text)]
                hit = np.zeros(mask.shape, bool)
                for left, top, right, bottom in found[2]:
                    hit[top:bottom, left:right] = True
                at_text = bool(hit[mask == lettering.TEXT].any())
                cover.append(float(hit[mask == lettering.TEXT].mean()))
                counts += (1, bool(found[0]), bool(found[1]), at_text)
                if found[0] or found[1] or not at_text:
                    print(
                        f"# {name} {number}: clean {found[0]} marks {found[1]} text found {at_text}",
                        flush=True,
                    )
        totals += counts
        if counts[0]:
            print(modality, *counts.astype(int), f"{np.mean(cover):.3f}", sep=",", flush=True)
    print("all", *totals.astype(int), sep=",", flush=True)


if __name__ == "__main__":
    main()
