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
from mie.images.png import decode_png, encode_png, insert_text
from mie.report import blind_sheet
from mie.report.blind_sheet import write_sheet
from mie.scoring.statistics import realism
from mie.scoring.statistics.quality import draw_key, quality
from mie.scoring.statistics.sheet import read_answers, read_key
from tests.report.test_page import Reader
from tests.scoring.benchmarks.runs import structure, transformation, write_samples
from tests.scoring.statistics.pairs import is_real, pairs


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


PAIRS = [
    *pairs(range(8), range(8, 16)),
    # Only healed: nothing to compare with.
    *pairs(range(16, 18), range(0), modality="OCT"),
]


@pytest.fixture(scope="module")
def pairs_dataset(tmp_path_factory):
    return write_samples(PAIRS, tmp_path_factory.mktemp("blind-pairs") / "dataset")


def real_sheet(dataset, folder, n=12):
    key = realism.draw_key(dataset, n, ["modality"])
    assert write_sheet(dataset, key, folder)
    return key


def test_the_page_of_real_and_generated_images_does_not_tell_which(pairs_dataset, tmp_path):
    key = real_sheet(pairs_dataset, tmp_path / "sheet")
    page = (tmp_path / "sheet/index.html").read_text(encoding="utf-8")
    known = {one.id: one for one in PAIRS}
    heads, circles = set(), set()
    for row, ((name, _), truth) in enumerate(zip(key.rows, key.truth, strict=True), start=1):
        sample = known[name]
        png = base64.b64decode(re.search(f'id="picture-{row}">([^<]*)<', page)[1])
        pixels = decode_png(png)
        assert np.array_equal(pixels, getattr(sample, truth.image))
        assert is_real(sample, pixels) == truth.real
        heads.add((png[:33], tuple(chunk for chunk in (b"tEXt", b"iTXt", b"tIME", b"pHYs") if chunk in png)))
        circle = re.search(f'id="circle-{row}" hidden>([^<]*)<', page)[1]
        width, height, x, y, radius = map(float, circle.split())
        assert (height, width) == sample.mask.shape
        ys, xs = np.nonzero(sample.mask)
        assert (np.hypot(xs + 0.5 - x, ys + 0.5 - y) < radius).all(), "all of it lies inside"
        circles.add((truth.real, radius))
        other = "target_image" if truth.image == "input" else "input"
        hidden_one = base64.b64encode(encode_png(getattr(sample, other))).decode()
        assert hidden_one not in page, "the other image of the pair would tell"
        for secret in (sample.id, sample.group, sample.case_id, sample.source, str(sample.patient_id)):
            assert secret not in page
    assert len(heads) == 1, "one size, one kind of PNG, nothing written into it"
    assert {real for real, _ in circles} == {True, False}
    # Apart from pictures and places all rows are the same.
    text = re.sub(r">[A-Za-z0-9+/=]{40,}<", "><", page)
    rows = re.findall(r'<p id="circle-\d+.*?</p>\n<script type="text/plain".*?</script>', text, re.DOTALL)
    assert len(rows) == 12
    assert len({re.sub(r"[\d.]+", "#", row) for row in rows}) == 1
    assert not re.search(r"\b(train|val|test|OCT|fundus|retinal|from_health|painted|healed)\b", text)
    assert pairs_dataset.digest[:8] not in page
    assert not re.search(r"https?://", text)
    for row in csv.DictReader((tmp_path / "sheet/answers.csv").open(newline="")):
        assert (row["answer"], row["reason"]) == ("", "")


def test_what_wrote_an_image_does_not_show(tmp_path):
    """Real images of one channel, with a note inside: what another program left in the dataset."""
    dataset = write_samples(PAIRS, tmp_path / "dataset")
    key = realism.draw_key(dataset, 2, [])
    row = next(row for row in dataset.rows() if row["id"] == key.rows[0][0])
    grey = insert_text(encode_png(np.full((128, 128), 7, np.uint8)), "Software", "scanner")
    mask = row["mask"]["bytes"]
    foreign = {key.truth[0].image: {"bytes": grey}, "mask": {"bytes": mask}}
    shown = base64.b64decode(blind_sheet._picture(foreign, key.truth[0]).picture)
    assert shown[:33] == encode_png(np.zeros((128, 128, 3), np.uint8))[:33]
    assert b"scanner" not in shown


def test_the_command_for_real_and_generated_images(pairs_dataset, tmp_path):
    folder = tmp_path / "sheet"
    told = mie(pairs_dataset.folder, "--ask", "real", "-n", "12", "-o", folder)
    assert told.exit_code == 0
    assert "left out, with nothing to compare with: OCT (2 healed and 0 painted pairs)" in told.stdout
    made = json.loads(mie(pairs_dataset.folder, "--ask", "real", "-n", "12", "-o", folder, "--json").stdout)
    assert (made["asked"], made["question"]) == (12, "real")
    assert [(one["real"], one["generated"]) for one in made["strata"]] == [({"source-of-eyes": 3},) * 2] * 2
    answers = folder / "answers.csv"
    nothing = mie(folder, "--answers", answers)
    assert nothing.exit_code == 3
    assert "12 rows without an answer" in nothing.stderr
    key = read_key(folder)
    words = ["real" if truth.real else "generated" for truth in key.truth]
    lines = [f"{key.sheet},{row},{word}," for row, word in enumerate(words, start=1)]
    answers.write_text("\n".join(["sheet,row,answer,reason", *lines]))
    document = json.loads(mie(folder, "--answers", answers, "--json").stdout)
    assert (document["accuracy"], document["right"], document["generated"]["share"]) == (1.0, 12, 1.0)
    shown = mie(folder, "--answers", answers)
    assert shown.exit_code == 0
    assert "50% right is guessing: told apart" in shown.stdout
    answers.write_text(answers.read_text().replace(",generated,", ",good,", 1))
    with pytest.raises(MieError, match="not an answer") as error:
        mie(folder, "--answers", answers)
    assert "real, generated or nothing" in str(error.value)
    with pytest.raises(ConfigError, match="no question named 'reel'"):
        mie(pairs_dataset.folder, "--ask", "reel", "-o", tmp_path / "other")
    with pytest.raises(MieError, match="something else"):
        mie(pairs_dataset.folder, "-o", folder)


def test_images_of_different_data_sets_are_pointed_out(tmp_path):
    samples = [*pairs(range(3), range(0)), *pairs(range(0), range(3, 6), source="elsewhere")]
    dataset = write_samples(samples, tmp_path / "dataset")
    told = mie(dataset.folder, "--ask", "real", "-o", tmp_path / "sheet")
    assert "different data sets, which may give them away: lesion, fundus" in told.stdout


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
    page.evaluate("localStorage.clear()")  # as a browser that has just started may do by itself
    page.reload()  # what was said is still there
    assert page.locator("input[value=good]").is_checked()
    page.keyboard.press("ArrowRight")
    assert page.locator("input[value=bad]").is_checked()
    with page.expect_download() as download:
        page.keyboard.press("s")
    saved = tmp_path / download.value.suggested_filename
    assert saved.name == "answers.csv"
    download.value.save_as(saved)
    said = read_answers(saved, key)
    assert {row: (o.answer, o.reason) for row, o in said.items()} == {
        1: ("good", ""),
        2: ("bad", 'too "large", n'),
        4: ("good", ""),
        6: ("bad", ""),
    }
    document = quality(key, said)
    assert (document["answered"], document["good"]) == (4, 2)
    assert document["reasons"] == {'too "large", n': 1, "no reason given": 1}


@pytest.mark.parametrize("width", [400, 1400])
def test_real_or_generated_by_keyboard_from_disk(pairs_dataset, tmp_path, page_at, width):
    key = real_sheet(pairs_dataset, tmp_path / "sheet", 6)
    page = page_at(tmp_path / "sheet/index.html", width)
    assert page.evaluate("document.documentElement.scrollWidth") <= width
    area = next(one for one in PAIRS if one.id == key.rows[0][0]).mask > 0
    # The circle lies around the area where the picture is drawn, at any width.
    inside = page.evaluate(
        "async (points) => { const i = document.getElementById('picture'); await i.decode();"
        "const b = i.getBoundingClientRect(), n = i.naturalWidth, m = i.naturalHeight;"
        "const s = Math.min(b.width / n, b.height / m);"
        "const c = document.querySelector('#outline .over').getBoundingClientRect();"
        "const at = [c.x + c.width / 2, c.y + c.height / 2];"
        "return points.map(([x, y]) => Math.hypot(b.x + (b.width - n * s) / 2 + (x + .5) * s - at[0],"
        "b.y + (b.height - m * s) / 2 + (y + .5) * s - at[1]) / (c.width / 2)); }",
        [[int(x), int(y)] for y, x in np.argwhere(area)],
    )
    assert 0.5 < max(inside) < 1
    page.keyboard.press("o")
    assert not page.locator("#outline").is_visible()
    page.keyboard.press("r")  # 1
    assert page.locator("#number").inner_text() == "2 of 6"
    assert not page.locator("#outline").is_visible(), "as it was left"
    page.locator("#toggle").click()
    assert page.locator("#outline").is_visible()
    page.locator("#reason").focus()
    page.keyboard.type("grain, too regular")
    page.keyboard.press("Enter")
    assert page.locator("#number").inner_text() == "2 of 6"
    page.keyboard.press("g")  # 2
    page.keyboard.press("ArrowRight")  # 3: left out
    page.keyboard.press("g")  # 4
    page.keyboard.press("r")  # 5
    page.keyboard.press("ArrowLeft")
    page.keyboard.press("u")  # 5: taken back
    page.keyboard.press("n")  # 6
    assert page.locator("#number").inner_text() == "6 of 6"
    with page.expect_download() as download:
        page.keyboard.press("s")
    saved = tmp_path / download.value.suggested_filename
    download.value.save_as(saved)
    assert {row: (o.answer, o.reason) for row, o in read_answers(saved, key).items()} == {
        1: ("real", ""),
        2: ("generated", "grain, too regular"),
        4: ("generated", ""),
    }


def test_answers_outlive_the_tab(dataset, tmp_path, page_at):
    """Those of a tab that was closed are there, and those that this tab remembers count before them."""
    key = sheet(dataset, tmp_path / "sheet", 3)
    page = page_at(tmp_path / "sheet/index.html", 800)
    page.context.add_init_script(
        f"localStorage.setItem('mie-sheet-{key.sheet}', "
        """'{"1": {"answer": "bad", "reason": "grain"}, "2": {"answer": "good", "reason": ""}}')"""
    )
    other = page.context.new_page()
    other.goto(page.url)
    assert "2 of 3 answered; not yet saved" in other.locator("#progress").inner_text()
    assert other.locator("input[value=bad]").is_checked()
    assert other.locator("#reason").input_value() == "grain"
    other.keyboard.press("g")  # another opinion of the first row
    other.reload()
    assert other.locator("input[value=good]").is_checked()
    assert "2 of 3 answered" in other.locator("#progress").inner_text()


@pytest.mark.parametrize("question", ["good", "real"])
def test_the_policy_names_the_one_script(dataset, pairs_dataset, tmp_path, question):
    if question == "good":
        sheet(dataset, tmp_path / "sheet", 2)
    else:
        real_sheet(pairs_dataset, tmp_path / "sheet", 2)
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
