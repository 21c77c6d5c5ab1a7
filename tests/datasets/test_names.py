"""Names of patients stay out of a dataset, and one patient keeps one pseudonym wherever it appears."""

import re
from pathlib import Path

import pytest

from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.names import Names, pseudonym
from mie.datasets.recipe import parse_recipe
from mie.datasets.rejected import read_rejected
from mie.datasets.verify import verify
from mie.records import Rejection
from mie.training.pack_datasets import leaking
from tests.conftest import folder_source, write_folder
from tests.perspectives.modification.lesions import lesion_case

LAYOUT = {"kind": "folder", "images": "{patient}/{id}.png", "masks": "{patient}/{id}_mask.png"}


def hospital(root: Path, first: int = 0, count: int = 9) -> Path:
    """One folder for each patient, called after them: Smith_John_0/0000.png. `first` chooses other images."""
    flat = write_folder(root / "flat", first + count, patients=1)
    for number, path in enumerate(sorted((flat / "images").iterdir())):
        if number < first:
            continue
        patient = root / "set" / f"Smith_John_{number % 4}"
        patient.mkdir(parents=True, exist_ok=True)
        path.rename(patient / f"{number:04d}.png")
        (flat / "masks" / f"{path.stem}_mask.png").rename(patient / f"{number:04d}_mask.png")
    return root / "set"


def recipe(root: Path, **body):
    source = {**folder_source(root), "layout": LAYOUT}
    return parse_recipe({"name": "ward", "seed": 2, "sources": [source], **body}, where="r", base=Path())


@pytest.fixture(scope="module")
def ward(tmp_path_factory):
    root = hospital(tmp_path_factory.mktemp("ward"))
    (root / "Smith_John_1" / "0001.png").write_bytes(b"")
    (root / "Smith_John_2" / "note.png").write_bytes(b"")
    return root


def test_no_name_reaches_the_folder(ward, tmp_path):
    result = build(recipe(ward), tmp_path / "d", workers=1)
    files = [path for path in (tmp_path / "d").rglob("*") if path.is_file()]
    assert [path for path in files if re.search(rb"(?i)smith", path.read_bytes())] == []
    table = Dataset(tmp_path / "d").table(["patient_id", "case_id"])
    assert len(set(table["patient_id"])) == 4
    assert all(re.fullmatch(r"discs/[0-9a-f]{16}", patient) for patient in table["patient_id"])
    assert all(re.fullmatch(r"[0-9a-f]{16}", case) for case in table["case_id"])
    assert len(set(table["case_id"])) == 8
    for rejection in read_rejected(tmp_path / "d/rejected.parquet"):
        assert "smith" not in f"{rejection.where}{rejection.reason}".lower()
    # Whoever builds it is told the real names, to find the files.
    assert any("Smith_John" in reason.example.where for reason in result.reasons)
    assert verify(tmp_path / "d", workers=1).ok


def test_names_are_kept_where_the_recipe_says_so(ward, tmp_path):
    hidden = build(recipe(ward), tmp_path / "hidden", workers=1).info
    kept = build(recipe(ward, keep_names=True), tmp_path / "kept", workers=1).info
    assert hidden["digest"] != kept["digest"]
    one, other = (
        Dataset(tmp_path / name).table(["id", "case_id", "patient_id", "split"])
        for name in ("hidden", "kept")
    )
    assert (one["id"], one["split"]) == (other["id"], other["split"])  # the samples are the same
    assert other["patient_id"][0].startswith("discs/Smith_John_")
    for column, rename in (("patient_id", Names().patient), ("case_id", lambda c: Names().case("discs", c))):
        assert [rename(value) for value in other[column]] == one[column]
    wheres = [r.where for r in read_rejected(tmp_path / "kept/rejected.parquet")]
    assert "Smith_John_2/note.png" in wheres


def test_a_patient_is_found_across_datasets_of_other_names_and_seeds(ward, tmp_path):
    """As `mie pack` looks for training samples whose patient is tested on elsewhere."""
    build(recipe(ward, split={"test": 0}), tmp_path / "train", workers=1)
    later = recipe(hospital(tmp_path / "later", 40), name="other", seed=5, split={"test": 1})
    build(later, tmp_path / "test", workers=1)
    leaks = dict.fromkeys(Dataset(tmp_path / "train").table(["id"])["id"], "patient")
    assert leaking([Dataset(tmp_path / "train"), Dataset(tmp_path / "test")]) == leaks
    # Also in a dataset that kept its names, as those of earlier versions did.
    build(recipe(ward, split={"test": 0}, keep_names=True), tmp_path / "named", workers=1)
    assert leaking([Dataset(tmp_path / "named"), Dataset(tmp_path / "test")]) == leaks


def test_equal_names_in_other_cohorts_differ_and_the_key_matters():
    assert Names().patient("a/Smith") != Names().patient("b/Smith").replace("b/", "a/")
    assert pseudonym("a", "Smith") == pseudonym("a", "Smith") != pseudonym("a", "smith")
    assert Names().patient(None) is None
    assert Names(keep=True).patient("a/Smith") == "a/Smith"


def test_a_slice_keeps_its_place_in_the_volume():
    one, other = (Names().case("s", f"Smith/ct.nii.gz#axial-{n:04d}") for n in (3, 4))
    assert (one[16:], other[16:]) == ("#axial-0003", "#axial-0004")
    assert one[:16] == other[:16] == pseudonym("s", "Smith/ct.nii.gz")


@pytest.mark.parametrize(
    ("where", "reason", "case", "told"),
    [
        ("Smith/a1b.png", "no mask Smith/a1b_mask.png", "Smith/a1b.png", "no mask (file)"),
        ("Smith/a1b.png (Smith/m.png)", "m.png is cut short", "Smith/a1b.png", "(file) is cut short"),
        ("a1b.dcm", "a1b has two frames", "a1b.dcm", "(file) has two frames"),
        ("scan (1).png", "too small: 3 px, at least 24", "scan (1).png", "too small: 3 px, at least 24"),
    ],
)
def test_files_that_cannot_be_used_lose_their_names(where, reason, case, told):
    found = Names().rejection(Rejection("s", where, "image", reason))
    assert (found.where, found.reason) == (pseudonym("s", case), told)


def test_reasons_about_pixels_stay_as_they_are():
    found = Names().rejection(Rejection("s", "not.png", "expert", "not for CT/MRI pairs"))
    assert (found.where, found.reason) == (pseudonym("s", "not.png"), "not for CT/MRI pairs")


def test_a_judges_journal_holds_the_pseudonym():
    from mie.perspectives import PERSPECTIVES, BuildFacts
    from mie.perspectives.modification import ModificationConfig

    case = lesion_case(case_id="Smith/eye.png")
    facts = BuildFacts("d", (128,), case_name=lambda c: Names().case(c.source, c.case_id))
    made = PERSPECTIVES["modification"].samples(ModificationConfig(inpainter="telea", detector=None), facts)
    assert made.case_name(case) == pseudonym("test", "Smith/eye.png")


def test_a_rejection_holds_no_uid_no_raw_value_and_no_path():
    reason = (
        "ValueError: could not convert 'DOE^JANE' of series 1.2.840.113619.2.55.3 in /data/Doe Jane/1.dcm; "
        "found SMITH^JOHN"
    )
    rejection = Rejection("x", "Doe_Jane/1.2.840.113619.2.55.3", "error", reason)
    shown = Names().rejection(rejection)
    for secret in ("DOE", "JANE", "Jane", "SMITH", "1.2.840", "/data"):
        assert secret not in shown.reason + shown.where
    assert Names(keep=True).rejection(rejection) == rejection
