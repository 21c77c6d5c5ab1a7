"""The sample sets. Those from installed dependencies need no network; the others skip, with the reason."""

import json
import multiprocessing
import shutil
from pathlib import Path

import cv2
import numpy as np
import pydicom
import pytest
import SimpleITK as sitk

from mie.errors import MieError
from mie.sources import fetch, samples
from mie.sources import fetch as package_index
from mie.sources.catalog import DicomLayout, Entry, catalog
from mie.sources.patterns import Listing
from mie.sources.samples import SAMPLES, Archive, Installed, samples_root

INSTALLED = [name for name, s in SAMPLES.items() if isinstance(s.origin, Installed)]
DOWNLOADED = [name for name, s in SAMPLES.items() if isinstance(s.origin, Archive)]
ENTRIES = {name: entry for name, entry in catalog().items() if entry.samples}


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """An empty cache and no package index."""
    monkeypatch.setenv("MIE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setattr(package_index, "_pip_settings", dict)
    return tmp_path / "cache"


@pytest.fixture(scope="module")
def everything() -> Path:
    """All sets, in the user's own cache so that they are downloaded once."""
    try:
        return samples_root()
    except MieError as error:
        if not error.what.startswith("cannot get"):
            raise  # a wrong checksum or a broken archive is a failure
        pytest.skip(f"neither cached nor reachable: {error.what}; {error.found}")


def image_pattern(entry: Entry) -> str:
    return entry.layout.series if isinstance(entry.layout, DicomLayout) else entry.layout.images  # type: ignore[union-attr]


def read(path: Path) -> sitk.Image:
    """A volume, or a folder that is a DICOM series, in patient orientation."""
    if path.is_dir():
        reader = sitk.ImageSeriesReader()
        reader.SetFileNames(reader.GetGDCMSeriesFileNames(str(path)))
        return sitk.DICOMOrient(reader.Execute(), "LPS")
    return sitk.DICOMOrient(sitk.ReadImage(str(path)), "LPS")


def test_table_and_catalogue_name_the_same_sets() -> None:
    assert set(SAMPLES) == set(ENTRIES)
    archives = {s.origin for s in SAMPLES.values() if isinstance(s.origin, Archive)}
    assert sum(a.size for a in archives) < 60e6


def test_installed_sets_need_no_network(offline: Path) -> None:
    root = samples_root(names=INSTALLED)
    assert root == offline / "samples-v1"
    assert sorted(p.name for p in root.iterdir()) == sorted(INSTALLED)
    for name in INSTALLED:
        found = Listing(root / name).matches(image_pattern(ENTRIES[name]))
        assert len(found) == len(SAMPLES[name].files)
        assert all(places["patient"] for _, places in found)
        for path, _ in found:
            if path.endswith(".dcm"):
                assert pydicom.dcmread(root / name / path).pixel_array.std() > 1
            else:
                assert cv2.imread(str(root / name / path)).std() > 1


def test_a_copied_image_is_the_dependencys_own(offline: Path) -> None:
    from skimage import data

    root = samples_root(names=["sample_colon_ihc"])
    pixels = cv2.cvtColor(cv2.imread(str(root / "sample_colon_ihc/images/colon1.png")), cv2.COLOR_BGR2RGB)
    np.testing.assert_array_equal(pixels, data.immunohistochemistry())
    about = json.loads((root / "sample_colon_ihc/files.json").read_text())
    assert about["package"] == "scikit-image"
    assert about["files"] == {"images/colon1.png": fetch.digest(root / "sample_colon_ihc/images/colon1.png")}


def test_a_second_call_writes_nothing(offline: Path) -> None:
    root = samples_root(names=["sample_cell"])
    before = {p: p.stat().st_mtime_ns for p in root.rglob("*")}
    samples_root(names=["sample_cell"])
    assert {p: p.stat().st_mtime_ns for p in root.rglob("*")} == before


@pytest.mark.parametrize("damage", ["changed", "gone", "no list", "bad list"])
def test_a_damaged_set_is_laid_out_again(offline: Path, damage: str) -> None:
    folder = samples_root(names=["sample_cell"]) / "sample_cell"
    whole = (folder / "images/cell1.png").read_bytes()
    match damage:
        case "changed":
            (folder / "images/cell1.png").write_bytes(whole[:-1] + b"x")
        case "gone":
            shutil.rmtree(folder / "images")
        case "no list":
            (folder / "files.json").unlink()
        case "bad list":
            (folder / "files.json").write_text("{")
    samples_root(names=["sample_cell"])
    assert (folder / "images/cell1.png").read_bytes() == whole
    assert [p.name for p in folder.parent.iterdir()] == ["sample_cell"]


def _call(start: object, folder: str) -> None:
    import os

    os.environ["MIE_CACHE"] = folder
    start.wait()  # type: ignore[attr-defined]
    samples_root(names=INSTALLED)


def test_several_processes_at_once(offline: Path) -> None:
    context = multiprocessing.get_context("spawn")
    start = context.Barrier(3)
    workers = [context.Process(target=_call, args=(start, str(offline))) for _ in range(3)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(60)
    assert [w.exitcode for w in workers] == [0, 0, 0]
    root = offline / "samples-v1"
    assert sorted(p.name for p in root.iterdir()) == sorted(INSTALLED)
    assert all(samples._complete(root / name) for name in INSTALLED)


def test_offline_and_not_cached_says_which_file_goes_where(offline: Path) -> None:
    with pytest.raises(MieError) as caught:
        samples_root(names=["sample_nuclei"])
    origin = SAMPLES["sample_nuclei"].origin
    assert isinstance(origin, Archive)
    assert f"{origin.filename}, SHA-256 {origin.sha256}" in str(caught.value)
    assert str(offline / "downloads" / origin.filename) in (caught.value.fix or "")
    assert list((offline / "samples-v1").iterdir()) == []


def test_a_dependency_without_the_image_is_named(offline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lost = samples.SampleSet(Installed("pydicom", "MIT"), {"images/a.dcm": "pydicom/data/no_such_file.dcm"})
    monkeypatch.setattr(samples, "SAMPLES", {"lost": lost})
    with pytest.raises(MieError, match=r"pydicom .* does not carry"):
        samples_root()
    assert list((offline / "samples-v1").iterdir()) == []


# From here on: the real files.


@pytest.mark.parametrize("name", DOWNLOADED)
def test_every_image_has_a_mask_of_its_own_geometry(everything: Path, name: str) -> None:
    entry = ENTRIES[name]
    listing = Listing(everything / name)
    images = {places["patient"]: path for path, places in listing.matches(image_pattern(entry))}
    assert images
    marked = set()
    for patient, path in images.items():
        ((mask_path, _),) = listing.matches(entry.layout.masks or "", patient=patient)
        image_path = everything / name / path
        if isinstance(entry.layout, DicomLayout):
            image_path = image_path.parent
        if path.endswith(".tif"):
            image = cv2.imread(str(image_path), cv2.IMREAD_UNCHANGED)
            labels = cv2.imread(str(everything / name / mask_path), cv2.IMREAD_UNCHANGED)
            assert image.shape == labels.shape
        else:
            volume, mask = read(image_path), read(everything / name / mask_path)
            assert volume.GetSize() == mask.GetSize()
            np.testing.assert_allclose(volume.GetSpacing(), mask.GetSpacing(), atol=1e-4)
            np.testing.assert_allclose(volume.GetOrigin(), mask.GetOrigin(), atol=1e-3)
            np.testing.assert_allclose(volume.GetDirection(), mask.GetDirection(), atol=1e-4)
            image, labels = sitk.GetArrayFromImage(volume), sitk.GetArrayFromImage(mask)
        assert image.std() > 1
        for target in entry.targets:
            region = labels != 0 if target.nonzero else np.isin(labels, target.values)
            assert 0 < region.mean() < 0.5, target.name
            marked.update(target.values)
        if not entry.targets[0].nonzero:
            assert set(np.unique(labels).tolist()) - {0} - set(entry.ignore) <= marked
            assert not marked & set(entry.ignore)


def test_the_lungs_are_in_hounsfield_units(everything: Path) -> None:
    for patient in ("lung1", "lung2"):
        image = sitk.GetArrayFromImage(read(everything / f"sample_lung_ct/images/{patient}.nrrd"))
        mask = sitk.GetArrayFromImage(read(everything / f"sample_lung_ct/masks/{patient}.nrrd")) > 0
        assert -1024 <= image.min() < -950  # air
        assert -100 < np.median(image[mask]) < 150  # soft tissue


def test_the_brain_lesions_take_up_contrast(everything: Path) -> None:
    folder = everything / "sample_brain_mri"
    image = sitk.GetArrayFromImage(read(folder / "images/brain1.nrrd"))
    mask = sitk.GetArrayFromImage(read(folder / "masks/brain1.nrrd")) > 0
    mirrored = mask[:, :, ::-1]  # about the midline: the other hemisphere
    assert np.median(image[mask]) > 1.2 * np.median(image[mirrored])


def test_grey_matter_is_darker_than_white_on_t1(everything: Path) -> None:
    folder = everything / "sample_brain_template"
    image = sitk.GetArrayFromImage(read(folder / "images/mni152.nii.gz"))
    labels = sitk.GetArrayFromImage(read(folder / "masks/mni152.nii.gz"))
    assert set(np.unique(labels).tolist()) == {0, 1, 2}
    assert np.median(image[labels == 1]) < np.median(image[labels == 2])
    assert not (folder / "parts").exists()


def test_the_liver_is_on_the_patients_right(everything: Path) -> None:
    """In LPS order columns run from right to left, so a swapped or mirrored mask shows here."""
    for name, image, mask in (
        ("sample_abdomen_ct", "images/abdomen2.nii.gz", "masks/abdomen2.nii.gz"),
        ("sample_abdomen_mri", "images/abdomen3.nii.gz", "masks/abdomen3.nii.gz"),
        ("sample_abdomen_dicom", "images/abdomen1", "masks/abdomen1.nii.gz"),
    ):
        pixels = sitk.GetArrayFromImage(read(everything / name / image)).astype(float)
        labels = sitk.GetArrayFromImage(read(everything / name / mask))
        columns = np.arange(labels.shape[2])
        right, left = ((labels == v).sum((0, 1)) @ columns / (labels == v).sum() for v in (5, 1))
        assert right < labels.shape[2] / 2 < left
        assert pixels[labels == 5].std() < pixels.std()  # one organ is more even than the whole body


def test_a_package_that_is_not_installed_is_read_from_its_archive(monkeypatch, tmp_path) -> None:
    """The images of scikit-image are the same from its wheel, which need not be installed."""
    monkeypatch.setenv("MIE_CACHE", str(tmp_path / "installed"))
    installed = samples_root(names=["sample_cell"]) / "sample_cell"
    monkeypatch.setattr(samples, "_is_installed", lambda project: False)
    monkeypatch.setenv("MIE_CACHE", str(tmp_path / "fetched"))
    try:
        fetched = samples_root(names=["sample_cell"]) / "sample_cell"
    except MieError as error:
        if not error.what.startswith("cannot get"):
            raise
        pytest.skip(f"not reachable: {error.found}")
    assert (fetched / "images/cell1.png").read_bytes() == (installed / "images/cell1.png").read_bytes()
    assert '"version": "0.26.0"' in (fetched / "files.json").read_text()


def test_whether_a_package_is_installed() -> None:
    assert samples._is_installed("scikit-image")
    assert not samples._is_installed("surely-absent")
