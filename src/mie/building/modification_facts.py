"""What a modification build came to, by modality: pairs, refusals, what the detector saw, how the seams are.

From the `params` of kept samples and the numbers of refusals, so the number of workers changes nothing.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from mie.recipes.detection import HIT
from mie.records import Refusal
from mie.store.arrays import read_table

# Refusals of single samples, not of pairs: a pair has up to four.
_OF_SAMPLES = ("duplicate", "leak", "background")


@dataclass
class _Modality:
    pairs: int = 0
    inpainters: Counter[str] = field(default_factory=Counter)  # pairs by whose fill was kept
    refused: Counter[str] = field(default_factory=Counter)
    unchecked: Counter[str] = field(
        default_factory=Counter
    )  # kept pairs without a trusted detector, by reason
    detectors: dict[str, Any] = field(default_factory=dict)  # name -> quality
    seen: list[tuple[bool, bool]] = field(default_factory=list)  # lesion found, patient held out
    left: list[bool] = field(default_factory=list)
    seams: list[float] = field(default_factory=list)

    def add(self, facts: Mapping[str, Any], *, kept: bool) -> None:
        detector = facts.get("detector")
        if detector is not None and detector["name"] is not None:
            self.detectors[detector["name"]] = detector["quality"]
        if facts.get("lesion_seen") is not None:
            self.seen.append((facts["lesion_seen"]["share"] >= HIT, bool(facts.get("held_out"))))
        tried = facts.get("candidates")
        if tried:
            chosen = tried[facts["kept"]]
            if chosen["detector"] is not None:
                self.left.append(chosen["detector"]["share"] >= HIT)
            if kept and chosen["seam"] is not None:
                self.seams.append(chosen["seam"])
        if kept and detector is not None and not detector["trusted"]:
            self.unchecked[detector["reason"]] += 1

    def as_json(self) -> dict[str, Any]:
        held_out = [hit for hit, held in self.seen if held]
        return {
            "pairs": self.pairs,
            "inpainters": dict(sorted(self.inpainters.items())),
            "refused": dict(sorted(self.refused.items())),
            "detectors": dict(sorted(self.detectors.items())),
            "not_checked": dict(sorted(self.unchecked.items())),
            "lesion_found": _rate([hit for hit, _ in self.seen]),
            "lesion_found_held_out": _rate(held_out),
            "lesion_left": _rate(self.left),
            "seam": None if not self.seams else round(math.fsum(self.seams) / len(self.seams), 4),
        }


def modification_facts(
    data: Iterable[Path], refusals: Iterable[Refusal], modalities: Mapping[str, str]
) -> dict[str, Any]:
    """By modality. `modalities` maps each data set to its own."""
    found: dict[str, _Modality] = {}
    pairs: set[str] = set()
    for path in data:
        rows = read_table(path, ["perspective", "modality", "group", "params"]).to_pylist()
        for row in rows:
            if row["perspective"] != "modification" or row["group"] in pairs:
                continue
            pairs.add(row["group"])
            of = found.setdefault(row["modality"], _Modality())
            of.pairs += 1
            params = json.loads(row["params"])
            of.inpainters[params["inpainter"]] += 1
            of.add(params, kept=True)
    for refusal in refusals:
        if refusal.gate in _OF_SAMPLES or refusal.source not in modalities:
            continue
        of = found.setdefault(modalities[refusal.source], _Modality())
        of.refused[refusal.gate] += 1
        of.add(refusal.numbers, kept=False)
    return {name: of.as_json() for name, of in sorted(found.items())}


def _rate(hits: list[bool]) -> dict[str, int]:
    return {"yes": sum(hits), "of": len(hits)}
