"""The pairs of a modification build by modality, counted for `dataset.json` and told in the data card.

From the `params` of kept samples and the numbers of rejections, so the number of workers changes nothing.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from mie.core.markdown import cell, table
from mie.perspectives.modification.counterfactual import HIT
from mie.records import Refusal

# Refusals of single samples, not of pairs: a pair has up to four.
_OF_SAMPLES = ("duplicate", "leak", "background")


@dataclass
class _Modality:
    pairs: int = 0
    inpainters: Counter[str] = field(default_factory=Counter)  # pairs by whose fill was kept
    refused: Counter[str] = field(default_factory=Counter)
    # Kept pairs without a trusted detector, by reason.
    unchecked: Counter[str] = field(default_factory=Counter)
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


def pair_facts(
    rows: Iterable[Mapping[str, Any]], refusals: Iterable[Refusal], modalities: Mapping[str, str]
) -> dict[str, Any]:
    """By modality, from the rows that were kept. `modalities` maps each data set to its own."""
    found: dict[str, _Modality] = {}
    pairs: set[str] = set()
    for row in rows:
        if row["group"] in pairs:
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


def counterfactual_pairs(facts: Mapping[str, Any]) -> str:
    """The data card's section: what was accepted, and what the gates are worth. `facts` are by modality."""
    sections = [
        "A pair is one image with a lesion and its counterpart without. Refused are pairs that could not be "
        "made, or did not pass a gate; lesion-free images (gate `empty`) do not count.",
        table(
            ("modality", "pairs", "filled by", "refused", "accepted", "refused by gate", "mean seam energy"),
            _accepted(facts),
        ),
        "What an independent lesion detector found: in the images with the lesion (of all, and of patients "
        "that it never learnt from), and in the filled area of the counterparts, those refused for it "
        "included. A lesion counts as found where a tenth of its area is.",
        table(
            ("modality", "lesion found", "of held-out patients", "found again after removal"), _found(facts)
        ),
        "How good the detectors are, on held-out patients:",
        table(
            ("modality", "detector", "sensitivity", "false positives an image", "measured on"),
            _quality(facts),
        ),
    ]
    unchecked = _unchecked(facts)
    if unchecked:
        sections.append("**Not checked by a detector that can be trusted:**\n\n" + "\n".join(unchecked))
    return "\n\n".join(sections)


def _accepted(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, of in facts.items():
        gates = {gate: n for gate, n in of["refused"].items() if gate != "empty"}
        refused = sum(gates.values())
        tried = of["pairs"] + refused
        share = f"{of['pairs'] / tried:.0%}" if tried else "none tried"
        by_gate = ", ".join(f"`{gate}` {n:,}" for gate, n in gates.items())
        by = ", ".join(f"{cell(name)} {n:,}" for name, n in of["inpainters"].items())
        rows.append((name, f"{of['pairs']:,}", by, f"{refused:,}", share, by_gate, _number(of["seam"])))
    return rows


def _found(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    keys = ("lesion_found", "lesion_found_held_out", "lesion_left")
    return [(name, *(_rate_text(of[key]) for key in keys)) for name, of in facts.items()]


def _quality(facts: Mapping[str, Any]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    for name, of in facts.items():
        for detector, quality in of["detectors"].items() or [("none", None)]:
            if quality is None:
                rows.append((name, cell(detector), *["not measured"] * 3))
                continue
            measured = ", ".join(
                f"{quality[key]:,} {said}"
                for key, said in (
                    ("patients", "patients"),
                    ("images", "images with lesions"),
                    ("healthy", "without"),
                    ("lesions", "lesions"),
                )
                if quality.get(key) is not None
            )
            numbers = (_number(quality.get(key)) for key in ("sensitivity", "false_positives_per_image"))
            rows.append((name, cell(detector), *numbers, measured or "not stated"))
    return rows


def _unchecked(facts: Mapping[str, Any]) -> list[str]:
    return [
        f"- {name}: {n:,} of {of['pairs']:,} pairs ({cell(reason)})"
        for name, of in facts.items()
        for reason, n in of["not_checked"].items()
    ]


def _rate_text(found: Mapping[str, int]) -> str:
    return f"{found['yes']:,} of {found['of']:,}" if found["of"] else "not looked"


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f}"
