"""`mie build`: make a dataset, or resume one that was interrupted.

When all parts are there, `finish` compares across samples, names the shards, counts, describes, and last of
all writes `dataset.json`.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mie.core.documents import DatasetInfo, plural
from mie.core.files import atomic_write, folder_lock
from mie.datasets.card import data_card
from mie.datasets.dataset import Dataset, clear, refuse_other_files, write_info
from mie.datasets.engine import Standing, run_tasks
from mie.datasets.finish import (
    Index,
    add_perspective_facts,
    claim_parts,
    compare,
    part_rejections,
    pixel_digests_of,
    write_shards,
)
from mie.datasets.names import Names
from mie.datasets.part import PartTask, finished, make_part, unit_name, without_deadly_unit
from mie.datasets.plan import Plan, first_files, make_plan
from mie.datasets.recipe import RecipeConfig, source_facts
from mie.datasets.rejected import (
    BAD_FILE_GATES,
    Reason,
    frequent_reasons,
    nothing_kept,
    read_rejected,
    write_rejected,
)
from mie.datasets.schema import IMAGE_COLUMNS, reworded_row
from mie.errors import MieError
from mie.perspectives import PERSPECTIVES, BuildFacts
from mie.perspectives.perspective import Weights
from mie.records import Rejection
from mie.sources.catalog import deidentification
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
    isolate: bool = False,
    rephrase: Rephrase | None = None,
    allow_remote: bool = False,
    progress: Listener = lambda _: None,
) -> BuildResult:
    """Build the recipe's dataset in `folder`.

    An interrupted build is resumed, a finished one stays as it is. `MieError` where no sample is kept: the
    folder is then free for a corrected recipe. With `isolate`, as `mie build` has it, even a single worker is
    a process of its own: a file that crashes a decoder is rejected, and does not end the caller. A judge that
    the recipe names may be on another machine only with `allow_remote`.
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
        plan = _samples(config, folder, engine, workers, isolate, rephrase, allow_remote, progress)
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
    isolate: bool = False,
    allow_remote: bool = False,
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
        return estimate(
            _samples(config, folder, engine, workers, isolate, rephrase, allow_remote, progress),
            folder,
            rephrase,
        )


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
    isolate: bool,
    rephrase: Rephrase | None,
    allow_remote: bool,
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
            found=f"{plural(len(plan.rejections), 'file')} that match none",
            fix="`mie sources check NAME ROOT` shows what matches and what does not",
        )
    plan = plan.with_weights(prepare(plan, allow_remote))
    parts = claim_parts(folder, plan.fingerprint)
    _make_parts(plan, parts, engine, workers, isolate, allow_remote, progress)
    return plan


def prepare(plan: Plan, allow_remote: bool) -> Weights | None:
    """Let every perspective check that it can work; the weights that their networks use."""
    config = plan.config
    weights: dict[str, Mapping[str, str]] | None = None
    for at, maker in enumerate(config.makers):
        sources = tuple(source_facts(*item) for item in plan.listed(at))
        used = PERSPECTIVES[maker.kind].prepare(
            maker, BuildFacts(config.name, config.bins, sources, allow_remote=allow_remote)
        )
        if used is not None:
            weights = {**(weights or {}), **used}
    return weights


def _make_parts(
    plan: Plan,
    parts: Path,
    engine: str,
    workers: int | None,
    isolate: bool,
    allow_remote: bool,
    progress: Listener,
) -> None:
    standings = {p.number: standing for p in plan.parts if (standing := finished(parts, p)) is not None}
    todo = [p for p in plan.parts if p.number not in standings]
    tasks = [
        PartTask(p, {u.source: plan.sources[u.source] for u in p.units}, plan.config, parts, allow_remote)
        for p in todo
    ]

    def tell() -> None:
        units, kept, refused = (sum(numbers) for numbers in zip((0, 0, 0), *standings.values(), strict=True))
        progress(Progress("make", units, plan.units, kept, refused))

    def show(number: int, standing: Standing) -> None:
        if standings.get(number) != standing:
            standings[number] = standing
            tell()

    tell()
    for result in run_tasks(
        make_part,
        tasks,
        engine=engine,
        workers=workers,
        listen=lambda index, standing: show(todo[index].number, standing),
        isolate=isolate,
        rescue=without_deadly_unit,
        describe=unit_name,
        output=parts,
        inputs=first_files(plan.parts, plan.sources),
    ):
        show(result.number, (result.units, result.kept, result.refused.total()))


def finish(plan: Plan, folder: Path, wordings: Wordings | None = None) -> tuple[DatasetInfo, list[Reason]]:
    """Write `data/`, `rejected.parquet`, the card and `dataset.json`. Safe to repeat from the start.

    Where no sample is kept, `rejected.parquet` alone is left, and `MieError` says why.

    With `wordings` the instructions are rephrased on the way from `parts/` to `data/`. The reasons that come
    with what `dataset.json` says name files as they are called: they are for this machine's terminal.
    """
    parts = folder / "parts"
    numbers = [part.number for part in plan.parts]
    index = compare(parts, numbers, several=len(plan.config.makers) > 1)
    columns = index.columns
    if wordings is None:
        write_shards(parts, numbers, folder / "data", index.drop)
    else:
        pixels = pixel_digests_of(parts, numbers)
        change = partial(_reworded, wordings=wordings, pixels=pixels)
        digests = write_shards(parts, numbers, folder / "data", index.drop, change)
        columns["sha256"] = [digests.get(i) for i in columns["id"]]  # None for what is dropped
    named = [*plan.rejections, *part_rejections(parts, numbers)]
    across = [index.dropped[i] for i in sorted(index.dropped)]
    names = Names(plan.config.keep_names)
    rejections = [*map(names.rejection, named), *across]
    write_rejected(folder / "rejected.parquet", rejections)
    if not index.kept:
        clear(folder)
        write_rejected(folder / "rejected.parquet", rejections)
        raise nothing_kept(
            folder, [*named, *across], "change the recipe or the files and run the same command again"
        )
    info = _info(plan, index, rejections)
    if wordings is not None:
        info["recipe"]["rephrase"] = wordings.by
        info["rephrased"] = wordings.counts()
    modalities = {
        maker.kind: {source.entry.name: source.entry.modality for source in plan.config.sources_of(maker)}
        for maker in plan.config.makers
    }
    add_perspective_facts(info, folder / "data", rejections, modalities)
    if plan.weights is not None:
        info["weights"] = {family: dict(used) for family, used in plan.weights.items()}
    atomic_write(folder / "README.md", data_card(info))
    write_info(folder, info)
    shutil.rmtree(parts)
    return info, frequent_reasons([*named, *across])


def _reworded(
    row: dict[str, Any], wordings: Wordings, pixels: Mapping[str, list[bytes | None]]
) -> dict[str, Any]:
    prompt, note = wordings.draw(row["prompt"], row["seed"])
    params = {**json.loads(row["params"]), "rephrased": note}
    digests = dict(zip(IMAGE_COLUMNS, pixels[row["id"]], strict=True))
    return reworded_row(row, digests, prompt=prompt, params=params)


def _info(plan: Plan, index: Index, rejections: list[Rejection]) -> DatasetInfo:
    used = {index.columns["source"][i] for i in index.kept}
    entries = [entry for entry, _ in plan.sources if entry.name in used]
    stated = {
        entry.name: deidentification(entry, root, units)
        for entry, root, units in plan.listed()
        if entry.name in used
    }
    info = index.tally(rejections).info(
        name=plan.config.name,
        description=plan.config.description,
        recipe=plan.config.public(),
        licenses={entry.name: entry.license.model_dump() for entry in entries},
        deidentified=bool(entries) and all(yes for yes, _ in stated.values()),
    )
    return {**info, "deidentification": {name: reason for name, (_, reason) in stated.items()}}
