"""The page in a real browser: four kinds of work, by keyboard alone and by mouse alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sqlalchemy import select

from mie.images.png import decode_png
from mie.review.serve import open_desk
from mie.review.tables import masks
from tests.review.browser import QUIET, Seat, Served, serving

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine", allow_module_level=True)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield found
        found.close()


@pytest.fixture
def seats(browser: Any) -> Iterator[Any]:
    """A function that opens a browser of its own for one more person."""
    opened: list[Seat] = []

    def sit(**options: Any) -> Seat:
        opened.append(Seat(browser, **options))
        return opened[-1]

    yield sit
    for seat in opened:
        seat.close()


@pytest.fixture
def served(material: Path, tmp_path: Path) -> Iterator[Served]:
    places = [material / "dataset", material / "model-x", material / "model-y", material / "model-z"]
    desk = open_desk(places, kinds=["inspect", "mask", "rank"], db=str(tmp_path / "r.sqlite"), raters=2)
    with serving(desk) as found:
        yield found


def test_inspect_with_the_keyboard_alone(served, seats):
    seat = seats().join(served)
    page = seat.page
    page.keyboard.press("Tab")  # past the bar
    for _ in range(20):
        if page.evaluate("document.activeElement.getAttribute('href')") == "#/inspect":
            break
        page.keyboard.press("Tab")
    seat.press("Enter")
    first = seat.shown()
    seat.press("a")
    second = seat.shown(first)
    seat.press("r", "3")
    third = seat.shown(second)
    seat.press("4", "5", "m")
    page.keyboard.type("<script>window.ran = 1</script> & <b>bold</b>")
    seat.press("Escape", "f")
    fourth = seat.shown(third)
    seat.saved()
    said = served.answers()
    assert [said[n]["decision"] for n in (first, second, third)] == ["accept", "reject", "flag"]
    assert said[second]["reason"] == "artefact"
    assert said[third]["scores"] == {"accuracy": 4, "preservation": 5}
    assert said[third]["comment"] == "<script>window.ran = 1</script> & <b>bold</b>"
    assert "3 of 24" in page.locator("#bar .count").inner_text()
    # Back to the last one: what was said is there, as text. A second answer replaces it.
    seat.press("ArrowLeft")
    assert seat.shown(fourth) == third
    assert page.locator("textarea").input_value() == said[third]["comment"]
    assert page.evaluate("window.ran") is None
    seat.press("a")
    assert seat.shown(third) == fourth
    # And the one before it is taken back: it is to be answered again.
    seat.press("ArrowLeft", "ArrowLeft")
    page.wait_for_function(f"() => document.querySelector('.work').dataset.shown == {second}")
    seat.press("u")
    page.get_by_text("Taken back").wait_for()
    seat.saved()
    assert {n: a["decision"] for n, a in served.answers().items()} == {first: "accept", third: "accept"}
    seat.press("?")
    assert page.locator("dialog.keys").get_by_text("Flag: somebody else should look").is_visible()
    seat.press("Escape")


def test_inspect_with_the_mouse_alone(served, seats):
    seat = seats().join(served)
    page = seat.page
    page.locator(".card", has_text="Inspect").get_by_role("link").click()
    first = seat.shown()
    page.get_by_role("button", name="Accept").click()
    second = seat.shown(first)
    page.get_by_role("button", name="Reject").click()
    page.get_by_role("button", name="wrong region").click()
    third = seat.shown(second)
    page.get_by_text("Scores (optional)").click()
    page.get_by_role("group", name="quality").get_by_label("2").click()
    page.get_by_role("button", name="Flag").click()
    fourth = seat.shown(third)
    seat.saved()
    page.get_by_role("button", name="Previous").click()
    assert seat.shown(fourth) == third
    page.get_by_role("button", name="Undo").click()
    seat.saved()
    said = served.answers()
    assert said[first]["decision"] == "accept"
    assert (said[second]["decision"], said[second]["reason"]) == ("reject", "wrong region")
    assert third not in said
    # What was taken back is still filled in.
    assert page.get_by_role("group", name="quality").get_by_label("2").is_checked()


def test_rank_with_the_keyboard_alone(served, seats):
    seat = seats().join(served)
    page = seat.page
    page.goto(f"{served.url}/#/rank")
    first = seat.shown()
    captions = page.locator(".stage figcaption").all_inner_texts()
    assert captions == ["Input", "Reference", "A", "B", "C"]
    assert "model-" not in page.content()  # nobody's name
    seat.press("c", "a", "Shift+B")  # accuracy: C > A = B
    seat.press("k")  # preservation: the same
    seat.press("b", "Backspace", "a", "b", "=", "c")  # quality: A > B = C
    seat.press("Enter")
    second = seat.shown(first)
    seat.saved()
    said = served.answers()[first]
    run = said["labels"]
    tied = lambda *labels: sorted(run[label] for label in labels)
    assert [sorted(g) for g in said["rankings"]["accuracy"]] == [tied("C"), tied("A", "B")]
    assert said["rankings"]["preservation"] == said["rankings"]["accuracy"]
    assert [sorted(g) for g in said["rankings"]["quality"]] == [tied("A"), tied("B", "C")]
    # A chip that has the focus moves with the arrows: into a tie, and out of it.
    seat.press("a", "b", "c")
    line = page.locator("[data-criterion=accuracy] .line")
    line.get_by_role("button", name="C, rank 3").focus()
    seat.press("ArrowLeft")
    assert "".join(line.inner_text().split()) == "bestA›B=C"
    seat.press("ArrowLeft", "ArrowLeft")
    assert "".join(line.inner_text().split()) == "bestA=C›B"
    page.reload()
    assert seat.shown() == second
    assert "".join(line.inner_text().split()) == "bestA=C›B"  # begun before the reload


def drag(page: Any, source: Any, target: Any) -> None:
    start, end = source.bounding_box(), target.bounding_box()
    page.mouse.move(start["x"] + start["width"] / 2, start["y"] + start["height"] / 2)
    page.mouse.down()
    page.mouse.move(end["x"] + end["width"] / 2, end["y"] + end["height"] / 2, steps=4)
    page.mouse.up()


def test_rank_with_the_mouse_alone(served, seats):
    seat = seats().join(served)
    page = seat.page
    page.locator(".card", has_text="Rank").get_by_role("link").click()
    first = seat.shown()
    box = page.locator("[data-criterion=accuracy]")
    for label in "ABC":
        box.locator(".tray").get_by_text(label, exact=True).click()
    chip = lambda label: box.locator(f".line [data-label={label}]")
    drag(page, chip("C"), box.locator("[data-gap='0']"))  # C > A > B
    drag(page, chip("B"), chip("A"))  # C > A = B
    assert "".join(box.locator(".line").inner_text().split()) == "bestC›A=B"
    box = page.locator("[data-criterion=preservation]")
    box.get_by_role("button", name="as accuracy").click()
    chip("C").click()  # out again
    drag(page, box.locator(".tray [data-label=C]"), box.locator(".gap").last)  # A = B > C
    page.locator("[data-criterion=quality]").get_by_role("button", name="as preservation").click()
    page.get_by_role("button", name="Save").click()
    seat.shown(first)
    seat.saved()
    said = served.answers()[first]
    run = said["labels"]
    assert said["rankings"]["accuracy"] == [[run["C"]], sorted([run["A"], run["B"]])]
    assert said["rankings"]["preservation"] == [sorted([run["A"], run["B"]]), [run["C"]]]
    assert said["rankings"]["quality"] == said["rankings"]["preservation"]


def uploaded(served: Served, item: int) -> Any:
    """The repaired mask as the server keeps it, (H, W) uint8."""
    with served.desk.database.read() as connection:
        sha256 = served.answers()[item]["mask"]
        png = connection.scalar(select(masks.c.png).where(masks.c.sha256 == sha256))
    return decode_png(png)


def test_choose_and_repair_a_mask(served, seats):
    seat = seats().join(served)
    page = seat.page
    page.goto(f"{served.url}/#/mask")
    first = seat.shown()
    seat.press("2", "Enter")
    second = seat.shown(first)
    page.get_by_label("None is right").click()
    page.get_by_role("button", name="Save").click()
    third = seat.shown(second)
    page.get_by_role("radio", name="the data set").click()
    page.get_by_role("button", name="Repair").click()
    page.wait_for_function("() => document.querySelector('[data-pane=repair]')")
    canvas = page.locator(".stage canvas")
    box = canvas.bounding_box()
    height, width = 160, 160
    scale = min(box["width"] / width, box["height"] / height)
    at = lambda x, y: (
        box["x"] + box["width"] / 2 + (x - width / 2) * scale,
        box["y"] + box["height"] / 2 + (y - height / 2) * scale,
    )

    def stroke(*points: tuple[float, float]) -> None:
        page.mouse.move(*at(*points[0]))
        page.mouse.down()
        for point in points[1:]:
            page.mouse.move(*at(*point), steps=3)
        page.mouse.up()

    page.locator("#brush-size").fill("7")
    stroke((10, 150), (120, 150))
    stroke((10, 5), (40, 5))
    page.get_by_role("button", name="Undo stroke").click()
    page.get_by_label("Eraser").click()
    stroke((30, 140), (30, 158))
    page.reload()  # what was painted is still there
    assert seat.shown() == third
    page.wait_for_function("() => document.querySelector('[data-pane=repair]')")
    page.get_by_role("button", name="Save").click()
    seat.shown(third)
    seat.saved()
    said = served.answers()
    assert [said[n]["choice"] for n in (first, second, third)] == ["eroded", "none", "repaired"]
    mask = uploaded(served, third)
    source = page.request.get(served.url + json_of(page, served, third)["proposals"][0]["image"])
    before = decode_png(source.body())
    assert mask.shape == before.shape == (height, width)
    yy, xx = np.mgrid[:height, :width] + 0.5
    line = (np.abs(yy - 150) < 3) & (xx > 10) & (xx < 120) & (np.abs(xx - 30) > 4.5)
    erased = (np.abs(xx - 30) < 3) & (yy > 140) & (yy < 158)
    near = (np.abs(yy - 150) < 15) & (xx < 130)
    assert (mask[line] == 255).all()
    assert (mask[erased] == 0).all()
    assert np.array_equal(mask[~near], before[~near])  # and the stroke that was undone left nothing


def json_of(page: Any, served: Served, item: int) -> Any:
    return page.request.get(f"{served.url}/api/items/{item}").json()
