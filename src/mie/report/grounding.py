"""The page of `mie ground`, which opens from disk: tables, the profile over layers, heat maps over images."""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import cv2
import numpy as np
from markupsafe import Markup

from mie.core.files import atomic_write, inside
from mie.datasets.dataset import Dataset
from mie.editors.runs import Run
from mie.images.png import decode_png, encode_png
from mie.images.resize import fitted_size, resize_image
from mie.records import Mask, Pixels
from mie.report.gallery import rows_by_id
from mie.report.views import asset, render
from mie.scoring.benchmarks.medebench.grounding import INSIDE, LINES
from mie.scoring.benchmarks.medebench.judge import mask_of
from mie.scoring.reference import in_colour

_SIDE: Final = 256  # pixels of a picture
_OPACITY: Final = 0.5


@dataclass(frozen=True, slots=True)
class Picture:
    """The heat map over the image, the region's outline in white; a PNG as a data URL."""

    line: Mapping[str, Any]
    source: Markup


def write_page(place: Path | str, folder: Path | str, document: Mapping[str, Any], *, most: int) -> Path:
    """Write `index.html` into the folder of a grounding, with at most `most` pictures."""
    run = (Path(place) / "run.json").is_file()
    dataset = Run.open(place).dataset() if run else Dataset(place)
    style = asset("grounding.css")
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; img-src data:; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    )
    page = render(
        "grounding.html",
        policy=policy,
        style=Markup(style),  # noqa: S704 (a file of this package)
        document=document,
        pictures=list(_pictures(dataset, Path(folder), most)),
    )
    path = Path(folder) / "index.html"
    atomic_write(path, page)
    return path


def _pictures(dataset: Dataset, folder: Path, most: int) -> Iterator[Picture]:
    """Evenly spaced in order of IoU, the best first, so that good and bad maps are seen alike."""
    lines = map(json.loads, (folder / LINES).read_text(encoding="utf-8").splitlines()[1:])
    scored = sorted((line for line in lines if "scores" in line), key=lambda line: line["scores"]["iou"])
    places = np.unique(np.linspace(0, len(scored) - 1, min(most, len(scored))).round().astype(int))
    chosen = [scored[at] for at in places]
    rows = {row["id"]: row for row in rows_by_id(dataset, {line["id"] for line in chosen})}
    for line in reversed(chosen):
        row, mask = rows[line["id"]], mask_of(rows[line["id"]])
        if mask is None:
            continue
        heat = decode_png(inside(folder, folder, line["map"]).read_bytes())
        image = in_colour(decode_png(row["input"]["bytes"]))
        png = base64.b64encode(encode_png(heat_picture(image, heat, mask >= INSIDE))).decode()
        yield Picture(line, Markup(f"data:image/png;base64,{png}"))  # noqa: S704 (base64)


def heat_picture(image: Pixels, heat: Pixels, region: Mask) -> Pixels:
    """The map `(H, W) uint8` in colours over the image, and the region's outline."""
    size = fitted_size(image.shape[0], image.shape[1], _SIDE)
    image = resize_image(np.ascontiguousarray(image), size)
    small = cv2.resize(heat if heat.ndim == 2 else heat[..., 0], size[::-1], interpolation=cv2.INTER_AREA)
    colours = cv2.cvtColor(cv2.applyColorMap(small, cv2.COLORMAP_MAGMA), cv2.COLOR_BGR2RGB)
    mixed = np.rint((1 - _OPACITY) * image + _OPACITY * colours).astype(np.uint8)
    filled = cv2.resize(region.astype(np.uint8), size[::-1], interpolation=cv2.INTER_NEAREST)
    outline = cv2.dilate(filled, np.ones((3, 3), np.uint8)) != filled
    mixed[outline] = 255
    return mixed
