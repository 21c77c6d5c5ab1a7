"""The Omni IIE Bench protocol over a run: pixels and networks at 768 x 768, questions by a judge."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mie.editors.runs import Run
from mie.judges import JudgeOptions
from mie.records import Pixels
from mie.scoring.benchmarks.omni_iie import pixels
from mie.scoring.benchmarks.omni_iie.pixels import Weights, load_networks
from mie.scoring.benchmarks.omni_iie.qa import COLUMNS, JUDGING, places_of
from mie.scoring.benchmarks.omni_iie.tracks import add_tracks
from mie.scoring.chunks import Output, in_colour, read_stored
from mie.scoring.score import Context, Line, Method, Row, each_output, line_of, score_by, whole_image
from mie.scoring.statistics import ScoreTable

NAME: Final = "omni-iie"
VERSION: Final = 1
NO_JUDGE: Final = "no qa: it needs a judge (--judge)"


@dataclass(frozen=True, slots=True)
class _Setup:
    weights: Weights
    side: int


def score_run(
    run_folder: Path | str,
    *,
    variant: str = "paper",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    judge: JudgeOptions | None = None,
    weights: Weights | None = None,
) -> dict[str, Any]:
    """Score every output of a run by Omni IIE Bench; see `scoring.score_by`.

    LPIPS and CLIP need published weights (`mie weights get lpips-vgg clip`), or files of your own in
    `weights`, which the header then names by their digests. Without them, and without a judge, Overall has
    no number. One process by default: the networks use all cores, or the GPU.
    """
    setup = _Setup(weights or Weights(), pixels.SIDE)
    facts = {"weights": load_networks(setup.weights).about(), "side": setup.side}
    common = {"variant": variant, "workers": workers, "progress": progress, "judge": judge}
    return score_by(METHOD, run_folder, facts=facts, setup=setup, **common)  # type: ignore[arg-type]


def _measure(row: Row, outputs: Sequence[Output], context: Context) -> Line:
    setup: _Setup = context.setup
    networks = load_networks(setup.weights)

    def reference() -> pixels.Reference:
        mask = None if row["mask"] is None else read_stored(row["mask"]["bytes"]) > 0
        target = in_colour(read_stored(row["target_image"]["bytes"]))
        return pixels.Reference.of(target, mask, setup.side)

    # A transformation changes the whole image: it has no foreground, and so no Overall.
    left_out = pixels.DECOUPLED if whole_image(row) else ()
    names = [name for name in (*pixels.METRICS, "qa", "overall") if name not in left_out]
    applies = [name for name in names if context.judged or name != "qa"]

    def score(held: pixels.Reference, made: Pixels) -> dict[str, Any]:
        entry = pixels.score_output(held, made, context.variant, networks)
        entry["unscored"] = {name: why for name, why in entry["unscored"].items() if name in applies}
        if "overall" in applies and not context.judged:
            entry["unscored"]["overall"] = NO_JUDGE
        return entry

    attempts = each_output(outputs, context.variant, reference, score)
    return line_of(row, applies, attempts, **places_of(row))


def _finish(document: dict[str, Any], table: ScoreTable, scores: Path) -> None:
    add_tracks(document, table, Run.open(scores.parents[1]).info)
    document["weights"] = table.header["weights"]


METHOD: Final = Method(
    name=NAME,
    version=VERSION,
    columns=COLUMNS,
    metrics=("overall", *pixels.LPIPS, *pixels.CLIP, "qa", "ssim", "psnr"),
    judged=("qa",),
    measure=_measure,
    judging=JUDGING,
    groups=("track", "level", "kind", "turn", "context"),
    partitions=("track", "level", "turn", "perspective", "modality", "source"),
    psnr_cap=pixels.PSNR_CAP,
    finish=_finish,
    pool=False,
)
