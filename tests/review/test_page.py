"""The page in a real browser: four kinds of work, by keyboard alone and by mouse alone."""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
from sqlalchemy import select

from mie.datasets.dataset import Dataset
from mie.datasets.write import write_dataset
from mie.editors.run import run_editor
from mie.images.png import decode_png, encode_png
from mie.review.api import ApiError
from mie.review.auth import create_invite
from mie.review.database import Database, answers, consensus, events, masks
from mie.review.service import open_review
from tests.review.browser import QUIET, Seat, Served, serving
from tests.review.test_server import running
from tests.scoring.benchmarks.runs import modification, write_samples

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
    service = open_review(places, kinds=["inspect", "mask", "rank"], db=str(tmp_path / "r.sqlite"), raters=2)
    with serving(service) as found:
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
    page.get_by_text("Undone").wait_for()
    seat.saved()
    assert {n: a["decision"] for n, a in served.answers().items()} == {first: "accept", third: "accept"}
    seat.press("?")
    assert page.locator("dialog.keys").get_by_text("Flag: ask for a second opinion").is_visible()
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


def test_what_was_taken_back_stays_when_older_news_of_the_server_arrives(served, seats):
    seat = seats().join(served)
    page = seat.page
    page.locator(".card", has_text="Inspect").get_by_role("link").click()
    first = seat.shown()
    late: list[Any] = []
    page.route("**/api/tasks/inspect/next", lambda route: late.append((route, route.fetch())), times=1)
    page.get_by_role("button", name="Flag").click()
    second = seat.shown(first)
    seat.saved()
    for _ in range(500):
        if late:
            break
        page.wait_for_timeout(20)
    route, response = late[0]  # the server has said what comes next; it has not arrived yet
    page.get_by_role("button", name="Undo").click()
    assert seat.shown(second) == first
    seat.saved()
    with page.expect_response("**/api/tasks/inspect/next"):
        route.fulfill(response=response)
    assert first not in {item["id"] for item in response.json()["items"]}
    page.evaluate("fetch('/static/icon.svg').then((later) => later.text())")  # it has been read by now
    assert seat.shown() == first
    assert "0 of 24" in page.locator("#bar .count").inner_text()
    page.get_by_role("button", name="Accept").click()
    assert seat.shown(first) == second
    seat.saved()
    assert {n: a["decision"] for n, a in served.answers().items()} == {first: "accept"}


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
    with served.service.database.read() as connection:
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
    before = next(
        s.mask
        for s in served.service.material.dataset.samples()
        if s.id == json_of(page, served, third)["sample_id"]
    )
    (source,) = (
        label for label, mask in proposed(page, served, third).items() if np.array_equal(mask, before)
    )
    page.get_by_role("radio", name=f"Mask {source}").click()
    page.get_by_role("button", name="Repair").click()
    page.wait_for_function("() => document.querySelector('[data-pane=repair]')")
    canvas = page.locator(".stage canvas")
    box = canvas.bounding_box()
    width, height = json_of(page, served, third)["size"]
    assert (width, height) == (128, 128)
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
    stroke((10, 118), (100, 118))
    stroke((10, 5), (40, 5))
    page.get_by_role("button", name="Undo stroke").click()
    page.get_by_label("Eraser").click()
    stroke((30, 108), (30, 126))
    page.reload()  # what was painted is still there
    assert seat.shown() == third
    page.wait_for_function("() => document.querySelector('[data-pane=repair]')")
    page.get_by_role("button", name="Save").click()
    seat.shown(third)
    seat.saved()
    said = served.answers()
    assert said[first]["choice"] == said[first]["labels"]["B"]  # the second one, under its own name
    assert {"source", "eroded", "dilated"} == set(said[first]["labels"].values())
    assert [said[n]["choice"] for n in (second, third)] == ["none", "repaired"]
    mask = uploaded(served, third)
    assert mask.shape == before.shape == (height, width)
    yy, xx = np.mgrid[:height, :width] + 0.5
    line = (np.abs(yy - 118) < 3) & (xx > 10) & (xx < 100) & (np.abs(xx - 30) > 4.5)
    erased = (np.abs(xx - 30) < 3) & (yy > 108) & (yy < 126)
    near = (np.abs(yy - 118) < 15) & (xx < 110)
    assert (mask[line] == 255).all()
    assert (mask[erased] == 0).all()
    assert np.array_equal(mask[~near], before[~near])  # and the stroke that was undone left nothing


def test_choose_and_repair_a_region_that_a_model_proposed(tmp_path, seats):
    dataset = write_samples([modification("aa", 1), modification("bb", 2)], tmp_path / "dataset")
    folder = tmp_path / "regions"
    folder.mkdir()
    masks_ = np.zeros((2, 40, 48), np.uint8)
    masks_[0, 5:20, 5:20] = masks_[1, 20:35, 20:40] = 255
    for name in ("aa", "bb"):
        for number, mask in enumerate(masks_):
            (folder / f"{name}_{number}.png").write_bytes(encode_png(mask))
    line = {"name": "x", "regions": ["0", "1"], "proposals": []}
    text = "".join(json.dumps({"id": name, **line}) + "\n" for name in ("aa", "bb"))
    (folder / "proposals.jsonl").write_text(text)
    place = str(tmp_path / "r.sqlite")
    with serving(open_review([dataset.folder], kinds=["mask"], db=place, proposals=folder)) as served:
        seat = seats().join(served)
        page = seat.page
        page.goto(f"{served.url}/#/mask")
        first = seat.shown()
        captions = page.locator(".stage figcaption").all_inner_texts()
        assert captions == ["Mask A", "Mask B"]
        chosen = proposed(page, served, first)["B"]
        seat.press("2", "Enter")
        page.get_by_text("Saved: mask B").wait_for()
        second = seat.shown(first)
        base = proposed(page, served, second)["A"]
        rows, columns = np.nonzero(base)
        x, y = columns.min() + 3, rows.min() + 3
        seat.press("1", "e")  # erase a corner of the first
        page.wait_for_function("() => document.querySelector('[data-pane=repair]')")
        box = page.locator(".stage canvas").bounding_box()
        scale = min(box["width"] / 48, box["height"] / 40)
        middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(middle[0] + (x - 24) * scale, middle[1] + (y - 20) * scale)
        page.mouse.down()
        page.mouse.move(middle[0] + (x + 4 - 24) * scale, middle[1] + (y + 4 - 20) * scale, steps=3)
        page.mouse.up()
        seat.press("Enter")
        page.get_by_role("heading", name="Nothing left for you here").wait_for()
        seat.saved()
        (number,) = (n for n, mask in enumerate(masks_, start=1) if np.array_equal(mask, chosen))
        assert served.answers()[first]["choice"] == f"region-{number}"
        mask = uploaded(served, second)
        assert 0 < (mask > 0).sum() < (base > 0).sum()
        assert not (mask & ~base).any()


def json_of(page: Any, served: Served, item: int) -> Any:
    return page.request.get(f"{served.url}/api/items/{item}").json()


def proposed(page: Any, served: Served, item: int) -> dict[str, np.ndarray]:
    """Label -> the mask that this person sees under it."""
    found = json_of(page, served, item)["proposals"]
    return {one["id"]: decode_png(page.request.get(served.url + one["image"]).body()) for one in found}


@pytest.fixture
def dialogue(material: Path, tmp_path: Path) -> Iterator[Served]:
    """Questions on two dialogues of three turns, edited by one run."""
    dataset = Dataset(material / "dataset")
    turns = [replace(s, group=f"g{n // 3}", turn=n % 3) for n, s in enumerate(dataset.samples()) if n < 6]
    about = {"name": "turns", "description": "", "recipe": {}, "deidentified": True}
    write_dataset(turns, tmp_path / "turns", licenses=dataset.info["licenses"], **about)
    run_editor(tmp_path / "turns", "identity", tmp_path / "model-q", workers=1)
    service = open_review(
        [tmp_path / "model-q"], kinds=["questions"], db=str(tmp_path / "q.sqlite"), raters=2
    )
    with serving(service) as found:
        yield found


def test_questions_with_keyboard_and_with_mouse(dialogue, seats):
    seat = seats().join(dialogue)
    page = seat.page
    page.goto(f"{dialogue.url}/#/questions")
    first = seat.shown()
    captions = page.locator(".stage figcaption")
    assert captions.all_inner_texts() == ["Start", "After turn 1", "After turn 2", "After turn 3"]
    prompts = [turn["prompt"] for turn in json_of(page, dialogue, first)["turns"]]
    assert all(text in page.locator(".turns").inner_text() for text in prompts)
    check_strip(page, dialogue, first)
    seat.press("ArrowDown", "ArrowDown")
    page.locator("figcaption", has_text="Before turn 2").wait_for()
    assert page.locator(".turns [aria-pressed=true]").inner_text().startswith("Turn 2")
    assert captions.all_inner_texts() == ["Before turn 2", "After turn 2", "Reference"]
    seat.press("y", "n", "Enter")  # the third is open still
    page.get_by_text("Answer every question first").wait_for()
    seat.press("Backspace", "y", "x", "Enter")
    second = seat.shown(first)
    page.get_by_role("button", name="Turn 1").click()
    page.locator("figcaption", has_text="Before turn 1").wait_for()
    for group, value in enumerate(("no", "yes", "not_applicable")):
        page.locator(".panel fieldset").nth(group).locator(f"[value={value}]").click()
    page.get_by_role("button", name="Save").click()
    page.get_by_role("heading", name="Nothing left for you here").wait_for()
    seat.saved()
    assert [dialogue.answers()[n]["answers"] for n in (first, second)] == [
        {"content_memory": "yes", "understanding": "yes", "backtracking": "not_applicable"},
        {"content_memory": "no", "understanding": "yes", "backtracking": "not_applicable"},
    ]


def check_strip(page: Any, served: Served, item: int) -> None:
    """The strip has the first image and, for each turn, truth, output and where these differ."""
    page.wait_for_function("() => document.querySelectorAll('.turns canvas[data-drawn]').length === 3")
    columns = page.locator(".turns li")
    captions = [columns.nth(at).locator("figcaption").all_inner_texts() for at in range(4)]
    assert captions == [["Start"], *[["Truth", "Output", "Difference"]] * 3]
    for at, turn in enumerate(json_of(page, served, item)["turns"], start=1):
        truth, output = (
            decode_png(page.request.get(served.url + turn[name]).body()) for name in ("reference", "output")
        )
        shown = pixels(columns.nth(at).locator("canvas"))
        gap = np.abs(truth.astype(int) - output).max(axis=2)
        assert np.array_equal(shown[..., 0] > 0, gap > 0)  # bright exactly where they differ
        assert gap.any()  # the run left everything as it was


def pixels(canvas: Any) -> np.ndarray:
    data, height, width = canvas.evaluate(
        """c => [[...c.getContext("2d").getImageData(0, 0, c.width, c.height).data], c.height, c.width]"""
    )
    return np.array(data, np.uint8).reshape(height, width, 4)[..., :3]


def test_two_raters_at_once_and_a_reload_in_the_middle(served, seats):
    ada, bob = seats().join(served, "Ada"), seats().join(served, "Bob")
    for seat in (ada, bob):
        seat.page.goto(f"{served.url}/#/inspect")
    seen: dict[Seat, list[int]] = {ada: [], bob: []}
    for turn in range(6):
        for seat, key in ((ada, "a"), (bob, "f")):
            seen[seat].append(seat.shown(seen[seat][-1] if seen[seat] else None))
            seat.press(key)
        if turn == 2:
            now = ada.shown(seen[ada][-1])
            ada.press("m")
            ada.page.keyboard.type("half a sent")
            ada.page.reload()
            assert ada.shown() == now
            assert ada.page.locator("textarea").input_value() == "half a sent"
            ada.press("ArrowLeft")  # what was done before the reload is still behind
            assert ada.shown(now) == seen[ada][-1]
            ada.press("ArrowRight")
            assert ada.shown(seen[ada][-1]) == now
    for seat, name, decision in ((ada, "Ada", "accept"), (bob, "Bob", "flag")):
        seat.saved()
        assert {n: a["decision"] for n, a in served.answers(name).items()} == dict.fromkeys(
            seen[seat], decision
        )
        assert len(set(seen[seat])) == 6
    assert served.answers("Ada")[seen[ada][3]]["comment"] == "half a sent"


# Four samples with three pictures each: the one on the screen and those that come after it.
FETCHED = "() => performance.getEntriesByType('resource').filter(e => /images/.test(e.name)).length >= 12"


def test_the_next_sample_is_there_before_it_is_asked_for(served, seats):
    seat = seats().join(served)
    page = seat.page
    page.goto(f"{served.url}/#/inspect")
    first = seat.shown()
    page.wait_for_function(FETCHED)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    seat.press("a")
    second = seat.shown(first)
    assert not [url for url in asked if f"/items/{second}/images/" in url]


def test_no_answer_is_lost_when_the_server_dies(material, tmp_path, seats):
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    place = tmp_path / "r.sqlite"
    arguments = (material / "dataset", "--kind", "inspect", "--db", place, "--port", port)
    seat = seats()
    page = seat.page
    decided: dict[int, str] = {}

    def decide(key: str, word: str) -> None:
        item = seat.shown(next(reversed(decided)) if decided else None)
        seat.press(key)
        decided[item] = word

    with running(*arguments) as server:
        page.goto(f"{server.url}/#join={server.token}")
        page.get_by_role("link", name="Start").click()
        page.wait_for_function(FETCHED)
        decide("a", "accept")
        seat.saved()
        os.kill(server.process.pid, signal.SIGKILL)
    decide("f", "flag")
    decide("a", "accept")
    page.get_by_text("2 answers not yet saved").wait_for()
    with running(*arguments):  # comes back while the page is open
        seat.saved()
        with page.expect_response("**/next"):  # there is work to go on with
            decide("f", "flag")
        seat.saved()
        seat.shown(next(reversed(decided)))  # its pictures have come too
    decide("f", "flag")
    page.get_by_text("1 answer not yet saved").wait_for()
    page.close()  # and this time the page is gone too
    with running(*arguments) as server:
        page = seat.page = seat.context.new_page()
        page.goto(f"{server.url}/#/inspect")
        seat.shown()
        seat.saved()
        assert "5 of 24" in page.locator("#bar .count").inner_text()
        decide("a", "accept")
        seat.saved()
    database = Database(str(place))
    with database.read() as connection:
        kept = {row.item_id: row.verdict for row in connection.execute(answers.select())}
        told = connection.execute(events.select()).all()
    database.close()
    assert kept == decided
    assert len(told) == 6  # none was counted twice
    assert seat.complaints  # the browser said that the server was away
    seat.complaints.clear()


def test_an_unsent_answer_is_still_there_after_a_reload(served, seats):
    seat = seats().join(served)
    page = seat.page
    page.route("**/answers", lambda route: route.abort())
    page.goto(f"{served.url}/#/inspect")
    first = seat.shown()
    seat.press("a")
    second = seat.shown(first)
    page.reload()
    assert seat.shown() == second
    seat.press("ArrowLeft")
    assert seat.shown(second) == first
    page.get_by_text("Answered 1 of 1: accept").wait_for()
    assert served.answers() == {}
    page.unroute("**/answers")
    seat.saved()
    assert {n: a["decision"] for n, a in served.answers().items()} == {first: "accept"}
    seat.complaints.clear()  # the requests that were cut off


def test_a_repaired_mask_that_the_server_rejects_is_kept_as_a_draft(served, seats, monkeypatch):
    def rejects(*_: object) -> None:
        raise ApiError(422, "invalid", "not today")

    monkeypatch.setattr(served.service, "upload_mask", rejects)
    seat = seats().join(served)
    page = seat.page
    page.goto(f"{served.url}/#/mask")
    first = seat.shown()
    page.get_by_role("button", name="Repair").click()
    page.wait_for_function("() => document.querySelector('[data-pane=repair]')")
    page.get_by_role("button", name="Save").click()
    seat.shown(first)
    page.get_by_text("Your work is kept as a draft").wait_for()
    assert served.answers() == {}
    monkeypatch.undo()
    page.reload()
    assert seat.shown() == first
    page.wait_for_function("() => document.querySelector('[data-pane=repair]')")  # with what was painted
    page.get_by_role("button", name="Save").click()
    seat.saved()
    assert served.answers()[first]["choice"] == "repaired"
    seat.complaints.clear()  # the browser logged the rejection


def test_nothing_is_called_saved_before_the_server_has_it(served, seats):
    seat = seats().join(served)
    page = seat.page
    page.goto(f"{served.url}/#/inspect")
    first = seat.shown()
    page.wait_for_function(FETCHED)
    notice = page.locator("#notice")
    seat.context.set_offline(True)
    seat.press("f")
    second = seat.shown(first)
    notice.get_by_text("Not saved yet: flag").wait_for()
    seat.press("a")
    seat.shown(second)
    notice.get_by_text("Not saved yet: accept").wait_for()
    assert "Saved" not in page.locator("body").inner_text()
    assert served.answers() == {}
    seat.press("u")
    notice.get_by_text("Not undone yet").wait_for()
    seat.context.set_offline(False)
    seat.saved()
    notice.get_by_text("Undone. Answer it again.").wait_for()
    assert {n: a["decision"] for n, a in served.answers().items()} == {first: "flag"}
    seat.press("a")
    notice.get_by_text("Saved: accept").wait_for()
    seat.complaints.clear()  # the browser said that it was offline


def test_sides_slice_and_scale_are_shown_where_they_are_known(served, seats):
    known = {"left": "R", "right": "L", "mm_per_pixel": 0.5, "slice": "axial slice 43"}

    def with_geometry(route: Any) -> None:
        response = route.fetch()
        body = response.json()
        body["items"][0]["geometry"] = known  # 128 px wide: 64 mm
        route.fulfill(response=response, json=body)

    seat = seats().join(served)
    page = seat.page
    page.route("**/api/tasks/inspect/next", with_geometry, times=1)
    page.goto(f"{served.url}/#/inspect")
    first = seat.shown()
    pane = page.locator("[data-pane=input]")
    marks = [pane.locator(f".mark.{name}") for name in ("left", "right", "slice", "scale")]
    assert [mark.inner_text() for mark in marks[:3]] == ["R", "L", "axial slice 43"]
    canvas = pane.locator("canvas").bounding_box()
    side = min(canvas["width"], canvas["height"])  # of the square image, in the middle of the canvas
    middle = canvas["x"] + canvas["width"] / 2
    boxes = [mark.bounding_box() for mark in marks]
    assert boxes[0]["x"] == pytest.approx(middle - side / 2, abs=1)
    assert boxes[1]["x"] + boxes[1]["width"] == pytest.approx(middle + side / 2, abs=1)
    assert marks[3].inner_text() == "20 mm"
    assert boxes[3]["width"] == pytest.approx(20 / 64 * side, abs=1)
    page.mouse.move(middle, canvas["y"] + canvas["height"] / 2)
    page.mouse.wheel(0, -600)
    page.wait_for_function("() => document.querySelector('.readout').textContent.includes('×')")
    zoom = float(page.locator(".readout").inner_text().split("×")[0])
    page.wait_for_function("() => document.querySelector('.mark.scale').textContent !== '20 mm'")
    shown = float(marks[3].inner_text().removesuffix(" mm"))
    assert marks[3].bounding_box()["width"] == pytest.approx(shown / 64 * side * zoom, rel=0.05)
    seat.press("a")
    seat.shown(first)
    assert page.locator(".mark").count() == 0  # a photograph of unknown size and side


def test_an_ended_session_keeps_what_was_not_sent(served, seats):
    seat = seats().join(served)
    page = seat.page
    page.goto(f"{served.url}/#/inspect")
    item = seat.shown()
    page.wait_for_load_state("networkidle")
    seat.context.clear_cookies()
    seat.press("f")
    page.get_by_role("heading", name="Log in").wait_for()
    assert served.answers() == {}
    page.goto("about:blank")
    page.goto(served.link("Ada"))
    page.get_by_role("heading", name="Welcome, Ada").wait_for()
    seat.saved()
    assert served.answers("Ada")[item]["decision"] == "flag"
    seat.complaints.clear()  # 401 twice


def picture(page: Any, pane: str) -> np.ndarray:
    """What a pane shows, (H, W) uint8: its red channel."""
    canvas = f"[data-pane='{pane}'] canvas"
    page.evaluate("() => new Promise(requestAnimationFrame)")
    data = page.evaluate(f'() => document.querySelector("{canvas}").toDataURL()')
    return cv2.imdecode(np.frombuffer(base64.b64decode(data.split(",")[1]), np.uint8), -1)[..., 2]


# The values 0..255 under the window 68..132.
WINDOWED_RAMP = """async () => {
    const pixels = await import('/static/pixels.js')
    const canvas = pixels.canvasOf(256, 1)
    const ramp = new ImageData(256, 1)
    for (let n = 0; n < 256; n++) ramp.data.set([n, n, n, 255], 4 * n)
    canvas.getContext('2d').putImageData(ramp, 0, 0)
    const shown = pixels.pixelsOf(pixels.windowed(canvas, {centre: 100, width: 64}))
    return [...shown.data].filter((_, n) => n % 4 === 0)
}"""


def test_looking(served, seats):
    def grey(route: Any) -> None:
        response = route.fetch()
        body = response.json()
        for item in body["items"]:
            item["grey"] = True
        route.fulfill(response=response, json=body)

    seat = seats().join(served)
    page = seat.page
    page.route("**/api/tasks/inspect/next", grey)
    page.goto(f"{served.url}/#/inspect")
    seat.shown()
    whole = picture(page, "input"), picture(page, "reference")
    box = page.locator("[data-pane=input] canvas").bounding_box()
    page.mouse.move(box["x"] + 100, box["y"] + 200)
    page.mouse.wheel(0, -300)  # over the input
    page.wait_for_function("() => document.querySelector('.readout').textContent.includes('×')")
    near = picture(page, "input"), picture(page, "reference")
    assert all((a != b).any() for a, b in zip(whole, near, strict=True))  # both moved
    unmarked = near[0] == near[1]
    assert unmarked.mean() > 0.5  # to the same place: they differ where the region is marked
    page.mouse.down()
    page.mouse.move(box["x"] + 160, box["y"] + 240, steps=3)
    page.mouse.up()
    assert (picture(page, "reference") != near[1]).any()
    seat.press("0")
    assert (picture(page, "input") == whole[0]).all()
    # Window and level with the right button, against the formula.
    page.mouse.down(button="right")
    page.mouse.move(box["x"] + 60, box["y"] + 170, steps=2)
    page.mouse.up(button="right")
    width, centre = map(int, re.findall(r"W (\d+) L (\d+)", page.locator(".readout").inner_text())[0])
    assert (width, centre) != (255, 128)
    expected = np.clip((np.arange(256) - 68) / 64 * 255, 0, 255)
    assert np.abs(np.array(page.evaluate(WINDOWED_RAMP)) - expected).max() <= 0.5
    seat.press("0", "o")
    outlined = picture(page, "input")
    assert 0 < (outlined != whole[0]).mean() < 0.2
    seat.press("l")  # to the region: its outline is larger now
    assert (picture(page, "input") != outlined).any()
    assert page.locator(".readout").inner_text().endswith("×")
    seat.press("0", "o", "v")
    assert page.get_by_role("radio", name="Slider").is_checked()
    caption = page.locator(".stage figcaption")
    page.get_by_text("left: Input · right: Output").wait_for()
    before = page.evaluate("() => document.querySelector('.stage canvas').toDataURL()")
    page.mouse.move(box["x"] + 2 * box["width"] / 2, box["y"] + 300)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 200, box["y"] + 300, steps=3)
    page.mouse.up()
    assert page.get_by_label("Position of the slider").input_value() != "50"
    page.evaluate("() => new Promise(requestAnimationFrame)")
    assert page.evaluate("() => document.querySelector('.stage canvas').toDataURL()") != before
    seat.press("v")
    page.wait_for_function("() => document.querySelector('.stage figcaption').textContent === 'Output'")
    page.wait_for_function("() => document.querySelector('.stage figcaption').textContent === 'Input'")
    seat.press("v")
    page.wait_for_function(
        "() => /differs by \\d+ of 255/.test(document.querySelector('.stage figcaption').textContent)"
    )
    seat.press("v")
    assert caption.all_inner_texts() == ["Input", "Output"]


def test_an_adjudicator_settles_what_raters_differ_on(served, seats):
    items: list[int] = []
    for name, words in (("Ada", ["accept", "accept"]), ("Bob", ["reject", "accept"])):
        seat = seats().join(served, name)
        seat.page.goto(f"{served.url}/#/inspect")
        for word in words:
            items.append(seat.shown(items[-1] if items else None))
            if word == "accept":
                seat.press("a")
            else:
                seat.press("m")
                seat.page.keyboard.type("<img src=x onerror=alert(1)> left, not right")
                seat.press("Escape", "r", "1")
        seat.saved()
        assert seat.page.get_by_role("link", name="Consensus").count() == 0
        if name == "Ada":
            items.append(0)
    judge = seats().join(served, "Cy", "adjudicator")
    page = judge.page
    page.get_by_role("link", name="Consensus").click()
    item = judge.shown()
    assert item == items[0]
    text = page.locator(".answers").inner_text()
    assert "<img src=x onerror=alert(1)> left, not right" in text
    assert "reject · wrong region" in text
    assert "Ada" not in page.content()
    assert "null" not in page.locator(".panel").inner_text()
    page.locator(".figures").get_by_text("1").first.wait_for()
    page.get_by_role("button", name="Adopt the answer of R02").click()
    page.get_by_text("Settled by R03: reject · wrong region").wait_for()
    judge.saved()
    page.get_by_role("button", name="Accept").click()
    page.get_by_text("Settled by R03: accept").wait_for()
    page.get_by_role("button", name="Undo").click()
    page.get_by_text("Decision undone").wait_for()
    page.get_by_role("button", name="Adopt the answer of R01").click()
    judge.saved()
    with served.service.database.read() as connection:
        (row,) = connection.execute(consensus.select()).all()
    assert (row.item_id, row.payload["decision"]) == (item, "accept")


PAGES = ("", "inspect", "mask", "rank", "consensus/inspect", "people")


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1400, "light")])
def test_every_page_fits_and_has_no_serious_fault(served, seats, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    seat = seats(width=width, color_scheme=scheme, has_touch=width == 400)
    page = seat.page
    page.goto(served.url)
    check(page, axe, "login")
    seat.complaints.clear()  # 401: nobody is here yet
    seat.join(served, "Ada", "admin")
    for name in PAGES:
        page.goto("about:blank")
        page.goto(f"{served.url}/#/{name}")
        if name in ("inspect", "mask", "rank"):
            seat.shown()
        else:
            page.wait_for_load_state("networkidle")
        check(page, axe, name)
        if name == "inspect":
            page.get_by_role("button", name="Reject").click()
            page.get_by_text("Scores (optional)").click(force=True)
            check(page, axe, "inspect, opened")
            seat.press("f")
            seat.press("?")
            check(page, axe, "keys")
        if name == "mask":
            page.get_by_role("button", name="Repair").click()
            page.wait_for_function("() => document.querySelector('[data-pane=repair]')")
            check(page, axe, "repair")


@pytest.mark.parametrize(("width", "scheme"), [(400, "dark"), (1400, "light")])
def test_the_questions_fit_and_have_no_serious_fault(dialogue, seats, width, scheme):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright", reason="axe is not installed").Axe()
    seat = seats(width=width, color_scheme=scheme, has_touch=width == 400).join(dialogue, "Ada", "admin")
    page = seat.page
    page.goto(f"{dialogue.url}/#/questions")
    item = seat.shown()
    check(page, axe, "questions, all turns")
    page.get_by_role("button", name="Turn 2").click()
    page.locator("figcaption", has_text="Before turn 2").wait_for()
    seat.press("y", "n")
    check(page, axe, "questions, one turn")
    seat.press("x", "Enter")
    seat.shown(item)
    seat.saved()
    page.goto(f"{dialogue.url}/#/consensus/questions")
    page.wait_for_load_state("networkidle")
    check(page, axe, "questions, consensus")


def check(page: Any, axe: Any, name: str) -> None:
    found = [v for v in axe.run(page).response["violations"] if v["impact"] in ("serious", "critical")]
    assert [(v["id"], [n["html"] for n in v["nodes"]]) for v in found] == [], name
    sticking = page.evaluate(
        """() => [...document.querySelectorAll('body *')]
            .filter(e => e.getBoundingClientRect().right > innerWidth + 1)
            .filter(e => !e.closest('.scroll, .hidden, .skip'))
            .map(e => e.tagName + '.' + e.className)"""
    )
    assert sticking == [], name
    assert page.evaluate("() => document.documentElement.scrollWidth <= innerWidth"), name


def test_log_out_and_come_back_by_password(served, seats):
    seat = seats()
    page = seat.page
    with served.service.database.write() as connection:
        token = create_invite(connection, name=None, role="rater", days=1)[1]
    page.goto(f"{served.url}/#join={token}")
    page.get_by_label("Name").fill("Dee")
    page.get_by_label("Password").fill("correct horse battery")
    page.get_by_role("button", name="Start").click()
    page.get_by_role("heading", name="Welcome, Dee").wait_for()
    assert token not in page.url
    page.get_by_role("button", name="Log out").click()
    page.get_by_role("heading", name="Log in").wait_for()
    page.get_by_label("Name").fill("Dee")
    page.get_by_label("Password").fill("wrong, alas")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("alert").wait_for()
    page.get_by_label("Name").fill("Dee")
    page.get_by_label("Password").fill("correct horse battery")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Welcome, Dee").wait_for()
    seat.complaints.clear()  # 422 without a name, 401 without a session


def test_an_invited_person_sets_a_password_and_comes_back(served, seats):
    seat = seats().join(served, "Dr Eve")
    page = seat.page
    page.get_by_label("Password (10 characters or more)").fill("too short")
    page.get_by_role("button", name="Set password").click()
    page.get_by_role("heading", name="Log in without a link").wait_for()  # the browser refuses it
    page.get_by_label("Password (10 characters or more)").fill("correct horse battery")
    page.keyboard.press("Enter")
    page.get_by_text("Your password is set").wait_for()
    page.reload()
    page.get_by_role("heading", name="Welcome, Dr Eve").wait_for()
    assert page.get_by_role("button", name="Set password").count() == 0
    page.get_by_role("button", name="Log out").click()
    page.get_by_label("Name").fill("Dr Eve")
    page.get_by_label("Password").fill("correct horse battery")
    page.get_by_role("button", name="Log in").click()
    page.get_by_role("heading", name="Welcome, Dr Eve").wait_for()
    seat.complaints.clear()  # 401 after logging out


def test_typing_a_password_is_not_interrupted(served, seats):
    """News of the tasks that come late must not redraw the form: the rest would be typed into nothing."""
    seat, late = seats().join(served, "Dr Ito"), []
    page = seat.page
    page.goto(f"{served.url}/#/inspect")
    seat.shown()
    page.route("**/api/me", lambda route: late.append((route, route.fetch())), times=1)
    page.goto(f"{served.url}/#/")
    field = page.get_by_label("Password (10 characters or more)")
    field.fill("correct horse")
    for _ in range(1000):
        if late:
            break
        page.wait_for_timeout(10)
    ((route, response),) = late
    route.fulfill(response=response)
    page.evaluate("() => fetch('/api/me').then((found) => found.text())")  # so the other has been handled
    page.keyboard.type(" battery")
    assert field.input_value() == "correct horse battery"


def test_fingers(served, seats):
    seat = seats(width=400, has_touch=True).join(served)
    page = seat.page
    page.goto(f"{served.url}/#/inspect")
    first = seat.shown()
    before = picture(page, "reference")
    box = page.locator("[data-pane=input] canvas").bounding_box()
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    devtools = seat.context.new_cdp_session(page)

    def touch(kind: str, *points: tuple[float, float]) -> None:
        places = [{"x": px, "y": py, "id": n} for n, (px, py) in enumerate(points)]
        devtools.send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": places})

    touch("touchStart", (x - 20, y))
    touch("touchStart", (x - 20, y), (x + 20, y))
    for apart in (30, 50, 80):
        touch("touchMove", (x - apart, y), (x + apart, y))
    touch("touchEnd")
    zoom = float(page.locator(".readout").inner_text().split("×")[0])
    assert zoom == pytest.approx(4, abs=0.5)  # 160 px apart after 40
    assert (picture(page, "reference") != before).any()
    accept = page.get_by_role("button", name="Accept").bounding_box()
    assert accept["y"] + accept["height"] <= 900  # in view without scrolling
    page.touchscreen.tap(accept["x"] + 20, accept["y"] + 20)
    seat.shown(first)
    seat.saved()
    assert served.answers()[first]["decision"] == "accept"
    page.goto(f"{served.url}/#/mask")
    page.locator("[data-pane=C]").wait_for()
    item = seat.shown()
    page.locator("[data-pane=C] canvas").tap()
    page.locator("[data-pane=C].chosen").wait_for()
    page.get_by_role("button", name="Save").tap()
    seat.shown(item)
    seat.saved()
    said = served.answers()[item]
    assert said["choice"] == said["labels"]["C"]
