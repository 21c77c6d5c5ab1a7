"""`mie build`: make a dataset, or resume one that was interrupted."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mie.core.documents import DatasetInfo
from mie.core.files import atomic_write, folder_lock
from mie.datasets.dataset import Dataset, clear, refuse_other_files
from mie.datasets.engine import Standing, run_tasks
from mie.datasets.finish import finish
from mie.datasets.part import PartTask, make_part, part_path
from mie.datasets.plan import Plan, make_plan
from mie.datasets.recipe import RecipeConfig, source_facts
from mie.datasets.rejected import BAD_FILE_GATES, Reason, frequent_reasons, read_rejected
from mie.errors import MieError
from mie.perspectives import BuildFacts
from mie.vocabulary import SPLITS

if TYPE_CHECKING:
    from mie.datasets.rephrase import Rephrase, Wordings


@dataclass(frozen=True, slots=True)
class Progress:
    """What a progress bar needs."""

    stage: str  # "scan", "make", "rephrase", "finish", "done"
    done: int = 0
    total: int = 0
    kept: int = 0
    refused: int = 0
    note: str = ""


Listener = Callable[[Progress], None]


@dataclass(frozen=True, slots=True)
class BuildResult:
    """A finished dataset."""

    folder: Path
    info: DatasetInfo
    already_there: bool = False
    reasons: tuple[Reason, ...] = ()  # why most was rejected, with the names of files

    @property
    def bad_files(self) -> int:
        """Files that could not be used."""
        return sum(self.info["rejected"].get(gate, 0) for gate in BAD_FILE_GATES)

    @property
    def empty_splits(self) -> list[str]:
        """Splits that the recipe asks for and no sample is in."""
        shares = self.info["recipe"]["split"]
        wanted = {"train": shares["val"] + shares["test"] < 1 - 1e-9, **{s: shares[s] > 0 for s in shares}}
        return [split for split in SPLITS if wanted[split] and not self.info["counts"]["by_split"].get(split)]


def build(
    config: RecipeConfig,
    folder: Path | str,
    *,
    engine: str = "local",
    workers: int | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    rephrase: Rephrase | None = None,
    progress: Listener = lambda _: None,
) -> BuildResult:
    """Build the recipe's dataset in `folder`.

    An interrupted build is resumed, a finished one stays as it is. `MieError` where no sample is kept: the
    folder is then free for a corrected recipe.
    """
    folder = Path(folder)
    config = config if limit is None else config.limited(limit)
    refuse_other_files(folder)  # before the lock, which would leave its file in somebody else's folder
    with folder_lock(folder):
        if overwrite:
            clear(folder)
        past = _finished(config, folder, rephrase)
        if past is not None:
            return past
        plan = _samples(config, folder, engine, workers, rephrase, progress)
        wordings: Wordings | None = None
        if rephrase is not None:
            from mie.datasets.rephrase import ask_for_wordings

            wordings = ask_for_wordings(
                plan, folder, rephrase, lambda done, total: progress(Progress("rephrase", done, total))
            )
        progress(Progress("finish", plan.units, plan.units))
        info, reasons = finish(plan, folder, wordings)
    progress(Progress("done", plan.units, plan.units, info["counts"]["samples"]))
    return BuildResult(folder, info, reasons=tuple(reasons))


def estimate_rephrasing(
    config: RecipeConfig,
    folder: Path | str,
    rephrase: Rephrase,
    *,
    engine: str = "local",
    workers: int | None = None,
    limit: int | None = None,
    overwrite: bool = False,
    progress: Listener = lambda _: None,
) -> dict[str, Any] | None:
    """Make the samples and say what `build` would ask the judge, at which cost; None if all is done."""
    from mie.datasets.rephrase import estimate

    folder = Path(folder)
    config = config if limit is None else config.limited(limit)
    refuse_other_files(folder)
    with folder_lock(folder):
        if overwrite:
            clear(folder)
        if _finished(config, folder, rephrase) is not None:
            return None
        return estimate(_samples(config, folder, engine, workers, rephrase, progress), folder, rephrase)


def _finished(config: RecipeConfig, folder: Path, rephrase: Rephrase | None) -> BuildResult | None:
    """The dataset that is there, made by this recipe; `MieError` for another one."""
    if not (folder / "dataset.json").exists():
        return None
    dataset = Dataset(folder)
    rephrased = {} if rephrase is None else {"rephrase": rephrase.by()}
    if not len(dataset):  # as earlier versions left them
        clear(folder)
        return None
    if dataset.info["recipe"] != {**config.public(), **rephrased}:
        raise MieError(
            "this folder holds another dataset",
            where=folder,
            expected=f"a dataset made by this recipe ({config.name})",
            found=f"{dataset.name}, made by another recipe",
            fix="choose another folder, or give --overwrite to replace it",
        )
    shutil.rmtree(folder / "parts", ignore_errors=True)  # killed between the last two steps
    reasons = frequent_reasons(read_rejected(folder / "rejected.parquet"))
    return BuildResult(folder, dataset.info, already_there=True, reasons=tuple(reasons))


def _samples(
    config: RecipeConfig,
    folder: Path,
    engine: str,
    workers: int | None,
    rephrase: Rephrase | None,
    progress: Listener,
) -> Plan:
    """Make every part that is not there yet, in `folder/parts`; returns the plan that they follow."""
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
    facts = BuildFacts(config.name, config.bins, tuple(source_facts(*item) for item in plan.listed()))
    plan = plan.with_weights(config.perspective.prepare(config.recipe, facts))
    _make_parts(plan, _claim(plan, folder), engine, workers, progress)
    return plan


def _claim(plan: Plan, folder: Path) -> Path:
    """`parts/`; refused when it belongs to another plan."""
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
    atomic_write(stamp, plan.fingerprint)
    return parts


def _make_parts(plan: Plan, parts: Path, engine: str, workers: int | None, progress: Listener) -> None:
    todo = [p for p in plan.parts if not part_path(parts, p.number, "index").exists()]
    tasks = [
        PartTask(p, {u.source: plan.sources[u.source] for u in p.units}, plan.config, parts) for p in todo
    ]
    before = plan.units - sum(len(p.units) for p in todo)
    standings: dict[int, Standing] = {}  # by part: units done, samples kept, rejections

    def show(number: int, standing: Standing) -> None:
        if standings.get(number) != standing:
            standings[number] = standing
            units, kept, refused = (sum(numbers) for numbers in zip(*standings.values(), strict=True))
            progress(Progress("make", before + units, plan.units, kept, refused))

    progress(Progress("make", before, plan.units))
    for result in run_tasks(
        make_part,
        tasks,
        engine=engine,
        workers=workers,
        listen=lambda index, standing: show(todo[index].number, standing),
    ):
        show(result.number, (result.units, result.kept, result.refused.total()))
