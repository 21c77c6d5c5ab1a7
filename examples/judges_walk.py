"""All four protocols with a judge, from images to tables, and the scorer killed at random on the way.

    python examples/judges_walk.py -o out/walk
    python examples/judges_walk.py examples/perception.yaml --limit 2 -o out/walk

Builds datasets from recipes (those of `mie demo` by default), and from their images two more: removals, where
the reference is the region filled in from its surroundings (`cv2.inpaint`), and conversations of three turns
with shared-context pairs. An editor runs on each. A server on this machine (`loopback_judge.py`) plays the
judge: its replies are drawn from a hash, so no number here says anything about the editor. `mie score` runs
with every protocol, first dry; then everything is scored again with the scorer killed (SIGKILL) at random
points. The walk ends with an error unless the files are equal, byte for byte, and no request was made again
whose reply was on disk.
"""

from __future__ import annotations

import argparse
import json
import random
import re
import shutil
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import cycle, islice
from pathlib import Path

import cv2
import numpy as np

import mie
from mie.images.overlay import paint
from mie.records import Sample

# Which protocols score which dataset; those of recipes have one each in turn.
RECIPE_PROTOCOLS = ("medebench", "imgedit")
OTHERS = {"removals": ("miedb", "medebench"), "conversations": ("imgedit", "omni-iie")}
RECIPES = [Path(__file__).with_name(f"samples-{name}.yaml") for name in ("perception", "transformation")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("recipes", type=Path, nargs="*", help="recipe files (those of `mie demo`)")
    parser.add_argument("-o", "--output", type=Path, required=True, help="a new folder")
    parser.add_argument("--limit", type=int, default=1, help="images or volumes of each data set (1)")
    parser.add_argument("--samples", type=int, default=10, help="samples of a dataset that are edited (10)")
    parser.add_argument("--editor", default="nlm", help="who edits (nlm)")
    parser.add_argument("--kills", type=int, default=3, help="kills for each protocol (3)")
    parser.add_argument("--seed", type=int, default=0, help="of the kills (0)")
    options = parser.parse_args()
    options.output.mkdir(parents=True)

    datasets = [build(recipe, options) for recipe in options.recipes or RECIPES]
    regions = list(islice(with_regions(datasets), options.samples))
    datasets += [removals(regions, options.output), conversations(regions, options.output)]
    runs = [edit(dataset, options) for dataset in datasets]
    turns = cycle((protocol,) for protocol in RECIPE_PROTOCOLS)
    pairs = [(run, protocol) for run in runs for protocol in OTHERS.get(run.name) or next(turns)]

    log = options.output / "requests.jsonl"
    command = [sys.executable, str(Path(__file__).with_name("loopback_judge.py")), "--log", str(log)]
    server = subprocess.Popen([*command, "--delay", "0.05"], stdout=subprocess.PIPE, text=True)
    try:
        url = server.stdout.readline().strip()  # type: ignore[union-attr]
        walk = Walk(f"openai:loopback,base_url={url}", log, random.Random(options.seed))
        for run, protocol in pairs:
            walk.score(run, protocol, "--dry-run")
            walk.score(run, protocol)
        said = walk.requests()
        walk.expect(len(set(said)) == len(said), f"{len(said)} requests, no two alike")
        for run, protocol in pairs:
            walk.score(run, protocol, quiet=True)
        walk.expect(walk.requests() == said, "everything scored once more: not one request")
        walk.killed(pairs, options.kills)
    finally:
        server.terminate()
        server.wait()
    for run in runs:
        call("report", str(run), "-o", str(options.output / "reports" / run.name))


def build(recipe: Path, options: argparse.Namespace) -> Path:
    folder = options.output / "datasets" / recipe.stem
    call("build", str(recipe), "-o", str(folder), "--limit", str(options.limit), "--no-stats", fine=(0, 3))
    return folder


def with_regions(datasets: Sequence[Path]) -> Iterator[Sample]:
    """Samples with one region, in turn from each source, so that a few show many kinds of image."""
    by_source: dict[str, list[Sample]] = {}
    for dataset in datasets:
        for sample in mie.Dataset(dataset).samples():
            if sample.mask is not None and sample.colour and "," not in sample.colour:
                by_source.setdefault(sample.source, []).append(sample)
    for at in range(max(map(len, by_source.values()), default=0)):
        yield from (found[at] for found in by_source.values() if at < len(found))


def removed(sample: Sample) -> np.ndarray:
    """The region filled in from around it."""
    region = cv2.dilate((sample.mask > 0).astype(np.uint8), np.ones((5, 5), np.uint8))
    return cv2.inpaint(in_colour(sample.input), region, 3, cv2.INPAINT_TELEA)


def in_colour(image: np.ndarray) -> np.ndarray:
    return image if image.ndim == 3 else np.repeat(image[..., None], 3, axis=2)


def removals(samples: Sequence[Sample], output: Path) -> Path:
    """A folder in MieDB's layout, imported: Modification, which only a judge can grade."""
    folder, records = output / "removals", []
    for number, sample in enumerate(samples, start=1):
        names = {"input_image": f"input/{number}.png", "output_image": f"output/{number}.png"}
        write(folder / names["input_image"], sample.input)
        write(folder / names["output_image"], removed(sample))
        words = f"Remove the {sample.target} from this {sample.modality} image."
        records.append({"idx": number, "category": "Modification", **names, "prompt": words})
    (folder / "metadata.json").write_text(json.dumps(records))
    dataset = output / "datasets/removals"
    call("import", str(folder), "-f", "miedb", "-o", str(dataset))
    return dataset


def conversations(samples: Sequence[Sample], output: Path) -> Path:
    """Omni IIE Bench's layout, imported: of each image a pair (low: paint, high: remove) and three turns."""
    folder, records = output / "conversations", []
    for number, sample in enumerate(samples):
        image, region = in_colour(sample.input), sample.mask > 0
        painted = paint(image, region, "green")
        states = {"image": image, "painted": painted, "removed": removed(sample)}
        states["dark"] = (painted * 0.6).astype(np.uint8)
        for name, pixels in states.items():
            write(folder / f"{number}/{name}.png", pixels)
        write(folder / f"{number}/mask.png", region.astype(np.uint8) * 255)
        what = sample.target
        edits = [
            ("pair", "low", "image", "painted", f"Paint the {what} green.", "attribute"),
            ("pair", "high", "image", "removed", f"Remove the {what}.", "entity"),
            ("talk", 1, "image", "painted", f"Paint the {what} green.", "attribute"),
            ("talk", 2, "painted", "dark", "Now darken the whole picture.", "attribute"),
            ("talk", 3, "dark", "removed", f"Go back to the first image and remove the {what}.", "entity"),
        ]
        for kind, level, before, after, words, edit_type in edits:
            records.append(
                {
                    "sample_id": f"{kind}{number}",
                    "level": level,
                    "original_image_path": f"{number}/{before}.png",
                    "modified_image_path": f"{number}/{after}.png",
                    "modification_text": words,
                    "source_mask_path": f"{number}/mask.png",
                    "edit_type": edit_type,
                }
            )
    (folder / "walk.json").write_text(json.dumps(records))
    dataset = output / "datasets/conversations"
    call("import", str(folder), "-f", "omni-iie", "-o", str(dataset))
    return dataset


def write(path: Path, pixels: np.ndarray) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    cv2.imwrite(str(path), pixels if pixels.ndim == 2 else pixels[..., ::-1])


def edit(dataset: Path, options: argparse.Namespace) -> Path:
    run = options.output / "runs" / dataset.name
    limit = 5 * options.samples if dataset.name == "conversations" else options.samples
    call("run", str(dataset), "-e", options.editor, "-o", str(run), "--limit", str(limit), fine=(0, 3))
    return run


class Walk:
    """Scoring with one judge, and what its server saw."""

    def __init__(self, judge: str, log: Path, draw: random.Random) -> None:
        self.judge, self.log, self.draw = judge, log, draw
        self.kept: set[str] = set()  # since the first kill

    def command(self, run: Path, protocol: str, *more: str) -> list[str]:
        return [*MIE, "score", str(run), "--protocol", protocol, "--judge", self.judge, *more]

    def score(self, run: Path, protocol: str, *more: str, quiet: bool = False) -> None:
        if not quiet:
            print(f"\n$ mie score {run} --protocol {protocol} {' '.join(more)}", flush=True)
        out = subprocess.DEVNULL if quiet else None
        done = subprocess.run(self.command(run, protocol, *more), check=False, stdout=out, stderr=out)
        self.expect(done.returncode in (0, 3), f"{protocol} exits with {done.returncode}", quiet=True)

    def requests(self) -> list[str]:
        return [json.loads(line)["request"] for line in self.log.read_text().splitlines()]

    def killed(self, pairs: Sequence[tuple[Path, str]], kills: int) -> None:
        """Forget all replies and scores, and make them again with a scorer that is killed now and then."""
        runs = list(dict.fromkeys(run for run, _ in pairs))
        expected = {run: results(run) for run in runs}
        for run in runs:
            for folder in ("scores", "summary", "judge"):
                shutil.rmtree(run / folder, ignore_errors=True)
            shutil.rmtree(dataset_of(run) / "judge", ignore_errors=True)
        before, again = len(self.requests()), 0
        for run, protocol in pairs:
            again += self._killed(run, protocol, kills)
        for run in runs:
            for name, data in expected[run].items():
                self.expect(results(run)[name] == data, f"{run.name}/{name}: equal bytes", quiet=True)
        count = sum(map(len, expected.values()))
        print(f"{count} files of scores and summaries are equal to those made without a kill, byte for byte")
        seen = self.requests()[before:]
        twice = sum(number - 1 for number in Counter(seen).values())
        self.expect(twice <= again, f"{len(seen)} requests, {twice} of them made again", quiet=True)
        print(
            f"{len(seen)} requests, none for a reply that was on disk; {again} were under way at a kill, "
            f"{twice} of which had to be made again"
        )

    def _killed(self, run: Path, protocol: str, kills: int) -> int:
        """How many requests were under way at the kills."""
        lost = 0
        for _ in range(kills):
            first = len(self.requests())
            process = subprocess.Popen(
                self.command(run, protocol), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
            )
            wanted = first + self.draw.randrange(1, 8)  # into the replies, not into the start of Python
            while process.poll() is None and len(self.requests()) < wanted:
                time.sleep(0.002)
            time.sleep(self.draw.random() * 0.1)
            process.kill()
            process.wait()
            time.sleep(0.1)  # the server finishes what it began
            self.check_not_again(run, first)
            lost += len(set(self.requests()[first:]) - kept(run))
        first = len(self.requests())
        self.score(run, protocol, quiet=True)
        self.check_not_again(run, first)
        return lost

    def check_not_again(self, run: Path, first: int) -> None:
        """A request whose reply was on disk before is not among those since."""
        before = getattr(self, "_kept", set())
        self.expect(
            not before.intersection(self.requests()[first:]), "no reply is asked for twice", quiet=True
        )
        self._kept = before | kept(run)

    def expect(self, true: bool, what: str, *, quiet: bool = False) -> None:
        if not true:
            raise SystemExit(f"NOT SO: {what}")
        if not quiet:
            print(what)


def dataset_of(run: Path) -> Path:
    return mie.read_run(run).dataset().folder


def results(run: Path) -> dict[str, bytes]:
    files = [*run.glob("scores/*.jsonl"), *run.glob("summary/*.json")]
    return {str(path.relative_to(run)): path.read_bytes() for path in sorted(files)}


def kept(run: Path) -> set[str]:
    """The requests whose replies are on disk, by the name that each reply carries."""
    files = [*run.glob("judge/*.jsonl"), *dataset_of(run).glob("judge/*.jsonl")]
    text = "".join(path.read_text(encoding="utf-8") for path in files)
    return set(re.findall(r"request ([0-9a-f]{16})", text))


MIE = (sys.executable, "-m", "mie")


def call(*words: str, fine: tuple[int, ...] = (0,)) -> None:
    print(f"\n$ mie {' '.join(words)}", flush=True)
    done = subprocess.run([*MIE, *words], check=False)
    if done.returncode not in fine:
        raise SystemExit(done.returncode)


if __name__ == "__main__":
    main()
