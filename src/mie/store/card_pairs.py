"""The data card's section on counterfactual pairs: what was accepted, and what its gates are worth."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mie.store.card_tables import cell, table


def counterfactual_pairs(facts: Mapping[str, Any]) -> str:
    """`facts` is `modification` of `dataset.json`, by modality."""
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
    return [(name, *(_rate(of[key]) for key in keys)) for name, of in facts.items()]


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


def _rate(found: Mapping[str, int]) -> str:
    return f"{found['yes']:,} of {found['of']:,}" if found["of"] else "not looked"


def _number(value: float | None) -> str:
    return "not measured" if value is None else f"{value:.2f}"
