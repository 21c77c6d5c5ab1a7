"""The catalogue as data: every entry is sound, reads as a clinician speaks, and matches real file names."""

from __future__ import annotations

import re
from collections import defaultdict
from importlib import resources
from pathlib import Path

import pytest
import yaml

from mie.errors import ConfigError
from mie.sources import patterns
from mie.sources.catalog import Entry, TargetEntry, catalog, find, override
from mie.vocabulary import MODALITIES, TARGET_KINDS

ENTRIES = catalog()
TARGETS = sorted({t.target for e in ENTRIES.values() for t in e.targets}, key=lambda t: (t.name, t.plural))
RECIPE = Path(__file__).parents[2] / "examples" / "perception.yaml"

# Words a clinician writes with capitals, singular nouns that end in s, and plurals that do not.
CAPITALS = {"COVID-19", "Barrett's"}
SINGULAR_S = {"pancreas", "symphysis", "plexus", "oesophagus", "mass", "nucleus"}
PLURALS = {"nuclei", "bronchi", "vertebrae", "glomeruli", "bacteria", "forceps", "teeth"}
AMERICAN = r"\b(tumors?|hemorrhages?|edema|ischemic|esophagus|hematoma|color|gray|peritumoral)\b"

MEDSEGBENCH = re.findall(
    r"\S+",
    "abdomenus bbbc010 bkai-igh brifiseg busi cellnuclei chasedb1 chuac covid19radio covidquex "
    "cystoidfluid dca1 deepbacs drive dynamicnuclear fhpsaop idrib isic2016 isic2018 kvasir m2caiseg "
    "monusac mosmedplus nuclei nuset pandental polypgen promise12 robotool tnbcnuclei ultrasoundnerve "
    "usforkidney uwaterlooskincancer wbc yeaz",
)


def marking(target: TargetEntry) -> tuple[object, ...]:
    """What the mask file shows for this target, comparable between targets."""
    values = (frozenset(target.values), frozenset(target.colours))
    return (target.masks, *values, target.nonzero, target.above, target.below)


def file_patterns(entry: Entry) -> list[str]:
    """Every pattern of the entry that is filled from what `images` captured."""
    layout = entry.layout
    found = [getattr(layout, "masks", None), getattr(layout, "pair", None), *(t.masks for t in entry.targets)]
    return [p for p in found if p is not None]


def test_size_and_no_name_twice() -> None:
    names = []
    for file in resources.files("mie.sources").iterdir():
        if file.name.startswith("catalog") and file.name.endswith(".yaml"):
            names += re.findall(r"^(\w+):$", file.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(names) == len(set(names)) == len(ENTRIES) >= 110


def test_known_words() -> None:
    for entry in ENTRIES.values():
        assert re.fullmatch(r"[a-z0-9_]+", entry.name), entry.name
        assert entry.modality in MODALITIES, entry.name
        assert all(t.kind in TARGET_KINDS for t in entry.targets), entry.name
        assert entry.license.basis in ("stated", "recalled"), entry.name
        assert entry.home is None or entry.home.startswith(("https://", "http://")), entry.name


def test_no_marking_twice_and_none_ignored() -> None:
    for entry in ENTRIES.values():
        markings = [marking(t) for t in entry.targets]
        assert len(set(markings)) == len(markings), entry.name
        taken = {mark for t in entry.targets for mark in (*t.values, *t.colours)}
        assert not taken & set(entry.ignore), entry.name
        assert not taken & {0, (0, 0, 0)}, f"{entry.name}: 0 is background"


def test_values_and_colours_do_not_mix() -> None:
    for entry in ENTRIES.values():
        if any(t.colours for t in entry.targets):
            assert all(t.colours for t in entry.targets), entry.name
            assert all(isinstance(i, tuple) for i in entry.ignore), entry.name


def test_masks_ask_only_for_what_images_capture() -> None:
    for entry in ENTRIES.values():
        if entry.layout.kind in ("folder", "paired", "volume"):
            captured = set(patterns.places(entry.layout.images))
            assert all(set(patterns.places(p)) <= captured for p in file_patterns(entry)), entry.name


def test_targets_have_masks() -> None:
    for entry in ENTRIES.values():
        if entry.layout.kind != "medsegbench":
            separate = [t.masks is not None for t in entry.targets]
            masks = entry.layout.masks
            assert bool(entry.targets) == (masks is not None or any(separate)), entry.name
            assert masks is not None or all(separate), entry.name


def test_patient_and_split_come_from_one_place() -> None:
    for entry in ENTRIES.values():
        captured = patterns.places(getattr(entry.layout, "images", ""))
        assert entry.patient is None or "patient" not in captured, entry.name
        assert entry.patient is None or re.compile(entry.patient).groups == 1, entry.name
        assert bool(entry.splits) == ("split" in captured), entry.name


def test_snap_only_where_marks_are_listed() -> None:
    for entry in ENTRIES.values():
        assert not entry.snap or all(t.values or t.colours for t in entry.targets), entry.name


def test_target_names_read_as_a_clinician_writes() -> None:
    for name in (target.name for target in TARGETS):
        words = name.split(" ")
        assert all(w == w.lower() or w in CAPITALS for w in words), name
        assert re.fullmatch(r"[A-Za-z0-9,' -]+", name), name
        assert words[0] not in ("", "the", "a", "an"), name
        assert not re.search(AMERICAN, name), name


def test_the_number_of_target_names() -> None:
    for target in TARGETS:
        head = re.split(r" (?:of|in|with) ", target.name)[0]
        noun = head.split(" ")[-1]
        looks_plural = " and " in head or noun in PLURALS or (noun.endswith("s") and noun not in SINGULAR_S)
        assert target.plural == looks_plural, target.name


def test_a_name_means_one_kind() -> None:
    kinds = defaultdict(set)
    for target in TARGETS:
        kinds[target.name].add((target.kind, target.plural))
    assert {name: k for name, k in kinds.items() if len(k) > 1} == {}


def test_cohorts_have_members_of_one_part_of_the_body() -> None:
    members = defaultdict(list)
    for entry in ENTRIES.values():
        members[entry.patient_cohort].append(entry)
    for entry in ENTRIES.values():
        if entry.cohort is not None:
            assert len(members[entry.cohort]) >= 2, entry.name
    for cohort, entries in members.items():
        assert len({e.anatomy for e in entries}) == 1, cohort


def test_medsegbench_is_complete_in_all_three_sizes() -> None:
    files = {e.layout.files for e in ENTRIES.values() if e.layout.kind == "medsegbench"}
    for name in MEDSEGBENCH:
        for size in (128, 256, 512):
            assert sum(bool(patterns.compiled(f).fullmatch(f"{name}_{size}.npz")) for f in files) == 1
    assert len(files) == len(MEDSEGBENCH) == 35


# (entry, image, mask or pair, patient), as the public copies name their files.
FILES = [
    ("isic2018_skin", "images/ISIC_0000001.jpg", "masks/ISIC_0000001_segmentation.png", None),
    ("busi_breast_us", "images/benign (116).png", "masks/benign (116)_mask_1.png", None),
    ("drive_vessel", "images/22_training.png", "masks/22_manual1.png", "22"),
    ("chasedb1_vessel", "images/Image_01L.jpg", "masks/Image_01L_1stHO.png", "01"),
    ("idrid_exudates", "images/IDRiD_03.jpg", "masks/IDRiD_03_EX.png", "IDRiD_03"),
    ("camus_echo", "images/patient0049_2CH_ES.jpg", "masks/patient0049_2CH_ES.jpg", "patient0049"),
    ("cholecseg_surgical", "images/video01_000004_frame.png", "masks/video01_000004_mask.png", "video01"),
    ("uwm_gi_mri", "images/case101_day20_slice_0078.png", "masks/case101_day20_slice_0078.png", "case101"),
    ("busbra_breast_us", "images/1-benign_0804-s.jpg", "masks/1-benign_0804-s.png", "0804"),
    ("cxr_shenzhen_lung", "images/CHNCXR_0603_1.png", "masks/CHNCXR_0603_1.png", "0603"),
    (
        "ebhi_colorectal",
        "images/B-GTDC2102188-3-400-002.jpg",
        "masks/B-GTDC2102188-3-400-002.png",
        "GTDC2102188",
    ),
    ("ms_lesion_flair_mri", "images/105006.jpg", "masks/105006.png", "105"),
    ("ms_lesion_t2_mri", "images/13223.jpg", "masks/13223.png", "132"),
    ("ms_lesion_t2_mri", "images/132009.jpg", "masks/132009.png", "132"),
    ("mbh_hemorrhage_ct", "images/120018.png", "masks/120018.png", "120"),
    ("acdc_cardiac_mri", "images/10485.png", "masks/10485.png", "104"),
    ("breastdm_dce_mri", "images/malignant_4111.jpg", "masks/malignant_4111.png", "malignant_4"),
    ("breastdm_dce_mri", "images/benign_277.jpg", "masks/benign_277.png", "benign_"),
    ("kits19_kidney_tumor_ct", "images/10036_103.png", "masks/10036_103.png", "10036"),
    ("rings_prostate_glands", "images/P3_A8_12_16_1.jpg", "masks/P3_A8_12_16_1.png", "P3"),
    ("realtime_stroke_ct", "images/Ischemic_0539025_004.jpg", "masks/Ischemic_0539025_004.png", "0539025"),
    ("open_ms_mri", "FLAIR/patient07_z045.png", "masks/patient07_z045.png", "patient07"),
    ("harvard_ct_mri", "CT/2004.png", "MRI/2004.png", "2"),
    ("oct_denoise", "noisy/9_test.png", "clean/9_average.png", "9"),
    (
        "derm_artefact_pairs",
        "with_artefact/ISIC_0026372_22_with.png",
        "without_artefact/ISIC_0026372_22_without.png",
        "ISIC_0026372",
    ),
    (
        "derm_artefact_pairs",
        "with_artefact/ISIC_0024550_with_03.png",
        "without_artefact/ISIC_0024550_without_03.png",
        "ISIC_0024550",
    ),
    (
        "metal_artifact_ct",
        "artifact/000321_03_01_011_7_ma.png",
        "clean/000321_03_01_011_gt.png",
        "000321",
    ),
]


@pytest.mark.parametrize(("name", "image", "partner", "patient"), FILES, ids=lambda x: x)
def test_real_file_names(name: str, image: str, partner: str, patient: str | None) -> None:
    entry = find(name)
    match = patterns.compiled(entry.layout.images).fullmatch(image)
    assert match
    captured = match.groupdict()
    other = entry.layout.pair if entry.layout.kind == "paired" else entry.layout.masks
    known = tuple(sorted((k, v) for k, v in captured.items() if k in patterns.places(other)))
    assert patterns.compiled(other, known).fullmatch(partner)
    neighbour = re.sub(r"\d", lambda digit: str((int(digit[0]) + 1) % 10), partner, count=1)
    assert not patterns.compiled(other, known).fullmatch(neighbour)
    by_stem = entry.patient and re.search(entry.patient, Path(image).stem)
    assert (by_stem.group(1) if by_stem else captured.get("patient")) == patient


def test_glas_follows_its_own_split() -> None:
    entry = find("glas_glands")
    expression = patterns.compiled(entry.layout.images)
    split = {s: expression.fullmatch(f"images/{s}_1.jpg")["split"] for s in ("train", "testA", "testB")}
    assert {s: entry.splits[s] for s in split.values()} == {
        "train": "train",
        "testA": "test",
        "testB": "test",
    }


def test_near_miss_is_suggested() -> None:
    with pytest.raises(ConfigError, match="busi_breast_us"):
        find("busi_brest_us")


class TestExampleRecipe:
    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))

    def test_header(self) -> None:
        assert self.recipe["recipe"] == "perception"
        assert 0 < self.recipe["split"]["test"] < 1
        assert isinstance(self.recipe["seed"], int)

    def test_sources_are_known_sets_with_masks(self) -> None:
        names = [s["name"] for s in self.recipe["sources"]]
        assert len(names) == len(set(names)) >= 60
        assert all(find(n).targets for n in names)
        assert {find(n).modality for n in names} == set(MODALITIES)

    def test_roots_and_overrides(self) -> None:
        for source in self.recipe["sources"]:
            changes = {k: v for k, v in source.items() if k not in ("name", "root")}
            entry = override(find(source["name"]), changes)
            assert re.fullmatch(rf"\$\{{MIE_DATA\}}/data(-extra)?/{entry.name}", source["root"])
            assert all(getattr(entry, k) == v for k, v in changes.items())

    def test_a_cohort_kept_on_one_side_is_kept_whole(self) -> None:
        forced = defaultdict(set)
        for source in self.recipe["sources"]:
            forced[find(source["name"]).patient_cohort].add(source.get("split"))
        assert all(len(splits) == 1 for splits in forced.values())


# Homes that hold many unrelated data sets: entries there need not share patients.
COLLECTIONS = {
    "https://zenodo.org/records/13359660",  # MedSegBench
    "http://medicaldecathlon.com",
    "https://github.com/aim-harvard/pyradiomics",
    "https://scikit-image.org",
    "https://github.com/pydicom/pydicom",
}


def _knows_patients(entry) -> bool:
    patterns = (getattr(entry.layout, name, None) or "" for name in ("images", "series"))
    return bool(entry.one_patient or entry.patient or any("{patient}" in pattern for pattern in patterns))


def test_entries_from_one_place_share_a_cohort_and_name_patients_alike():
    homes = {}
    for entry in catalog().values():
        home = (entry.home or "").rstrip("/").lower()
        if home and home not in COLLECTIONS:
            homes.setdefault(home, []).append(entry)
    for home, entries in homes.items():
        assert len({entry.patient_cohort for entry in entries}) == 1, home
        if any(map(_knows_patients, entries)):
            assert all(map(_knows_patients, entries)), home


def test_one_patient_in_three_entries_has_one_name():
    from mie.sources.catalog import find, patient_of

    names = {
        patient_of(find("ct_mr_volumes"), "images/example_ct_sm.nii.gz", {"id": "example_ct_sm"}),
        patient_of(find("ct_volume"), "images/example_ct.nii.gz", {"id": "example_ct"}),
        patient_of(find("sample_abdomen_ct"), "images/abdomen2.nii.gz", {"patient": "abdomen2"}),
    }
    assert names == {"totalsegmentator_examples/abdomen2"}
