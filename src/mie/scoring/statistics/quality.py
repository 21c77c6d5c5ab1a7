"""The share of good samples in a dataset: which are asked about, and the share with its interval.

Samples are drawn by stratum and by hash, so the same everywhere. `mie.scoring.statistics.sheet` has the key
of the blind sheet and reads the answers.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from mie.core.hashing import canonical, stable_hash
from mie.datasets.dataset import Dataset
from mie.errors import MieError
from mie.scoring.statistics.intervals import wilson
from mie.scoring.statistics.sheet import Key, Opinion, Stratum, check_strata, draw

# The published pipeline: over 95% of 6,000 sampled triplets were found good.
BAR_SHARE: Final = 0.95
BAR_SIZE: Final = 6000


def draw_key(
    dataset: Dataset,
    size: int,
    stratify: Sequence[str],
    *,
    allocation: str = "proportional",
    seed: int = 0,
) -> Key:
    """Which samples are asked about, in which order: the same for the same dataset, numbers and seed."""
    check_strata(stratify, allocation)
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


def quality(key: Key, opinions: Mapping[int, Opinion]) -> dict[str, Any]:
    """The document of `mie sample --answers`.

    A stratum counts as much as it has samples in the dataset, however many of them were asked about. The
    interval is Wilson's, of the weighted share and the effective number of answers: 1 / sum(weight^2 / n)
    over strata with n answers, which is the number of answers where strata are asked in proportion.
    """
    strata = [_stratum(key, at, opinions) for at in range(len(key.strata))]
    share, effective = _weighted(strata)
    low, high = (None, None) if share is None else wilson(share * effective, effective)
    silent = [one["stratum"] for one in strata if not one["answered"]]
    bad = Counter(
        opinion.reason or "no reason given" for opinion in opinions.values() if opinion.answer == "bad"
    )
    return {
        "sheet": key.sheet,
        "dataset": dict(key.dataset),
        "stratify": list(key.stratify),
        "allocation": key.allocation,
        "asked": len(key.rows),
        "answered": len(opinions),
        "good": sum(opinion.answer == "good" for opinion in opinions.values()),
        "share": share,
        "ci95": [low, high],
        "effective_answers": effective,
        "strata": strata,
        "strata_without_answers": silent,
        "reasons": dict(bad.most_common()),
        "bar": {"share": BAR_SHARE, "of": BAR_SIZE, **_verdict(low, high, len(silent))},
    }


def _stratum(key: Key, at: int, opinions: Mapping[int, Opinion]) -> dict[str, Any]:
    rows = [row for row, (_, stratum) in enumerate(key.rows, start=1) if stratum == at]
    said = [opinions[row].answer == "good" for row in rows if row in opinions]
    low, high = wilson(sum(said), len(said)) if said else (None, None)
    return {
        "stratum": dict(key.strata[at].name),
        "samples": key.strata[at].samples,
        "asked": len(rows),
        "answered": len(said),
        "good": sum(said),
        "share": sum(said) / len(said) if said else None,
        "ci95": [low, high],
    }


def _weighted(strata: Sequence[Mapping[str, Any]]) -> tuple[float | None, float]:
    """(the share, the effective number of answers) over the strata that have answers."""
    heard = [one for one in strata if one["answered"]]
    total = sum(one["samples"] for one in heard)
    if not heard:
        return None, 0.0
    share = sum(one["samples"] * one["good"] / one["answered"] for one in heard) / total
    return share, total**2 / sum(one["samples"] ** 2 / one["answered"] for one in heard)


def _verdict(low: float | None, high: float | None, silent: int) -> dict[str, str]:
    if low is None or high is None:
        return {"verdict": "undecided", "why": "there is no answer"}
    if silent:
        return {"verdict": "undecided", "why": f"{silent} strata have no answer"}
    if low > BAR_SHARE:
        return {"verdict": "met", "why": f"the whole interval lies over {BAR_SHARE:.0%}"}
    if high <= BAR_SHARE:
        return {"verdict": "missed", "why": f"the whole interval lies at or under {BAR_SHARE:.0%}"}
    return {"verdict": "undecided", "why": f"the interval holds {BAR_SHARE:.0%}: more answers are needed"}
