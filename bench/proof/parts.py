"""What is recorded, part by part."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

from bench.proof import people, training, verbs
from bench.proof.commands import REPOSITORY, CommandLine
from bench.proof.material import RECIPES, Material
from bench.proof.scores import Scores

LAYOUTS = ("miedb", "medebench", "imgedit", "omni-iie")
FORMATS = ("folder", "miedb", "omnigen2", "webdataset")


class Parts:
    """One method for each part; what several need is made once."""

    def __init__(self, folder: Path, recipes: Sequence[str] = ()) -> None:
        self.recipes = recipes  # of `examples`; none: all of them
        self.mie = CommandLine(folder)
        self.material = Material(self.mie)

    @cached_property
    def _scores(self) -> Scores:
        return Scores(self.mie, self.material)

    def demo(self) -> dict[str, Any]:
        """`mie demo`: its datasets, edits and scores, and the names of all files."""
        self.mie.make("demo", lambda: self.mie("demo", "-o", "demo"))
        found: dict[str, Any] = {}
        for dataset in sorted(path.parent for path in self.mie.folder.glob("demo/*/*/dataset.json")):
            found[dataset.parent.name] = self.mie.dataset(dataset.relative_to(self.mie.folder))
        for path in sorted(self.mie.folder.glob("demo/*/runs/*/*/*.json*")):
            lines = path.suffix == ".jsonl"
            body = self.mie.lines(path) if lines else self.mie.document(path)
            found[path.relative_to(self.mie.folder).as_posix()] = body
        for path in sorted(self.mie.folder.glob("demo/*/report/tables/*")):
            found[path.relative_to(self.mie.folder).as_posix()] = self.mie.text(path).splitlines()
        files = self.mie.tree("demo")
        found["files"] = {
            name: digest if name.endswith(".png") and "/plots/" not in name else "is there"
            for name, digest in files.items()
        }
        return found

    def datasets(self) -> dict[str, Any]:
        """Small datasets by recipe and by import."""
        names = (*RECIPES, *(f"import-{layout}" for layout in LAYOUTS))
        found = {name: self.mie.dataset(self.material.dataset(name)) for name in names}
        for name in RECIPES:
            stats = self.mie.json("stats", self.material.dataset(name), "-o", f"stats/{name}")
            found[name]["stats"] = stats
        return found

    def scores(self) -> dict[str, Any]:
        """Every run and every number of `mie score`."""
        return {"runs": self._scores.edits(), "scores": self._scores.documents}

    def report(self) -> dict[str, Any]:
        """The tables of `mie report`, and `mie agree`."""
        return self._scores.reports()

    def journal(self) -> dict[str, Any]:
        """What the judge on this machine was asked and replied."""
        return self._scores.journals()

    def exports(self) -> dict[str, Any]:
        """Every export format, what can be imported again, and packs."""
        found: dict[str, Any] = {}
        for name in (*RECIPES, "import-miedb"):
            dataset = self.material.dataset(name)
            for form in FORMATS:
                out = f"exports/{name}-{form}"
                self.mie.remove(out)
                self.mie("export", dataset, "-f", form, "-o", out)
                found[f"{name} {form}"] = self.mie.tree(out)
                if form in ("folder", "miedb"):
                    again = f"exports/{name}-{form}-again"
                    self.mie.remove(again)
                    self.mie("import", out, "-f", form, "-o", again)
                    found[f"{name} {form} again"] = self.mie.document(f"{again}/dataset.json")
            self.mie.remove(f"exports/{name}-test")
            self.mie("export", dataset, "-f", "miedb", "-o", f"exports/{name}-test", "--split", "test")
            found[f"{name} miedb test"] = self.mie.tree(f"exports/{name}-test")
        datasets = [self.material.dataset(name) for name in RECIPES]
        for name, options in {"exact": (), "lossy": ("--lossy", 90), "test": ("--split", "test")}.items():
            self.mie.remove(f"packs/{name}")
            pack = self.mie.json("pack", *datasets, "-o", f"packs/{name}", "--validation", 0.3, *options)
            found[f"pack {name}"] = {"info": pack, "files": self.mie.tree(f"packs/{name}")}
        return found

    def verbs(self) -> dict[str, Any]:
        """Commands and options, and what the smaller commands give."""
        return verbs.record(self.mie, self.material)

    def training(self) -> dict[str, Any]:
        """Tiny networks of every kind, and their weights."""
        return training.record(self.mie)

    def review(self) -> dict[str, Any]:
        """What two scripted raters say, as `mie review` exports it, and the dataset that follows from it."""
        dataset = self.material.dataset("perception")
        runs = [self.material.run(name) for name in ("p-identity", "p-otsu", "p-kmeans")]
        kinds = ("inspect", "mask", "rank")
        self.mie.remove("review")
        self.mie.remove("reviewed")
        database = "review/review.sqlite"
        people.review(self.mie, [dataset, *runs], database, kinds, "--sample", 9, "--seed", 5)
        found: dict[str, Any] = {}
        for kind in kinds:
            for ending in ("csv", "jsonl"):
                out = f"review/{kind}.{ending}"
                self.mie("review", dataset, *runs, "--db", database, "--kind", kind, "--export", out)
            found[kind] = [
                {name: value for name, value in line.items() if name != "event"}
                for line in self.mie.lines(f"review/{kind}.jsonl")
            ]
            found[f"{kind}.csv"] = self.mie.text(f"review/{kind}.csv").splitlines()
        masks = ("review", dataset, *runs, "--db", database, "--kind", "mask", "--export", "review/masks")
        self.mie(*masks)
        found["masks"] = self.mie.tree("review/masks")
        for run in runs:
            self.mie("score", run)
        found["agree"] = self.mie.json("agree", *runs, "--human", database, "--criterion", "accuracy")
        self.mie("build", dataset, "--apply-reviews", database, "-o", "reviewed", "--no-stats")
        found["reviewed"] = self.mie.dataset("reviewed")
        return found

    def examples(self) -> dict[str, Any]:
        """The datasets of the recipes in `examples/`; minutes each, from public data sets."""
        found: dict[str, Any] = {}
        for path in sorted((REPOSITORY / "examples").glob("*.yaml")):
            text = path.read_text(encoding="utf-8")
            if not re.search(r"^sources:", text, re.MULTILINE):
                continue  # no recipe
            if self.recipes and path.stem not in self.recipes:
                continue
            if "${MIE_DATA}" in text and not os.environ.get("MIE_DATA"):
                found[path.name] = "skipped: MIE_DATA is not set"
                continue
            out = f"examples/{path.stem}"
            self.mie.remove(out)
            self.mie("build", path, "-o", out, "--no-stats")
            found[path.name] = self.mie.dataset(out)
            self.mie.remove(out)
            print(f"  {path.name}: {found[path.name]['info']['digest'][:16]}", flush=True)
        return found


PARTS: dict[str, Callable[[Parts], dict[str, Any]]] = {
    "demo": Parts.demo,
    "datasets": Parts.datasets,
    "scores": Parts.scores,
    "report": Parts.report,
    "journal": Parts.journal,
    "exports": Parts.exports,
    "review": Parts.review,
    "verbs": Parts.verbs,
    "training": Parts.training,
    "examples": Parts.examples,
}
