"""Volumes in the review and in the report: one item, all its slices, moved through together."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mie
from mie.datasets.dataset import Dataset
from mie.images.png import decode_png
from mie.review.apply import Decisions, _reject_whole_volumes
from mie.review.service import open_review
from tests.datasets.test_whole_volumes import AFFINE, recipe, volume

nib = pytest.importorskip("nibabel")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
from tests.review.browser import QUIET, Seat, Served, serving  # noqa: E402

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """DIR/ds of two volumes of one organ, and scored runs DIR/best and DIR/otsu."""
    folder = tmp_path_factory.mktemp("shown")
    for name in ("img", "lab"):
        (folder / name).mkdir()
    for number in (1, 2):
        data, labels = volume(number)
        for name, values in (("img", data), ("lab", (labels == 1).astype(np.uint8))):
            nib.save(nib.Nifti1Image(values, AFFINE), folder / name / f"p{number}.nii.gz")
    body = recipe(folder)
    body["sources"][0]["targets"] = body["sources"][0]["targets"][:1]
    dataset = mie.build(body, folder / "ds", workers=1)
    for name, editor in (("best", "oracle"), ("otsu", "otsu")):
        mie.score(mie.run(dataset, editor, folder / name), "volume")
    return folder


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield found
        found.close()


@pytest.fixture
def served(made: Path, tmp_path: Path) -> Iterator[Served]:
    places = [made / "ds", made / "best", made / "otsu"]
    service = open_review(places, kinds=["inspect", "rank"], db=str(tmp_path / "r.sqlite"))
    with serving(service) as found:
        yield found


def grey(page: Any, canvas: str) -> list[int]:
    """A few pixels of a canvas."""
    return page.evaluate(
        f"() => [...document.querySelectorAll({canvas!r})].map((c) => {{"
        "const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;"
        "let sum = 0; for (let i = 0; i < d.length; i += 4) sum = (sum * 31 + d[i] + d[i + 1]) % 1000003;"
        "return sum; })"
    )


@pytest.mark.browser
def test_review_moves_through_the_slices(served: Served, browser: Any) -> None:
    seat = Seat(browser).join(served)
    page = seat.page
    page.goto(f"{served.url}/#/inspect")
    seat.shown()
    page.wait_for_selector(".slices[data-loaded=true]")
    assert page.locator(".slices output").inner_text() == "4 of 13"  # the first with all of the organ
    before = grey(page, ".stage canvas")
    page.keyboard.press("ArrowDown")
    page.wait_for_selector(".slices[data-at='4']")
    page.wait_for_timeout(80)
    assert page.locator(".slices output").inner_text() == "5 of 13"
    after = grey(page, ".stage canvas")
    assert all(a != b for a, b in zip(before, after, strict=True))  # input and reference
    page.keyboard.press("End")
    page.wait_for_selector(".slices[data-at='12']")
    page.locator(".stage canvas").first.hover()
    page.mouse.wheel(0, -120)
    page.wait_for_selector(".slices[data-at='10']")
    seat.press("a")  # keys of the work go on working
    seat.saved()
    # What the test itself asks of a canvas is no complaint about the page.
    seat.complaints[:] = [said for said in seat.complaints if "willReadFrequently" not in said]
    seat.close()


def test_a_volume_is_one_item_and_its_slices_are_blind(served: Served, made: Path) -> None:
    service = served.service
    stacks = service.material.volumes
    assert len(stacks) == 26
    with service.database.read() as connection:
        from sqlalchemy import select

        from mie.review.database import items, tasks

        rows = connection.execute(select(items).join(tasks, tasks.c.id == items.c.task_id)).all()
        kinds = {task.id: task.kind for task in connection.execute(select(tasks))}
    assert len(rows) == 4  # two volumes, inspected and ranked
    by_id = {sample.id: sample for sample in Dataset(made / "ds")}
    for row in rows:
        kind = kinds[row.task_id]
        stack = stacks[tuple(row.places[0])].slices
        png = service.images.png(kind, row, "slice9-input", None)
        shown = decode_png(png)
        assert (shown.reshape(*shown.shape[:2], -1)[..., 0] == by_id[stack[9][1]].input[..., 0]).all()
        if kind == "rank":
            names = [f"slice3-output-{service.images.token(row.id, run)}" for run, _, _ in row.outputs]
            outputs = [decode_png(service.images.png(kind, row, name, None)) for name in names]
            target = by_id[stack[3][1]].target_image
            assert sum(bool((o == target).all()) for o in outputs if o.shape == target.shape) >= 1
        for wrong in ("slice99-input", "slice3-output-best", "slice1-upload-x"):
            with pytest.raises(Exception, match="no such image"):
                service.images.png(kind, row, wrong, None)


def test_a_rejected_slice_takes_its_volume_along(made: Path) -> None:
    dataset = Dataset(made / "ds")
    first = next(iter(dataset))
    found = Decisions(rejected={first.id: "flickers"})
    _reject_whole_volumes(dataset, found)
    volume_ = first.params["volume"]["id"]
    assert set(found.rejected) == {s.id for s in dataset if s.params["volume"]["id"] == volume_}


@pytest.mark.browser
def test_report_moves_through_the_slices(made: Path, browser: Any, tmp_path: Path) -> None:
    index = mie.report([made / "otsu", made / "best"], tmp_path / "report")
    page = browser.new_page(viewport={"width": 400, "height": 900})
    complaints: list[str] = []
    page.on("console", lambda m: complaints.append(m.text) if m.type != "info" else None)
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.goto(index.as_uri())
    page.wait_for_selector(".volume[data-loaded=true]")
    assert page.locator(".volume").first.locator("canvas").count() == 4  # input, reference, two runs
    place = page.locator(".volume output").first
    start = place.inner_text()
    page.locator(".volume").first.focus()
    page.keyboard.press("ArrowDown")
    moved = place.inner_text()
    assert moved != start
    page.keyboard.press("Home")
    assert place.inner_text().startswith("1 of 13")
    page.locator(".volume .panes").first.hover()
    page.mouse.wheel(0, 120)
    page.wait_for_function("() => document.querySelector('.volume output').textContent.startsWith('4 of 13')")
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert complaints == []
    page.close()
