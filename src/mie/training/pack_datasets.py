"""Datasets to one pack: splits read, images scaled down and kept once, patients of folds kept apart."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from mie.core.documents import maker_settings
from mie.core.hashing import stable_hash
from mie.datasets.dataset import Dataset
from mie.datasets.engine import cores
from mie.datasets.leaks import Traces, image_leaks, patient_leaks
from mie.datasets.names import comparable
from mie.datasets.schema import read_rows
from mie.editors.compact.kinds import EDIT_KINDS, EditKind
from mie.errors import MieError
from mie.images.hashes import near_pairs, perceptual, pixel_digest
from mie.images.png import decode_png
from mie.images.resize import fitted_size, resize_image, resize_labels
from mie.perspectives.transformation.targets import TARGETS
from mie.records import Pixels
from mie.training.pack import TRAIN, VALIDATION, Instruction, Pack, Row, as_rgb, one_channel_if_grey
from mie.training.wordings import recover_instruction

_TRACED = ("id", "split", "source", "case_id", "patient_id", "perspective", "input", "target_image")
_KEPT = ("id", "perspective", "task", "target", "modality", "anatomy", "source", "patient_id", "license")
_ENOUGH = 4  # a data set with so many patients gives at least one for validation
_READ = ("case_id", "prompt", "prompt_template", "colour", "bin", "params", "input", "target_image", "mask")


def leaking(datasets: Sequence[Dataset]) -> dict[str, str]:
    """Return ids of train samples whose "patient" or "image" is in a val or test split, and which of both.

    A build ensures this within one dataset; here all of them are compared as one.
    """
    if len(datasets) < 2:
        return {}
    images: list[dict[str, Any]] = []
    with ThreadPoolExecutor(cores()) as pool:
        for path in (path for dataset in datasets for path in dataset.shards()):
            for some in pool.map(_traces, read_rows(path, _TRACED)):
                images += some
    traces = Traces(
        ids=[t["id"] for t in images],
        splits=[t["split"] for t in images],
        sources=[t["source"] for t in images],
        case_ids=[t["case_id"] for t in images],
        patients=[comparable(t["patient_id"]) for t in images],
        content=[],
        hashes=np.array([t["hash"] for t in images], np.uint64),
        thumbs=np.frombuffer(b"".join(t["thumb"] for t in images), np.uint8).reshape(-1, 256),
    )
    leaks = {}
    for why, offences in (("image", image_leaks(traces)), ("patient", patient_leaks(traces))):
        for offence in offences:
            if traces.splits[offence.index] == "train":
                leaks[traces.ids[offence.index]] = why
    return leaks


def _traces(row: dict[str, Any]) -> list[dict[str, Any]]:
    # A painted overlay adds nothing to its input; other targets show the patient a second time.
    paints = EDIT_KINDS[row["perspective"]] is EditKind.OVERLAY
    shown = ("input",) if paints else ("input", "target_image")
    text = {name: row[name] for name in ("id", "split", "source", "case_id", "patient_id")}
    traces = []
    for name in shown:
        hash_, thumb = perceptual(decode_png(row[name]["bytes"]))
        traces.append({**text, "hash": hash_, "thumb": thumb})
    return traces


def joined_subjects(images: Sequence[Pixels], shown: Iterable[tuple[str, int]]) -> dict[str, str]:
    """Map each patient's name to one name for all who share an image with them, or nearly.

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
        traces = list(pool.map(perceptual, (as_rgb(images[place]) for place in places)))
    hashes = np.array([hash_ for hash_, _ in traces], np.uint64)
    thumbs = np.frombuffer(b"".join(thumb for _, thumb in traces), np.uint8).reshape(-1, 256)
    for a, b in near_pairs(hashes, thumbs, hashes, thumbs):
        join(owner[places[a]], owner[places[b]])
    return {name: lead(name) for name in leader}


def _refuse_others(dataset: Dataset) -> None:
    """Raise for samples that the compact editor cannot learn from one by one."""
    others = sorted(set(dataset.info["counts"].get("by_perspective", {})) - set(EDIT_KINDS))
    if others:
        raise MieError(
            "this dataset cannot be packed",
            where=dataset.folder,
            expected=f"samples of {', '.join(EDIT_KINDS)}",
            found=", ".join(others),
            fix="turns of a conversation need their history: use `mie export -f sharegpt`",
        )


def pack_datasets(
    datasets: Sequence[Path | str],
    *,
    longest: int = 512,
    validation: float = 0.1,
    seed: int = 0,
    wordings: int = 24,
    split: str = TRAIN,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Pack:
    """Pack the train splits of `datasets`, or another split to evaluate on.

    Of another split nothing is left out, and every row's fold is that split.

    Images keep their shape; a longer side above `longest` is scaled down to it. Every patient of the train
    split (an image, where the patient is unknown) has a place by a hash of `seed`; the first of each data set
    (a row's `source`) fall into the validation fold, a share `validation` of them, and at least one of four
    or more: in all datasets alike, and together with whoever shares an image, or nearly. A sample of one
    dataset whose patient or image is in another's val or test split is left out; `facts["left_out"]` counts
    them.
    """
    opened = [Dataset(folder) for folder in datasets]
    for dataset in opened:
        _refuse_others(dataset)
    leaks = leaking(opened) if split == TRAIN else {}
    packer = _Packer(longest, wordings, split)
    shards = [(dataset, path) for dataset in opened for path in dataset.shards(split)]
    with ThreadPoolExecutor(cores()) as pool:
        for done, (dataset, path) in enumerate(shards):
            progress(done, len(shards))
            rows = [row for row in read_rows(path, [*_KEPT, *_READ]) if row["id"] not in leaks]
            for row, pixels in zip(rows, pool.map(packer.decode, rows), strict=True):
                packer.add(row, pixels, dataset.info["recipe"])
    if split == TRAIN:
        packer.draw_folds(validation, seed)
    progress(len(shards), len(shards))
    packer.pack.facts |= {
        "datasets": [{"name": d.name, "digest": d.digest} for d in opened],
        "longest": longest,
        "validation": validation,
        "seed": seed,
        "split": split,
        "wordings": wordings,
        "left_out": dict(Counter(leaks.values())),
    }
    if not packer.pack.rows:
        raise MieError(
            "nothing to train on" if split == TRAIN else "nothing to evaluate on",
            where=", ".join(str(d.folder) for d in opened),
            expected=f"samples in the {split} split",
            fix=f"build with a {split} split; rejected.parquet says what was rejected",
        )
    return packer.pack


class _Packer:
    """Fills a pack row by row; equal images, masks and instructions are stored once."""

    def __init__(self, longest: int, wordings: int, fold: str) -> None:
        self.pack = Pack([], [], [], [], {})
        self._longest, self._wordings, self._fold = longest, wordings, fold
        self._seen: dict[bytes, int] = {}  # pixels -> place; masks and images lie in lists of their own
        self._instructions: dict[Instruction, int] = {}
        self._subjects: list[str] = []  # of each row

    def decode(self, row: Mapping[str, Any]) -> dict[str, Pixels]:
        """The row's images at the size they are packed in; a mask as class numbers."""
        kind = EDIT_KINDS[row["perspective"]]
        pixels = {"input": self._image(decode_png(row["input"]["bytes"]))}
        if kind is not EditKind.OVERLAY:
            pixels["goal"] = self._image(decode_png(row["target_image"]["bytes"]))
        if kind is not EditKind.IMAGE and row["mask"] is not None:
            mask = class_numbers(decode_png(row["mask"]["bytes"]), _classes(row))
            pixels["mask"] = resize_labels(mask, pixels["input"].shape[:2])
        return pixels

    def add(self, row: Mapping[str, Any], pixels: Mapping[str, Pixels], recipe: Mapping[str, Any]) -> None:
        params = json.loads(row["params"])
        instruction = recover_instruction(row, params, recipe, self._wordings)
        simulated = EDIT_KINDS[row["perspective"]] is EditKind.IMAGE
        places = {name: self._place(name, array) for name, array in pixels.items()}
        # Named as `mie build` does, so that one patient has one name in all datasets.
        self._subjects.append(comparable(row["patient_id"]) or f"{row['source']}//{row['case_id']}")
        self.pack.rows.append(
            Row(
                **{name: row[name] for name in _KEPT},
                key=params.get("key"),
                fold=self._fold,
                input=places["input"],
                goal=places.get("goal"),
                mask=places.get("mask"),
                classes=_classes(row) if "mask" in places else 0,
                instruction=self._instruction(instruction),
                simulate=_simulation(row["bin"], params, recipe) if simulated else None,
            )
        )

    def draw_folds(self, validation: float, seed: int) -> None:
        rows = self.pack.rows
        shown = [
            (subject, place)
            for subject, row in zip(self._subjects, rows, strict=True)
            for place in (row.input, row.goal)
            if place is not None
        ]
        leader = joined_subjects(self.pack.images, shown)
        places = {name: stable_hash("validation", seed, name) for name in set(leader.values())}
        of_source: dict[str, set[str]] = {}
        for subject, row in zip(self._subjects, rows, strict=True):
            of_source.setdefault(row.source, set()).add(leader[subject])
        # Data sets have from two to hundreds of patients: by chance alone a small one gives none, or half.
        # Small ones choose first: a patient shared with a larger one counts there too.
        held_out: set[str] = set()
        for names in sorted(of_source.values(), key=len):
            number = max(round(validation * len(names)), int(validation > 0 and len(names) >= _ENOUGH))
            more = sorted(names - held_out, key=places.__getitem__)
            held_out.update(more[: max(0, number - len(names & held_out))])
        for at, subject in enumerate(self._subjects):
            if leader[subject] in held_out:
                rows[at] = replace(rows[at], fold=VALIDATION)

    def _image(self, image: Pixels) -> Pixels:
        height, width = image.shape[:2]
        if max(height, width) > self._longest:
            image = resize_image(image, fitted_size(height, width, self._longest))
        return one_channel_if_grey(image)

    def _place(self, name: str, array: Pixels) -> int:
        store = self.pack.masks if name == "mask" else self.pack.images
        digest = (b"mask" if name == "mask" else b"image") + pixel_digest(array)
        if digest not in self._seen:
            self._seen[digest] = len(store)
            store.append(array)
        return self._seen[digest]

    def _instruction(self, instruction: Instruction) -> int:
        if instruction not in self._instructions:
            self._instructions[instruction] = len(self.pack.instructions)
            self.pack.instructions.append(instruction)
        return self._instructions[instruction]


def _classes(row: Mapping[str, Any]) -> int:
    """Return how many classes the row's mask holds: one per colour; an area that changes is one."""
    return len((row["colour"] or "").split(","))


def class_numbers(mask: Pixels, count: int) -> Pixels:
    """A stored mask, where class k of n has the value round(255 k / n), as k."""
    return np.floor(mask.astype(np.float32) * (count / 255) + 0.5).astype(np.uint8)


def _simulation(
    longer: int | None, params: Mapping[str, Any], recipe: Mapping[str, Any]
) -> dict[str, Any] | None:
    """Return what simulates this pair again with another severity, from its goal; None where that cannot be.

    `longer` is the longer side of the stored image in pixels.
    """
    if params.get("made") != "simulation" or longer is None:
        return None
    target = TARGETS[params["key"]]
    severities = [m["severity"].get(target.key, {}) for m in maker_settings(recipe) if "severity" in m]
    if any(other != severities[0] for other in severities):
        return None  # of merged datasets that fix different severities: which of them made it is not known
    severity = severities[0] if severities else {}
    variant = {name: params[name] for one in target.variants for name in one}
    facts: dict[str, Any] = {"fixed": {**target.fixed, **severity, **variant}}
    if target.domain == "HU":
        hu_range = params.get("assumed", {}).get("hu_range")
        if hu_range is None:
            return None  # shown through a window: what lies outside it is lost, and the physics needs it
        facts |= {"hu_range": hu_range, "field_mm": params["pixel_mm"] * longer}
    last = params["image_steps"][-1] if params["image_steps"] else {}
    # The simulation's own window: one of the file's also says where its range came from.
    if target.domain == "magnitude" and last.keys() == {"step", "low", "high"}:
        facts["white"] = last["high"]  # the goal was darkened so that the degraded image fits into 8 bits
    return facts
