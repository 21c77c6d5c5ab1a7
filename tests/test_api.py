"""What a notebook user types: the public names, and the design's example from data to report."""

import inspect
import socket
import subprocess
import sys
import typing

import cv2
import numpy as np
import pytest
import skimage.data

import mie
from mie.errors import ConfigError, ImageError
from mie.images.overlay import deblend, dice
from tests.conftest import crop, ellipse, folder_source, write_folder

NAMES = [name for name in mie.__all__ if name != "__version__"]


def my_function(image, instruction):
    """An editor as a user writes one: brightens the middle of the image."""
    out = image.copy()
    middle = out[out.shape[0] // 4 : -out.shape[0] // 4]
    middle[:] = np.minimum(255, middle.astype(int) + 40)
    return out


@pytest.fixture
def no_network(monkeypatch):
    """Fail where a connection is opened, or a name is looked up."""
    connect = socket.socket.connect

    def local(self, address):
        assert self.family == socket.AF_UNIX, f"a connection to {address}"
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", local)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *names, **_: pytest.fail(f"{names} was looked up"))


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    root = write_folder(tmp_path_factory.mktemp("api") / "discs", 8, patients=8, size=96)
    return {"name": "discs", "seed": 3, "sources": [folder_source(root)], "split": {"test": 0.5}}


@pytest.fixture(scope="module")
def ds(recipe, tmp_path_factory):
    return mie.build(recipe, tmp_path_factory.mktemp("built") / "ds", workers=1)


def test_the_public_names_are_few_visible_and_documented():
    assert len(mie.__all__) <= 25
    assert sorted(mie.__all__) == sorted(dir(mie))
    for name in NAMES:
        thing = getattr(mie, name)
        assert callable(thing)
        assert inspect.getdoc(thing), name


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("report",) and n[0].islower()])
def test_functions_are_typed(name):
    function = getattr(mie, name)
    parameters = inspect.signature(function).parameters
    assert all(p.annotation is not p.empty for p in parameters.values()), name
    assert inspect.signature(function).return_annotation is not inspect.Signature.empty


def test_unknown_names_are_attribute_errors():
    with pytest.raises(AttributeError, match="nonsense"):
        mie.nonsense  # noqa: B018


def test_importing_mie_imports_nothing_heavy():
    script = "import sys, mie; dir(mie); print('numpy' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "False"


@pytest.mark.parametrize(
    "before", ["", "import mie.report", "import mie.report.page", "from mie import report"]
)
def test_report_is_a_package_and_a_function(before):
    script = f"{before}\nimport mie; print(callable(mie.report)); import mie.report.page as p; p.write_report"
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "True"


def test_the_ten_lines_of_the_design(recipe, tmp_path, monkeypatch, no_network):
    """Build, look, run a function and a spec, score, compare, report; as in a notebook, without network."""
    import yaml

    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump(recipe))
    ds = mie.build("recipe.yaml", "out/ds", workers=1)
    t = mie.triplet(crop(0), ellipse(0), "optic disc", modality="fundus")
    mine = mie.run(ds, my_function, "out/mine")
    best = mie.run(ds, "oracle", "out/oracle")
    res = mie.score(mine, "miedb", workers=1)
    mie.score(best, workers=1)
    table = mie.compare(best, mine)
    page = mie.report([mine, best], "out/report")
    sizes = {s.input.shape for s in ds}

    assert len(ds) == len(list(ds)) == mine.info["counts"]["done"]
    assert ds[0].input.dtype == np.uint8
    assert len(ds.filter(modality="CT")) == 0
    assert len(ds.filter(modality="fundus")) == len(ds)
    assert sizes == {(128, 128, 3), (96, 96, 3)}  # the training bin, and test samples at their own size
    for sample in ds:
        pixels = cv2.imread(str(mine.output_path(sample.id, 0)))[..., ::-1]
        assert np.array_equal(pixels, my_function(sample.input, sample.prompt))
    dice_row = table.set_index("metric").loc["dice@1"]
    assert dice_row.mean_a == pytest.approx(1, abs=1e-3)
    assert dice_row.difference == pytest.approx(dice_row.mean_a - dice_row.mean_b)
    assert dice_row.n == len(ds)
    assert dice_row.wins + dice_row.ties + dice_row.losses == len(ds)
    assert page.name == "index.html"
    assert "my_function" in page.read_text()
    assert t.prompt
    assert float(res["dice"]) == pytest.approx(res.frame.dice.mean())
    assert float(res["dice"]) == pytest.approx(dice_row.mean_b)
    assert "<table>" in res._repr_html_()
    assert "8 samples" in repr(ds)
    assert "tests.test_api:my_function" in repr(mine)


def test_build_takes_a_path_a_string_a_dictionary_and_a_recipe(recipe, ds, tmp_path):
    import yaml

    file = tmp_path / "recipe.yaml"
    file.write_text(yaml.safe_dump(recipe))
    kinds = {"string": str(file), "path": file, "config": mie.read_recipe(file)}
    for name, given in kinds.items():
        made = mie.build(given, tmp_path / name, workers=1)
        assert isinstance(made, mie.Dataset)
        assert made.digest == ds.digest
    assert len(mie.build(recipe, tmp_path / "few", limit=2, workers=1)) == 2
    assert mie.verify(ds, workers=1).ok
    with pytest.raises(ConfigError, match="lists no data sets"):
        mie.build({"name": "x"}, tmp_path / "none")


@pytest.mark.parametrize("colour", [None, "red", "green", "blue"])
def test_triplet_from_arrays(colour):
    image, mask = skimage.data.retina()[400:900, 300:900], np.zeros((500, 600), bool)
    mask[100:200, 150:300] = True
    t = mie.triplet(image, mask, "optic disc", modality="fundus", colour=colour)
    assert isinstance(t, mie.Sample)
    assert t.colour == colour or colour is None
    assert t.colour in t.prompt
    assert "optic disc" in t.prompt
    assert t.colour in t.description
    assert t.params["classes"] == [{"target": "optic disc", "colour": t.colour}]
    assert np.array_equal(t.input, image)
    assert np.array_equal(t.target_image[~mask], image[~mask])
    assert dice(deblend(t.input, t.target_image, t.colour), mask) > 0.99
    scores = mie.score_triplet(t.input, t.prompt, t.target_image, t.target_image, colour=t.colour)
    assert scores["metrics"]["dice"] == pytest.approx(1, abs=1e-3)
    again = mie.triplet(image, mask.astype(np.uint8) * 7, "optic disc", modality="fundus", colour=colour)
    assert (again.id, again.prompt, again.colour) == (t.id, t.prompt, t.colour)


def test_triplet_from_files_grey_images_and_own_words(tmp_path):
    grey = cv2.cvtColor(crop(1), cv2.COLOR_RGB2GRAY)
    cv2.imwrite(str(tmp_path / "scan.png"), grey)
    cv2.imwrite(str(tmp_path / "mask.png"), ellipse(3).astype(np.uint8) * 255)
    words = "Where are the nodules?"
    t = mie.triplet(
        tmp_path / "scan.png",
        str(tmp_path / "mask.png"),
        "nodules",
        modality="CT",
        kind="lesion",
        plural=True,
        instruction=words,
    )
    assert (t.prompt, t.task, t.case_id) == (words, "lesion", "scan.png")
    assert np.array_equal(t.input, np.stack([grey] * 3, 2))
    assert np.array_equal(t.mask > 0, ellipse(3))
    assert "array" not in repr(t)  # no pixels


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"modality": "ct"}, "did you mean 'CT'"),
        ({"colour": "gren"}, "did you mean 'green'"),
        ({"kind": "lesions"}, "did you mean 'lesion'"),
        ({"opacity": 0.2}, "opacity"),
        ({"mask": np.zeros((160, 160), bool)}, "mask is empty"),
        ({"mask": np.ones((160, 161), bool)}, "differ in size"),
        ({"image": np.zeros((160, 160), np.int16)}, "uint8"),
        ({"image": np.zeros((160, 160, 4), np.uint8)}, "uint8"),
    ],
)
def test_triplets_that_cannot_be_made(changes, word):
    given = {"image": crop(0), "mask": ellipse(0), "target": "disc", "modality": "fundus", **changes}
    with pytest.raises((ConfigError, ImageError), match=word):
        mie.triplet(**given)


def test_edit_takes_files_arrays_specs_editors_and_functions(tmp_path):
    image = crop(2)
    cv2.imwrite(str(tmp_path / "scan.png"), image[..., ::-1])
    for given in (tmp_path / "scan.png", str(tmp_path / "scan.png"), image):
        assert np.array_equal(mie.edit(given, "x", "identity"), image)
    edited = mie.edit(image, "Paint the cells red.", "otsu")
    assert isinstance(edited, mie.Edited)
    assert 0 < edited.meta["region"] < 1
    assert np.asarray(edited).shape == image.shape
    assert np.asarray(edited, np.float32).dtype == np.float32
    assert cv2.imdecode(np.frombuffer(edited._repr_png_(), np.uint8), 1).shape == image.shape
    assert np.array_equal(mie.edit(image, "x", my_function), my_function(image, "x"))
    assert np.array_equal(mie.edit(image, "x", lambda im, text: 255 - im).image, 255 - image)
    grey = mie.edit(image[..., 0], "x", "identity")
    assert np.array_equal(grey.image, np.stack([image[..., 0]] * 3, 2))

    def in_place(im, text):
        im[:] = 0
        return im

    assert not np.asarray(mie.edit(image, "x", in_place)).any()
    assert image.any()  # the user's own array is not changed


def test_editing_a_volume_says_what_to_do(tmp_path):
    import nibabel

    path = tmp_path / "scan.nii.gz"
    nibabel.save(nibabel.Nifti1Image(np.zeros((4, 4, 4), np.int16), np.eye(4)), path)
    with pytest.raises(ImageError, match="this is a volume") as caught:
        mie.edit(path, "x", "identity")
    assert "save one slice as PNG" in str(caught.value)
    assert "\\x" not in str(caught.value)


def test_hints_of_lazy_functions_resolve():
    """The types in the signatures exist: what an editor shows is not a dangling name."""
    import pandas as pd

    from mie import api
    from mie.datasets.build import Progress as BuildProgress
    from mie.datasets.recipe import RecipeConfig
    from mie.editors.base import EditFunction
    from mie.privacy.gate import Policy

    names = {
        "pd": pd,
        "BuildProgress": BuildProgress,
        "Dataset": mie.Dataset,
        "RecipeConfig": RecipeConfig,
        "Edited": mie.Edited,
        "Editor": mie.Editor,
        "EditFunction": EditFunction,
        "Policy": Policy,
    }
    for name in ("build", "triplet", "compare", "edit"):
        assert "return" in typing.get_type_hints(getattr(api, name), localns=names)


def test_a_filtered_run_is_scored_on_its_own_samples(ds, tmp_path):
    part = ds.filter(id=ds.filter().ids()[::2])
    run = mie.run(part, "oracle", tmp_path / "run")
    results = mie.score(run, workers=1)
    assert isinstance(results, mie.Results)
    assert results["dice"].n == len(results) == len(part) > 1
    assert list(mie.read_scores(run.folder).id) == part.ids()


def test_comparing_runs_without_scores_says_what_to_do(ds, tmp_path):
    runs = [mie.run(ds, name, tmp_path / name) for name in ("identity", "oracle")]
    with pytest.raises(mie.MieError, match="mie score"):
        mie.compare(*runs)
