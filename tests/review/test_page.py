"""The page in a real browser, as a person uses it: four kinds of work, by keyboard alone and by mouse alone."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytest.importorskip("fastapi", reason="needs the extra `review`")
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine", allow_module_level=True)

from mie.review.serve import open_desk
from tests.review.browser import QUIET, Seat, Served, serving


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
