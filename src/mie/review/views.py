"""An item as one rater sees it: blind labels instead of names, and nobody else's answers."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from string import ascii_uppercase
from typing import Any, Final

from sqlalchemy import Row

from mie.core.hashing import generator
from mie.images.png import png_size
from mie.review.api import ASKED
from mie.review.material import ItemImages, Material

# Modalities whose images are grey, so that window and level mean something.
GREY: Final = ("CT", "MRI", "X-ray", "ultrasound", "OCT")
_CACHED_ITEMS: Final = 1000  # a few kB each
_COLUMNS: Final = (
    "prompt", "description", "perspective", "task", "target", "modality", "anatomy", "colour", "params",
)  # fmt: skip
# What lies at the left and right edge of a slice in radiological convention, as `slice_of` shows it.
_EDGES: Final = {"axial": ("R", "L"), "coronal": ("R", "L"), "sagittal": ("A", "P")}


class ItemViews:
    """Describes items; what is the same for every rater is cached."""

    def __init__(self, material: Material, images: ItemImages) -> None:
        self._material = material
        self._images = images
        self._cache: OrderedDict[tuple[int, str], dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def choices(self, kind: str, item: Row[Any], seed: int) -> dict[str, Any]:
        """Return label -> run id (rank) or mask name (mask), in this rater's order for this item."""
        if kind == "rank":
            return blind_labels([int(run) for run, _, _ in item.outputs], seed)
        return blind_labels(self._images.proposal_names(item), seed) if kind == "mask" else {}

    def describe(
        self, kind: str, item: Row[Any], seed: int, answer: Mapping[str, Any] | None
    ) -> dict[str, Any]:
        """Return what the page shows; `seed` decides the labels, `answer` is as stored."""
        choices = self.choices(kind, item, seed)
        prefix = {"rank": "output", "mask": "proposal"}.get(kind, "")
        shown = [
            {"label": label, "image": image_url(item, f"{prefix}-{self._images.token(item.id, choice)}")}
            for label, choice in choices.items()
        ]
        return {
            **self._common(kind, item),
            "outputs": shown if kind == "rank" else [],
            "proposals": [{"id": one["label"], **one} for one in shown] if kind == "mask" else [],
            "answer": None if answer is None else to_labels(answer, choices),
        }

    def mask_url(self, item: Row[Any], payload: Mapping[str, Any]) -> str | None:
        """Return the address of the mask in a stored answer."""
        if payload["kind"] != "mask" or payload["choice"] == "none":
            return None
        token = self._images.token(item.id, payload["choice"])
        return image_url(item, f"upload-{payload['mask']}" if payload["mask"] else f"proposal-{token}")

    def _common(self, kind: str, item: Row[Any]) -> dict[str, Any]:
        key = item.id, item.version
        with self._lock:
            if key in self._cache:
                self._cache.move_to_end(key)
                return self._cache[key]
        view = self._read(kind, item)
        with self._lock:
            self._cache[key] = view
            while len(self._cache) > _CACHED_ITEMS:
                self._cache.popitem(last=False)
        return view

    def _read(self, kind: str, item: Row[Any]) -> dict[str, Any]:
        row = self._material.row(item.places[0], [*_COLUMNS, "input"])
        self._images.remember(item, "input", row["input"]["bytes"])  # the page asks for it next
        height, width = png_size(row["input"]["bytes"])
        images = dict.fromkeys(("input", "reference", "mask"))
        classes = mask_classes(row) if kind == "mask" else classes_of(row)
        images["input"] = image_url(item, "input")
        if kind != "mask":  # reference and mask would show which proposal is the dataset's own
            images["reference"] = image_url(item, "reference")
            images["mask"] = image_url(item, "mask") if classes else None
        return {
            "id": item.id,
            "kind": kind,
            "version": item.version,
            "sample_id": item.sample_id,
            **{name: row[name] for name in _COLUMNS if name not in ("colour", "params")},
            "grey": row["modality"] in GREY,
            "size": [width, height],
            "volume": self._volume(kind, item),
            "geometry": geometry(json.loads(row["params"]), width),
            "images": images,
            "classes": classes,
            "turns": self._turns(item) if kind == "questions" else [],
            "questions": list(ASKED.get(kind, ())),
        }

    def _volume(self, kind: str, item: Row[Any]) -> dict[str, int] | None:
        """Which slice of how many the item is, where its whole volume can be moved through."""
        place = tuple(item.places[0])
        stack = self._material.volumes.get(place) if kind in ("inspect", "rank") else None
        places = [] if stack is None else [where for where, _ in stack.slices]
        return {"index": places.index(place), "slices": len(places)} if len(places) > 1 else None

    def _turns(self, item: Row[Any]) -> list[dict[str, Any]]:
        """Return what each turn started from and came to. A free run started from its own output."""
        own = self._images.continues(item)
        turns: list[dict[str, Any]] = []
        for at, place in enumerate(item.places):
            row = self._material.row(place, ["prompt", "params"])
            images = {name: image_url(item, f"turn{at}-{name}") for name in ("input", "output", "reference")}
            if own and turns:
                images["input"] = turns[-1]["output"]
            truth = images["reference"] if has_reference(json.loads(row["params"])) else None
            turns.append({"turn": at, "prompt": row["prompt"], **images, "reference": truth})
        return turns


def has_reference(params: Mapping[str, Any]) -> bool:
    """Whether a sample's target image shows what is right; a benchmark without references says so."""
    return not any(isinstance(own, Mapping) and own.get("reference") is False for own in params.values())


def blind_labels(names: Sequence[Any], seed: int) -> dict[str, Any]:
    """Return A, B, C, ... -> name, shuffled by `seed`."""
    order = generator(seed).permutation(len(names))
    return {ascii_uppercase[at]: names[chosen] for at, chosen in enumerate(order)}


def to_labels(payload: Mapping[str, Any], choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return a stored answer in the labels of the person who looks at it."""
    label_of = {name: label for label, name in choices.items()}
    answer = {key: value for key, value in payload.items() if key != "labels"}
    if payload["kind"] == "rank":
        answer["rankings"] = _renamed(payload["rankings"], label_of)
    elif payload["kind"] == "mask":
        answer["choice"] = label_of.get(payload["choice"], payload["choice"])
    return answer


def from_labels(answer: Mapping[str, Any], choices: Mapping[str, Any]) -> dict[str, Any]:
    """Return an answer as it is stored: run ids and mask names, and which label stood for which."""
    if answer["kind"] == "rank":
        return {**answer, "rankings": _renamed(answer["rankings"], choices), "labels": dict(choices)}
    if answer["kind"] == "mask":
        choice = choices.get(answer["choice"], answer["choice"])
        return {**answer, "choice": choice, "labels": dict(choices)}
    return dict(answer)


def _renamed(
    rankings: Mapping[str, Sequence[Sequence[Any]]], names: Mapping[Any, Any]
) -> dict[str, list[list[Any]]]:
    return {c: [sorted(names[name] for name in group) for group in groups] for c, groups in rankings.items()}


def classes_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return name, colour and mask value of each painted region of a sample."""
    if not row["colour"]:
        return []
    colours = row["colour"].split(",")
    named = json.loads(row["params"]).get("classes") or []
    names = [c["target"] for c in named] if len(named) == len(colours) else [row["target"]] * len(colours)
    return [
        {"name": name, "colour": colour, "value": round(255 * k / len(colours))}
        for k, (name, colour) in enumerate(zip(names, colours, strict=True), start=1)
    ]


def mask_classes(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return what can be painted in a mask: the sample's classes, or its target if none is coloured."""
    return classes_of(row) or [{"name": row["target"], "colour": "red", "value": 255}]


def geometry(params: Mapping[str, Any], width: int) -> dict[str, Any] | None:
    """Return what is known about an image's place in the patient, from the steps stored with its sample.

    `left` and `right` are the patient's sides at the edges, only if the file stated its orientation;
    `mm_per_pixel` holds along a row; `slice` is the plane and the index in the volume, from 0. None if
    nothing is known.
    """
    steps = [step for step in params.get("image_steps") or [] if isinstance(step, Mapping)]
    named = {str(step.get("step")): step for step in steps}  # the last step of each name
    plane = str(named.get("slice", {}).get("plane", ""))
    is_oriented = named.get("orientation", {}).get("to") == "RAS"  # "assumed" where the file did not say
    left, right = _EDGES[plane] if is_oriented and plane in _EDGES else (None, None)
    facts = {
        "left": left,
        "right": right,
        "mm_per_pixel": _mm_per_pixel(params, named, width),
        "slice": f"{plane} slice {named['slice'].get('index')}" if plane else None,
    }
    return facts if any(value is not None for value in facts.values()) else None


def _mm_per_pixel(
    params: Mapping[str, Any], steps: Mapping[str, Mapping[str, Any]], width: int
) -> float | None:
    """The stored spacing is that of the image before it was resized for the dataset."""
    try:
        before = steps["acquired size"]["width"] if "acquired size" in steps else params["original_size"][1]
        millimetres = float(params["spacing"][1]) * before / width
    except (KeyError, TypeError, ValueError, IndexError):  # unknown, or another program's params
        return None
    return millimetres if 0 < millimetres < float("inf") else None


def image_url(item: Row[Any], name: str) -> str:
    return f"/api/items/{item.id}/images/{name}?v={item.version[:12]}"
