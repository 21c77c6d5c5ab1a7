"""Which samples of a dataset a blind sheet asks about, and how many of each stratum."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Final

from mie.analysis.quality import Key, Stratum
from mie.analysis.sampling import draw
from mie.errors import ConfigError, MieError
from mie.recipes.seeds import stable_hash
from mie.store.dataset import Dataset
from mie.store.schema import canonical
from mie.vocabulary import nearest_name

ALLOCATIONS: Final = ("proportional", "equal")
STRATA: Final = ("perspective", "task", "target", "modality", "anatomy", "source", "split")


def draw_key(
    dataset: Dataset,
    size: int,
    stratify: Sequence[str],
    *,
    allocation: str = "proportional",
    seed: int = 0,
) -> Key:
    """Which samples are asked about, in which order: the same for the same dataset, numbers and seed."""
    for name in stratify:
        if name not in STRATA:
            near = nearest_name(name, STRATA)
            raise ConfigError(
                f"no stratum named {name!r}",
                expected=", ".join(STRATA),
                fix=f"did you mean {near!r}?" if near else None,
            )
    if allocation not in ALLOCATIONS:
        raise ConfigError("no such allocation", expected=" or ".join(ALLOCATIONS), found=allocation)
    if not len(dataset):
        raise MieError("the dataset holds no sample", where=dataset.folder)
    columns = dataset.table(["id", *dict.fromkeys(stratify)])
    ids = columns["id"]
    names = [canonical({n: columns[n][at] for n in stratify}) for at in range(len(ids))]
    strata = dict(zip(ids, names, strict=True))
    chosen = draw(ids, strata, size, seed, equal=allocation == "equal")
    sizes, asked = Counter(names), Counter(strata[i] for i in chosen)
    values = {name: {n: columns[n][at] for n in stratify} for at, name in enumerate(names)}
    places = {name: at for at, name in enumerate(sorted(sizes))}
    return Key(
        sheet=f"{stable_hash('sheet', dataset.digest, list(stratify), allocation, seed, chosen):016x}",
        dataset={"name": dataset.name, "digest": dataset.digest, "samples": len(ids)},
        stratify=tuple(stratify),
        allocation=allocation,
        seed=seed,
        strata=tuple(Stratum(values[name], sizes[name], asked[name]) for name in places),
        rows=tuple((i, places[strata[i]]) for i in chosen),
    )
