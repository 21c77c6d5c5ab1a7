"""What Omni IIE Bench measures in a run, at 768 x 768, with networks that are loaded once in a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mie.editors.runs import Run
from mie.records import Pixels
from mie.scoring.attempts import Context, LineBody, Row, each_output, line_of
from mie.scoring.benchmarks.omni_iie import pixels
from mie.scoring.benchmarks.omni_iie.pixels import Weights, load_networks
from mie.scoring.benchmarks.omni_iie.qa import places_of
from mie.scoring.benchmarks.omni_iie.tracks import add_tracks
from mie.scoring.chunks import Output
from mie.scoring.perspectives import edits_whole_image
from mie.scoring.pixels import in_colour, read_stored
from mie.scoring.table import ScoreTable

NO_JUDGE: Final = "no qa: it needs a judge (--judge)"


@dataclass(frozen=True, slots=True)
class _Setup:
    weights: Weights
    side: int


def setup(weights: Weights | None = None) -> tuple[_Setup, Mapping[str, Any]]:
    """The published weights, or files of your own, which the header then names by their digests."""
    state = _Setup(weights or Weights(), pixels.SIDE)
    return state, {"weights": load_networks(state.weights).about(), "side": state.side}


def measure(row: Row, outputs: Sequence[Output], context: Context) -> LineBody:
    state: _Setup = context.setup
    networks = load_networks(state.weights)

    def read_reference() -> pixels.Reference:
        mask = None if row["mask"] is None else read_stored(row["mask"]["bytes"]) > 0
        target = in_colour(read_stored(row["target_image"]["bytes"]))
        return pixels.Reference.of(target, mask, state.side)

    # A transformation changes the whole image: it has no foreground, and so no Overall.
    left_out = pixels.DECOUPLED if edits_whole_image(row) else ()
    names = [name for name in (*pixels.METRICS, "qa", "overall") if name not in left_out]
    applies = [name for name in names if context.judged or name != "qa"]

    def score(reference: pixels.Reference, output: Pixels) -> dict[str, Any]:
        entry = pixels.score_output(reference, output, context.variant, networks)
        entry["unscored"] = {name: why for name, why in entry["unscored"].items() if name in applies}
        if "overall" in applies and not context.judged:
            entry["unscored"]["overall"] = NO_JUDGE
        return entry

    attempts = each_output(outputs, context.variant, read_reference, score)
    return line_of(row, applies, attempts, **places_of(row))


def aggregate(document: dict[str, Any], table: ScoreTable, scores: Path) -> None:
    add_tracks(document, table, Run.open(scores.parents[1]).info)
    document["weights"] = table.header["weights"]
