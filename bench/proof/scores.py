"""Runs and their scores: every protocol in both variants, without and with a judge."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from functools import cached_property
from typing import Any

from bench.proof.commands import CommandLine, html_tables, sha256
from bench.proof.material import RUNS, Material

VARIANTS = ("paper", "as_released")
OTHERS = ("medebench", "imgedit", "omni-iie")
# Runs that every protocol scores, also those that were not made for it; without a judge.
EVERY = ("p-noisy", "t-compact", "m-compact")
# Run -> protocols that score it with a judge, and further options.
JUDGED: dict[str, tuple[tuple[str, ...], tuple[object, ...]]] = {
    "m-identity": (("miedb",), ()),
    "m-oracle": (("miedb",), ()),
    "m-compact": (("miedb", "medebench"), ()),
    "miedb-noisy": (("miedb",), ("--repeats", 2)),
    "medebench-noisy": (("medebench",), ()),
    "imgedit-free": (("imgedit",), ()),
    "omni-free": (("omni-iie", "imgedit"), ()),
    "omni-forced": (("omni-iie",), ()),
    "p-otsu": (("medebench",), ()),
    "t-nlm": (("imgedit",), ()),
}
# Report -> runs. Their scores are those of the last call: with the judge where JUDGED has one.
REPORTS: dict[str, tuple[str, ...]] = {
    "perception": ("p-identity", "p-oracle", "p-noisy", "p-otsu", "p-kmeans", "p-folder"),
    "transformation": ("t-identity", "t-oracle", "t-noisy", "t-nlm", "t-bilateral"),
    "modification": ("m-identity", "m-oracle", "m-compact"),
    "medebench": ("medebench-noisy",),
    "imgedit": ("imgedit-free",),
    "omni-iie": ("omni-free", "omni-forced"),
}


class Scores:
    """All calls of `mie score`, on copies of the runs in `scored/`, made once."""

    def __init__(self, mie: CommandLine, material: Material) -> None:
        self.mie, self.material = mie, material

    @cached_property
    def documents(self) -> dict[str, Any]:
        """What each call printed and wrote, by `run protocol variant` and `judged`."""
        for run in RUNS:
            self.material.run(run)
        self.mie.make("scored", lambda: self.mie.write("scored/documents.json", self._documents()))
        found: dict[str, Any] = json.loads((self.mie.folder / "scored/documents.json").read_bytes())
        return found

    def _folder(self, run: str) -> str:
        """A copy of the run for its scores: the run itself stays as it was made."""
        copy = self.mie.folder / "scored" / run
        if not copy.exists():
            shutil.copytree(self.mie.folder / self.material.run(run), copy)
        return f"scored/{run}"

    def _documents(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for run, protocol, variant in self._calls():
            try:
                found[f"{run} {protocol} {variant}"] = self._score(run, protocol, variant)
            except SystemExit as refused:  # without a judge some protocols have nothing to say of some runs
                found[f"{run} {protocol} {variant}"] = {"refused": self.mie.plain(str(refused))}
        with self.mie.judge() as judge:
            for run, (protocols, options) in JUDGED.items():
                for protocol in protocols:
                    for variant in VARIANTS:
                        asked = ("--judge", judge, *options)
                        name = f"{run} {protocol} {variant} judged"
                        if variant == "paper":
                            found[f"{name}, dry"] = self._dry(run, protocol, variant, *asked)
                        found[name] = self._score(run, protocol, variant, *asked)
        return found

    def _calls(self) -> Iterator[tuple[str, str, str]]:
        for run in RUNS:
            for protocol in ("miedb", *(OTHERS if run in EVERY else ())):
                for variant in VARIANTS:
                    yield run, protocol, variant

    def _dry(self, run: str, protocol: str, variant: str, *options: object) -> Any:
        words = ("--protocol", protocol, "--variant", variant, "--dry-run", *options)
        return self.mie.json("score", self._folder(run), *words)

    def _score(self, run: str, protocol: str, variant: str, *options: object) -> dict[str, Any]:
        folder = self._folder(run)
        words = ("--protocol", protocol, "--variant", variant, *options)
        printed = self.mie.json("score", folder, *words)
        header, *lines = self.mie.lines(f"{folder}/scores/{protocol}.{variant}.jsonl")
        summary = self.mie.document(f"{folder}/summary/{protocol}.{variant}.json")
        return {
            "printed": printed,
            "summary_as_printed": sha256(summary) == sha256(printed),
            "header": header,
            "lines": {line["id"]: line for line in lines},
            "order": sha256([header, *lines]),  # of the lines, and of the keys in them
        }

    def edits(self) -> dict[str, Any]:
        """Every run: `run.json`, and each edit with the SHA-256 of its output."""
        found = {}
        for name in RUNS:
            folder = self.material.run(name)
            lines = self.mie.lines(f"{folder}/edits.jsonl")
            edits = {f"{line['sample_id']}_{line['attempt']}": line for line in lines}
            found[name] = {
                "run": self.mie.document(f"{folder}/run.json"),
                "edits": dict(sorted(edits.items())),
            }
        return found

    def journals(self) -> dict[str, Any]:
        """The replies of the judge, by file, in the order of their keys."""
        _ = self.documents
        found = {}
        for path in sorted(self.mie.folder.glob("scored/*/judge/*.jsonl")):
            lines = self.mie.lines(path)
            lines.sort(key=lambda line: (line["key"], line["repeat"], line["repair"], line["content"]))
            found[path.relative_to(self.mie.folder).as_posix()] = lines
        return found

    def reports(self) -> dict[str, Any]:
        """The tables of each report, as files and on its page; names and bytes of its pictures."""
        _ = self.documents
        found: dict[str, Any] = {}
        for name, runs in REPORTS.items():
            for variant in VARIANTS:
                folders = [self._folder(run) for run in runs]
                found[f"{name} {variant}"] = self._report(f"reports/{name}-{variant}", folders, variant)
        people = self._ratings("p-identity", "p-otsu", "p-kmeans")
        folders = [self._folder(run) for run in ("p-identity", "p-otsu", "p-kmeans")]
        found["people"] = self._report("reports/people", folders, "paper", "--review", people)
        found["agree"] = self.mie.json("agree", *folders, "--human", people, "--criterion", "accuracy")
        return found

    def _report(self, out: str, folders: list[str], variant: str, *options: object) -> dict[str, Any]:
        self.mie.remove(out)
        self.mie("report", *folders, "-o", out, "--variant", variant, *options)
        files = self.mie.tree(out)
        tables = [name for name in files if name.startswith("tables/")]
        return {
            "tables": {name: self.mie.text(f"{out}/{name}").splitlines() for name in tables},
            "page": html_tables(self.mie.text(f"{out}/index.html")),
            "pictures": {name: digest for name, digest in files.items() if name.startswith("images/")},
            "plots": {name: digest for name, digest in files.items() if name.startswith("plots/")},
            "other files": sorted(name for name in files if not name.startswith(("images/", "plots/"))),
        }

    def _ratings(self, *runs: str) -> str:
        """Ratings by three people: ranks that differ between them, and scores."""
        lines = ["sample_id,rater,run,criterion,rank,score"]
        ids = [row["id"] for row in self.mie.rows(self.material.dataset("perception"))][:12]
        for at, sample in enumerate(ids):
            for rater in range(3):
                for place, run in enumerate(runs):
                    rank = 1 + (place + (at * rater) % 3) % 3
                    lines.append(f"{sample},R{rater},{run},accuracy,{rank},{5 - rank}")
        self.mie.write("ratings.csv", "\n".join(lines) + "\n")
        return "ratings.csv"
