"""`mie merge`: several built datasets become one, with one digest and one leak check across all of them.

Each shard of the datasets is a part, as in a build: its samples are decoded, proved and compared with all
others, so a killed merge resumes and a damaged dataset is named. The rules:

- The same sample twice is kept once, by the order in which the datasets are named.
- A patient, or nearly the same image, on both sides of a split is taken from training first, never from test.
- One id for two different samples of the same split is an error, unless `first` keeps those of the dataset
  that is named first.
"""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mie.core.documents import DatasetInfo, maker_settings, merged_recipes, source_entries
from mie.core.files import atomic_write, folder_lock
from mie.core.hashing import canonical
from mie.datasets.card import data_card
from mie.datasets.dataset import Dataset, clear, refuse_other_files, write_info
from mie.datasets.engine import run_tasks
from mie.datasets.finish import Index, add_perspective_facts, claim_parts, compare, link, write_shards
from mie.datasets.names import comparable, comparable_case
from mie.datasets.part import PartTraces, part_path
from mie.datasets.rejected import nothing_kept, read_rejected, write_rejected
from mie.datasets.schema import content_digest, pixel_digests, read_rows, sample_from_row, text_fields
from mie.errors import ConfigError, MieError
from mie.perspectives import find_perspective
from mie.records import Rejection

_SHOWN = 3  # ids in a message


@dataclass(frozen=True, slots=True)
class Merged:
    """A merged dataset and what was noticed on the way."""

    folder: Path
    info: DatasetInfo
    notes: tuple[str, ...] = ()
    already_there: bool = False


@dataclass(frozen=True, slots=True)
class _Task:
    number: int
    shard: Path
    folder: Path  # `parts/`


def merge(
    datasets: Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    first: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Dataset:
    """Merge built datasets into a new one in `folder`, compared as one. An interrupted merge resumes.

    Args:
        datasets: Folders of finished datasets, or `Dataset` objects; where two hold the same sample, that of
            the first is kept.
        folder: The merged dataset's folder: new, or one with this very merge.
        name: Of the merged dataset; by default the names of the datasets, joined.
        first: Where two different samples have one id, keep that of the dataset named first. Default: error.
        workers: Processes; one per core by default.
        overwrite: Replace the dataset that is in the folder.
        progress: Called with (shards done, shards).

    """
    return Dataset(
        merge_datasets(
            datasets,
            folder,
            name=name,
            first=first,
            workers=workers,
            overwrite=overwrite,
            progress=progress,
        ).folder
    )


def merge_datasets(
    datasets: Sequence[str | os.PathLike[str]],
    folder: str | os.PathLike[str],
    *,
    name: str | None = None,
    first: bool = False,
    workers: int | None = None,
    overwrite: bool = False,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> Merged:
    """As `merge`, with what was noticed."""
    output = Path(folder)
    opened = [Dataset(path) for path in datasets]
    _check(opened, output)
    recipe = _recipe(opened, name, first=first)
    notes = tuple(_notes(opened))
    refuse_other_files(output)
    with folder_lock(output):
        if overwrite:
            clear(output)
        if (output / "dataset.json").exists():
            return Merged(output, _finished(output, recipe), notes, already_there=True)
        shards = [path for dataset in opened for path in dataset.shards()]
        parts = claim_parts(output, _fingerprint(recipe, shards))
        tasks = [_Task(number, shard, parts) for number, shard in enumerate(shards)]
        todo = [task for task in tasks if not part_path(parts, task.number, "index").exists()]
        done = len(tasks) - len(todo)
        progress(done, len(tasks))
        for _ in run_tasks(_make_part, todo, workers=workers):
            done += 1
            progress(done, len(tasks))
        info = _finish(output, opened, recipe, [task.number for task in tasks], first=first)
    return Merged(output, info, notes)


def _check(datasets: Sequence[Dataset], output: Path) -> None:
    if len(datasets) < 2:
        raise ConfigError("there is nothing to merge", expected="two datasets or more", found=len(datasets))
    seen: dict[str, Dataset] = {}
    for dataset in datasets:
        if dataset.folder.resolve() == output.resolve():
            raise ConfigError("the output is one of the datasets", where=output, fix="choose another folder")
        if dataset.digest in seen:
            raise ConfigError(
                "the same dataset is named twice",
                where=dataset.folder,
                found=f"the digest of {seen[dataset.digest].folder}",
                fix="name each dataset once",
            )
        seen[dataset.digest] = dataset


def _recipe(datasets: Sequence[Dataset], name: str | None, *, first: bool) -> dict[str, Any]:
    parents = [
        {"name": dataset.name, "digest": dataset.digest, "recipe": dataset.info.get("recipe") or {}}
        for dataset in datasets
    ]
    return {
        "name": name or "+".join(dict.fromkeys(dataset.name for dataset in datasets)),
        "clashes": "first" if first else "error",
        "merged": parents,
    }


def _notes(datasets: Sequence[Dataset]) -> list[str]:
    """What differs between the datasets and is kept as it is."""
    notes = []
    bins = {
        f"{dataset.name}: {', '.join(map(str, one['bins']))}"
        for dataset in datasets
        for one in merged_recipes(dataset.info.get("recipe") or {})
        if one.get("bins")
    }
    if len({said.partition(": ")[2] for said in bins}) > 1:
        notes.append(
            f"images were scaled to other lengths ({'; '.join(sorted(bins))}): they stay as they are"
        )
    entries = [source_entries(dataset.info.get("recipe") or {}) for dataset in datasets]
    names = {source for one in entries for source in one}
    other = sorted(s for s in names if len({canonical(one[s]) for one in entries if s in one}) > 1)
    if other:
        notes.append(f"described differently: {', '.join(other)}; the first description is kept")
    return notes


def _fingerprint(recipe: Mapping[str, Any], shards: Sequence[Path]) -> str:
    facts = [(path.name, path.stat().st_size) for path in shards]
    return hashlib.sha256(canonical(["merge", recipe, facts]).encode()).hexdigest()


def _finished(output: Path, recipe: Mapping[str, Any]) -> DatasetInfo:
    info = Dataset(output).info
    if info["recipe"] != recipe:
        raise MieError(
            "this folder holds another dataset",
            where=output,
            expected="the merge of these datasets",
            found=info["name"],
            fix="choose another folder, or give --overwrite to replace it",
        )
    shutil.rmtree(output / "parts", ignore_errors=True)  # killed between the last two steps
    return info


def _make_part(task: _Task) -> int:
    """Prove one shard and write its index; the shard itself gets a second name."""
    traces = PartTraces()
    split = task.shard.name.split("-")[0]
    for row in read_rows(task.shard):
        where = f"{task.shard} ({row.get('id')})"
        try:
            sample = sample_from_row(row)
            digests = pixel_digests(sample)
        except MieError as error:
            raise _damaged(where, error.reason) from error
        if content_digest(digests, text_fields(sample)) != row["sha256"]:
            raise _damaged(where, "content differs from its recorded digest")
        if sample.split != split:
            raise _damaged(where, f"says {sample.split} in a {split} shard")
        # Older datasets keep names; compared by pseudonym, one patient is one patient in all of them.
        sample = replace(
            sample,
            patient_id=comparable(sample.patient_id),
            case_id=comparable_case(sample.source, sample.case_id),
        )
        traces.add(sample, str(row["sha256"]), digests)
    path = part_path(task.folder, task.number, split)
    path.unlink(missing_ok=True)
    link(task.shard, path)
    traces.write(task.folder, task.number)
    return task.number


def _damaged(where: str, found: str) -> MieError:
    return MieError(
        "a dataset is damaged", where=where, found=found, fix="`mie verify` says what is wrong; rebuild it"
    )


def _finish(
    output: Path,
    datasets: Sequence[Dataset],
    recipe: Mapping[str, Any],
    numbers: Sequence[int],
    *,
    first: bool,
) -> DatasetInfo:
    parts = output / "parts"
    index = compare(parts, numbers, several=True)
    owners = [dataset for dataset in datasets for _ in dataset.shards()]
    _resolve_clashes(index, owners, first=first)
    write_shards(parts, numbers, output / "data", index.drop)
    before = [rejection for dataset in datasets for rejection in _rejections(dataset)]
    rejections = [*before, *(index.dropped[at] for at in sorted(index.dropped))]
    write_rejected(output / "rejected.parquet", rejections)
    if not index.kept:
        clear(output)
        raise nothing_kept(output, rejections, "merge other datasets")
    licenses: dict[str, Mapping[str, str]] = {}
    reasons: dict[str, str] = {}
    for dataset in reversed(datasets):  # the first description is kept
        licenses.update(dataset.info["licenses"])
        reasons.update(dataset.info.get("deidentification") or {})
    info = index.tally(rejections).info(
        name=str(recipe["name"]),
        description="; ".join(
            f"{d.name}: {d.info['description']}" for d in datasets if d.info["description"]
        ),
        recipe=recipe,
        licenses=licenses,
        deidentified=all(dataset.info["deidentified"] for dataset in datasets),
    )
    info["deidentification"] = {source: reasons[source] for source in sorted(reasons)}
    add_perspective_facts(info, output / "data", rejections, _modalities(datasets, info))
    weights = _weights(datasets)
    if weights:
        info["weights"] = weights
    atomic_write(output / "README.md", data_card(info))
    write_info(output, info)
    shutil.rmtree(parts)
    return info


def _resolve_clashes(index: Index, owners: Sequence[Dataset], *, first: bool) -> None:
    """Drop, or refuse, the later of two different samples that have one id in one split."""
    seen: dict[tuple[str, str], int] = {}
    clashes: list[tuple[int, int]] = []
    for at in index.kept:
        key = index.columns["id"][at], index.columns["split"][at]
        if key in seen:
            clashes.append((at, seen[key]))
        else:
            seen[key] = at
    if clashes and not first:
        late, early = clashes[0]
        one, other = (owners[index.parts[at]] for at in (early, late))
        ids = ", ".join(index.columns["id"][at] for at, _ in clashes[:_SHOWN])
        raise MieError(
            "two datasets give one id to different samples",
            where=f"{one.folder} and {other.folder}",
            expected="the same prompt, images and settings for the same id",
            found=f"{len(clashes):,} ids that differ, for example {ids}",
            fix="build both with the same bins, wordings and version; "
            "or give --first to keep those of the dataset named first",
        )
    for late, early in clashes:
        columns = index.columns
        reason = (
            f"another sample has the id {columns['id'][late]}: kept that of {owners[index.parts[early]].name}"
        )
        index.dropped[late] = Rejection(
            columns["source"][late],
            columns["case_id"][late],
            "duplicate",
            reason,
            columns["target"][late],
            {"id": columns["id"][late]},
            columns["perspective"][late],
        )


def _rejections(dataset: Dataset) -> list[Rejection]:
    """What a dataset rejected, with its perspective where it has one only."""
    makers = maker_settings(dataset.info.get("recipe") or {})
    only = makers[0].get("kind") if len(makers) == 1 else None
    found = read_rejected(dataset.folder / "rejected.parquet")
    return [r if r.perspective else replace(r, perspective=only) for r in found]


def _modalities(datasets: Sequence[Dataset], info: DatasetInfo) -> dict[str, dict[str, str]]:
    """Perspective -> data set -> modality, for the perspectives that are installed here."""
    entries: dict[str, Mapping[str, Any]] = {}
    for dataset in datasets:
        for source, entry in source_entries(dataset.info.get("recipe") or {}).items():
            entries.setdefault(source, entry)
    modalities = {source: str(entry.get("modality")) for source, entry in entries.items()}
    names = info["counts"]["by_perspective"]
    return {name: modalities for name in names if find_perspective(name) is not None}


def _weights(datasets: Sequence[Dataset]) -> dict[str, dict[str, str]]:
    """Of every dataset; under its name as well where two used other weights of one family."""
    weights: dict[str, dict[str, str]] = {}
    for dataset in datasets:
        for family, used in (dataset.info.get("weights") or {}).items():
            known = weights.setdefault(family, {})
            if any(known.get(name, sha) != sha for name, sha in used.items()):
                weights[f"{family} ({dataset.name})"] = dict(used)
            else:
                known.update(used)
    return weights


__all__ = ["Merged", "merge", "merge_datasets"]
