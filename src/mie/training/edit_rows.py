"""Which triplets a step trains on: rows of `mie` datasets, a weighted mixture, one size bin per micro-batch.

An image is scaled so that its longer side has the size of a bin, and its edges are mirrored up to multiples
of 16, as the editors do. Input and target image of a sample always get the same treatment.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, field_validator

from mie.core.hashing import canonical
from mie.core.registry import nearest_name, unknown_name
from mie.errors import ConfigError, MieError
from mie.records import Pixels
from mie.training.batches import step_seed
from mie.training.config import Strict
from mie.training.latent_cache import content_key, read_rows_file, write_rows_file
from mie.vocabulary import BINS, SPLITS

MULTIPLE: Final = 16  # of both sides: stride 8, patches of two latents
_VERSION: Final = 1  # of how an image is placed: part of every key
_COLUMNS: Final = (
    "id",
    "perspective",
    "task",
    "target",
    "modality",
    "prompt",
    "source",
    "case_id",
    "patient_id",
)
_FILTERS: Final = ("perspective", "task", "target", "modality", "source")


class DatasetShare(Strict):
    """One dataset of the mixture. The same dataset may be named twice, with other perspectives each."""

    path: str
    weight: float | None = Field(None, ge=0, description="share of the samples drawn; by default its size")
    perspectives: list[str] = Field([], description="these alone; all by default")
    leave_out: list[dict[str, str]] = Field([], description="samples that have all these values")
    ids: list[str] = Field([], description="these samples alone; all by default")

    @field_validator("leave_out")
    @classmethod
    def _known_columns(cls, value: list[dict[str, str]]) -> list[dict[str, str]]:
        for name in (name for one in value for name in one):
            if name not in _FILTERS:
                raise ValueError(str(unknown_name("column to leave out by", name, _FILTERS)))
        if not all(value):
            raise ValueError("an empty mapping would leave out everything")
        return value


class MixtureConfig(Strict):
    """`data` of a trainee that learns to edit from datasets."""

    datasets: list[DatasetShare] = Field(min_length=1)
    bins: list[int] = Field(list(BINS), min_length=1, description="longer sides in pixels")
    cache: str | None = Field(None, description="folder of latents and text states")
    validate_samples: int = Field(64, ge=0, description="of the val split")

    @field_validator("datasets", mode="before")
    @classmethod
    def _plain_paths(cls, value: Any) -> Any:
        return (
            [{"path": one} if isinstance(one, str) else one for one in value]
            if isinstance(value, list)
            else value
        )

    @field_validator("bins")
    @classmethod
    def _multiples(cls, value: list[int]) -> list[int]:
        if any(side < MULTIPLE or side > 2048 or side % MULTIPLE for side in value) or len(set(value)) < len(
            value
        ):
            raise ValueError(f"different multiples of {MULTIPLE} up to 2048")
        return sorted(value)


@dataclass(frozen=True, slots=True)
class EditRow:
    """One sample: what goes in, what should come out, and where the cache has it."""

    id: str
    perspective: str
    task: str
    target: str
    modality: str
    prompt: str
    source: str
    case_id: str
    patient_id: str | None
    bin: int
    size: tuple[int, int]  # (height, width) as the model sees it
    input: str  # key of the input image
    target_image: str  # key of the image after the edit


class Encoded(NamedTuple):
    """An image that an encoder has to see."""

    key: str
    pixels: Pixels


def read_edit_rows(dataset: Any, split: str, bins: Sequence[int], cache: Path) -> list[EditRow]:
    """Return the rows of a dataset's split. They are kept in the cache: to hash all images takes long."""
    key = content_key("edit rows", str(_VERSION), dataset.digest, split, canonical(list(bins)))
    kept = read_rows_file(cache, key)
    if kept is not None:
        try:
            return [_stored_row(row) for row in kept]
        except (TypeError, IndexError, ValueError):
            pass  # not ours: made anew
    rows = [_edit_row(row, bins) for row in dataset.rows(split, [*_COLUMNS, "input", "target_image"])]
    write_rows_file(cache, key, [astuple(row) for row in rows])
    return rows


def _edit_row(row: Mapping[str, Any], bins: Sequence[int]) -> EditRow:
    before, after = row["input"]["bytes"], row["target_image"]["bytes"]
    bin_, _, given = _placed(_png_size(before), bins)
    first, second = (content_key("image", str(_VERSION), canonical(given), data) for data in (before, after))
    about = {name: row[name] for name in _COLUMNS}
    return EditRow(**about, bin=bin_, size=given, input=first, target_image=second)


def _stored_row(values: Sequence[Any]) -> EditRow:
    """Return a row as `write_rows_file` kept it: its fields in order."""
    body = dict(zip((field.name for field in fields(EditRow)), values, strict=True))
    return EditRow(**{**body, "size": (int(body["size"][0]), int(body["size"][1]))})


def images_to_encode(dataset: Any, split: str, bins: Sequence[int], wanted: set[str]) -> Iterator[Encoded]:
    """Yield each image whose key is wanted, once, as the model sees it."""
    from mie.images.png import decode_png

    left = set(wanted)
    for row in dataset.rows(split, [*_COLUMNS, "input", "target_image"]):
        if not left:
            return
        keys = _edit_row(row, bins)
        for name, key in (("input", keys.input), ("target_image", keys.target_image)):
            if key in left:
                left.discard(key)
                _, scaled, given = _placed(_png_size(row["input"]["bytes"]), bins)
                yield Encoded(key, place_image(decode_png(row[name]["bytes"]), scaled, given))


def place_image(image: Pixels, scaled: tuple[int, int], given: tuple[int, int]) -> Pixels:
    """Scale to `scaled`, then mirror the lower and right edge up to `given`."""
    from mie.images.resize import resize_image

    image = resize_image(np.ascontiguousarray(image), scaled)
    down, right = given[0] - scaled[0], given[1] - scaled[1]
    return np.ascontiguousarray(np.pad(image, ((0, down), (0, right), (0, 0)), "symmetric"))


def _placed(size: tuple[int, int], bins: Sequence[int]) -> tuple[int, tuple[int, int], tuple[int, int]]:
    from mie.images.resize import fitted_size, nearest_bin

    bin_ = nearest_bin(*size, bins)
    scaled = fitted_size(*size, bin_)
    height, width = (-(-side // MULTIPLE) * MULTIPLE for side in scaled)
    return bin_, scaled, (height, width)


def _png_size(data: bytes) -> tuple[int, int]:
    """(height, width) from the header, without decoding; `mie verify` has proved the rest."""
    if data[:8] != b"\x89PNG\r\n\x1a\n" or len(data) < 24:
        raise MieError("an image of the dataset is not a PNG", fix="run `mie verify` on the dataset")
    width, height = struct.unpack(">II", data[16:24])
    return height, width


class Part(NamedTuple):
    """The rows of one entry of the mixture, of one split."""

    name: str
    rows: list[EditRow]
    weight: float | None


def read_mixture(
    config: MixtureConfig, find: Callable[[str], Path], split: str, cache: Path, note: Callable[[str], None]
) -> list[Part]:
    """Return every dataset of the mixture with the samples that are wanted of it."""
    from mie.datasets.dataset import Dataset

    if split not in SPLITS:
        raise unknown_name("split", split, SPLITS)
    parts = []
    for number, share in enumerate(config.datasets):
        where = f"data.datasets[{number}]"
        folder = find(share.path)
        note(f"listing {folder}")
        rows = read_edit_rows(Dataset(folder), split, config.bins, cache)
        if split == "train":
            _refuse_unknown(share, rows, where)
        kept = [row for row in rows if not share.perspectives or row.perspective in share.perspectives]
        kept = [row for row in kept if not any(_matches(row, one) for one in share.leave_out)]
        if share.ids:
            wanted = set(share.ids)
            kept = [row for row in kept if row.id in wanted]
            if split == "train" and len(kept) < len(wanted):
                found = sorted(wanted - {row.id for row in kept})[0]
                raise ConfigError("no such sample to train on", where=f"{where}.ids", found=found)
        parts.append(Part(folder.name, kept, share.weight))
    return parts


def _matches(row: EditRow, values: Mapping[str, str]) -> bool:
    return all(getattr(row, name) == value for name, value in values.items())


def _refuse_unknown(share: DatasetShare, rows: Sequence[EditRow], where: str) -> None:
    there = Counter(row.perspective for row in rows)
    for name in share.perspectives:
        if name not in there:
            counts = ", ".join(f"{count} of {one}" for one, count in sorted(there.items()))
            raise ConfigError(
                f"no {name} to train on",
                where=f"{where}.perspectives",
                found=f"{share.path} has {counts or 'nothing'} in its train split",
                fix="give a dataset that contains it, or leave the perspective out",
            )
    for values in share.leave_out:
        if not any(_matches(row, values) for row in rows):
            column, value = next(iter(values.items()))
            near = nearest_name(value, {str(getattr(row, column)) for row in rows})
            raise ConfigError(
                "nothing to leave out",
                where=f"{where}.leave_out",
                found=canonical(values),
                fix=f"did you mean {near!r}?" if near and near != value else "leave the line out",
            )


class MicroPlan(NamedTuple):
    """The rows of one forward pass, all of one bin, and their places in the step."""

    bin: int
    rows: tuple[EditRow, ...]
    places: tuple[int, ...]


class Mixture:
    """Draws the rows of a step. A dataset is drawn by its weight, whatever the sizes of its images.

    A bin is drawn first, by the weight of the samples in it, then a dataset by its weight in that bin, then a
    row: so each dataset's share of all rows is its weight.
    """

    def __init__(self, parts: Sequence[Part], bins: Sequence[int]) -> None:
        given = [part.weight is not None for part in parts]
        if any(given) and not all(given):
            raise ConfigError(
                "some datasets have a weight and others have none",
                where="data.datasets",
                fix="give every dataset a weight, or none",
            )
        weights = np.array([len(part.rows) if part.weight is None else part.weight for part in parts], float)
        if weights.sum() <= 0 or not np.isfinite(weights.sum()):
            raise ConfigError(
                "the weights of the datasets sum to 0" if all(given) else "no samples to train on",
                where="data.datasets",
                found=", ".join(
                    f"{part.name} {weight:g}" for part, weight in zip(parts, weights, strict=True)
                ),
                fix="give at least one dataset with samples a weight above 0",
            )
        for part, weight in zip(parts, weights, strict=True):
            if weight > 0 and not part.rows:
                raise ConfigError(
                    "a dataset of the mixture has no samples to train on",
                    where=part.name,
                    expected="samples in the train split that are not left out",
                    found="none",
                )
        weights /= weights.sum()
        self._rows = {
            bin_: [[row for row in part.rows if row.bin == bin_] for part in parts] for bin_ in bins
        }
        for bin_, by_part in self._rows.items():
            if not any(rows for rows, weight in zip(by_part, weights, strict=True) if weight > 0):
                there = sorted({row.bin for part in parts for row in part.rows})
                raise ConfigError(
                    f"no sample in the bin of {bin_} pixels",
                    where="data.bins",
                    found=f"samples in {', '.join(map(str, there))}",
                    fix=f"set bins: [{', '.join(map(str, there))}]",
                )
        # Share of each (bin, dataset).
        sizes = np.array([max(1, len(part.rows)) for part in parts], float)
        counts = np.array([[len(rows) for rows in self._rows[bin_]] for bin_ in bins], float)
        self.bins = tuple(bins)
        self.shares: NDArray[np.float64] = counts / sizes * weights
        self.shares /= self.shares.sum()

    def step(self, seed: int, step: int, batch: int, micro: int) -> list[MicroPlan]:
        """Return the micro-batches of a step, the same for every number of processes; large bins first."""
        rng = np.random.default_rng(step_seed(seed, step))
        by_bin = self.shares.sum(1)
        drawn = np.sort(rng.choice(len(self.bins), batch // micro, p=by_bin))[::-1]
        plans = []
        for number, at in enumerate(drawn):
            parts = rng.choice(self.shares.shape[1], micro, p=self.shares[at] / by_bin[at])
            places = rng.random(micro)
            pools = [self._rows[self.bins[at]][part] for part in parts]
            rows = tuple(pool[int(u * len(pool))] for pool, u in zip(pools, places, strict=True))
            plans.append(MicroPlan(self.bins[at], rows, tuple(range(number * micro, (number + 1) * micro))))
        return plans


def spread(rows: Iterable[EditRow], count: int) -> list[EditRow]:
    """Choose about `count` rows, by turns of the perspectives, in an order that depends on content alone."""
    queues: dict[str, list[EditRow]] = {}
    for row in sorted(rows, key=lambda row: content_key("spread", row.id)):
        queues.setdefault(row.perspective, []).append(row)
    chosen: list[EditRow] = []
    turn = 0
    while len(chosen) < count and any(turn < len(queue) for queue in queues.values()):
        chosen += [queue[turn] for _, queue in sorted(queues.items()) if turn < len(queue)]
        turn += 1
    return chosen[:count]
