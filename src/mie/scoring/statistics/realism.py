"""Can people tell generated images from real ones? Which are shown, and how often the answers are right.

Every modification pair has a real image and one with generated pixels: the lesion is real and the healthy
tissue was filled in ("healed"), or the tissue is real and the lesion was painted (`from_health`, "painted").
So each place is shown with its lesion or without, and both occur as real and as generated ones.
"""

from __future__ import annotations

import json
import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import cv2
import numpy as np

from mie.core.allocation import allocate, allocate_equally
from mie.core.hashing import canonical, stable_hash
from mie.datasets.dataset import Dataset
from mie.errors import ConfigError, MieError
from mie.images.png import decode_png
from mie.perspectives.modification.prepared import NAME
from mie.records import Mask
from mie.scoring.statistics.intervals import mean_interval
from mie.scoring.statistics.sheet import Key, Opinion, Stratum, Truth, check_strata

GUESSING: Final = 0.5
# What is shown, and which image of a removal sample shows it.
SHOWN: Final[Mapping[str, str]] = {"lesion": "input", "healthy tissue": "target_image"}
_COLUMNS: Final = ("id", "task", "recipe", "source", "case_id", "patient_id", "params", "mask")
_AROUND: Final = 1.15, 0.02  # of the circle's radius, and of the image's longer side: tissue around the area


@dataclass(frozen=True, slots=True)
class _Pair:
    sample: str  # the id of its removal sample
    stratum: Mapping[str, Any]
    painted: bool
    case: tuple[str, str]
    patient: str
    radius: float  # of the circle, as a share of the image's longer side


def draw_key(
    dataset: Dataset,
    size: int,
    stratify: Sequence[str],
    *,
    allocation: str = "proportional",
    seed: int = 0,
) -> Key:
    """Which images are shown, in which order: the same for the same dataset, numbers and seed.

    Images are drawn in twos that show the same: one of a healed and one of a painted pair, so that one is
    real and one generated: of one data set if possible, with circles that are about equally large. An image
    of the data set is shown once, with or without its lesion; a patient twice only where there are no others.
    """
    check_strata(stratify, allocation)
    if size < 2:
        raise ConfigError(
            "a sheet of real and generated images needs two", expected="-n 2 or more", found=size
        )
    cells = _cells(dataset, stratify)
    two_sided = {name: min(map(_cases, pairs)) for name, pairs in cells.items() if all(pairs)}
    if not two_sided:
        raise _nothing_to_compare(dataset, cells, stratify)
    share = allocate_equally if allocation == "equal" else allocate
    strata: list[Stratum] = []
    rows: list[tuple[_Pair, int, Truth]] = []
    used: Counter[str] = Counter()
    taken: set[tuple[str, str]] = set()
    for name, count in share(two_sided, size // 2).items():
        pairs = cells[name]
        twos = _twos(pairs, count, seed, used, taken)
        first = stable_hash("shown first", seed, name) % 2
        for at, (shown, image) in enumerate(SHOWN.items()):
            drawn = [pair for two in twos[(at + first) % 2 :: 2] for pair in two]
            columns = {"shown": shown, **pairs[0][0].stratum}
            place = len(strata)
            strata.append(Stratum(columns, sum(map(len, pairs)), len(drawn)))
            for pair in drawn:
                real = pair.painted == (shown == "healthy tissue")
                rows.append((pair, place, Truth(image, real, 0, pair.case[0])))
    rows.sort(key=lambda row: stable_hash("review", seed, row[0].sample))
    patients = {patient: n for n, patient in enumerate(dict.fromkeys(pair.patient for pair, _, _ in rows))}
    truth = tuple(replace(one, patient=patients[pair.patient]) for pair, _, one in rows)
    chosen = [[pair.sample, one.image] for pair, _, one in rows]
    return Key(
        sheet=f"{stable_hash('real', dataset.digest, list(stratify), allocation, seed, chosen):016x}",
        dataset={"name": dataset.name, "digest": dataset.digest, "samples": len(dataset)},
        stratify=tuple(stratify),
        allocation=allocation,
        seed=seed,
        strata=tuple(strata),
        rows=tuple((pair.sample, place) for pair, place, _ in rows),
        question="real",
        truth=truth,
        left_out=tuple(
            {"stratum": dict((healed or painted)[0].stratum), "healed": len(healed), "painted": len(painted)}
            for name, (healed, painted) in cells.items()
            if name not in two_sided
        ),
    )


def circle_around(area: Mask) -> tuple[float, float, float]:
    """(column, row, radius) of a circle around an area and some tissue about it, in pixels.

    The outline of the area itself would tell: painted lesions have a smooth outline, marked ones a drawn one.
    """
    (column, row), radius = cv2.minEnclosingCircle(cv2.findNonZero(area.astype(np.uint8)))
    factor, more = _AROUND
    return round(column + 0.5, 1), round(row + 0.5, 1), round(factor * radius + more * max(area.shape), 1)


def _cells(dataset: Dataset, stratify: Sequence[str]) -> dict[str, tuple[list[_Pair], list[_Pair]]]:
    """By stratum, in order: the healed pairs and the painted ones."""
    cells: dict[str, tuple[list[_Pair], list[_Pair]]] = defaultdict(lambda: ([], []))
    for row in dataset.rows(columns=list(dict.fromkeys((*_COLUMNS, *stratify)))):
        # Others say nothing of which of their images is real.
        if row["recipe"] != NAME or row["task"] != "removal" or row["mask"] is None:
            continue
        area = decode_png(row["mask"]["bytes"]) > 0
        if area.any():
            stratum = {name: row[name] for name in stratify}
            painted = bool(json.loads(row["params"] or "{}").get("from_health"))
            case = row["source"], row["case_id"]
            radius = circle_around(area)[2] / max(area.shape)
            patient = canonical(row["patient_id"] or case)
            pair = _Pair(row["id"], stratum, painted, case, patient, radius)
            cells[canonical(stratum)][painted].append(pair)
    return dict(sorted(cells.items()))


def _cases(pairs: Sequence[_Pair]) -> int:
    return len({pair.case for pair in pairs})


def _twos(
    kinds: tuple[list[_Pair], list[_Pair]],
    count: int,
    seed: int,
    used: Counter[str],
    taken: set[tuple[str, str]],
) -> list[tuple[_Pair, _Pair]]:
    """So many times a healed and a painted pair that are about equally large; counts what it uses.

    The kind with fewer patients chooses first: the other one has more to choose from.
    """
    scarce, plenty = sorted(kinds, key=lambda pairs: (len({pair.patient for pair in pairs}), len(pairs)))

    def chosen(pairs: Sequence[_Pair], like: _Pair | None = None) -> _Pair | None:
        def rank(pair: _Pair) -> tuple[int, bool, float, int]:
            distance = 0.0 if like is None else abs(math.log(pair.radius / like.radius))
            elsewhere = like is not None and pair.case[0] != like.case[0]
            return used[pair.patient], elsewhere, distance, stable_hash("pair", seed, pair.sample)

        return min((pair for pair in pairs if pair.case not in taken), key=rank, default=None)

    twos: list[tuple[_Pair, _Pair]] = []
    for _ in range(count):
        first = chosen(scarce)
        second = None if first is None else chosen(plenty, first)
        if first is None or second is None:  # what is left was taken in another stratum
            break
        for pair in (first, second):
            used[pair.patient] += 1
            taken.add(pair.case)
        twos.append((first, second))
    return twos


def _nothing_to_compare(
    dataset: Dataset, cells: Mapping[str, tuple[list[_Pair], list[_Pair]]], stratify: Sequence[str]
) -> MieError:
    healed, painted = (sum(len(pairs[kind]) for pairs in cells.values()) for kind in (0, 1))
    if not cells:
        fix = "build a dataset with `recipe: modification`, removal among its kinds"
    elif healed and painted:
        fix = f"no stratum has both; name fewer columns than --stratify {','.join(stratify)}"
    else:
        lack = (
            "lesions painted into healthy images: add `health:`" if healed else "images with marked lesions"
        )
        fix = f"the recipe needs {lack} too: docs/explanation/modification.md"
    return MieError(
        "no real images to compare generated ones with",
        where=dataset.folder,
        expected="modification pairs of both kinds: healed (the lesion is real) and painted (from health)",
        found=f"{healed:,} healed and {painted:,} painted",
        fix=fix,
    )


def sources(key: Key, place: int) -> dict[str, Counter[str]]:
    """Of a stratum: how many real and how many generated images come from which data set."""
    found: dict[str, Counter[str]] = {"real": Counter(), "generated": Counter()}
    for (_, at), truth in zip(key.rows, key.truth, strict=True):
        if at == place:
            found["real" if truth.real else "generated"][truth.source] += 1
    return found


def realism(key: Key, opinions: Mapping[int, Opinion]) -> dict[str, Any]:
    """The document of `mie sample --answers`: how often generated and real images are told apart.

    The accuracy is the share of right answers. Its interval is that of a share over patients
    (`mean_interval`): Wilson's, wider where the images of one patient are answered alike.
    """
    rows = range(1, len(key.rows) + 1)
    whole = _accuracy(key, rows, opinions)
    places = [at for at, stratum in enumerate(key.strata) if stratum.asked]
    reasons = Counter(one.reason for one in opinions.values() if one.reason and one.answer == "generated")
    return {
        "sheet": key.sheet,
        "question": key.question,
        "dataset": dict(key.dataset),
        "stratify": list(key.stratify),
        "allocation": key.allocation,
        **whole,
        "strata": [
            {
                "stratum": dict(key.strata[at].name),
                "pairs": key.strata[at].samples,
                **_accuracy(key, [row for row in rows if key.rows[row - 1][1] == at], opinions),
            }
            for at in places
        ],
        "left_out": [dict(one) for one in key.left_out],
        "reasons": dict(reasons.most_common()),
        "guessing": {"share": GUESSING, **_verdict(*whole["ci95"])},
    }


def _accuracy(key: Key, rows: Sequence[int], opinions: Mapping[int, Opinion]) -> dict[str, Any]:
    answered = [(key.truth[row - 1], opinions[row].answer) for row in rows if row in opinions]
    right = [(answer == "real") == truth.real for truth, answer in answered]
    found = mean_interval(right, [truth.patient for truth, _ in answered], bounds=(0, 1))
    return {
        "asked": len(rows),
        "answered": len(answered),
        **{
            name: {
                "asked": sum(key.truth[row - 1].real == real for row in rows),
                **_called([answer for truth, answer in answered if truth.real == real]),
            }
            for name, real in (("generated", False), ("real", True))
        },
        "right": sum(right),
        "accuracy": found.value if right else None,
        "ci95": [None, None] if found.reason else [found.low, found.high],
        "patients": found.patients,
        **({"no_interval": found.reason} if found.reason else {}),
    }


def _called(answers: Sequence[str]) -> dict[str, Any]:
    called = answers.count("generated")
    share = called / len(answers) if answers else None
    return {"answered": len(answers), "called_generated": called, "share": share}


def _verdict(low: float | None, high: float | None) -> dict[str, str]:
    if low is None or high is None:
        return {"verdict": "undecided", "why": "there is no interval"}
    if low > GUESSING:
        return {"verdict": "told apart", "why": f"the whole interval lies over {GUESSING:.0%}"}
    if high < GUESSING:
        why = f"the whole interval lies under {GUESSING:.0%}: real ones are taken for generated ones"
        return {"verdict": "told apart, but the wrong way round", "why": why}
    return {"verdict": "not told apart", "why": f"the interval holds {GUESSING:.0%}"}
