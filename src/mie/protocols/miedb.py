"""The MieDB protocol over a run: perception and transformation from pixels, modification by a judge.

Variants. `paper` (default): what the text promises. `as_released`: what the public script prints, quirks
included. They differ in B-PSNR and B-SSIM, in what a missing output does, and in exact matches (capped at
100 dB and counted, or infinite). Never mix them in one table.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from mie.judges import JudgeOptions
from mie.protocols.chunks import Output
from mie.protocols.decode import read_stored
from mie.protocols.judging import Judging
from mie.protocols.miedb_rubric import RUBRIC, fill_attempt, rubric_drafts
from mie.protocols.miedb_sample import METRICS, PSNR_CAP, Reference, metrics_of, score_output
from mie.protocols.scoring import Context, Line, Method, Row, each_output, line_of, score_by

NAME: Final = "miedb"
VERSION: Final = 1


def score_run(
    run_folder: Path | str,
    *,
    variant: str = "paper",
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    judge: JudgeOptions | None = None,
) -> dict[str, Any]:
    """Score every output of a run; write `scores/` and `summary/` into its folder; return the summary.

    `workers` are processes: all cores by default, none beside this one when there is little to do. `progress`
    is told (done, total) outputs. `judge` grades modification samples, which have no number without one; of
    a dry run only the estimate is returned.
    """
    return score_by(METHOD, run_folder, variant=variant, workers=workers, progress=progress, judge=judge)


def _measure(row: Row, outputs: Sequence[Output], context: Context) -> Line:
    applies = metrics_of(row["perspective"], row["task"])
    if context.judged and row["perspective"] == "modification":
        applies = RUBRIC
    if not applies:
        return line_of(row, (), [])

    def reference() -> Reference:
        image, target = context.inputs.read(row["input"]["bytes"]), read_stored(row["target_image"]["bytes"])
        return Reference.of(row["perspective"], row["task"], row["colour"], image, target)

    attempts = each_output(
        outputs, context.variant, reference, lambda held, made: score_output(held, made, context.variant)
    )
    return line_of(row, applies, attempts)


METHOD: Final = Method(
    name=NAME,
    version=VERSION,
    columns=("input", "target_image", "colour"),
    metrics=(*METRICS, *RUBRIC),
    judged=RUBRIC,
    measure=_measure,
    judging=Judging(RUBRIC, lambda chunks, variant, _: rubric_drafts(chunks, variant), fill_attempt),
    missing_as_zero=True,
    psnr_cap=PSNR_CAP,
)
