"""Real pixels for tests: crops of the medical images that ship inside scikit-image, with drawn regions."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import skimage
from hypothesis import settings

from mie.records import Case, Target
from tests import forked_python

# Machines differ and are shared: no test may fail for being slow.
settings.register_profile("mie", deadline=None)
settings.load_profile("mie")


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection() -> Iterator[None]:
    """Keep the garbage collector from walking, again and again, over what is imported here and stays.

    It took half of the time of the collection, and a second at each full round in the tests after it.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark what drives a browser or a PostgreSQL server, so that `-m "not browser"` leaves it out.

    In several processes, the longest groups begin first, then others with slow tests, so that none is left
    alone with one at the end.
    """
    slow: dict[str, None] = dict.fromkeys(_LONGEST)
    for item in items:
        names = getattr(item, "fixturenames", ())
        if "browser" in names or item.path.name == "test_walk.py":
            item.add_marker("browser")
        if "[postgresql" in item.name or "postgres" in names:
            item.add_marker("postgres")
        if item.get_closest_marker("slow"):
            slow[_group(item.nodeid)] = None
    if hasattr(config, "workerinput"):
        order = {group: at for at, group in enumerate(slow)}
        items.sort(key=lambda item: order.get(_group(item.nodeid), len(order)))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: object) -> object:
    """Run the tests that share a fixture in one process, which makes it once.

    xdist's own `loadgroup` writes the group into an attribute that pytest no longer reads (9.2).
    """
    from xdist.scheduler import LoadScopeScheduling

    class ByGroup(LoadScopeScheduling):
        def _split_scope(self, nodeid: str) -> str:
            return _group(nodeid)

    return ByGroup(config, log)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """Start one server of forked processes for all of xdist's own."""
    node.workerinput["forked_python"] = str(forked_python.start())


def pytest_configure(config: pytest.Config) -> None:
    if hasattr(config, "workerinput"):
        forked_python.share(config.workerinput["forked_python"])


# Folders whose files share a fixture that takes long to make, and files there that take longer than it.
_SHARING = ("tests/training", "tests/report", "tests/editors/large", "tests/review")
_ALONE = (
    "tests/review/test_page.py",
    "tests/review/test_walk.py",
    "tests/training/test_omnigen2.py",
    "tests/training/test_compact.py",
)
# As measured, the longest first; the others take less than half a minute.
_LONGEST = (
    "tests/docs/test_examples.py::test_the_examples_run[docs/how-to/demo.md]",
    "tests/review/test_page.py",
    "tests/report",
    "tests/training",
    "tests/review",
    "tests/editors/large",
    "tests/test_ray.py",
    "tests/docs/test_examples.py",
    "tests/review/test_walk.py",
    "tests/datasets/test_build.py",
    "tests/docs/test_examples.py::test_the_examples_run[docs/reference/tables.md]",
    "tests/datasets/test_build_modification.py",
    "tests/test_kills.py",
    "tests/scoring/benchmarks/omni_iie/test_score.py",
    "tests/docs/test_examples.py::test_the_examples_run[docs/explanation/transformation.md]",
    "tests/editors/test_killed.py",
    "tests/editors/compact/test_onnx.py",
    "tests/test_old_folders.py",
    "tests/docs/test_examples.py::test_the_examples_run[README.md]",
    "tests/training/test_compact.py",
    "tests/training/test_omnigen2.py",
)


def _group(nodeid: str) -> str:
    """The file, or the folder where files share much. Each page of the documentation stands alone."""
    path, _, test = nodeid.partition("::")
    if path == "tests/docs/test_examples.py" and test.startswith("test_the_examples_run["):
        return nodeid
    if path in _ALONE:
        return path
    return next((folder for folder in _SHARING if path.startswith(f"{folder}/")), path)


@pytest.fixture(scope="session", autouse=True)
def one_process() -> Iterator[None]:
    """Work is shared among processes only where a test asks for several: tests already run side by side."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mie.datasets.engine.cores", lambda: 1)
        yield


ROOT = Path(__file__).parents[1]
SHIPPED = Path(skimage.__file__).parent / "data"


@lru_cache
def shipped(name: str) -> np.ndarray:
    """An image inside the scikit-image wheel, as RGB."""
    return cv2.cvtColor(cv2.imread(str(SHIPPED / name), cv2.IMREAD_COLOR), cv2.COLOR_BGR2RGB)


def crop(number: int, height: int = 160, width: int = 160) -> np.ndarray:
    """One of many different real crops."""
    picture = shipped(("retina.jpg", "ihc.png", "microaneurysms.png", "cell.png")[number % 4])
    draw = np.random.default_rng(number)
    if picture.shape[0] <= height or picture.shape[1] <= width:
        picture = cv2.resize(picture, (2 * width, 2 * height), interpolation=cv2.INTER_AREA)
    y = int(draw.integers(0, picture.shape[0] - height))
    x = int(draw.integers(0, picture.shape[1] - width))
    return np.ascontiguousarray(picture[y : y + height, x : x + width])


def grainy(grey: np.ndarray, seed: int) -> np.ndarray:
    """`(H, W)` with detail up to the last frequency: an MR slice at the size it was acquired at."""
    grain = np.random.default_rng(seed).normal(0, 8, grey.shape)
    return np.clip(np.rint(grey + grain), 0, 255).astype(np.uint8)


def ellipse(number: int, height: int = 160, width: int = 160) -> np.ndarray:
    """A boolean region that differs from number to number and is not symmetric in the image."""
    draw = np.random.default_rng(1000 + number)
    canvas = np.zeros((height, width), np.uint8)
    centre = (int(draw.integers(width // 4, width // 2)), int(draw.integers(height // 4, height // 2)))
    axes = (int(draw.integers(width // 10, width // 5)), int(draw.integers(height // 8, height // 4)))
    cv2.ellipse(canvas, centre, axes, float(draw.integers(0, 180)), 0, 360, 1, -1)
    return canvas.astype(bool)


def make_case(number: int = 0, n_targets: int = 1, **changes: object) -> Case:
    names = [
        Target("optic disc", "anatomy"),
        Target("hard exudates", "lesion", True),
        Target("cup", "anatomy"),
    ]
    masks = {t.name: ellipse(number * 7 + k) for k, t in enumerate(names[:n_targets])}
    body: dict = {
        "source": "test",
        "case_id": f"case-{number}",
        "image": crop(number),
        "modality": "fundus",
        "anatomy": "retina",
        "masks": masks,
        "targets": {t.name: t for t in names},
        "license": "CC0-1.0",
    }
    return Case(**{**body, **changes})


def write_folder(root: Path, count: int, *, patients: int | None = None, size: int = 160) -> Path:
    """A folder data set: images/p03_0007.png with masks/p03_0007_mask.png."""
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True, exist_ok=True)
    for n in range(count):
        stem = f"p{n % (patients or count):02d}_{n:04d}"
        cv2.imwrite(str(root / "images" / f"{stem}.png"), crop(n, size, size)[..., ::-1])
        cv2.imwrite(str(root / "masks" / f"{stem}_mask.png"), ellipse(n, size, size).astype(np.uint8) * 255)
    return root


def folder_source(root: Path, **changes: object) -> dict:
    """The recipe's source item for `write_folder`."""
    return {
        "name": "discs",
        "root": str(root),
        "title": "Discs drawn for a test",
        "modality": "fundus",
        "anatomy": "retina",
        "license": {"name": "CC0-1.0", "use": "open"},
        "layout": {
            "kind": "folder",
            "images": "images/{patient}_{id}.png",
            "masks": "masks/{patient}_{id}_mask.png",
        },
        "targets": [{"name": "optic disc", "kind": "anatomy", "value": 255}],
        **changes,
    }


@pytest.fixture
def folder_data(tmp_path: Path) -> Path:
    return write_folder(tmp_path / "discs", 12, patients=4)
