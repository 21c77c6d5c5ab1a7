"""The blind sheet: what it shows and hides, in a real browser from disk, and what comes back."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
import shutil
from pathlib import Path

import cv2
import numpy as np
import pytest
import typer
from typer.testing import CliRunner

from mie.cli.sample import sample
from mie.errors import ConfigError, MieError
from mie.images.png import decode_png
from mie.report.blind_sheet import write_sheet
from mie.scoring.statistics.quality import draw_key, quality, read_answers, read_key
from tests.report.test_page import Reader
from tests.scoring.benchmarks.runs import structure, transformation, write_samples


def hidden(n):
    return {"patient_id": f"patient-{n}", "source": "source-of-eyes", "case_id": f"case-number-{n}"}


SAMPLES = [
    *(
        structure(f"5eed{n:012x}", n, modality="OCT" if n % 6 == 0 else "fundus", **hidden(n))
        for n in range(12)
    ),
    *(transformation(f"7eed{n:012x}", 20 + n, **hidden(20 + n)) for n in range(6)),
]
HTML = '<b onclick="x()">Paint & show</b> the optic disc in red.</script>'


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    from dataclasses import replace

    strange = [replace(SAMPLES[0], prompt=HTML), *SAMPLES[1:]]
    return write_samples(strange, tmp_path_factory.mktemp("blind") / "dataset")


def sheet(dataset, folder, n=18, **options):
    key = draw_key(dataset, n, ["modality", "task"], **options)
    assert write_sheet(dataset, key, folder)
    return key


def test_the_page_shows_pictures_and_instructions_and_tells_nothing_else(dataset, tmp_path):
    key = sheet(dataset, tmp_path / "sheet")
    page = (tmp_path / "sheet/index.html").read_text(encoding="utf-8")
    for one in dataset.samples():
        row = [i for i, _ in key.rows].index(one.id) + 1
        for name, pixels in (("before", one.input), ("after", one.target_image)):
            found = re.search(f'id="{name}-{row}">([^<]*)<', page)[1]
            assert np.array_equal(decode_png(base64.b64decode(found)), pixels)
        for secret in (one.id, one.case_id, one.source, str(one.patient_id)):
            assert secret not in page
    assert dataset.digest[:8] not in page
    text = re.sub(r">[A-Za-z0-9+/=]{40,}<", "><", page)
    assert not re.search(r"\b(train|val|test|OCT)\b", re.sub(r'<p id="text-\d+".*?</p>', "", text))
    assert "<b onclick" not in page
    assert page.count("</script>") == 2 * len(key.rows) + 1
    assert not re.search(r"https?://", text)


def test_the_same_seed_gives_the_same_bytes_and_nothing_is_written_over(dataset, tmp_path):
    key = sheet(dataset, tmp_path / "a", 10)
    assert sheet(dataset, tmp_path / "b", 10) == key
    for name in ("index.html", "answers.csv", "key.json"):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    other = draw_key(dataset, 10, ["modality", "task"], seed=1)
    assert (other.sheet, other.rows) != (key.sheet, key.rows)
    filled = tmp_path / "a/answers.csv"
    filled.write_text("mine")
    assert not write_sheet(dataset, key, tmp_path / "a")  # there already
    with pytest.raises(MieError, match="something else"):
        write_sheet(dataset, other, tmp_path / "a")
    assert filled.read_text() == "mine"
    (tmp_path / "b/key.json").unlink()  # killed before the last step
    assert write_sheet(dataset, key, tmp_path / "b")
    (tmp_path / "c").mkdir()
    (tmp_path / "c/notes.txt").write_text("mine")
    with pytest.raises(MieError, match="something else"):
        write_sheet(dataset, key, tmp_path / "c")
    assert read_key(tmp_path / "b") == key


def test_a_sheet_under_a_file_is_refused(dataset, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(MieError, match="cannot write here"):
        write_sheet(dataset, draw_key(dataset, 2, ["modality"]), tmp_path / "file" / "sheet")


def test_strata_are_drawn_in_proportion_or_equally(dataset):
    sizes = {("OCT", "structure"): 2, ("fundus", "structure"): 10}
    key = draw_key(dataset, 9, ["modality", "task"])
    assert {tuple(s.name.values()): s.samples for s in key.strata}.items() >= sizes.items()
    assert sum(s.asked for s in key.strata) == len(key.rows) == 9
    assert [s.asked for s in key.strata if s.samples == 10] == [5]
    equal = draw_key(dataset, 6, ["modality", "task"], allocation="equal")
    assert [s.asked for s in equal.strata] == [2, 2, 2]
    assert len(draw_key(dataset, 500, []).rows) == 18
    with pytest.raises(ConfigError, match="no stratum named 'modalty'"):
        draw_key(dataset, 5, ["modalty"])
    with pytest.raises(ConfigError, match="allocation"):
        draw_key(dataset, 5, [], allocation="even")


def mie(*words):
    app = typer.Typer()
    app.command()(sample)
    return CliRunner().invoke(app, [str(word) for word in words], catch_exceptions=False)


def test_the_command(dataset, tmp_path):
    folder = tmp_path / "sheet"
    done = mie(dataset.folder, "-n", "6", "--allocation", "equal", "-o", folder, "--json")
    assert done.exit_code == 0
    made = json.loads(done.stdout)
    assert (made["asked"], len(made["strata"])) == (6, 3)
    answers = folder / "answers.csv"
    nothing = mie(folder, "--answers", answers)
    assert nothing.exit_code == 3
    assert "6 rows without an answer" in nothing.stderr
    assert "undecided" in nothing.stdout
    with answers.open(newline="") as file:
        lines = list(csv.DictReader(file))
    with answers.open("w", newline="") as file:
        writer = csv.DictWriter(file, lines[0])
        writer.writeheader()
        writer.writerows({**line, "answer": "good"} for line in lines)
    whole = mie(dataset.folder, "-o", folder, "--answers", answers, "--json")
    assert whole.exit_code == 0
    document = json.loads(whole.stdout)
    assert (document["share"], document["answered"], document["asked"]) == (1.0, 6, 6)
    shown = mie(folder, "--answers", answers)
    assert "over 95% of 6,000: undecided" in shown.stdout
    other = write_samples(SAMPLES[:3], tmp_path / "other")
    with pytest.raises(MieError, match="the sheet is of another dataset"):
        mie(other.folder, "-o", folder, "--answers", answers)
    with pytest.raises(MieError, match="no review sheet here"):
        mie(dataset.folder, "--answers", answers)
    with pytest.raises(ConfigError, match="where to"):
        mie(dataset.folder)


CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))),
    None,
)
QUIET = ("--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run")


@pytest.fixture
def page_at(dataset):
    """A function that opens a file at a width, offline; what the page complains about fails the test."""
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    if CHROMIUM is None:
        pytest.skip("no Chromium on this machine")
    complaints, requests = [], []
    with playwright.sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=list(QUIET))

        def opened(path: Path, width: int):
            context = browser.new_context(
                viewport={"width": width, "height": 900}, offline=True, accept_downloads=True
            )
            page = context.new_page()
            page.set_default_timeout(10_000)
            page.on("console", lambda m: complaints.append(m.text))
            page.on("pageerror", lambda error: complaints.append(str(error)))
            page.on("request", lambda r: requests.append(r.url))
            page.goto(path.as_uri())
            return page

        yield opened
        browser.close()
    assert complaints == []
    assert [url for url in requests if not url.startswith(("file:", "data:", "blob:"))] == []


@pytest.mark.parametrize("width", [400, 1400])
def test_answered_by_keyboard_from_disk(dataset, tmp_path, page_at, width):
    key = sheet(dataset, tmp_path / "sheet", 6)
    page = page_at(tmp_path / "sheet/index.html", width)
    rows = {one.id: one for one in dataset.samples()}
    first = rows[key.rows[0][0]]
    assert page.locator("#instruction").inner_text() == first.prompt
    shown = page.evaluate(
        "async () => { const i = document.getElementById('after'); await i.decode();"
        "const c = document.createElement('canvas'); c.width = i.naturalWidth; c.height = i.naturalHeight;"
        "c.getContext('2d').drawImage(i, 0, 0); return c.toDataURL('image/png'); }"
    )
    pixels = cv2.imdecode(np.frombuffer(base64.b64decode(shown.split(",")[1]), np.uint8), cv2.IMREAD_COLOR)
    assert np.array_equal(pixels[..., ::-1], first.target_image)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    page.keyboard.press("g")  # 1: good, and on
    assert page.locator("#number").inner_text() == "2 of 6"
    page.keyboard.press("b")  # 2: bad, the reason has the focus
    page.keyboard.type('too "large", n')
    page.keyboard.press("Enter")
    page.keyboard.press("ArrowRight")  # 3: left out
    page.keyboard.press("g")  # 4
    page.keyboard.press("g")  # 5
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("u")  # 5: taken back
    page.keyboard.press("n")  # 6, the next without an answer
    assert page.locator("#number").inner_text() == "6 of 6"
    page.locator("input[value=bad]").focus()
    page.keyboard.press("Space")
    assert "4 of 6 answered" in page.locator("#progress").inner_text()
    page.reload()  # what was said is still there
    page.keyboard.press("ArrowRight")
    assert page.locator("input[value=bad]").is_checked()
    with page.expect_download() as download:
        page.keyboard.press("s")
    saved = tmp_path / download.value.suggested_filename
    assert saved.name == "answers.csv"
    download.value.save_as(saved)
    said = read_answers(saved, key)
    assert {row: (o.good, o.reason) for row, o in said.items()} == {
        1: (True, ""),
        2: (False, 'too "large", n'),
        4: (True, ""),
        6: (False, ""),
    }
    document = quality(key, said)
    assert (document["answered"], document["good"]) == (4, 2)
    assert document["reasons"] == {'too "large", n': 1, "no reason given": 1}


def test_the_policy_names_the_one_script(dataset, tmp_path):
    sheet(dataset, tmp_path / "sheet", 2)
    page = (tmp_path / "sheet/index.html").read_text(encoding="utf-8")
    script = re.search(r'<script>("use strict".*?)</script>', page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    (policy,) = (
        a["content"] for a in Reader(page).all("meta") if a.get("http-equiv") == "Content-Security-Policy"
    )
    assert f"script-src 'sha256-{digest}'" in policy
    style = re.search(r"<style>(.*?)</style>", page, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    assert f"style-src 'sha256-{digest}'" in policy
