"""The report in a real browser, from disk. Skipped where Chromium or Playwright is absent."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine", allow_module_level=True)

SMALLEST = 9.5 * 96 / 72  # pixels of the smallest text of a chart, as test_charts has it
QUIET = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--no-first-run"),
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))
        yield found
        found.close()


@pytest.fixture
def opened(browser: Any, report: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """The page, light or dark; whatever it complains about or asks for elsewhere fails the test."""
    scheme = getattr(request, "param", "light")
    context = browser.new_context(viewport={"width": 1400, "height": 900}, color_scheme=scheme)
    page = context.new_page()
    complaints: list[str] = []
    page.on("console", lambda message: complaints.append(message.text))
    page.on("pageerror", lambda error: complaints.append(str(error)))
    page.on("dialog", lambda dialog: (complaints.append("a dialog"), dialog.dismiss()))
    page.on("requestfailed", lambda asked: complaints.append(f"failed: {asked.url}"))
    page.on("request", lambda asked: asked.url.startswith("file://") or complaints.append(asked.url))
    page.goto((report / "index.html").as_uri())
    yield page
    context.close()
    assert complaints == []


# One promise instead of a polled expression: the page forbids `eval`, which polling goes through.
LOADED = """() => Promise.all([...document.images].filter(image => !image.complete).map(
  image => new Promise(done => { image.onload = image.onerror = done })))"""


def load_everything(page: Any) -> None:
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true })")
    page.evaluate("document.querySelectorAll('img').forEach(image => { image.loading = 'eager' })")
    page.evaluate(LOADED)


def test_opens_from_disk_with_every_picture(opened):
    load_everything(opened)
    broken = opened.evaluate(
        "[...document.images].filter(image => !image.naturalWidth).map(image => image.src)"
    )
    assert broken == []
    assert opened.evaluate("document.images.length") > 50
    assert opened.locator("h1").inner_text() == "Editing results on discs & dots"
    titles = opened.locator("h2").all_inner_texts()
    assert titles[0] == "Leaderboard"
    assert {"By modality", "By target", "Distributions", "Best and worst", "Configuration"} <= set(titles)
    # Its styles and its script pass the policy.
    assert opened.evaluate("getComputedStyle(document.querySelector('nav')).position") == "sticky"
    assert opened.evaluate("document.styleSheets.length") == 1


def test_a_script_inside_the_page_would_not_run(browser, report, tmp_path):
    shutil.copytree(report, tmp_path / "report")
    index = tmp_path / "report" / "index.html"
    body = index.read_text().replace(
        "<main>", "<script>window.ran = 1</script><img src=x onerror='ran=1'><main>"
    )
    index.write_text(body)
    page = browser.new_page()
    page.goto(index.as_uri())
    assert page.evaluate("window.ran") is None
    page.close()


def cut(page: Any) -> float:
    found = page.evaluate("getComputedStyle(document.querySelector('.stage .after')).clipPath")
    return float(found.split("0px ")[-1].strip(")").rstrip("%"))


def test_the_slider_moves_by_keyboard_and_by_mouse(opened):
    slider = opened.locator(".cut").first
    slider.scroll_into_view_if_needed()
    start = cut(opened)
    slider.focus()
    for _ in range(20):
        opened.keyboard.press("ArrowRight")
    assert cut(opened) == start + 20
    opened.keyboard.press("End")
    assert cut(opened) == 100
    assert slider.get_attribute("aria-valuetext") == "100% input, 0% output"
    opened.keyboard.press("Home")
    assert cut(opened) == 0
    outline = opened.evaluate("getComputedStyle(document.querySelector('.compare .stage')).outlineStyle")
    assert outline == "solid"  # the focus can be seen
    box = slider.bounding_box()
    opened.mouse.click(box["x"] + 0.75 * box["width"], box["y"] + box["height"] / 2)
    assert cut(opened) == pytest.approx(75, abs=2)


def test_outline_and_difference_are_switched_on_and_off(opened):
    card = opened.locator(".card:has(.show-outline)").first
    card.scroll_into_view_if_needed()
    for kind in ("outline", "difference"):
        picture = card.locator(f".compare img.{kind}")
        assert not picture.is_visible()
        stage = card.locator(".compare .stage")
        before = stage.screenshot()
        box = card.locator(f".show-{kind}")
        box.focus()
        opened.keyboard.press("Space")
        assert picture.is_visible()
        assert stage.screenshot() != before  # not hidden under the output
        opened.keyboard.press("Space")
        assert not picture.is_visible()
        assert stage.screenshot() == before
    everywhere = opened.locator("input[data-all=outline]")
    everywhere.check()
    assert opened.evaluate("[...document.querySelectorAll('.show-outline')].every(box => box.checked)")
    assert card.locator(".compare img.outline").is_visible()
    everywhere.uncheck()
    assert not card.locator(".compare img.outline").is_visible()


def test_nothing_sticks_out_sideways_and_the_text_of_charts_has_eleven_pixels_or_more(opened):
    load_everything(opened)
    for wanted in (1400, 700, 400):
        opened.set_viewport_size({"width": wanted, "height": 900})
        width = opened.evaluate("document.documentElement.clientWidth")
        assert wanted - 20 <= width <= wanted  # without a scroll bar
        assert opened.evaluate("document.documentElement.scrollWidth") == width
        # What is wider scrolls inside a frame that a keyboard can reach.
        outside = opened.evaluate(
            """width => [...document.querySelectorAll('main *, header *')]
                .filter(e => e.getBoundingClientRect().right > width + 1 && !e.closest('.scroll, pre, svg'))
                .map(e => e.tagName + '.' + e.className)""",
            width,
        )
        assert outside == [], wanted
        drawn = opened.evaluate(
            "[...document.querySelectorAll('.chart img')].map(i => i.getBoundingClientRect().width"
            " / Number(i.getAttribute('width')))"
        )
        assert len(drawn) > 10
        assert min(drawn) * SMALLEST >= 11, wanted


@pytest.mark.parametrize("opened", ["dark"], indirect=True)
def test_dark_pages_have_dark_paper_and_charts_to_match(opened):
    load_everything(opened)
    paper = opened.evaluate("getComputedStyle(document.body).backgroundColor")
    assert all(int(level) < 60 for level in paper.removeprefix("rgb(").rstrip(")").split(","))
    shown = opened.evaluate("document.querySelector('.chart img').currentSrc")
    assert shown.endswith(".dark.svg")


def test_table_headers_stay_in_view(opened):
    head = opened.locator("table.means thead").first
    row = opened.locator("table.means tbody tr").nth(1)
    top = row.bounding_box()["y"]
    opened.evaluate("y => window.scrollTo(0, y)", top - 60)
    opened.wait_for_timeout(50)
    place = head.locator("th").first.bounding_box()
    bar = opened.locator("nav").bounding_box()
    assert place["y"] == pytest.approx(bar["y"] + bar["height"], abs=1)


def test_a_link_opens_what_it_points_to(opened):
    opened.locator("nav a", has_text="Configuration").click()
    assert opened.evaluate("location.hash") == "#configuration"
    fold = opened.locator("#configuration ~ details").first
    fold.locator("summary").focus()
    opened.keyboard.press("Enter")
    assert '"schema_version": 1' in fold.locator("pre").inner_text()
