"""Who must not stand on two sides: between datasets, and between the folds of the train splits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from mie.engines import cores
from mie.gates.leaks import Traces, image_leaks, patient_leaks
from mie.images.hashes import near_pairs, perceptual
from mie.images.png import decode_png
from mie.records import Pixels
from mie.store.dataset import Dataset
from mie.store.shards import read_rows

_COLUMNS = ("id", "split", "source", "case_id", "patient_id", "perspective", "input", "target_image")


def leaking(datasets: Sequence[Dataset]) -> dict[str, str]:
    """Ids of train samples whose patient or image is in a val or test split, with "patient" or "image".

    A build sees to this inside one dataset; here all of them are compared as one.
    """
    if len(datasets) < 2:
        return {}
    found: list[dict[str, Any]] = []
    with ThreadPoolExecutor(cores()) as pool:
        for path in (path for dataset in datasets for path in dataset.shards()):
            for shown in pool.map(_traces, read_rows(path, _COLUMNS)):
                found += shown
    traces = Traces(
        ids=[t["id"] for t in found],
        splits=[t["split"] for t in found],
        sources=[t["source"] for t in found],
        case_ids=[t["case_id"] for t in found],
        patients=[t["patient_id"] for t in found],
        content=[],
        hashes=np.array([t["hash"] for t in found], np.uint64),
        thumbs=np.frombuffer(b"".join(t["thumb"] for t in found), np.uint8).reshape(-1, 256),
    )
    away = {}
    for why, offences in (("image", image_leaks(traces)), ("patient", patient_leaks(traces))):
        for offence in offences:
            if traces.splits[offence.index] == "train":
                away[traces.ids[offence.index]] = why
    return away


def _traces(row: dict[str, Any]) -> list[dict[str, Any]]:
    # A transformation shows the patient twice; a painted overlay adds nothing to its input.
    shown = ("input",) if row["perspective"] == "perception" else ("input", "target_image")
    text = {name: row[name] for name in ("id", "split", "source", "case_id", "patient_id")}
    traces = []
    for name in shown:
        hash_, thumb = perceptual(decode_png(row[name]["bytes"]))
        traces.append({**text, "hash": hash_, "thumb": thumb})
    return traces


def joined_subjects(images: Sequence[Pixels], shown: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Each patient's name -> one name for all who share an image with them, or nearly.

    `shown` says (patient, place in `images`). A build compares splits; the train split itself may hold one
    patient under two names, or one image twice.
    """
    leader: dict[str, str] = {}

    def lead(name: str) -> str:
        while leader.setdefault(name, name) != name:
            name = leader[name]
        return name

    def join(a: str, b: str) -> None:
        first, second = sorted((lead(a), lead(b)))
        leader[second] = first

    owner: dict[int, str] = {}
    for name, place in shown:
        join(name, owner.setdefault(place, name))
    places = sorted(owner)
    with ThreadPoolExecutor(cores()) as pool:
        found = list(pool.map(_perceptual, (images[place] for place in places)))
    hashes = np.array([hash_ for hash_, _ in found], np.uint64)
    thumbs = np.frombuffer(b"".join(thumb for _, thumb in found), np.uint8).reshape(-1, 256)
    for a, b in near_pairs(hashes, thumbs, hashes, thumbs):
        join(owner[places[a]], owner[places[b]])
    return {name: lead(name) for name in leader}


def _perceptual(image: Pixels) -> tuple[int, bytes]:
    return perceptual(np.repeat(image[..., None], 3, axis=2) if image.ndim == 2 else image)
