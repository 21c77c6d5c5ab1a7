"""The data sets of MieDB-100k, each on a small copy with the file tree that its provider publishes."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import cv2
import nibabel
import numpy as np
import pydicom
import pytest
import yaml
from pydicom.dataset import FileDataset, FileMetaDataset
from pydicom.uid import CTImageStorage, ExplicitVRLittleEndian, generate_uid

from mie.errors import MieError
from mie.sources.catalog import catalog, find, override
from mie.sources.source import check_source, open_source, shared_patients
from tests.conftest import crop

MIEDB = yaml.safe_load((resources.files("mie.sources") / "catalog_miedb.yaml").read_text(encoding="utf-8"))


def picture(path: Path, array: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    assert cv2.imwrite(str(path), array)


def grey(number: int) -> np.ndarray:
    return crop(number, 48, 48)[..., 1]


def region(value: int = 255) -> np.ndarray:
    mask = np.zeros((48, 48), np.uint8)
    mask[10:30, 12:28] = value
    return mask


def volume(path: Path, number: int = 0, labels: dict[int, slice] | None = None) -> None:
    """A volume of 48 x 48 x 6 voxels, or a label map on the same grid."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if labels is None:
        slices = [grey(number + k).astype(np.int16) * 4 for k in range(6)]
    else:
        label = np.zeros((48, 48), np.uint8)
        for value, rows in labels.items():
            label[rows, 12:28] = value
        slices = [label] * 6
    array = np.stack(slices, axis=2)
    nibabel.save(nibabel.Nifti1Image(array, np.diag([1.0, 1.0, 5.0, 1.0])), path)


def series(folder: Path, prefix: str, number: int, ending: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    uid, frame = generate_uid(), "1.2.3.4.5"
    for k in range(5):
        meta = FileMetaDataset()
        meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = CTImageStorage, generate_uid()
        meta.TransferSyntaxUID = ExplicitVRLittleEndian
        dataset = FileDataset(None, {}, file_meta=meta, preamble=b"\0" * 128)
        dataset.SOPClassUID, dataset.SOPInstanceUID = CTImageStorage, meta.MediaStorageSOPInstanceUID
        dataset.SeriesInstanceUID, dataset.FrameOfReferenceUID, dataset.Modality = uid, frame, "CT"
        dataset.Rows = dataset.Columns = 48
        dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
        dataset.BitsAllocated = dataset.BitsStored = 16
        dataset.HighBit, dataset.PixelRepresentation = 15, 0
        dataset.RescaleSlope, dataset.RescaleIntercept = 1, -1024
        dataset.ImageOrientationPatient = [1, 0, 0, 0, 1, 0]
        dataset.ImagePositionPatient, dataset.PixelSpacing = [0, 0, 3 * k], [0.7, 0.7]
        dataset.SliceThickness, dataset.InstanceNumber = 3, k + 1
        dataset.PixelData = (grey(number + k).astype(np.uint16) * 4 + 900).tobytes()
        pydicom.dcmwrite(folder / f"{prefix}{k:04d}{ending}", dataset, enforce_file_format=True)


def aapm(root: Path) -> None:
    for patient in ("L067", "L506"):
        series(root / patient / "quarter_3mm", f"{patient}_QD_3_1.CT.0004.", 0, ".2015.12.22.IMA")
        series(root / patient / "full_3mm", f"{patient}_FD_3_1.CT.0002.", 9, ".2015.12.22.IMA")


def brats(root: Path) -> None:
    for case in ("BraTS-GLI-00000-000", "BraTS-GLI-00002-001"):
        for n, name in enumerate(("t1n", "t1c", "t2w", "t2f")):
            volume(root / case / f"{case}-{name}.nii.gz", n)
        labels = {1: slice(5, 15), 2: slice(15, 30), 3: slice(30, 40)}
        volume(root / case / f"{case}-seg.nii.gz", labels=labels)


def chest_ct(root: Path) -> None:
    mask = np.zeros((48, 48, 3), np.uint8)
    for channel, rows in enumerate((slice(2, 12), slice(16, 30), slice(32, 46))):
        mask[rows, 10:40, 2 - channel] = 255
    for slice_ in (0, 7):
        stem = "ID00007637202177411956430"
        picture(root / f"images/images/{stem}_{slice_}.jpg", grey(slice_))
        picture(root / f"masks/masks/{stem}_mask_{slice_}.jpg", mask)


def chest_xray(root: Path) -> None:
    for name, mask in (("CHNCXR_0001_0", "CHNCXR_0001_0_mask"), ("MCUCXR_0001_0", "MCUCXR_0001_0")):
        picture(root / f"Lung Segmentation/CXR_png/{name}.png", grey(3))
        picture(root / f"Lung Segmentation/masks/{mask}.png", region())


def ct_mar(root: Path) -> None:
    for folder, part in (("body1", "body"), ("head1", "head")):
        for kind, sub in (("metalart", "Baseline"), ("nometal", "Target")):
            path = root / folder / sub / f"training_{part}_{kind}_img4131_512x512x1.raw"
            path.parent.mkdir(parents=True)
            values = cv2.resize(crop(len(kind), 160, 160)[..., 0], (512, 512)).astype("<f4") * 8 - 1000
            path.write_bytes(values.tobytes())
        (root / folder / "Baseline" / f"training_{part}_metalart_sino4131_900x1000.raw").write_bytes(
            b"0" * 64
        )


def kmar(plane: str):
    def write(root: Path) -> None:
        for n, patient in enumerate(("2020_12", "2021_144-20210515001368")):
            name = f"{patient}_{plane}_0.0.nii.gz"
            volume(root / "KMAR-50K/ArtifactData_part1" / name, n)
            volume(root / "KMAR-50K/GroundTruthData_part1" / name, n + 3)

    return write


def lgg(root: Path) -> None:
    for patient in ("TCGA_CS_4941_19960909", "TCGA_HT_A61B_19991127"):
        for slice_ in (1, 12):
            picture(root / f"kaggle_3m/{patient}/{patient}_{slice_}.tif", crop(slice_, 48, 48))
            picture(root / f"kaggle_3m/{patient}/{patient}_{slice_}_mask.tif", region())


def mr_art(root: Path) -> None:
    for n, patient in enumerate(("sub-000103", "sub-926536")):
        for k, scan in enumerate(("standard", "headmotion1", "headmotion2")):
            volume(root / patient / "anat" / f"{patient}_acq-{scan}_T1w.nii.gz", n + k)


def msd(task: str, stem: str, *values: int):
    def write(root: Path) -> None:
        for n, number in enumerate(("003", "017")):
            volume(root / task / "imagesTr" / f"{stem}_{number}.nii.gz", n)
            labels = {value: slice(8 * value, 8 * value + 8) for value in values}
            volume(root / task / "labelsTr" / f"{stem}_{number}.nii.gz", labels=labels)
        (root / task / "imagesTr" / f"._{stem}_003.nii.gz").write_bytes(b"\0" * 16)  # as in the archives

    return write


def pasta(root: Path) -> None:
    """Every organ, so that an entry shows that it takes its own alone."""
    for folder in ("Bladder/Tumor/1", "Gall/Tumor/100", "Liver/Tumor/1020", "Liver/Cyst/103", "Lung/Tumor/7"):
        volume(root / folder / "img.nii.gz")
        volume(root / folder / "label.nii.gz", labels={1: slice(8, 20)})
        volume(root / folder / "total.nii.gz", labels={5: slice(2, 30)})
        (root / folder / "type.json").write_text("{}")


def qata(root: Path) -> None:
    for split, name in (("Train", "sub-S03047_ses-E07985_run-1_bp-chest_vp-ap_dx"), ("Test", "covid_1")):
        picture(root / f"{split} Set/Images/{name}.png", grey(len(split)))
        picture(root / f"{split} Set/Ground-truths/mask_{name}.png", region())


def refuge_mask() -> np.ndarray:
    mask = np.full((48, 48), 255, np.uint8)
    mask[10:34, 10:34] = 128
    mask[16:26, 16:26] = 0
    return mask


def refuge_train(root: Path) -> None:
    for kind, name in (("Glaucoma", "g0001"), ("Non-Glaucoma", "n0001")):
        picture(root / f"Training400/{kind}/{name}.jpg", crop(2, 48, 48))
        picture(root / f"Annotation-Training400/Disc_Cup_Masks/{kind}/{name}.bmp", refuge_mask())


def refuge_val(root: Path) -> None:
    picture(root / "REFUGE-Validation400/V0001.jpg", crop(2, 48, 48))
    picture(root / "REFUGE-Validation400-GT/Disc_Cup_Masks/V0001.bmp", refuge_mask())


def synthrad(root: Path) -> None:
    for patient in ("1BA001", "1BC095"):
        for n, name in enumerate(("mr", "ct", "mask")):
            volume(root / f"Task1/brain/{patient}/{name}.nii.gz", n)


def thyroid(root: Path) -> None:
    for split in ("train", "test"):
        name = f"0000{len(split)}_31AD2E2C_1.png"
        picture(root / split / "images" / name, grey(1))
        picture(root / split / "masks" / name, region())


def totalsegmentator(root: Path) -> None:
    names = ("liver", "spleen", "stomach", "pancreas", "gallbladder", "kidney_right", "kidney_left", "aorta")
    for case in ("s0000", "s0011", "s1366"):
        volume(root / case / "ct.nii.gz")
        for n, name in enumerate((*names, "inferior_vena_cava", "colon", "heart")):
            volume(root / case / "segmentations" / f"{name}.nii.gz", labels={1: slice(3 * n, 3 * n + 8)})
    lines = ["image_id;age;split", "s0000;51;train", "s0011;60;val", "s1366;33;test"]
    (root / "meta.csv").write_text("\n".join(lines) + "\n", encoding="utf-8-sig")


def vindr(root: Path) -> None:
    for n, phase in enumerate(("arterial", "venous")):
        series(root / "study1" / phase, "", n, ".dicom")


# Entry -> (its copy, images or volumes in it, splits of them).
COPIES = {
    "aapm_low_dose_ct": (aapm, 2, {None}),
    "brats_gli": (brats, 2, {None}),
    "brats_gli_t1_t1c": (brats, 2, {None}),
    "brats_gli_t2_flair": (brats, 2, {None}),
    "chest_ct": (chest_ct, 2, {None}),
    "chest_xray": (chest_xray, 2, {None}),
    "ct_mar": (ct_mar, 2, {None}),
    "kmar50k_axial": (kmar("transection"), 2, {"train"}),
    "kmar50k_coronal": (kmar("coronal"), 2, {"train"}),
    "kmar50k_sagittal": (kmar("sagittal"), 2, {"train"}),
    "lgg_mri": (lgg, 4, {None}),
    "mr_art_motion1": (mr_art, 2, {None}),
    "mr_art_motion2": (mr_art, 2, {None}),
    "msd_heart": (msd("Task02_Heart", "la", 1), 2, {None}),
    "msd_hepatic_vessel": (msd("Task08_HepaticVessel", "hepaticvessel", 1, 2), 2, {None}),
    "msd_liver": (msd("Task03_Liver", "liver", 1, 2), 2, {None}),
    "msd_lung": (msd("Task06_Lung", "lung", 1), 2, {None}),
    "msd_pancreas": (msd("Task07_Pancreas", "pancreas", 1, 2), 2, {None}),
    "msd_spleen": (msd("Task09_Spleen", "spleen", 1), 2, {None}),
    "pasta_gen": (pasta, 2, {None}),
    "pasta_gen_liver": (pasta, 1, {None}),
    "pasta_gen_lung": (pasta, 1, {None}),
    "qata_cov19": (qata, 2, {"train", "test"}),
    "refuge_train": (refuge_train, 2, {"train"}),
    "refuge_val": (refuge_val, 1, {"val"}),
    "synthrad2023_brain": (synthrad, 2, {None}),
    "thyroidxl": (thyroid, 2, {"train", "test"}),
    "totalsegmentator_ct": (totalsegmentator, 3, {"train", "val", "test"}),
    "vindr_multiphase": (vindr, 1, {None}),
}


def test_every_entry_has_a_copy() -> None:
    assert COPIES.keys() == MIEDB.keys()
    unconfirmed = {name for name in MIEDB if find(name).layout_basis == "unconfirmed"}
    assert unconfirmed == {"vindr_multiphase"}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_with_the_published_tree_is_read_whole(name: str, tmp_path: Path) -> None:
    write, units, splits = COPIES[name]
    write(tmp_path)
    entry = find(name)
    report = check_source(entry, tmp_path)
    assert report.rejections == []
    assert report.units == units
    assert all(report.targets[target.name] for target in entry.targets), report.targets
    found = list(open_source(entry, tmp_path).scan())
    assert {unit.split for unit in found} == splits
    case = next(iter(open_source(entry, tmp_path).load(found[0])))
    assert (case.pair is not None) == (entry.pairing is not None)
    if case.pair is not None:
        assert case.pair.shape == case.image.shape
        assert not np.array_equal(case.pair, case.image)
    only = [d for d in report.differences if "are published" not in d and "not confirmed" not in d]
    assert only == []


def test_refuge_cup_lies_inside_its_disc(tmp_path) -> None:
    refuge_train(tmp_path)
    source = open_source(find("refuge_train"), tmp_path)
    case = next(iter(source.load(next(iter(source.scan())))))
    assert case.masks["optic disc"].sum() == 24 * 24
    assert case.masks["optic cup"].sum() == 10 * 10


def test_raw_values_are_hounsfield_units_and_a_wrong_size_is_named(tmp_path) -> None:
    ct_mar(tmp_path)
    source = open_source(find("ct_mar"), tmp_path)
    unit = next(iter(source.scan()))
    case = next(iter(source.load(unit)))
    stored = np.frombuffer((tmp_path / unit.files["image"][0]).read_bytes(), "<f4").reshape(512, 512)
    assert np.array_equal(case.values, stored)
    assert case.units == "HU"
    expected = np.floor(np.clip((stored.astype(np.float64) + 160) / 400, 0, 1) * 255 + 0.5)
    assert np.array_equal(case.image[..., 0], expected.astype(np.uint8))
    (tmp_path / unit.files["image"][0]).write_bytes(b"\0" * 99)
    report = check_source(find("ct_mar"), tmp_path)
    assert any("another size than its name says" in r.reason for r in report.rejections)


class TestDownloads:
    """What `mie sources check` says of a download that is not as published."""

    def test_half_there(self, tmp_path) -> None:
        totalsegmentator(tmp_path)
        for path in (tmp_path / "s0011").rglob("*.gz"):
            path.unlink()
        report = check_source(find("totalsegmentator_ct"), tmp_path)
        assert "2 images or volumes, 1,228 are published: 1,226 missing" in report.differences
        (listed,) = [r for r in report.rejections if r.where == "meta.csv"]
        assert listed.reason == "lists 1 of 3 cases that are not in the folder: s0011"

    def test_a_renamed_folder(self, tmp_path) -> None:
        lgg(tmp_path)
        (tmp_path / "kaggle_3m").rename(tmp_path / "Kaggle-3M")
        report = check_source(find("lgg_mri"), tmp_path)
        assert "folder kaggle_3m is missing; Kaggle-3M looks like it, renamed" in report.differences

    def test_one_folder_deeper(self, tmp_path) -> None:
        msd("Task09_Spleen", "spleen", 1)(tmp_path / "decathlon")
        report = check_source(find("msd_spleen"), tmp_path)
        assert f"the data set lies one folder deeper: give {tmp_path / 'decathlon'} as its root" in (
            report.differences
        )

    def test_renamed_files(self, tmp_path) -> None:
        lgg(tmp_path)
        for path in sorted(tmp_path.rglob("*.tif")):
            path.rename(path.with_suffix(".tiff"))
        report = check_source(find("lgg_mri"), tmp_path)
        assert any("no file matches kaggle_3m/" in d and ".tiff" in d for d in report.differences)

    def test_another_list_of_the_split(self, tmp_path) -> None:
        totalsegmentator(tmp_path)
        (tmp_path / "meta.csv").write_text("case;fold\ns0000;train\n")
        with pytest.raises(MieError, match="other columns") as error:
            check_source(find("totalsegmentator_ct"), tmp_path)
        assert "image_id, split" in str(error.value)
        (tmp_path / "meta.csv").rename(tmp_path / "metadata.csv")
        with pytest.raises(MieError, match="official split is missing"):
            check_source(find("totalsegmentator_ct"), tmp_path)

    def test_a_plain_list_and_checksums(self, tmp_path) -> None:
        lgg(tmp_path)
        (tmp_path / "test.txt").write_text("TCGA_CS_4941_19960909\nTCGA_XX_0000_20000101\n")
        sums = {"test.txt": "0" * 64, "absent.txt": "1" * 64}
        table = {"file": "test.txt", "split": "test", "key": "kaggle_3m/([^/]+)/"}
        entry = override(find("lgg_mri"), {"split_tables": [table], "checksums": sums})
        report = check_source(entry, tmp_path)
        assert "absent.txt is missing" in report.differences
        assert any(d.startswith("test.txt differs from the published file") for d in report.differences)
        assert {u.split for u in open_source(entry, tmp_path).scan() if hasattr(u, "split")} == {"test", None}
        assert any("TCGA_XX_0000_20000101" in r.reason for r in report.rejections)

    def test_two_sources_that_share_patients(self, tmp_path) -> None:
        for name in ("old", "new", "other"):
            lgg(tmp_path / name)
        (patient,) = (tmp_path / "new/kaggle_3m").glob("TCGA_HT*")
        for path in patient.iterdir():
            path.unlink()
        cohorts = {"old": "lgg", "new": "lgg", "other": "elsewhere"}
        reports = {
            name: check_source(override(find("lgg_mri"), {"name": name, "cohort": cohort}), tmp_path / name)
            for name, cohort in cohorts.items()
        }
        assert [report.patients for report in reports.values()] == [2, 1, 2]
        assert shared_patients(reports) == [("old", "new", 1)]

    def test_an_unconfirmed_layout_says_so(self, tmp_path) -> None:
        (tmp_path / "volumes").mkdir()
        report = check_source(find("vindr_multiphase"), tmp_path)
        assert "not confirmed" in report.differences[-1]


def test_entries_are_stored_in_recipes_as_before() -> None:
    """Keys that were added later are not written where they say nothing."""
    for entry in catalog().values():
        body = entry.model_dump(mode="json")
        assert ("layout_basis" in body) == (entry.name in MIEDB)
        assert ("split_tables" in body) == bool(entry.split_tables)
        assert "checksums" not in body
