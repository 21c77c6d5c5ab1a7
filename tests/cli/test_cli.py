"""The command as people meet it: a real process, its output, its exit code."""

import json
import re
import subprocess
import sys

import pytest
import yaml

from tests import forked_python
from tests.conftest import folder_source, write_folder


def mie(*words, cwd=None):
    return forked_python.run([sys.executable, "-m", "mie", *map(str, words)], cwd=cwd)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cli")
    root = write_folder(folder / "discs", 16, patients=8)
    path = folder / "recipe.yaml"
    path.write_text(yaml.safe_dump({"name": "discs", "sources": [folder_source(root)]}))
    return path


@pytest.fixture(scope="module")
def dataset(recipe):
    folder = recipe.parent / "dataset"
    done = mie("build", recipe, "-o", folder, "--json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["counts"]["samples"] == 16
    return folder


def test_help_names_every_verb_and_gives_examples():
    top = mie("--help")
    assert top.returncode == 0
    for verb in ("build", "verify", "stats", "export", "import", "sources", "demo", "doctor"):
        assert verb in top.stdout
        if verb != "sources":
            assert "Example: mie" in mie(verb, "--help").stdout


def test_help_imports_nothing_heavy():
    script = (
        "import sys; sys.argv = ['mie', '--help']\n"
        "from mie.cli import main\n"
        "try:\n    main()\nexcept SystemExit:\n    pass\n"
        "heavy = {'numpy', 'cv2', 'pyarrow', 'pydicom', 'matplotlib', 'pydantic'}\n"
        "print(sorted({m.split('.')[0] for m in sys.modules} & heavy))\n"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip().splitlines()[-1] == "[]"


def test_the_plots_are_there(dataset):
    assert {p.name for p in (dataset / "stats").iterdir()} >= {
        "modality.png",
        "targets.png",
        "area.png",
        "sizes.png",
    }


def test_verify(dataset):
    done = mie("verify", dataset, "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"ok": True, "samples": 16, "problems": []}
    assert "all sound" in mie("verify", dataset).stdout


def test_verify_of_a_broken_dataset_fails_and_names_it(dataset, tmp_path):
    import shutil

    broken = shutil.copytree(dataset, tmp_path / "broken")
    shard = next((broken / "data").iterdir())
    shard.write_bytes(shard.read_bytes()[:-100])
    done = mie("verify", broken)
    assert done.returncode == 1
    assert shard.name in done.stdout.replace("\n", "")


def test_stats(dataset, tmp_path):
    done = mie("stats", dataset, "-o", tmp_path / "plots", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["plots"]
    assert "optic disc" in mie("stats", dataset, "-o", tmp_path / "plots").stdout


def test_export_and_import(dataset, tmp_path):
    for format in ("miedb", "omnigen2", "webdataset", "folder"):
        done = mie("export", dataset, "-f", format, "-o", tmp_path / format)
        assert done.returncode == 0, done.stderr
    for format in ("miedb", "folder"):
        done = mie(
            "import", tmp_path / format, "-f", format, "-o", tmp_path / f"{format}-back", "--name", "discs"
        )
        assert done.returncode == 0, done.stderr
        assert mie("verify", tmp_path / f"{format}-back").returncode == 0
    digests = {
        json.loads((p / "dataset.json").read_text())["digest"]
        for p in (dataset, tmp_path / "miedb-back", tmp_path / "folder-back")
    }
    assert len(digests) == 1


def test_wrong_use_is_two_and_failure_is_one(recipe, tmp_path):
    bad = tmp_path / "bad.yaml"
    bad.write_text(recipe.read_text() + "\nsede: 1\n")
    done = mie("build", bad, "-o", tmp_path / "x")
    assert (done.returncode, done.stdout) == (2, "")
    assert "did you mean 'seed'?" in done.stderr
    assert mie("build").returncode == 2
    done = mie("verify", tmp_path)
    assert done.returncode == 1
    assert "no finished dataset" in done.stderr
    assert "Traceback" not in done.stderr


def test_bad_files_are_three(tmp_path):
    root = write_folder(tmp_path / "discs", 4)
    (root / "images" / "p00_0000.png").write_bytes(b"")
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"name": "discs", "sources": [folder_source(root)]}))
    done = mie("build", path, "-o", tmp_path / "d", "--no-stats")
    assert done.returncode == 3
    assert "1 file could not be used" in done.stderr
    again = mie("build", path, "-o", tmp_path / "d", "--no-stats")
    assert again.returncode == 3
    assert "already complete" in again.stdout


def test_a_build_that_keeps_nothing_fails_with_the_reasons_and_frees_its_folder(tmp_path):
    root = write_folder(tmp_path / "discs", 6)
    path = tmp_path / "recipe.yaml"
    body = {"name": "discs", "sources": [folder_source(root)], "gates": {"min_pixels": 100_000}}
    path.write_text(yaml.safe_dump(body))
    done = mie("build", path, "-o", tmp_path / "d", "--no-stats")
    assert done.returncode == 1
    assert "no sample was kept" in done.stderr
    assert "6 × area: the region is too small" in done.stderr
    assert "for example discs/" in done.stderr
    assert [p.name for p in (tmp_path / "d").iterdir()] == ["rejected.parquet"]
    path.write_text(yaml.safe_dump({**body, "gates": {}}))
    again = mie("build", path, "-o", tmp_path / "d", "--no-stats")
    assert again.returncode == 0, again.stderr


def test_the_most_frequent_reasons_stand_below_the_counts(tmp_path):
    root = write_folder(tmp_path / "discs", 4)
    for name in ("p00_0000", "p01_0001"):
        (root / "images" / f"{name}.png").write_bytes(b"")
    path = tmp_path / "recipe.yaml"
    path.write_text(yaml.safe_dump({"name": "discs", "sources": [folder_source(root)]}))
    done = mie("build", path, "-o", tmp_path / "d", "--no-stats")
    (why,) = re.findall(r"2 │ image │ (.+?) │ discs/(\S+)", done.stdout)
    assert why[0].startswith("file is empty")
    assert why[1] == "images/p00_0000.png"


def test_sources(tmp_path):
    assert json.loads(mie("sources", "list", "--json").stdout)
    listed = mie("sources", "list", "--modality", "fundus").stdout
    assert "drive_vessel" in listed
    assert "retinal vessels" in listed
    shown = mie("sources", "show", "drive_vessel")
    assert yaml.safe_load(shown.stdout)["modality"] == "fundus"
    missed = mie("sources", "show", "drive_vesel")
    assert missed.returncode == 2
    assert "did you mean 'drive_vessel'?" in missed.stderr
    assert "did you mean 'ultrasound'" in mie("sources", "list", "--modality", "ultrasond").stderr


def test_sources_check(tmp_path):
    write_folder(tmp_path, 3)
    (tmp_path / "masks" / "p00_0000_mask.png").unlink()
    for path in sorted((tmp_path / "images").iterdir()):
        path.rename(path.with_name(path.name.replace("_00", "00")))
    for path in sorted((tmp_path / "masks").iterdir()):
        path.rename(path.with_name(path.name.replace("_00", "00")))
    done = mie("sources", "check", "busi_breast_us", tmp_path, "--json")
    assert done.returncode == 3
    report = json.loads(done.stdout)
    assert report["cases"] == 2
    assert len(report["rejections"]) == 1


def test_doctor():
    found = json.loads(mie("doctor", "--json").stdout)
    assert found["mie"]
    assert "extra models" in found
