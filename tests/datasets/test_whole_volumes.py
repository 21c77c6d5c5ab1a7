"""Whole volumes from files to scores: geometry, gates, leaks, runs with a slice missing."""

import errno
import json
import os
import sys
import tracemalloc
import uuid
from collections import defaultdict
from pathlib import Path
from typing import Any

import nibabel as nib
import numpy as np
import pyarrow.parquet as pq
import pytest
from scipy import ndimage

import mie
from mie.core import scratch
from mie.datasets import write
from mie.datasets.dataset import Dataset
from mie.datasets.leaks import intact_volumes, whole_groups
from mie.datasets.verify import verify
from mie.datasets.volumes import volume_slices
from mie.errors import MieError
from mie.images.volumes import read_volume
from mie.records import Sample
from tests import forked_python

LIVER = {"name": "liver", "kind": "anatomy", "value": 1}
SPLEEN = {"name": "spleen", "kind": "anatomy", "value": 2}


def volume(seed: int, shape: tuple[int, int, int] = (40, 36, 14)) -> tuple[np.ndarray, np.ndarray]:
    """CT-like values (air around a smooth body) and two organs of no symmetry."""
    draw = np.random.default_rng(seed)
    data = ndimage.gaussian_filter(draw.normal(0, 300, shape), 1.5)
    data[:3] = data[-3:] = -1000
    labels = np.zeros(shape, np.uint8)
    labels[8:20, 6 + 3 * seed : 18 + 3 * seed, 4:10] = 1
    labels[25:32, 12:18, 2:6] = 2
    data[labels == 1] += 120
    data[:, :, 0] = -1000  # padding: a slice that shows nothing
    return data.astype(np.int16), labels


def recipe(root: Path, **layout: Any) -> dict[str, Any]:
    return {
        "name": "volumes",
        "seed": 3,
        "recipe": {"kind": "perception"},
        "split": {"test": 1.0},
        "sources": [
            {
                "name": "lits",
                "root": str(root),
                "title": "Livers",
                "modality": "CT",
                "anatomy": "abdomen",
                "license": {"name": "CC0", "use": "open"},
                "patient": r"p(\d+)",
                "targets": [LIVER, SPLEEN],
                "layout": {
                    "kind": "volume",
                    "images": "img/{id}.nii.gz",
                    "masks": "lab/{id}.nii.gz",
                    "slices": "all",
                    **layout,
                },
            }
        ],
    }


AFFINE = nib.orientations.inv_ornt_aff(nib.orientations.axcodes2ornt("LPS"), (40, 36, 14)) @ np.diag(
    [1.5, 1.0, 4.0, 1.0]
)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("volumes")
    for name in ("img", "lab"):
        (folder / name).mkdir()
    for number in (1, 2):
        data, labels = volume(number)
        for name, values in (("img", data), ("lab", labels)):
            nib.save(nib.Nifti1Image(values, AFFINE), folder / name / f"p{number}.nii.gz")
    return folder


@pytest.fixture(scope="module")
def dataset(root: Path) -> Dataset:
    return mie.build(recipe(root), root / "ds", workers=1)


def by_volume(dataset: Dataset) -> dict[str, list[Sample]]:
    found: dict[str, list[Sample]] = defaultdict(list)
    for sample in dataset:
        found[sample.params["volume"]["id"]].append(sample)
    return dict(found)


def test_a_volume_has_one_sentence_colour_and_seed(dataset: Dataset) -> None:
    volumes = by_volume(dataset)
    assert len(volumes) == 6  # two patients, two organs and both together
    for slices in volumes.values():
        assert [s.params["volume"]["index"] for s in slices] == list(range(13))  # padding is left out
        assert {s.params["volume"]["slices"] for s in slices} == {13}
        assert len({(s.prompt, s.colour, s.seed, s.target, s.patient_id) for s in slices}) == 1
        empty = [s for s in slices if s.mask is not None and not s.mask.any()]
        assert empty
        assert all((s.input == s.target_image).all() for s in empty)
    assert verify(dataset.folder).problems == []


def test_slices_and_affine_put_the_volume_together_again(dataset: Dataset, root: Path) -> None:
    """The stored masks at the stored affine are the label file's voxels, each at its place in space."""
    checked = 0
    for slices in by_volume(dataset).values():
        if slices[0].target != "liver":
            continue
        facts = slices[0].params["volume"]
        stack = np.stack([s.mask > 0 for s in slices], axis=2).transpose(1, 0, 2)  # (column, row, slice)
        affine = np.array(facts["affine"])
        assert facts["spacing"] == pytest.approx([4.0, 1.0, 1.0])  # square pixels: 1.5 mm became 1 mm
        files = [read_volume(root / "lab" / f"p{n}.nii.gz", labels=True) for n in (1, 2)]
        voxels = np.argwhere(stack)
        points = (affine @ np.c_[voxels, np.ones(len(voxels))].T)[:3]
        found = []
        for file in files:
            places = np.rint((np.linalg.inv(file.affine) @ np.r_[points, np.ones((1, points.shape[1]))])[:3])
            inside = file.data[tuple(places.astype(int))] == 1
            found.append(inside.mean())
            if inside.all():
                assert len(voxels) * 4.0 == pytest.approx((file.data == 1).sum() * 6.0, rel=0.05)
        assert max(found) == 1.0
        assert min(found) < 1.0
        checked += 1
    assert checked == 2


def test_around_keeps_what_is_near(root: Path) -> None:
    near = mie.build(recipe(root, around=4.0), root / "near", workers=1)
    # Marked from 2 to 9, and one slice of 4 mm on either side.
    assert {s.params["volume"]["slices"] for s in near} == {10}
    with pytest.raises(MieError, match="`around` is for `slices: all`"):
        mie.build(recipe(root, around=4.0, slices=3), root / "wrong", workers=1)


def scored(dataset: Dataset, name: str, editor: Any, **options: Any) -> Any:
    run = mie.run(dataset, editor, dataset.folder.parent / name, **options)
    return mie.score(run, "volume")


def test_oracle_and_identity(dataset: Dataset) -> None:
    best = scored(dataset, "oracle", "oracle").frame
    assert len(best) == 6
    for name, value in (("volume_dice", 1.0), ("hd95", 0.0), ("nsd", 1.0), ("slice_consistency", 1.0)):
        assert (best[name] == value).all()
    nothing = scored(dataset, "identity", "identity").frame
    assert (nothing["volume_dice"] < 1e-6).all()
    assert "hd95" not in nothing  # an empty output has no surface: unscored, not a number
    assert nothing["unscored"].str.contains("the output marks nothing").all()
    assert (nothing["nsd"] == 0).all()


def test_one_slice_without_output_leaves_its_volume_unscored(dataset: Dataset) -> None:
    broken = next(s for s in dataset if s.params["volume"]["index"] == 5)

    def fails(image: Any, instruction: str) -> Any:
        if instruction == broken.prompt and (image == broken.input).all():
            raise ValueError("no")
        return image

    frame = scored(dataset, "fails", fails).frame
    assert frame["nsd"].isna().sum() == 1
    run = Path(dataset.folder.parent / "fails")
    lines = (run / "scores" / "volume.paper.jsonl").read_text()
    assert "1 of 13 slices have no output; slice 5" in lines


def test_a_limited_run_scores_only_volumes_that_are_whole(dataset: Dataset) -> None:
    frame = scored(dataset, "limited", "oracle", limit=20).frame
    assert len(frame) == 2
    assert frame["volume_dice"].isna().sum() == 1
    text = (dataset.folder.parent / "limited/scores/volume.paper.jsonl").read_text()
    assert "6 of the volume's 13 slices are not in the run" in text


def test_pictures_have_no_volumes(root: Path, dataset: Dataset) -> None:
    plain = mie.build(recipe(root, slices=2), root / "plain", workers=1)
    assert all("volume" not in s.params for s in plain)
    run = mie.run(plain, "identity", root / "plain_run")
    with pytest.raises(MieError, match="no whole volumes"):
        mie.score(run, "volume")


def test_slices_are_found_behind_shards_without_volumes(
    dataset: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pictures and slices mixed, a few to a shard: every slice is where `rows` has it."""
    monkeypatch.setattr(write, "ROWS_PER_SHARD", 4)
    slices = list(dataset.rows())
    pictures = [{**row, "id": f"picture-{n}", "params": "{}"} for n, row in enumerate(slices[:10])]
    write.write_dataset(
        [*pictures[:9], *slices[:7], *pictures[9:], *slices[7:]],
        tmp_path / "mixed",
        name="mixed",
        description="",
        recipe={},
        licenses=dataset.info["licenses"],
        deidentified=True,
    )
    mixed = Dataset(tmp_path / "mixed")
    rows = list(mixed.rows())
    found = [one for volume in volume_slices(mixed).values() for one in volume]
    assert sorted(one.position for one in found) == [
        at for at, row in enumerate(rows) if "volume" in json.loads(row["params"])
    ]
    assert len(found) == len(slices)
    for one in found:
        assert one.id == rows[one.position]["id"]
        group = pq.ParquetFile(one.shard).read_row_group(one.group, columns=["id"])
        assert group.column("id")[one.row].as_py() == one.id


def test_labels_that_lie_elsewhere_are_refused(root: Path, tmp_path: Path) -> None:
    for name in ("img", "lab"):
        (tmp_path / name).mkdir()
    data, labels = volume(1)
    nib.save(nib.Nifti1Image(data, AFFINE), tmp_path / "img/p1.nii.gz")
    away = AFFINE.copy()
    away[0, 3] += 500
    nib.save(nib.Nifti1Image(labels[:, :, :12], away), tmp_path / "lab/p1.nii.gz")
    with pytest.raises(MieError, match=r"(?s)do not lie on each other.*shapes differ"):
        mie.build(recipe(tmp_path), tmp_path / "ds", workers=1)


ANY_FILL = {
    "mean_shift": 255.0,
    "variance_ratio": [1e-9, 1e9],
    "gradient_distance": 1.0,
    "spectrum_distance": 1e3,
    "seam": 1e3,
}


def tall(root: Path, slices: int, modality: str, side: int = 80) -> None:
    """One volume whose regions run through all slices but the first and the last."""
    draw = np.random.default_rng(1)
    data = ndimage.gaussian_filter(draw.normal(0, 300, (side, side, slices)), 1.5)
    data[:6] = data[-6:] = -1000 if modality == "CT" else 0
    labels = np.zeros(data.shape, np.uint8)
    labels[30:50, 30:50, 1:-1], labels[60:75, 50:75, 1:-1] = 1, 2
    data[labels == 1] += 150
    values = data if modality == "CT" else np.abs(data)
    for name, voxels in (("img", values.astype(np.int16)), ("lab", labels)):
        (root / name).mkdir(parents=True)
        nib.save(nib.Nifti1Image(voxels, np.diag([-1.0, -1.0, 2.0, 1.0])), root / name / "p1.nii.gz")


def build_tall(root: Path, slices: int, modality: str, kind: dict[str, Any], **options: Any) -> Dataset:
    """A dataset of one volume."""
    if not root.exists():
        tall(root, slices, modality, **options)
    body = recipe(root)
    body["recipe"] = kind
    source = body["sources"][0]
    source["modality"], source["anatomy"] = modality, "abdomen" if modality == "CT" else "brain"
    if kind["kind"] == "transformation":
        del source["targets"], source["layout"]["masks"]
    if kind["kind"] == "modification":
        source["targets"] = [{**LIVER, "kind": "lesion"}, SPLEEN]
    return mie.build(body, root / uuid.uuid4().hex, workers=1)


PERCEPTION = {"kind": "perception"}
WINDOW = {"kind": "transformation", "targets": ["ct_window"], "windows": ["bone"]}
EFFECTS = {"kind": "transformation", "targets": ["mri_bias_field", "mri_noise", "mri_motion"]}
FILL = {"kind": "modification", "inpainter": "telea", "detector": None, "bounds": ANY_FILL, "candidates": 2}


@pytest.mark.parametrize(
    ("modality", "kind"),
    [("CT", PERCEPTION), ("CT", WINDOW), ("MRI", EFFECTS), ("MRI", FILL)],
    ids=["perception", "window", "effects", "modification"],
)
def test_any_slab_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modality: str, kind: dict[str, Any]
) -> None:
    """Slabs of 1, 3 and 7 slices on the disk, and the whole volume in memory."""
    monkeypatch.setattr("mie.perspectives.modification.samples._MOST_FLICKER", np.inf)
    digests = []
    for slab, in_memory in ((1, 0), (3, 0), (7, 0), (1 << 20, 1 << 40)):
        monkeypatch.setattr(scratch, "_IN_MEMORY", in_memory)
        monkeypatch.setattr(scratch, "BLOCK", slab * 80 * 80 * 2)
        digests.append(build_tall(tmp_path / "tall", 11, modality, kind).digest)
    assert len(set(digests)) == 1


@pytest.mark.parametrize(
    ("modality", "kind"),
    [("CT", PERCEPTION), ("CT", WINDOW), ("MRI", EFFECTS), ("MRI", FILL)],
    ids=["perception", "window", "effects", "modification"],
)
def test_memory_does_not_grow_with_the_slices(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, modality: str, kind: dict[str, Any]
) -> None:
    monkeypatch.setattr("mie.perspectives.modification.samples._MOST_FLICKER", np.inf)
    monkeypatch.setattr("mie.datasets.schema._REMEMBERED_BYTES", 1 << 16)
    for name, size in (("_IN_MEMORY", 1 << 15), ("_SHARED", 1 << 17), ("BLOCK", 1 << 15)):
        monkeypatch.setattr(scratch, name, size)

    def peak(slices: int) -> int:
        tracemalloc.start()
        try:
            build_tall(tmp_path / str(slices), slices, modality, kind)
        finally:
            taken = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
        return taken

    tall(tmp_path / "10", 10, modality)
    tall(tmp_path / "40", 40, modality)
    peak(10)  # imports and tables
    # A slice of each image of a sample takes 80 x 80 x 7 bytes; held together they were 40 for each pixel.
    assert peak(40) - peak(10) < 30 * 80 * 80 * 3


LIMITED = """
import resource, sys
from pathlib import Path
import numpy as np
from tests.datasets.test_whole_volumes import WINDOW, build_tall, tall

def taken():
    return 1024 * int(Path("/proc/self/status").read_text().split("VmData:")[1].split()[0])

root = Path(sys.argv[1])
tall(root / "many", 120, "CT", side=256)
build_tall(root / "few", 6, "CT", WINDOW, side=256)
limit = taken() + (96 << 20)
resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
try:
    np.ones(200 << 20, np.uint8)
except MemoryError:
    print(len(build_tall(root / "many", 120, "CT", WINDOW)))
"""


def test_a_volume_larger_than_the_memory_is_built(tmp_path: Path) -> None:
    """120 slices, which together took 300 MiB, with 96 MiB more than 6 slices take."""
    out = forked_python.run([sys.executable, "-c", LIMITED, str(tmp_path)], cwd=Path(__file__).parents[2])
    assert (out.stdout, out.returncode) == ("120\n", 0), out.stderr


@pytest.mark.parametrize("in_memory", [0, 1 << 25], ids=["while the file is read", "after it was read"])
def test_a_full_disk_ends_the_build_and_says_so(
    root: Path, monkeypatch: pytest.MonkeyPatch, in_memory: int
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    monkeypatch.setattr(scratch, "_IN_MEMORY", in_memory)
    with pytest.raises(MieError, match="the disk is full"):
        mie.build(recipe(root), root / f"full{in_memory}", workers=1)


def test_volumes_leak_as_a_whole() -> None:
    volumes = ["a", "a", "a", "b", "b", "b", None]
    assert intact_volumes({0, 3, 4, 6}, volumes) == {0}
    assert whole_groups({3, 4, 6}, volumes) == {5: 4}


def test_same_bytes_with_more_workers(dataset: Dataset, root: Path) -> None:
    assert mie.build(recipe(root), root / "again", workers=2).digest == dataset.digest
