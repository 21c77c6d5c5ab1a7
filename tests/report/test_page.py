"""The report as files: what stands on the page, in the tables, in the pictures; nothing of it may run."""

from __future__ import annotations

import csv
import hashlib
import json
import math
import re
import shutil
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import cv2
import matplotlib
import numpy as np
import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image
from typer.testing import CliRunner

from mie.cli.report import report as verb
from mie.core.files import FolderTakenError, folder_lock
from mie.datasets.dataset import Dataset
from mie.datasets.parquet import ShardFile
from mie.errors import ConfigError, MieError
from mie.report.gallery import choose, rows_by_id
from mie.report.layouts import layout_of, metric
from mie.report.page import write_report
from mie.report.scored import Support, read_runs
from mie.report.sections import ranked
from mie.report.views import Label, TextTable, comparison_table, templates
from tests.report.conftest import HOSTILE, make_dataset, make_run

MIEDB = layout_of("miedb")
PUBLISHED = MIEDB.published.rows


class Reader(HTMLParser):
    """What a browser would see: elements with attributes, and the text outside of them."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.text: list[str] = []
        self.feed(page)

    def handle_starttag(self, name, attributes):
        self.elements.append((name, dict(attributes)))
        if name not in ("br", "hr", "img", "input", "link", "meta", "source"):
            self.open.append(name)

    def handle_startendtag(self, name, attributes):
        self.elements.append((name, dict(attributes)))

    def handle_endtag(self, name):
        assert self.open.pop() == name, f"</{name}> closes nothing"

    def handle_data(self, text):
        self.text.append(text)

    def all(self, name):
        return [attributes for found, attributes in self.elements if found == name]


@pytest.fixture(scope="module")
def page(report: Path) -> Reader:
    return Reader((report / "index.html").read_text(encoding="utf-8"))


def fingerprint(folder: Path) -> dict[str, str]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in files}


def table(report: Path, name: str) -> list[dict[str, str]]:
    with (report / "tables" / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def document(run: Path) -> dict:
    return json.loads((run / "summary" / "miedb.paper.json").read_text())


def test_every_file_the_page_names_is_there_and_none_comes_from_elsewhere(report, page):
    named = []
    for kind, key in (
        ("img", "src"),
        ("source", "srcset"),
        ("script", "src"),
        ("link", "href"),
        ("a", "href"),
    ):
        named += [attributes[key] for attributes in page.all(kind)]
    inside = [name for name in named if not name.startswith("#")]
    assert len(inside) > 100
    for name in inside:
        assert re.fullmatch(r"(assets|images|plots|tables)/[\w.]+", name)
        assert (report / name).is_file()
    ids = {attributes["id"] for _, attributes in page.elements if "id" in attributes}
    assert {name[1:] for name in named if name.startswith("#")} <= ids
    used = {Path(name).name for name in inside if name.startswith("images/")}
    assert used == {path.name for path in (report / "images").iterdir()}  # nothing is written in vain


def test_names_and_prompts_are_text_and_the_policy_forbids_scripts_in_the_page(report, page):
    assert page.open == []
    assert [attributes["src"] for attributes in page.all("script")] == ["assets/report.js"]
    assert not page.all("base")
    for name, attributes in page.elements:
        assert not {key for key in attributes if key.startswith("on") or key == "style"}, name
    policy = next(a["content"] for a in page.all("meta") if a.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert "http" not in policy
    text = "".join(page.text)
    assert HOSTILE in text
    assert "<script>alert('n')</script>_5%" in text
    assert "changed since it was scored" not in text
    assert "time limit of 60 s <b>reached</b>" in text


def laid_out(table: TextTable) -> str:
    return templates().get_template("parts.html").module.text_table(table)


@given(st.text(min_size=1))
def test_any_text_survives_as_text(text):
    found = Reader(laid_out(TextTable(text, ("Run", text), [(Label(text, note=text), [text])])))
    assert found.open == []
    assert {name for name, _ in found.elements} <= {
        "div",
        "table",
        "caption",
        *["thead", "tbody", "tr", "th", "td", "span"],
    }
    printable = re.sub("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f]", "\N{REPLACEMENT CHARACTER}", text)
    assert "".join(found.text).count(printable) >= 5
    assert found.all("div")[0]["aria-label"] == printable


def test_lone_surrogates_can_be_written():
    page = laid_out(TextTable("a\ud800b", ("x",), []))
    assert "a\N{REPLACEMENT CHARACTER}b" in page
    page.encode()


def test_headings_descend_and_pictures_have_words(page):
    levels = [int(name[1]) for name, _ in page.elements if re.fullmatch(r"h[1-6]", name)]
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after <= before + 1 for before, after in pairwise(levels))
    assert all("alt" in attributes for attributes in page.all("img"))
    charts = [a for a in page.all("img") if a["src"].startswith("plots/")]
    assert all("careful editor" in a["alt"] for a in charts)
    assert all(a.get("aria-label") for a in page.all("input") if a["type"] == "range")
    assert all(a.get("scope") for a in page.all("th"))


def test_means_intervals_and_coverage_are_the_summary_s(report, page, scored_runs):
    rows = {(r["run"], r["metric"], r["k"]): r for r in table(report, "leaderboard.csv")}
    text = " ".join(page.text)
    for run in scored_runs:
        name = json.loads((run / "run.json").read_text())["editor"]["name"]
        everything = document(run)["groups"][0]["metrics"]
        for key, cell in everything.items():
            row = rows[name, *key.split("@")]
            assert (float(row["mean"]), int(row["n"])) == (cell["mean"], cell["n"])
            assert [float(row["ci95_low"]), float(row["ci95_high"])] == cell["ci95"]
            assert int(row["unscored"]) == cell["unscored"]
            shown = f"n {cell['n']}/{cell['n'] + cell['unscored']}"
            assert shown in text
        assert f"{everything['dice@1']['mean']:.3f}"[1:] in text
        assert f"{everything['b_psnr@1']['mean']:.1f}" in text
    assert any(int(row["unscored"]) for row in rows.values())


def test_best_run_first_and_published_rows_apart(report, page, scored_runs):
    names = [run.name for run in ranked(read_runs(scored_runs, "paper"), MIEDB)]
    assert names == ["careful editor", "<script>alert('n')</script>_5%"]
    html = (report / "index.html").read_text()
    tables = re.findall(r"<table.*?</table>", html, re.DOTALL)
    published = [t for t in tables if "OmniGen2-MIE" in t]
    assert len(published) == 1
    assert "careful editor" not in published[0]
    assert published[0].count(">published<") == len(PUBLISHED) == 10
    heads = re.findall(r"<th scope=\"col\">(.*?)</th>", published[0])
    assert [("†" in h) for h in heads] == [False, False, False, True, True, False, False, False, False]
    assert [row["model"] for row in table(report, "published.csv")] == [model for model, _ in PUBLISHED]
    assert not {row["run"] for row in table(report, "leaderboard.csv")} & {model for model, _ in PUBLISHED}


def test_published_rows_are_those_of_the_paper():
    rows = dict(PUBLISHED)
    assert rows["OmniGen2-MIE"] == (0.831, 0.737, 28.1, 0.917, 65.9, 1.4, 22.6, 0.685)
    assert rows["SDXL-turbo"] == (0.002, 0.0, 16.6, 0.467, 8.4, 7.7, 15.9, 0.397)
    assert math.isclose(sum(values[0] for values in rows.values()), 3.439)
    assert math.isclose(sum(values[3] for values in rows.values()), 5.828)
    assert math.isclose(sum(values[7] for values in rows.values()), 4.727)


def test_groups_table_has_every_group(report, scored_runs):
    rows = table(report, "groups.csv")
    expected = sum(len(group["metrics"]) for run in scored_runs for group in document(run)["groups"])
    assert len(rows) == expected
    assert {row["modality"] for row in rows} == {"", "fundus", "microscopy", "CT", "endoscopy"}
    good = {
        row["modality"]: row
        for row in rows
        if row["run"] == "careful editor" and row["metric"] == "dice" and row["k"] == "1"
    }
    cells = {g["group"].get("modality"): g["metrics"] for g in document(scored_runs[1])["groups"]}
    assert float(good["CT"]["mean"]) == cells["CT"]["dice@1"]["mean"]


def test_failures_unscored_and_drift_are_counted(report, scored_runs):
    lines = (scored_runs[0] / "scores" / "miedb.paper.jsonl").read_text().splitlines()[1:]
    attempts = [a for line in lines for a in json.loads(line)["attempts"]]
    missing = sum("*" in a["unscored"] for a in attempts)
    windows = sum("b_ssim" in a["unscored"] for a in attempts)
    moved = sum(a.get("drift", {}).get("flag", False) for a in attempts)
    assert min(missing, windows, moved) > 0
    found = {(row["metric"], row["reason"]): int(row["attempts"]) for row in table(report, "unscored.csv")}
    assert found == {
        ("*", "no output"): missing,
        ("b_ssim", "no 7x7 window lies outside the region"): windows,
    }
    (failed,) = table(report, "failures.csv")
    assert (failed["reason"], int(failed["attempts"])) == ("time limit of 60 s <b>reached</b>", missing)
    drifted = table(report, "drift.csv")
    assert len(drifted) == moved
    assert (drifted[0]["dx"], drifted[0]["dy"]) == ("3.5", "-2.25")


def test_a_retried_edit_is_no_failure(scored_dataset, tmp_path):
    run = make_run(scored_dataset, tmp_path / "run", "retried", 0.9, attempts=1)
    edits = (run / "edits.jsonl").read_text()
    first = {**json.loads(edits.splitlines()[0]), "state": "failed", "reason": "busy"}
    (run / "edits.jsonl").write_text(json.dumps(first) + "\n" + edits + '{"sample_id": "cut o')
    (read,) = read_runs([run], "paper")
    assert not read.failures
    assert read.edits == len(edits.splitlines())


def test_what_the_editor_said_stands_under_its_picture(scored_dataset, tmp_path):
    run = make_run(scored_dataset, tmp_path / "run", "said", 0.9, attempts=1)
    meta = {
        "parse": {
            "operation": "perception",
            "targets": [{"name": "lungs", "colour": "red", "side": "left"}],
            "unknown": ["<i>x</i>"],
        },
        "taken_for": "lungs (for 'pulmo<script>')",
        "note": "no \x1b[31m tumour",
    }
    lines = [json.loads(line) for line in (run / "edits.jsonl").read_text().splitlines()]
    (run / "edits.jsonl").write_text("".join(json.dumps({**line, "meta": meta}) + "\n" for line in lines))
    text = write_report([run], tmp_path / "out").read_text()
    card = re.findall(r"<article class=\"card\">.*?</article>", text, re.DOTALL)[0]
    assert "understood as: perception: left lungs in red" in card
    assert "not known: &lt;i&gt;x&lt;/i&gt;" in card
    assert "taken for: lungs (for &#39;pulmo&lt;script&gt;&#39;)" in card
    assert "note: no ?[31m tumour" in card


def test_markdown_and_latex_escape_names(report):
    markdown = (report / "tables" / "leaderboard.md").read_text()
    assert r"\<script\>alert('n')\</script\>\_5%" in markdown
    tex = (report / "tables" / "leaderboard.tex").read_text()
    assert r"\textless{}script\textgreater{}alert('n')\textless{}/script\textgreater{}\_5\%" in tex
    for block in tex.split(r"\begin{tabular}")[1:]:
        rows = [line for line in block.splitlines() if line.endswith(r"\\")]
        assert len({len(re.findall(r"(?<!\\)&", row)) for row in rows}) == 1
    for block in markdown.split("\n\n")[1::2]:
        assert len({line.count("|") for line in block.splitlines() if line.startswith("|")}) == 1


def test_worst_and_best_are_the_extremes(scored_runs):
    (run,) = read_runs(scored_runs[:1], "paper")
    samples = run.scores["miedb"].samples
    first = samples.first("dice")[0]
    values = {i: v for i, v in zip(samples.table.ids, first, strict=True) if not np.isnan(v)}
    worst, best = choose(run, MIEDB)["dice"]
    assert [p.value for p in worst] == sorted(values.values())[:6]
    assert [p.value for p in best] == sorted(values.values(), reverse=True)[:6]
    assert all(values[p.sample_id] == p.value for p in (*worst, *best))
    assert "p_acc" not in choose(run, MIEDB)
    few_worst, few_best = choose(run, MIEDB, each=1000)["dice"]
    assert not {p.sample_id for p in few_worst} & {p.sample_id for p in few_best}
    assert len(few_worst) + len(few_best) == len(values)


def test_only_the_row_groups_that_are_shown_are_read(scored_dataset, monkeypatch):
    ids = scored_dataset.table(["id"])["id"]
    whole: list[int] = []
    read = ShardFile.read_row_group

    def counted(self, group, columns=None, **options):
        whole.extend([group] if columns is None else [])
        return read(self, group, columns=columns, **options)

    monkeypatch.setattr(ShardFile, "read_row_group", counted)
    found = list(rows_by_id(scored_dataset, {ids[-1]}))
    assert [row["id"] for row in found] == [ids[-1]]
    assert found[0]["input"]["bytes"]
    assert len(whole) == 1
    assert len(ids) > 16  # rows in a group: there was something to leave out


def test_pictures_show_what_they_say(report, page, scored_dataset, scored_runs):
    """The gallery's pixels against the dataset's: nearly equal, as WebP keeps them."""
    html = (report / "index.html").read_text()
    samples = {sample.id: sample for sample in scored_dataset.samples()}
    cards = re.findall(r"<article class=\"card\">.*?</article>", html, re.DOTALL)
    assert cards
    for card in cards[:8]:
        sample = samples[re.search(r"<code>(\w+)</code>", card)[1]]
        by_kind = {kind: src for src, kind in re.findall(r'<img src="(.*?)" class="(\w+)"', card)}
        shown = {
            k: np.asarray(Image.open(report / v).convert("RGB"), float)
            for k, v in by_kind.items()
            if k != "outline"
        }
        assert np.abs(shown["reference"] - sample.target_image).mean() < 8
        assert np.abs(shown["input"] - sample.input).mean() < 8
        output = cv2.imread(str(scored_runs[1] / "outputs" / f"{sample.id}_0.png"))[..., ::-1]
        assert np.abs(shown["after"] - output).mean() < 8
        away = np.abs(output.astype(float) - sample.target_image).max(axis=2)
        brightness = shown["difference"].sum(axis=2)
        if away.max() > 60:  # below, the compression's own noise is as large
            assert np.corrcoef(away.ravel(), brightness.ravel())[0, 1] > 0.95
        if sample.mask is not None:
            svg = (report / by_kind["outline"]).read_text()
            points = np.array(re.findall(r"([\d.]+),([\d.]+)", svg), float)
            rows, columns = np.nonzero(sample.mask)
            assert points[:, 0].min() == columns.min() + 0.5
            assert points[:, 1].max() == rows.max() + 0.5


def test_the_same_runs_give_the_same_bytes_and_a_report_is_replaced(report, scored_runs, tmp_path):
    again = tmp_path / "again"
    shutil.copytree(report, again)
    (again / "images" / "left over.webp").write_bytes(b"x")
    (again / "index.html").write_text("old")
    matplotlib.rcParams["font.size"] = 30  # a user's own settings do not show
    try:
        write_report(scored_runs, again)
    finally:
        matplotlib.rcParams["font.size"] = matplotlib.rcParamsDefault["font.size"]
    assert fingerprint(again) == fingerprint(report)


def test_plots_are_files_too(report):
    names = {path.name for path in (report / "plots").iterdir()}
    for stem in (
        "leaderboard_dice",
        "modality_b_psnr",
        "target_dice",
        "distribution_ssim",
        "distribution_dice_guarded",
    ):
        assert {f"{stem}.svg", f"{stem}.dark.svg", f"{stem}.png"} <= names
    light, dark = ((report / "plots" / f"target_dice{kind}.svg").read_text() for kind in ("", ".dark"))
    assert light != dark
    assert "<script" not in light
    assert Image.open(report / "plots" / "target_dice.png").width > 700


def test_runs_on_different_datasets_need_force(scored_runs, tmp_path):
    other = make_run(make_dataset(tmp_path / "other", 3), tmp_path / "run", "elsewhere", 0.8, attempts=1)
    out = tmp_path / "out"
    with pytest.raises(MieError, match="different datasets"):
        write_report([scored_runs[0], other], out)
    assert not out.exists()
    app = typer.Typer()
    app.command()(verb)
    result = CliRunner().invoke(app, [str(scored_runs[0]), str(other), "-o", str(out), "--force"])
    assert result.exit_code == 0, result.output
    assert str(out) in result.output.replace("\n", "")
    text = (out / "index.html").read_text()
    assert "rows do not compare" in text
    assert "Run against run" not in text


def test_a_report_without_its_dataset_says_so(scored_runs, tmp_path):
    run = tmp_path / "moved"
    shutil.copytree(scored_runs[1], run)
    info = json.loads((run / "run.json").read_text())
    info["dataset"]["path"] = str(tmp_path / "gone")
    info["status"] = "running"
    with (run / "edits.jsonl").open("a") as file:
        file.write((run / "edits.jsonl").read_text().splitlines()[0] + "\n")
    (run / "run.json").write_text(json.dumps(info))
    text = write_report([run], tmp_path / "out").read_text()
    assert "No galleries for dataset" in text
    assert "is not complete" in text
    assert "have changed since it was scored" in text
    assert f"{document(run)['groups'][0]['metrics']['dice@1']['mean']:.3f}"[1:] in text


def test_what_is_not_a_report_is_left_alone(scored_runs, tmp_path):
    site = tmp_path / "site"
    (site / "images").mkdir(parents=True)
    (site / "images" / "mine.png").write_bytes(b"x")
    with pytest.raises(MieError, match="something else"):
        write_report(scored_runs, site)
    assert (site / "images" / "mine.png").read_bytes() == b"x"
    assert sorted(path.name for path in site.iterdir()) == ["images"]
    with pytest.raises(MieError, match="something else"):
        write_report(scored_runs, scored_runs[0])


def test_unscored_runs_and_wrong_variants_are_refused(scored_runs, tmp_path):
    with pytest.raises(MieError, match="missing") as caught:
        write_report(scored_runs, tmp_path / "out", variant="as_released")
    assert "mie score" in str(caught.value)
    with pytest.raises(ConfigError):
        write_report(scored_runs, tmp_path / "out", variant="mine")
    with pytest.raises(ConfigError):
        write_report([], tmp_path / "out")
    run = tmp_path / "run"
    shutil.copytree(scored_runs[0], run)
    for folder, suffix in (("scores", "jsonl"), ("summary", "json")):
        shutil.copy(run / folder / f"miedb.paper.{suffix}", run / folder / f"miedb.as_released.{suffix}")
    with pytest.raises(MieError, match="something else"):
        write_report([run], tmp_path / "out", variant="as_released")


def test_infinite_means_are_shown(scored_dataset, tmp_path):
    run = make_run(scored_dataset, tmp_path / "run", "identity", 0.9, attempts=1, variant="as_released")
    path = run / "summary" / "miedb.as_released.json"
    body = json.loads(path.read_text())
    for group in body["groups"]:
        for key, cell in group["metrics"].items():
            if key.startswith("b_psnr"):
                cell.update(mean="inf", ci95=["inf", "inf"])
            if key.startswith("psnr"):
                cell.update(ci95=["nan", "nan"])
    path.write_text(json.dumps(body))
    index = write_report([run], tmp_path / "out", variant="as_released")
    assert "∞" in index.read_text()
    (row,) = (r for r in table(index.parent, "leaderboard.csv") if r["metric"] == "b_psnr")
    assert row["mean"] == "inf"
    assert r"$\infty$" in (index.parent / "tables" / "leaderboard.tex").read_text()


@pytest.mark.parametrize(
    ("key", "value", "shown"),
    [
        ("dice", 0.8312, ".831"),
        ("dice", 0.9996, "1.000"),
        ("dice", 1.0, "1.000"),
        ("dice", 0.0, ".000"),
        ("dice", -0.0123, "−.012"),
        ("psnr", 28.06, "28.1"),
        ("psnr", 0.5, "0.5"),
        ("psnr", math.inf, "∞"),
        ("ssim", math.nan, "–"),
    ],
)
def test_numbers_look_as_in_a_paper(key, value, shown):
    assert metric(key).show(value) == shown


def test_equal_names_are_told_apart(scored_dataset, tmp_path):
    runs = [make_run(scored_dataset, tmp_path / name, "same", 0.9, attempts=1) for name in ("one", "two")]
    assert [run.name for run in read_runs(runs, "paper")] == ["same (one)", "same (two)"]
    twice = [run.name for run in read_runs([runs[0], runs[0]], "paper")]
    assert len(set(twice)) == 2


def test_dataset_is_found_beside_the_run(scored_dataset: Dataset, tmp_path):
    run = make_run(scored_dataset, tmp_path / "run", "x", 0.9, attempts=1)
    shutil.copytree(scored_dataset.folder, tmp_path / "data")
    info = json.loads((run / "run.json").read_text())
    info["dataset"]["path"] = "../data"
    (run / "run.json").write_text(json.dumps(info))
    (read,) = read_runs([run], "paper")
    assert len(read.dataset()) == len(scored_dataset)


def test_differences_are_bold_only_where_they_are_sure():
    pair = {"a": "A", "b": "<B>", "n": 72, "left_out": 8, "wins": 60, "ties": 0, "losses": 12}
    pair |= {"patients": 9, "unknown": 0, "reason": ""}
    sure = SimpleNamespace(**pair, difference=0.0312, ci95=(0.01, 0.05), p=0.0001, p_holm=0.0003)
    unsure = SimpleNamespace(**pair, difference=-0.0312, ci95=(-0.05, 0.01), p=0.02, p_holm=0.06)
    table = comparison_table(metric("dice"), [sure, unsure])
    found = Reader(laid_out(table))
    assert found.open == []
    strong = [at for at, (name, _) in enumerate(found.elements) if name == "strong"]
    assert len(strong) == 1
    text = " ".join("".join(found.text).split())
    assert "A − <B> +.031 [+.010, +.050] 60 / 0 / 12 < .001 < .001 72 9 patients; 8 left out" in text
    assert "−.031 [−.050, +.010]" in text


def test_runs_are_compared_on_the_samples_they_share(report, page):
    pytest.importorskip("mie.scoring.statistics.compare")
    assert "Run against run" in page.text
    good, poor = (
        {
            r["metric"]: float(r["mean"])
            for r in table(report, "leaderboard.csv")
            if r["run"] == run and r["k"] == "1"
        }
        for run in ("careful editor", "<script>alert('n')</script>_5%")
    )
    at = page.text.index("DICE: paired differences")
    shown = next(text for text in page.text[at:] if re.fullmatch(r"\+\.\d{3}", text))
    assert float(shown) == pytest.approx(good["dice"] - poor["dice"], abs=0.05)  # failed samples are left out


def test_patients_stand_beside_every_n(report, page, scored_runs):
    lines = (scored_runs[1] / "scores" / "miedb.paper.jsonl").read_text().splitlines()[1:]
    lines = [json.loads(line) for line in lines]
    scored = [line for line in lines if "dice" in line["attempts"][0]["metrics"]]
    ct = [line for line in scored if line["group"]["modality"] == "CT"]
    patients = [len({line["patient"] for line in part}) for part in (lines, scored, ct)]
    assert patients[2] < patients[1]
    text = " ".join("".join(page.text).split())
    assert f"Samples {len(lines)} ({patients[0]} patients)" in text
    assert f"n {len(scored)}/{len(scored)} · {patients[1]} patients" in text
    (whole,) = (r for r in table(report, "leaderboard.csv") if (r["run"], r["metric"], r["k"]) == GOOD)
    assert (whole["patients"], whole["images_without_patient"]) == (str(patients[1]), "0")
    rows = [r for r in table(report, "groups.csv") if (r["run"], r["metric"], r["k"]) == GOOD]
    assert [r["patients"] for r in rows if r["modality"] == "CT"] == [str(patients[2])]
    markdown = (report / "tables" / "leaderboard.md").read_text()
    assert f" {len(scored)}/{len(scored)}, {patients[1]} patients |" in markdown
    pair = text[text.index("DICE: paired differences") :]
    assert re.search(rf" {patients[1]} patients; \d+ left out", pair)


GOOD = ("careful editor", "dice", "1")


def test_unknown_patients_are_never_counted_as_patients(scored_dataset, tmp_path):
    run = make_run(scored_dataset, tmp_path / "run", "x", 0.9, attempts=1)
    path = run / "scores" / "miedb.paper.jsonl"
    header, *lines = path.read_text().splitlines()
    lines = [json.loads(line) for line in lines]
    first = lines[0]["patient"]
    for known, words in (({}, ""), ({first}, "1 patient and ")):
        body = [{**line, "patient": line["patient"] if line["patient"] in known else None} for line in lines]
        path.write_text("\n".join([header, *map(json.dumps, body), ""]))
        images = len({(line["group"]["source"], line["case"]) for line in body if line["patient"] is None})
        page = Reader(write_report([run], tmp_path / "out").read_text())
        text = " ".join("".join(page.text).split())
        assert f"Samples {len(lines)} ({words}{images} images, patients unknown)" in text
    assert str(Support(1, 0)) == "1 patient"
    assert str(Support(0, 1)) == "1 image, patient unknown"


def test_tables_have_no_brackets_where_there_is_no_interval(scored_dataset, tmp_path):
    run = make_run(scored_dataset, tmp_path / "run", "x", 0.9, attempts=1)
    path = run / "summary" / "miedb.paper.json"
    summary = json.loads(path.read_text())
    for group in summary["groups"]:
        for entry in group["metrics"].values():
            entry |= {"ci95": [None, None], "no_interval": "2 patients: an interval needs at least 3"}
    path.write_text(json.dumps(summary))
    tables = write_report([run], tmp_path / "out").parent / "tables"
    ours = (tables / "leaderboard.md").read_text().split("Published")[0]
    assert re.search(r"\| x \| \.\d{3} (\d+)/\1, \d+ patients \|", ours)
    assert "–, –" not in ours
    tex = (tables / "leaderboard.tex").read_text()
    assert "[--" not in tex
    assert not re.search(r"^[ &]*\\\\$", tex, re.MULTILINE)  # no empty row


def test_a_benchmark_of_another_package_has_a_section(scored_runs, tmp_path):
    """Only a summary, no score file, a metric that nobody here knows."""
    for name, mean in (("one", 0.25), ("two", 0.75)):
        run = shutil.copytree(scored_runs[0], tmp_path / name)
        info = json.loads((run / "run.json").read_text())
        info["editor"]["name"] = f"editor {name}"
        (run / "run.json").write_text(json.dumps(info))
        entry = {"mean": mean, "n": 4, "unscored": 1, "ci95": None}
        groups = [{"group": {}, "metrics": {"wiggle_room@1": entry}}]
        summary = {"protocol": "ours <i>", "variant": "paper", "n_samples": 5, "groups": groups}
        (run / "summary" / "ours <i>.paper.json").write_text(json.dumps(summary))
    out = write_report([tmp_path / "one", tmp_path / "two"], tmp_path / "out")
    page = Reader(out.read_text())
    assert page.open == []
    text = " ".join("".join(page.text).split())
    section = text[text.index("Every metric, first attempt, variant paper") :]
    assert re.match(r".*? Run wiggle room editor two \.750 n 4/5 editor one \.250 n 4/5 ", section)
    assert "Who judged" not in section[: section.index("Best and worst")]
    rows = [row for row in table(out.parent, "judged.csv") if row["protocol"] == "ours <i>"]
    found = {(row["run"], row["mean"], row["n"]) for row in rows}
    assert found == {("editor one", "0.25", "4"), ("editor two", "0.75", "4")}
    for where in [tmp_path / "one", tmp_path / "two"]:  # nothing but that benchmark
        for path in [*where.glob("summary/miedb*"), *where.glob("scores/*")]:
            path.unlink()
    alone = write_report([tmp_path / "one", tmp_path / "two"], tmp_path / "alone").read_text()
    assert "wiggle room" in alone
    assert 'id="leaderboard"' not in alone


def test_a_folder_that_cannot_be_written_is_said_in_words(scored_runs, tmp_path, monkeypatch):
    (tmp_path / "file").write_text("mine")
    for out in (tmp_path / "file", tmp_path / "file" / "below"):
        with pytest.raises(MieError) as caught:
            write_report(scored_runs, out)
        assert caught.value.fix
    mkdir = Path.mkdir

    def forbidden(self, *args, **options):
        if self == tmp_path / "sealed":
            raise PermissionError(13, "Permission denied", str(self))
        return mkdir(self, *args, **options)

    monkeypatch.setattr(Path, "mkdir", forbidden)
    with pytest.raises(MieError, match="cannot write here"):
        write_report(scored_runs, tmp_path / "sealed")
    assert (tmp_path / "file").read_text() == "mine"


def test_as_released_the_histogram_has_what_the_mean_has(scored_dataset, tmp_path):
    """The first attempt that exists; a sample without any counts 0 and has no picture."""
    run = make_run(scored_dataset, tmp_path / "run", "x", 0.9, attempts=2, variant="as_released")
    path = run / "scores" / "miedb.as_released.jsonl"
    header, *lines = (json.loads(line) for line in path.read_text().splitlines())
    painted = [line for line in lines if "dice" in line["applies"]]
    gone = {"metrics": {}, "unscored": {"*": "no output"}}
    painted[0]["attempts"][0] = {"k": 0, **gone}
    painted[1]["attempts"] = [{"k": k, **gone} for k in range(2)]
    del painted[2]["attempts"][0]["metrics"]["dice"]  # an output, but no number: not the next attempt's
    path.write_text("\n".join(map(json.dumps, [header, *lines, ""]))[:-3])
    (read,) = read_runs([run], "as_released")
    samples = read.scores["miedb"].samples
    values, attempts = samples.first("dice")
    at = {sample: row for row, sample in enumerate(samples.table.ids)}
    second = painted[0]["attempts"][1]["metrics"]["dice"]
    assert (values[at[painted[0]["id"]]], attempts[at[painted[0]["id"]]]) == (second, 1)
    assert values[at[painted[1]["id"]]] == 0
    assert np.isnan(values[at[painted[2]["id"]]])
    shown = {pick.sample_id for picks in choose(read, MIEDB, each=99)["dice"] for pick in picks}
    assert painted[1]["id"] not in shown
    assert painted[0]["id"] in shown


def test_two_reports_do_not_write_into_one_folder(scored_runs, tmp_path):
    write_report(scored_runs[:1], tmp_path / "report")
    before = (tmp_path / "report/index.html").read_bytes()
    with folder_lock(tmp_path / "report"), pytest.raises(FolderTakenError, match="another process"):
        write_report(scored_runs[:1], tmp_path / "report")
    assert (tmp_path / "report/index.html").read_bytes() == before
