"""A whole review from start to end: build, run, rate in a browser, evaluate the answers.

    python examples/review_walk.py -o FOLDER [--recipe RECIPE.yaml] [--limit N] [--items N]

Builds a dataset (by default from the sample images of `mie demo`), makes and scores three runs, starts
`mie review`, and lets two raters inspect and rank everything in headless Chromium: Ada with the keyboard, Bob
with the mouse. Then `mie agree`, `mie report --review`, `mie build --apply-reviews` and `mie verify`. Every
command is printed with its output, and every result is compared with what the raters did: a difference ends
the script with exit code 1. Without Playwright or Chromium it is skipped, with exit code 0.

The raters are scripted. They rank accuracy by how far an output is from the reference, preservation and
quality by how far it is from the input (Ada goes by the mean difference, Bob by the largest ones), and reject
every fourth sample.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import os
import re
import shutil
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

import mie

EDITORS = ("identity", "otsu", "kmeans")
DEMO = Path(__file__).with_name("samples-perception.yaml")
SHOWN = "document.querySelector('.work:not([hidden])')?.dataset.shown"
# Milliseconds from the last key or click to the next sample with all its pictures.
WATCH = """() => {
    window.waits = []
    let since = null
    for (const kind of ['keydown', 'pointerup'])
        addEventListener(kind, () => { since = performance.now() }, true)
    addEventListener('hashchange', () => { since = null })  // the first sample is fetched then
    new MutationObserver((changes) => {
        if (since !== null && changes.some(({target}) => target.dataset.shown)) {
            window.waits.push(performance.now() - since)
            since = null
        }
    }).observe(document.body, {subtree: true, attributeFilter: ['data-shown']})
}"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True, help="a new folder")
    parser.add_argument("--recipe", type=Path, default=DEMO, help="a perception recipe")
    parser.add_argument("--limit", type=int, default=2, help="images of each data set (2)")
    parser.add_argument("--items", type=int, help="samples to review (all)")
    options = parser.parse_args()
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError:
        raise SystemExit(skipped("Playwright is not installed: pip install playwright")) from None
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        raise SystemExit(skipped("Chromium is not installed"))

    out = options.output
    expect(not out.exists(), f"{out} is a new folder")
    dataset, runs = out / "dataset", [out / name for name in EDITORS]
    command("build", options.recipe, "-o", dataset, "--limit", options.limit, "--no-stats")
    for editor, run in zip(EDITORS, runs, strict=True):
        command("run", dataset, "-e", editor, "-o", run)
        command("score", run, may_be=(0, 3))
    settings = ["--raters", 2, *(["--sample", options.items] if options.items else [])]
    database = out / "review.sqlite"
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        answers = rate(browser, dataset, runs, database, settings, out / "screens")
        figures(dataset, runs, database, out, answers, browser)
        browser.close()
    print("\nthe review is complete, and every result is as expected")


def rate(
    browser: Any, dataset: Path, runs: list[Path], database: Path, settings: list[Any], screens: Path
) -> dict[str, dict[str, Any]]:
    """Let both raters do both kinds of work; return rater -> kind -> answers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    review = ["review", dataset, *runs, "--db", database, "--port", port, *settings]
    links = {name: command(*review, "--invite", name).strip() for name in ("Ada", "Bob")}
    answers: dict[str, dict[str, Any]] = {}
    with serving(*review):
        for name, width, scheme in (("Ada", 1400, "light"), ("Bob", 400, "dark")):
            rater = Rater(browser, width, scheme, screens)
            rater.join(links[name], name)
            by_key = name == "Ada"
            answers[name] = {"inspect": rater.inspect(by_key=by_key), "rank": rater.rank(by_key=by_key)}
            waits = rater.page.evaluate("window.waits")
            rater.close()
            done = f"{len(answers[name]['inspect'])} inspected, {len(answers[name]['rank'])} ranked"
            print(f"{name}: {done}; next sample after {statistics.median(waits):.0f} ms (median)", end="")
            print(f", {max(waits):.0f} ms at most")
    expect(answers["Ada"]["inspect"].keys() == answers["Bob"]["inspect"].keys(), "both saw the same samples")
    return answers


class Rater:
    """One rater with one browser."""

    def __init__(self, browser: Any, width: int, scheme: str, screens: Path) -> None:
        size = {"width": width, "height": 900}
        self.context = browser.new_context(viewport=size, color_scheme=scheme, has_touch=width < 800)
        self.page = self.context.new_page()
        self.page.set_default_timeout(20_000)
        self.width, self.screens, self.origin = width, screens, ""
        self.complaints: list[str] = []
        self.page.on("pageerror", lambda error: self.complaints.append(str(error)))
        self.page.on("console", lambda m: self.complaints.append(m.text) if m.type == "error" else None)

    def join(self, link: str, name: str) -> None:
        self.page.goto(link)
        self.page.get_by_role("heading", name=f"Welcome, {name}").wait_for()
        self.page.evaluate(WATCH)
        self.shoot("home")

    def inspect(self, *, by_key: bool) -> dict[str, str]:
        """Sample -> decision: every fourth is rejected, for Bob the eighth is flagged instead."""
        answers: dict[str, str] = {}
        page = self.page
        for number, item in enumerate(self.items("inspect")):
            word = "accept" if number % 4 != 3 else "reject" if by_key or number % 8 == 3 else "flag"
            answers[item["sample_id"]] = word
            if by_key:
                for key in {"accept": "a", "reject": "r1", "flag": "f"}[word]:
                    page.keyboard.press(key)
            else:
                page.get_by_role("button", name=word.capitalize(), exact=False).first.click()
                if word == "reject":
                    page.get_by_role("button", name="wrong region").click()
        return answers

    def rank(self, *, by_key: bool) -> set[str]:
        """The samples that were ranked."""
        page, seen = self.page, set[str]()
        far = (lambda gap: gap.mean()) if by_key else (lambda gap: np.percentile(gap, 95))
        for item in self.items("rank"):
            seen.add(item["sample_id"])
            shown = {output["label"]: self.picture(output["image"]) for output in item["outputs"]}
            orders = {}
            for criterion, name in (("accuracy", "reference"), ("preservation", "input")):
                wanted = self.picture(item["images"][name])
                apart = {label: float(far(np.abs(image - wanted))) for label, image in shown.items()}
                orders[criterion] = sorted(apart, key=lambda label: apart[label])  # best first
            if by_key:
                keys = [label.lower() for order in orders.values() for label in order]
                for key in (*keys, "k", "Enter"):
                    page.keyboard.press(key)
                continue
            for criterion, order in orders.items():
                for label in order:
                    page.locator(f"[data-criterion={criterion}] .tray [data-label={label}]").click()
            page.locator("[data-criterion=quality]").get_by_role("button", name="as preservation").click()
            page.get_by_role("button", name="Save").click()
        return seen

    def items(self, kind: str) -> Iterator[dict[str, Any]]:
        """Yield each item once its images are visible, until none is left."""
        page, seen, last = self.page, set[str](), 0
        self.origin = page.url.split("#")[0].rstrip("/")
        page.evaluate("kind => { location.hash = `#/${kind}` }", kind)
        while True:
            new = f"({SHOWN} ?? {last}) != {last}"
            over = "document.querySelector('h1')?.textContent === 'Nothing left for you here'"
            page.wait_for_function(f"() => {new} || {over}")
            if not page.evaluate(new):
                break
            last = int(page.evaluate(SHOWN))
            item = self.context.request.get(f"{self.origin}/api/items/{last}").json()
            expect(item["sample_id"] not in seen, f"{item['sample_id']} is shown once")
            seen.add(item["sample_id"])
            if len(seen) == 1:
                self.shoot(kind)
            yield item
        page.wait_for_function("() => document.querySelector('#bar .saved').dataset.waiting === '0'")

    def picture(self, address: str) -> np.ndarray:
        data = self.context.request.get(self.origin + address).body()
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGB"), np.int16)

    def shoot(self, name: str) -> None:
        self.screens.mkdir(parents=True, exist_ok=True)
        self.page.screenshot(path=self.screens / f"{name}_{self.width}.png", full_page=True)

    def close(self) -> None:
        self.context.close()
        expect(self.complaints == [], f"the page logs no errors, but it did: {self.complaints}")


def figures(
    dataset: Path, runs: list[Path], database: Path, out: Path, answers: dict[str, Any], browser: Any
) -> None:
    """Compare everything that follows from the answers with what the raters did."""
    items = len(answers["Ada"]["inspect"])
    for kind in ("inspect", "rank"):
        for ending in ("csv", "jsonl"):
            told = command("review", dataset, *runs, "--db", database, "--kind", kind,
                           "--export", out / f"{kind}.{ending}")  # fmt: skip
            expect(f"{2 * items} opinions" in told, f"{2 * items} opinions in {kind}.{ending}")
    # 3: some samples have no correlation, because a metric ties all models there.
    agree = ("agree", *runs, "--human", out / "rank.csv", "--criterion", "accuracy")
    command(*agree, may_be=(0, 3))
    agreed = json.loads(command(*agree, "--json", may_be=(0, 3), show=False))
    expect(agreed["human"]["samples"] == items, "every sample was ranked")
    expect(agreed["leaderboard"]["rankings"] == 2 * items, "every sample was ranked twice")

    command("report", *runs, "--review", database, "-o", out / "report")
    page = (out / "report/index.html").read_text(encoding="utf-8")
    expect("What people said" in page, "the report shows the ratings")
    board = {row["model"]: row for row in rows(out / "report/tables/people_preference.csv")
             if (row["criterion"], row["method"]) == ("accuracy", "bradley-terry")}  # fmt: skip
    for one in agreed["leaderboard"]["bradley-terry"]:
        same = abs(float(board[one["model"]]["mean_rank"]) - one["mean_rank"]) < 1e-9
        expect(same, "the report and mie agree have the same mean ranks")
    (accept,) = (row for row in rows(out / "report/tables/people_scores.csv") if row["criterion"] == "accept")
    words = [word for name in answers for word in answers[name]["inspect"].values()]
    share = words.count("accept") / (words.count("accept") + words.count("reject"))
    expect(abs(float(accept["value"]) - share) < 1e-9, "the accept rate is that of the answers")
    print((out / "report/tables/people.md").read_text(encoding="utf-8"), end="")
    expect((out / "report/tables/people.tex").stat().st_size > 0, "the tables are there in LaTeX")
    for width in (400, 1400):
        shoot_report(browser, out, width)

    built = json.loads(
        command("build", dataset, "--apply-reviews", database, "-o", out / "reviewed", "--no-stats", "--json")
    )
    gone = [
        sample
        for sample in answers["Ada"]["inspect"]
        if [answers[name]["inspect"][sample] for name in answers].count("reject")
        > [answers[name]["inspect"][sample] for name in answers].count("accept")
    ]
    expect(built["rejected"].get("review") == len(gone), f"{len(gone)} samples were rejected")
    verified = command("verify", out / "reviewed")
    print(f"\n{len(gone)} of {items} reviewed samples were dropped; {verified.splitlines()[0]}")


def shoot_report(browser: Any, out: Path, width: int) -> None:
    # High enough for the whole section: sticky headings would otherwise appear in the middle.
    context = browser.new_context(viewport={"width": width, "height": 4000})
    page = context.new_page()
    page.goto((out / "report/index.html").resolve().as_uri())
    page.evaluate("document.querySelectorAll('img').forEach(image => { image.loading = 'eager' })")
    page.locator("section[aria-labelledby=people]").screenshot(path=out / f"screens/people_{width}.png")
    context.close()


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def command(*arguments: object, may_be: tuple[int, ...] = (0,), show: bool = True) -> str:
    """Run `mie`, print the command and what it says; its stdout."""
    words = [str(word) for word in arguments]
    print(f"\n$ mie {' '.join(words)}", flush=True)
    done = subprocess.run(["mie", *words], capture_output=True, text=True, env=_environment())
    print(done.stdout if show else "", end="")
    expect(
        done.returncode in may_be,
        f"the exit code is in {may_be}, not {done.returncode}: {done.stderr.strip()[-2000:]}",
    )
    return done.stdout


@contextmanager
def serving(*arguments: object) -> Iterator[None]:
    words = ["mie", *map(str, arguments), "--no-open"]
    print(f"\n$ {' '.join(words)}", flush=True)
    process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=_environment())
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        address = re.match(r"open http://127\.0\.0\.1:(\d+)/", line)
        if address is None:
            raise SystemExit("unexpected: the server did not start")
        print(re.sub("join=.*", "join=…", line), end="")
        for _ in range(200):
            try:
                socket.create_connection(("127.0.0.1", int(address[1])), 1).close()
                break
            except OSError:
                time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait()


def _environment() -> dict[str, str]:
    """Of `mie`: the command on the path, else the one beside this Python."""
    path = os.pathsep.join((os.environ["PATH"], str(Path(sys.executable).parent)))
    return {**os.environ, "PATH": path, "PYTHONPATH": str(Path(mie.__file__).parents[1])}


def expect(holds: bool, what: str) -> None:
    if not holds:
        raise SystemExit(f"unexpected: expected that {what}")


def skipped(reason: str) -> int:
    print(f"skipped: {reason}")
    return 0


if __name__ == "__main__":
    main()
