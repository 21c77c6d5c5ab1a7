"""Two small datasets of real pixels: regions to paint, and pairs made by physics or given."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import cv2
import numpy as np
import pytest

from mie.datasets.build import build
from mie.datasets.recipe import parse_recipe
from mie.datasets.write import write_dataset
from mie.perspectives.perception.samples import Perception
from mie.records import Sample
from tests.conftest import crop, folder_source, grainy, make_case, write_folder

TERMS = {"name": "CC0-1.0", "use": "open", "basis": "stated"}


def write_samples(samples: list[Sample], folder: Path, recipe: dict | None = None) -> Path:
    write_dataset(
        samples,
        folder,
        name=folder.name,
        description="For a test.",
        recipe=recipe or {"name": folder.name},
        licenses={"test": TERMS},
        deidentified=True,
    )
    return folder


def painted(cases: range, classes: int = 3, split: str = "train", **changes) -> list[Sample]:
    """Perception samples of real crops, one patient per case."""
    made: list[Sample] = []
    for number in cases:
        case = make_case(number, classes, patient_id=f"test/p{number}", **changes)
        made += [s for s in Perception().samples(case, split, 3) if isinstance(s, Sample)]
    return made


@pytest.fixture(scope="session")
def overlays(tmp_path_factory) -> Path:
    """40 images with three regions each, in the train split; 2 more for testing."""
    samples = painted(range(40)) + painted(range(40, 42), split="test")
    targets = [("optic disc", False), ("hard exudates", True), ("cup", False)]
    entry = {"name": "test", "targets": [{"name": n, "plural": p} for n, p in targets], "pairing": None}
    recipe = {"name": "overlays", "sources": [{"entry": entry}]}
    return write_samples(samples, tmp_path_factory.mktemp("data") / "overlays", recipe)


@pytest.fixture(scope="session")
def pairs(tmp_path_factory) -> Path:
    """MRI by physics, CT with a known range by physics, and given T1 and T2 pairs; built as users build."""
    root = tmp_path_factory.mktemp("sources")
    for name, first in (("mri", 100), ("ct", 200), ("T1", 300), ("T2", 300)):
        write_folder(root / name, 6, size=300)
        for n, path in enumerate(sorted((root / name / "images").iterdir())):
            grey = cv2.GaussianBlur(crop(first + 4 * n, 300, 300)[..., 1], (0, 0), 1.5)
            if name == "mri":
                grey = grainy(grey, n)
            cv2.imwrite(str(path), 255 - grey if name == "T2" else grey)
    sources = []
    for name, modality, anatomy in (("mri", "MRI", "brain"), ("ct", "CT", "chest")):
        source = folder_source(root / name, name=name, modality=modality, anatomy=anatomy, targets=[])
        source["layout"] = {"kind": "folder", "images": "images/{patient}_{id}.png"}
        sources.append(source)
    sources[1]["hu_range"] = [-160, 240]
    given = folder_source(root, name="given", modality="MRI", anatomy="brain", targets=[])
    given["layout"] = {
        "kind": "paired",
        "images": "T1/images/{patient}_{id}.png",
        "pair": "T2/images/{patient}_{id}.png",
    }
    given["pairing"] = {"target": "mri_sequence", "image": "T1", "pair": "T2", "directions": "both"}
    targets = ["mri_noise", "mri_undersampling", "mri_bias_field", "super_resolution", "low_dose_ct_soft"]
    body = {
        "name": "pairs",
        "recipe": {"kind": "transformation", "targets": [*targets, "mri_sequence"]},
        "split": {"test": 0.0},
        "sources": [*sources, given],
    }
    folder = root / "built"
    build(parse_recipe(body, where="t", base=root), folder, workers=1)
    return folder


@pytest.fixture(scope="session")
def imported(tmp_path_factory) -> Path:
    """Samples of another tool: prompts in nobody's phrasing, nothing known of the targets."""
    samples = [
        replace(s, id=f"x{s.id}", prompt=f"do it to the {s.target}", prompt_template="do it")
        for s in painted(range(60, 62))
    ]
    return write_samples(samples, tmp_path_factory.mktemp("data") / "imported")


@pytest.fixture(scope="session")
def pack(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny pack of the compact editor."""
    from tests.training.compact_tiny import write_tiny_pack

    return write_tiny_pack(tmp_path_factory.mktemp("compact") / "pack")


@pytest.fixture(scope="session")
def whole(pack: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny compact editor, trained without an interruption."""
    from tests.training.compact_tiny import train_tiny

    out = tmp_path_factory.mktemp("whole") / "out"
    done = train_tiny(pack, out)
    assert done.returncode == 0, done.stderr
    return out


@pytest.fixture(scope="session")
def restoring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same of all three perspectives with a restoration network; beside its pack."""
    from mie.training.pack import write_pack
    from tests.training.compact_tiny import RESTORATION, changed_pack, train_tiny

    folder = tmp_path_factory.mktemp("restoring")
    write_pack(folder / "pack", changed_pack())
    done = train_tiny(folder / "pack", folder / "out", changes=RESTORATION)
    assert done.returncode == 0, done.stderr
    return folder / "out"


def same(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and a.dtype == b.dtype and bool((a == b).all())
