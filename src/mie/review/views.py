"""An item as a rater sees it. No model's name, nobody else's answer."""

from __future__ import annotations

import json
import threading
from collections import OrderedDict
from collections.abc import Mapping
from string import ascii_uppercase
from typing import Any, Final

from sqlalchemy import Row

from mie.images.png import png_size
from mie.review.kinds import QUESTIONS, relabelled
from mie.review.material import Material
from mie.review.pictures import Pictures
from mie.review.plan import order_of
from mie.review.proposals import labels

# Modalities whose images are grey, so that window and level mean something.
GREY: Final = ("CT", "MRI", "X-ray", "ultrasound", "OCT")
_KEPT: Final = 1000  # descriptions of items, some kB each
_TEXT: Final = (
    "prompt", "description", "perspective", "task", "target", "modality", "anatomy", "colour", "params",
)  # fmt: skip


class Views:
    def __init__(self, material: Material, pictures: Pictures) -> None:
        self._material = material
        self._pictures = pictures
        self._seen: OrderedDict[tuple[int, str], dict[str, Any]] = OrderedDict()
        self._lock = threading.Lock()

    def item(self, kind: str, item: Row[Any], seed: int, answer: Mapping[str, Any] | None) -> dict[str, Any]:
        """`seed` decides the labels of the outputs; `answer` is as stored."""
        return {
            **self._common(kind, item),
            "outputs": self._outputs(item, seed) if kind == "rank" else [],
            "answer": None if answer is None else shown(answer, item, seed),
        }

    def _common(self, kind: str, item: Row[Any]) -> dict[str, Any]:
        """What is the same for everybody; the items that were looked at last are kept."""
        key = item.id, item.version
        with self._lock:
            if key in self._seen:
                self._seen.move_to_end(key)
                return self._seen[key]
        made = self._make(kind, item)
        with self._lock:
            self._seen[key] = made
            while len(self._seen) > _KEPT:
                self._seen.popitem(last=False)
        return made

    def _make(self, kind: str, item: Row[Any]) -> dict[str, Any]:
        row = self._material.row(item.places[0], [*_TEXT, "input", *(["mask"] if kind == "mask" else [])])
        self._pictures.remember(item, "input", row["input"]["bytes"])  # it will be asked for at once
        height, width = png_size(row["input"]["bytes"])
        images = {"input": _url(item, "input"), "reference": _url(item, "reference")}
        classes = mask_classes(row) if kind == "mask" else classes_of(row)
        marked = bool(classes) and (kind != "mask" or row["mask"] is not None)
        return {
            "id": item.id,
            "kind": kind,
            "version": item.version,
            "sample_id": item.sample_id,
            **{name: row[name] for name in _TEXT if name not in ("colour", "params")},
            "grey": row["modality"] in GREY,
            "size": [width, height],
            "images": {**images, "mask": _url(item, "mask") if marked else None},
            "classes": classes,
            "proposals": self._proposals(item, (height, width)) if kind == "mask" else [],
            "turns": self._turns(item) if kind == "questions" else [],
            "questions": list(QUESTIONS) if kind == "questions" else [],
        }

    def _proposals(self, item: Row[Any], size: tuple[int, int]) -> list[dict[str, Any]]:
        words = labels(size)
        return [
            {"id": name, "label": words[name], "image": _url(item, f"proposal-{name}")}
            for name in self._pictures.proposal_names(item)
        ]

    def _outputs(self, item: Row[Any], seed: int) -> list[dict[str, Any]]:
        return [
            {"label": label, "image": _url(item, f"output-{self._pictures.token(item.id, run_id)}")}
            for label, run_id in labelled(item, seed).items()
        ]

    def _turns(self, item: Row[Any]) -> list[dict[str, Any]]:
        return [
            {
                "turn": at,
                "prompt": self._material.row(place, ["prompt"])["prompt"],
                **{name: _url(item, f"turn{at}-{name}") for name in ("input", "output", "reference")},
            }
            for at, place in enumerate(item.places)
        ]


def classes_of(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The regions of a perception sample: name, colour, and value in its mask."""
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
    """What can be painted in the mask work: the sample's classes, or its target where none is coloured."""
    return classes_of(row) or [{"name": row["target"], "colour": "red", "value": 255}]


def labelled(item: Row[Any], seed: int) -> dict[str, int]:
    """Label -> run id, as one rater sees them."""
    return dict(zip(ascii_uppercase, order_of(item.outputs, seed), strict=False))


def shown(payload: Mapping[str, Any], item: Row[Any], seed: int) -> dict[str, Any]:
    """A stored answer in the labels of whoever looks at it."""
    if payload["kind"] != "rank":
        return dict(payload)
    names = {run_id: label for label, run_id in labelled(item, seed).items()}
    body = {k: v for k, v in payload.items() if k != "labels"}
    return {**body, "rankings": relabelled(payload["rankings"], names)}


def stored(answer: Mapping[str, Any], item: Row[Any], seed: int) -> dict[str, Any]:
    """An answer as it is kept: rankings of run ids, and which label stood for which."""
    if answer["kind"] != "rank":
        return dict(answer)
    names = labelled(item, seed)
    return {**answer, "rankings": relabelled(answer["rankings"], names), "labels": names}


def _url(item: Row[Any], name: str) -> str:
    return f"/api/items/{item.id}/images/{name}?v={item.version[:12]}"
