"""`mie build`: make a dataset, or go on with one that was interrupted."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from mie.core.documents import DatasetInfo
from mie.core.files import atomic_write, folder_lock
from mie.datasets.dataset import Dataset, clear, refuse_other_files
from mie.datasets.engine import run_tasks
from mie.datasets.finish import finish
from mie.datasets.part import PartResult, PartTask, make_part, part_path
from mie.datasets.plan import Plan, make_plan
from mie.datasets.recipe import RecipeConfig, source_facts
from mie.errors import MieError
from mie.perspectives import BuildFacts

if TYPE_CHECKING:
    from mie.datasets.rephrase import Rephrase, Wordings

# Refusals that mean a file could not be used, as against a sample that was not worth keeping.
BAD_FILE_GATES = ("source", "image", "error")


@dataclass(frozen=True, slots=True)
class Progress:
    """What a progress bar needs."""

    stage: str  # "scan", "make", "rephrase", "finish", "done"
    done: int = 0
    total: int = 0
    kept: int = 0
    refused: int = 0
    note: str = ""


@dataclass(frozen=True, slots=True)
class BuildResult:
    folder: Path
    info: DatasetInfo  # empty after a dry run
    already_there: bool = False
    estimate: dict[str, Any] | None = None  # of a dry run, which ends with the samples made and no dataset

    @property
    def bad_files(self) -> int:
        return sum(self.info["rejected"].get(gate, 0) for gate in BAD_FILE_GATES)


def build(
    config: RecipeConfig,
    folder: Path | str,
    *,
    engine: str = "local",
    workers: int | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    rephrase: Rephrase | None = None,
    progress: Callable[[Progress], None] = lambda _: None,
) -> BuildResult:
    """Build the recipe's dataset in `folder`. Interrupted builds go on; finished ones stay as they are."""
    folder = Path(folder)
    if limit is not None:
        config = config.limited(limit)
    refuse_other_files(folder)  # before the lock, which would leave its file in somebody else's folder
    with folder_lock(folder):
        if overwrite:
            clear(folder)
        if (folder / "dataset.json").exists():
            return _finished(config, folder, rephrase)
        if rephrase is not None:
            rephrase.check()
        plan = make_plan(config, lambda name: progress(Progress("scan", note=name)))
        if not plan.parts:
            raise MieError(
                "no image was found",
                where=", ".join(str(root) for _, root in plan.sources),
                expected="files that match the data sets' patterns",
                found=f"{len(plan.refusals)} files that match none",
                fix="`mie sources check NAME ROOT` shows what matches and what does not",
            )
        plan = plan.with_weights(config.perspective.prepare(config.recipe, _facts(plan)))
        parts = _claim(plan, folder)
        _make_parts(plan, parts, engine, workers, progress)
        wordings: Wordings | None = None
        if rephrase is not None:
            from mie.datasets.rephrase import ask_for_wordings, estimate

            if rephrase.judge.dry_run:
                return BuildResult(folder, cast("DatasetInfo", {}), estimate=estimate(plan, folder, rephrase))
            wordings = ask_for_wordings(
                plan, folder, rephrase, lambda done, total: progress(Progress("rephrase", done, total))
            )
        progress(Progress("finish", plan.units, plan.units))
        info = finish(plan, folder, wordings)
    progress(Progress("done", plan.units, plan.units, info["counts"]["samples"]))
    return BuildResult(folder, info)


def _facts(plan: Plan) -> BuildFacts:
    config = plan.config
    return BuildFacts(config.name, config.bins, tuple(source_facts(*item) for item in plan.listed()))


def _make_parts(
    plan: Plan,
    parts: Path,
    engine: str,
    workers: int | None,
    progress: Callable[[Progress], None],
) -> None:
    todo = [p for p in plan.parts if not part_path(parts, p.number, "index").exists()]
    tasks = [
        PartTask(p, {u.source: plan.sources[u.source] for u in p.units}, plan.config, parts) for p in todo
    ]
    done = plan.units - sum(len(p.units) for p in todo)
    kept, refused = 0, Counter[str]()
    progress(Progress("make", done, plan.units))
    for result in run_tasks(make_part, tasks, engine=engine, workers=workers):
        assert isinstance(result, PartResult)  # noqa: S101
        done, kept = done + result.units, kept + result.kept
        refused += result.refused
        progress(Progress("make", done, plan.units, kept, refused.total()))


def _claim(plan: Plan, folder: Path) -> Path:
    """`parts/`, emptied of half-written files; refused when it belongs to another plan."""
    parts = folder / "parts"
    stamp = parts / "plan"
    if stamp.exists() and stamp.read_text() != plan.fingerprint:
        raise MieError(
            "this folder holds an unfinished build of something else",
            where=folder,
            expected="the same recipe over the same files",
            fix="choose another folder, or give --overwrite to start afresh",
        )
    parts.mkdir(exist_ok=True)
    for left in parts.glob(".*.tmp"):
        left.unlink()
    atomic_write(stamp, plan.fingerprint)
    return parts


def _finished(config: RecipeConfig, folder: Path, rephrase: Rephrase | None) -> BuildResult:
    dataset = Dataset(folder)
    rephrased = {} if rephrase is None else {"rephrase": rephrase.by()}
    if dataset.info["recipe"] != {**config.public(), **rephrased}:
        raise MieError(
            "this folder holds another dataset",
            where=folder,
            expected=f"a dataset made by this recipe ({config.name})",
            found=f"{dataset.name}, made by another recipe",
            fix="choose another folder, or give --overwrite to replace it",
        )
    shutil.rmtree(folder / "parts", ignore_errors=True)  # killed between the last two steps
    return BuildResult(folder, dataset.info, already_there=True)
