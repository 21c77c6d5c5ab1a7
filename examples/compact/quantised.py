"""What eight bits a weight cost: the float weights of a training and its weights file on the validation rows.

    python examples/compact/quantised.py OUT PACK... [--weights FILE --steps 4000 10000] [-o FILE.json]

OUT is a folder of `mie train`, PACK what it was trained on. The float weights are those of the checkpoint
that OUT/weights.safetensors was made of. Of a file that `average.py` made, name the steps.
Both compute in float32, so that they differ by the rounding of the weights alone.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from mie.core.files import atomic_write
from mie.editors.compact.editor import edit_all
from mie.editors.compact.inference import Inference
from mie.networks.compact import CompactNet, NetConfig, load_weights
from mie.networks.text import TextEncoder
from mie.networks.weights import fit
from mie.training.checkpoints import read_ema
from mie.training.compact_validation import Edit, evaluate, summary
from mie.training.pack import VALIDATION, Pack, Row, read_pack

Record = Mapping[str, Any]
# (metric, title, digits, the groups whose means are averaged), as the training's validation has them.
FIGURES: tuple[tuple[str, str, int, Callable[[Record], str]], ...] = (
    ("dice", "DICE", 4, lambda r: f"{r['source']}/{'' if r['task'] == 'holistic' else r['target']}"),
    ("gain_db", "gain, dB", 3, lambda r: str(r["key"] or r["task"])),
)


def float_weights(out: Path, steps: Sequence[int]) -> dict[str, Tensor]:
    """The mean of the averaged weights of these checkpoints."""
    states = [read_ema(out / f"checkpoints/step-{step:06d}") for step in steps]
    return {name: torch.stack([state[name].float() for state in states]).mean(0) for name in states[0]}


def editor(state: Mapping[str, Tensor], config: NetConfig, device: str, where: Path) -> Edit:
    network = CompactNet(config)
    fit(network, state, where)
    place = torch.device(device)
    network.eval().requires_grad_(False).to(place, memory_format=torch.channels_last)  # type: ignore[call-overload]
    inference = Inference(network, TextEncoder(), place, half=False)
    return lambda requests: [edited.image for edited in edit_all(inference, requests)]


def compare(rows: Sequence[tuple[Pack, Row]], exact: Edit, rounded: Edit) -> list[dict[str, Any]]:
    """Each figure of both and what is lost, float less int8, with its interval by patient."""
    both = [evaluate(rows, edit) for edit in (exact, rounded)]
    figures = []
    for metric, title, digits, by in FIGURES:
        pairs = [
            (a, b) for a, b in zip(*both, strict=True) if metric in a["scores"] and metric in b["scores"]
        ]
        if not pairs:
            continue
        lost = [{**a, "scores": {"lost": a["scores"][metric] - b["scores"][metric]}} for a, b in pairs]
        columns = {
            "float": summary([a for a, _ in pairs], metric, by=by)["macro"],
            "int8": summary([b for _, b in pairs], metric, by=by)["macro"],
            "lost": summary(lost, "lost", by=by)["macro"],
        }
        unscored = sum(metric in a["scores"] for records in both for a in records) - 2 * len(pairs)
        largest = max((abs(one["scores"]["lost"]) for one in lost), default=0.0)
        figures.append(
            {"figure": title, "digits": digits, "edits": len(pairs), "unscored": unscored, "largest": largest}
            | columns
        )
    return figures


def shown(figures: Sequence[Mapping[str, Any]]) -> str:
    lines = [
        "| figure | edits | float | int8 | lost (95% interval) | most for one edit |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for one in figures:
        digits, lost = one["digits"], one["lost"]
        text = f"{lost['mean']:+.{digits}f}"
        if lost["low"] is not None:
            text += f" ({lost['low']:+.{digits}f} to {lost['high']:+.{digits}f})"
        means = " | ".join(f"{one[name]['mean']:.{digits}f}" for name in ("float", "int8"))
        edits = f"{one['edits']}" + (f", {one['unscored']} unscored" if one["unscored"] else "")
        lines.append(f"| {one['figure']} | {edits} | {means} | {text} | {one['largest']:.{digits}f} |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("packs", nargs="+", type=Path)
    parser.add_argument("--weights", type=Path, help="the int8 file; OUT/weights.safetensors by default")
    parser.add_argument("--steps", nargs="+", type=int, help="by default the step that OUT's weights are of")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("-o", "--output", type=Path)
    args = parser.parse_args()
    path = args.weights or args.out / "weights.safetensors"
    state, config, meta = load_weights(path)
    exact = float_weights(args.out, args.steps or [meta["step"]])
    rows = [(pack, row) for pack in map(read_pack, args.packs) for row in pack.rows if row.fold == VALIDATION]
    if not rows:
        raise SystemExit("no validation rows in these packs")
    editors = (editor(weights, config, args.device, path) for weights in (exact, state))
    figures = compare(rows, *editors)
    if args.output:
        atomic_write(args.output, json.dumps({"weights": str(path), "figures": figures}, indent=2) + "\n")
    print(shown(figures))


if __name__ == "__main__":
    main()
