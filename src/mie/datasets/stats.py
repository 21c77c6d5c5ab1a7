"""Counts of a dataset: those in `dataset.json`, and the statistics of `mie stats`.

`Tally` counts rows as a dataset is written. `dataset_stats` reads a finished one, one row group in memory at
a time, and decodes masks alone.
"""

from __future__ import annotations

import importlib.metadata
import platform
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Final, NamedTuple

import numpy as np

import mie
from mie.core.documents import DatasetInfo
from mie.datasets.dataset import Dataset, dataset_digest
from mie.datasets.schema import params_of, row_errors
from mie.images.png import decode_png, png_size
from mie.vocabulary import SPLITS

_COUNTED: Final = ("split", "perspective", "task", "modality", "source")
_VERSIONS: Final = (
    "numpy",
    "opencv-python-headless",
    "pillow",
    "pyarrow",
    "pydicom",
    "nibabel",
    "simpleitk",
    "isal",
)


class Tally:
    """Counts rows as they come; they may come with their splits mixed.

    Dataset order is by split, then as they came: the order in which the shards are read back.
    """

    COLUMNS: Final = (*_COUNTED, "patient_id", "sha256")

    def __init__(self) -> None:
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in _COUNTED}
        self._pairs: Counter[tuple[str, str]] = Counter()  # (source, perspective)
        self._digests: dict[str, list[str]] = {split: [] for split in SPLITS}
        self._patients: set[str] = set()
        self._rejected: Counter[str] = Counter()
        self._references = 0

    def keep(self, row: Mapping[str, Any]) -> None:
        """Count a row; of its columns only `COLUMNS` are looked at."""
        for name, counter in self._counts.items():
            counter[row[name]] += 1
        self._pairs[row["source"], row["perspective"]] += 1
        self._digests[row["split"]].append(row["sha256"])
        if row["patient_id"] is not None:
            self._patients.add(row["patient_id"])
        self._references += bool(row.get("references"))

    def refuse(self, gate: str) -> None:
        self._rejected[gate] += 1

    def info(
        self,
        *,
        name: str,
        description: str,
        recipe: Mapping[str, Any],
        licenses: Mapping[str, Mapping[str, str]],
        deidentified: bool,
    ) -> DatasetInfo:
        """What `write_info` wants."""
        by = {name: dict(sorted(counter.items())) for name, counter in self._counts.items()}
        info: DatasetInfo = {
            "name": name,
            "description": description,
            "digest": dataset_digest(digest for split in SPLITS for digest in self._digests[split]),
            "counts": {
                "samples": self._counts["split"].total(),
                "by_split": by["split"],
                "by_perspective": by["perspective"],
                "by_task": by["task"],
                "by_modality": by["modality"],
                "by_source": by["source"],
                "patients_known": len(self._patients),
            },
            "rejected": dict(sorted(self._rejected.items())),
            "licenses": {
                source: dict(terms) for source, terms in licenses.items() if source in self._counts["source"]
            },
            "deidentified": deidentified,
            "recipe": dict(recipe),
            "versions": {
                "mie": mie.__version__,
                "python": platform.python_version(),
                **{package: importlib.metadata.version(package) for package in _VERSIONS},
            },
        }
        if len(by["perspective"]) > 1:
            table: dict[str, dict[str, int]] = {source: {} for source in by["source"]}
            for (source, perspective), number in sorted(self._pairs.items()):
                table[source][perspective] = number
            info["counts"]["by_source_and_perspective"] = table
        if self._references:
            info["references"] = self._references
        return info


ORIGINAL: Final = "original"  # the bin of images that were not scaled

_COUNTED_FIELDS: Final = ("split", "perspective", "task", "modality", "anatomy", "source")
_COLUMNS: Final = (
    *_COUNTED_FIELDS,
    *("target", "colour", "bin", "prompt", "prompt_template", "patient_id", "params", "input", "mask"),
)
_WORD: Final = re.compile(r"[^\W\d_]+(?:[-'’][^\W\d_]+)*")
# Articles, prepositions and the like say nothing about a dataset; every other word of a prompt may.
_SMALL_WORDS: Final = """
    a an the about above across after against along among around as at before behind below between by down
    during for from in inside into near of off on onto out over through to toward towards under until up
    upon with within without and or i it them this that is are
"""


@dataclass(frozen=True, slots=True)
class Stats:
    """Counts and distributions. Plain dicts and lists, so that JSON holds them as they are.

    A sample of several classes counts once for each of its targets and colours. Areas are fractions of the
    image in 0..1. Five numbers are `{n, min, q1, median, q3, max}`.
    """

    name: str
    samples: int
    by_split: dict[str, int]
    by_perspective: dict[str, int]
    by_task: dict[str, int]
    by_modality: dict[str, int]
    by_anatomy: dict[str, int]
    by_source: dict[str, int]
    by_target: dict[str, int]
    by_colour: dict[str, int]
    by_bin: dict[str, int]
    modality_splits: dict[str, dict[str, int]]  # modality -> split -> samples
    target_modalities: dict[str, dict[str, int]]  # target -> modality -> samples
    heights: dict[str, float]  # five numbers
    widths: dict[str, float]
    sizes: list[list[int]]  # [height, width, samples], most frequent first
    area_by_target: dict[str, dict[str, float]]  # target -> five numbers
    areas: dict[str, list[float]]  # modality -> area of the whole region of each sample
    prompt_words: dict[str, float]  # five numbers
    distinct_prompts: int
    distinct_templates: int
    words: dict[str, int]  # without articles, prepositions and the like, most frequent first
    patients_known: int
    rejected: dict[str, int]  # gate -> refused

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


class Table(NamedTuple):
    """Rows for a terminal, a page or a test; cells are text or numbers."""

    title: str
    header: tuple[str, ...]
    rows: list[tuple[str | int | float, ...]]


def dataset_stats(dataset: Dataset, progress: Callable[[int, int], object] | None = None) -> Stats:
    """Read every row once. `progress` hears (samples done, samples in all)."""
    tally = _Tally()
    total = len(dataset)
    for done, row in enumerate(dataset.rows(columns=_COLUMNS), start=1):
        with row_errors(f"{dataset.folder}, sample {done}"):
            tally.add(row)
        if progress is not None:
            progress(done, total)
    return tally.stats(dataset)


class _Tally:
    def __init__(self) -> None:
        self.small_words = frozenset(_SMALL_WORDS.split())
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        self.modality_splits: dict[str, Counter[str]] = defaultdict(Counter)
        self.target_modalities: dict[str, Counter[str]] = defaultdict(Counter)
        self.sizes: Counter[tuple[int, int]] = Counter()
        # Doubles in arrays: a million samples take 8 MB, not 32.
        self.target_areas: dict[str, array[float]] = defaultdict(lambda: array("d"))
        self.areas: dict[str, array[float]] = defaultdict(lambda: array("d"))
        self.prompt_words: Counter[int] = Counter()
        self.distinct: dict[str, set[str]] = {"prompt": set(), "prompt_template": set(), "patient_id": set()}

    def add(self, row: Mapping[str, Any]) -> None:
        for name in _COUNTED_FIELDS:
            self.counts[name][row[name]] += 1
        self.counts["bin"][ORIGINAL if row["bin"] is None else str(row["bin"])] += 1
        self.counts["colour"].update(row["colour"].split(",") if row["colour"] else ())
        self.modality_splits[row["modality"]][row["split"]] += 1
        self.sizes[png_size(row["input"]["bytes"])] += 1
        words = _WORD.findall(row["prompt"].lower())
        self.prompt_words[len(words)] += 1
        self.counts["words"].update(word for word in words if word not in self.small_words)
        for name, seen in self.distinct.items():
            if row[name] is not None:
                seen.add(row[name])
        self._add_targets(row)

    def _add_targets(self, row: Mapping[str, Any]) -> None:
        names = _targets(row)
        for name in names:
            self.counts["target"][name] += 1
            self.target_modalities[name][row["modality"]] += 1
        if row["mask"] is None:
            return
        mask = decode_png(row["mask"]["bytes"])
        pixels = np.bincount(mask.ravel(), minlength=256)
        self.areas[row["modality"]].append(1 - float(pixels[0]) / mask.size)
        for k, name in enumerate(names, start=1):
            # A mask that other tools wrote may hold other values; a single class is then all that is not 0.
            region = pixels[round(255 * k / len(names))] if len(names) > 1 else mask.size - pixels[0]
            self.target_areas[name].append(float(region) / mask.size)

    def stats(self, dataset: Dataset) -> Stats:
        counts = self.counts
        bins = sorted(counts["bin"], key=lambda name: (name == ORIGINAL, len(name), name))
        targets, modalities = _ranked(counts["target"]), _ranked(counts["modality"])
        sizes = sorted(self.sizes.items(), key=lambda item: (-item[1], item[0]))
        return Stats(
            name=dataset.name,
            samples=sum(counts["split"].values()),
            by_split=_in_order(counts["split"], SPLITS),
            by_perspective=_ranked(counts["perspective"]),
            by_task=_ranked(counts["task"]),
            by_modality=modalities,
            by_anatomy=_ranked(counts["anatomy"]),
            by_source=_ranked(counts["source"]),
            by_target=targets,
            by_colour=_ranked(counts["colour"]),
            by_bin=_in_order(counts["bin"], bins),
            modality_splits={m: _in_order(self.modality_splits[m], SPLITS) for m in modalities},
            target_modalities={name: _ranked(self.target_modalities[name]) for name in targets},
            heights=_five(h for (h, _), n in self.sizes.items() for _ in range(n)),
            widths=_five(w for (_, w), n in self.sizes.items() for _ in range(n)),
            sizes=[[h, w, n] for (h, w), n in sizes],
            area_by_target={t: _five(self.target_areas[t]) for t in targets if self.target_areas[t]},
            areas={m: list(self.areas[m]) for m in modalities if self.areas[m]},
            prompt_words=_five(words for words, n in self.prompt_words.items() for _ in range(n)),
            distinct_prompts=len(self.distinct["prompt"]),
            distinct_templates=len(self.distinct["prompt_template"]),
            words=_ranked(counts["words"]),
            patients_known=len(self.distinct["patient_id"]),
            rejected=_ranked(Counter(dataset.info["rejected"])),
        )


def rows_for(stats: Stats) -> list[Table]:
    """The tables of `mie stats`; those without a row are left out."""
    sizes = [("height", stats.heights), ("width", stats.widths)] if stats.sizes else []
    tables = [
        Table(
            stats.name,
            ("what", "count"),
            [
                ("samples", stats.samples),
                ("patients known", stats.patients_known),
                ("distinct prompts", stats.distinct_prompts),
                ("distinct phrasings", stats.distinct_templates),
                ("rejected", sum(stats.rejected.values())),
            ],
        ),
        *(
            Table(f"samples by {name}", (name, "samples"), list(getattr(stats, f"by_{name}").items()))
            for name in (*_COUNTED_FIELDS, "target", "colour", "bin")
        ),
        Table(
            "image size in pixels",
            ("side", "min", "median", "max"),
            [(s, *_spread(five)) for s, five in sizes],
        ),
        Table(
            "region area as a fraction of the image",
            ("target", "samples", "min", "q1", "median", "q3", "max"),
            [(name, *five.values()) for name, five in stats.area_by_target.items()],
        ),
        Table(
            "words per prompt",
            ("min", "median", "max"),
            [_spread(stats.prompt_words)] if stats.prompt_words else [],
        ),
        Table("rejected", ("gate", "samples"), list(stats.rejected.items())),
    ]
    return [table for table in tables if table.rows]


def _spread(five: Mapping[str, float]) -> tuple[float, ...]:
    return tuple(int(n) if n == int(n) else n for n in (five["min"], five["median"], five["max"]))


def _targets(row: Mapping[str, Any]) -> list[str]:
    """The sample's targets in the order of their mask values."""
    classes = params_of(row).get("classes")
    return [c["target"] for c in classes] if classes else [row["target"]]


def _ranked(counts: Counter[str]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _in_order(counts: Counter[str], order: Iterable[str]) -> dict[str, int]:
    return {name: counts[name] for name in order if counts[name]}


def _five(values: Iterable[float]) -> dict[str, float]:
    """n, minimum, quartiles (linear between neighbours), maximum; empty for no values."""
    numbers = np.fromiter(values, np.float64)
    if not numbers.size:
        return {}
    low, q1, median, q3, high = np.percentile(numbers, [0, 25, 50, 75, 100]).tolist()
    return {"n": len(numbers), "min": low, "q1": q1, "median": median, "q3": q3, "max": high}
