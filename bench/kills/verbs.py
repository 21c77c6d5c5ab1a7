"""The long commands of `mie` that are killed, on data small enough to run each of them a thousand times."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from mie.datasets.build import build
from mie.datasets.dataset import Dataset
from mie.datasets.exports import export
from mie.datasets.recipe import parse_recipe
from mie.editors.run import run_editor
from mie.questions.answers import answer_questions
from mie.questions.build import build_questions
from mie.questions.recipe import read_question_recipe
from mie.scoring.benchmarks import BENCHMARKS
from mie.scoring.score import score_run
from mie.training.folder import read_log
from tests.conftest import folder_source, write_folder
from tests.datasets.test_build_modification import body as modification_recipe
from tests.datasets.test_build_modification import write_lesions
from tests.datasets.test_build_transformation import recipe as transformation_recipe
from tests.editors.providers import Providers
from tests.judges.server import JudgeServer, texts_of

# What differs between two runs of the same thing that nobody disturbed.
_CLOCKS = frozenset(
    {
        *("seconds", "timings", "edits_per_second", "images_per_second", "validation_seconds", "latency"),
        *("data_wait", "tflops", "share_of_peak"),
        *("at", "created", "memory_gib", "environment", "machine", "versions"),
    }
)
# Lines that are on disk stay there, byte for byte.
_APPENDED = re.compile(
    r"(arms/.*/)?(edits\.jsonl|log\.jsonl|(judge|replies)/.*\.jsonl|answers/paid\.jsonl|grounding\.jsonl)"
)
# A resumed training adds a file of its own to tensorboard.
_IGNORED = re.compile(r"(arms/.*/)?(tensorboard/.*|\.lock)")

State = dict[str, str]


@dataclass(frozen=True)
class Paid:
    """A server that is paid for each answer: what it was asked, and how many answers a folder holds."""

    requests: list[Any]
    answers: Callable[[Path], int]


@dataclass(frozen=True)
class Verb:
    """A command that fills `out`; `begin` puts there what it starts from."""

    name: str
    arguments: Callable[[Path], list[str]]
    begin: Callable[[Path], None] = lambda _out: None
    share: int = 2  # of the cases
    kinds: tuple[str, ...] = ("kill", "at random", "full", "broken", "interrupted", "short")
    paid: Paid | None = None
    codes: tuple[int, ...] = (0,)  # exit codes of success


def state(out: Path) -> State:
    """Every file: JSON without clocks and with lines of appended files in any order, a digest of others."""
    files = sorted(path for path in out.rglob("*") if not path.is_dir())
    names = {path: path.relative_to(out).as_posix() for path in files}
    return {name: _content(path) for path, name in names.items() if not _IGNORED.fullmatch(name)}


def appended(out: Path) -> dict[str, bytes]:
    """The whole lines of each append-only file."""
    names = {path.relative_to(out).as_posix(): path for path in out.rglob("*.jsonl")}
    whole = lambda data: data[: data.rfind(b"\n") + 1]
    return {name: whole(path.read_bytes()) for name, path in names.items() if _APPENDED.fullmatch(name)}


def _content(path: Path) -> str:
    if path.name == "log.jsonl":
        text = json.dumps(_timeless(read_log(path)))
    elif path.name in ("edits.jsonl", "paid.jsonl") or path.parent.name in ("judge", "replies"):
        lines = path.read_text().splitlines()
        text = "\n".join(sorted(json.dumps(_timeless(json.loads(line)), sort_keys=True) for line in lines))
    elif path.suffix == ".json":
        text = json.dumps(_timeless(json.loads(path.read_text())), indent=0)
    else:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    return text


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _timeless(item) for key, item in value.items() if key not in _CLOCKS}
    return [_timeless(item) for item in value] if isinstance(value, list) else value


@dataclass
class Material:
    """What the commands start from, made once."""

    folder: Path
    judge: JudgeServer
    providers: Providers

    def make(self) -> None:
        folder = self.folder
        discs = write_folder(folder / "discs", 10, patients=5, size=64)
        bodies = {
            "perception": {
                "name": "discs",
                "seed": 3,
                "split": {"test": 0.3},
                "sources": [folder_source(discs)],
            },
            "many": {"name": "many", "seed": 3, "sources": [folder_source(_many(folder / "many-discs"))]},
            "transformation": _transformation(folder),
            "modification": modification_recipe(write_lesions(folder / "lesions", 8), candidates=1),
        }
        for name, body in bodies.items():
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(body))
        (folder / "questions.yaml").write_text(yaml.safe_dump({**bodies["perception"], "name": "questions"}))
        build_questions(read_question_recipe(folder / "questions.yaml"), folder / "questions", workers=1)
        answer_questions(folder / "questions", "prior", folder / "answered")
        for name in ("perception", "modification"):
            recipe = parse_recipe(bodies[name], where=name, base=folder)
            build(recipe, folder / name, workers=1)
        for name, dataset, editor in (
            ("run", "perception", "otsu"),
            ("scored", "perception", "otsu"),
            ("second", "perception", "identity"),
            ("changed", "modification", "telea"),
        ):
            run_editor(folder / dataset, editor, folder / name, workers=1)
        for name in ("scored", "second"):
            score_run(BENCHMARKS["miedb"], folder / name, workers=1)
        export(Dataset(folder / "perception"), folder / "exported", "folder")
        (folder / "train.yaml").write_text(yaml.safe_dump(_TRAINING))
        (folder / "ablation.yaml").write_text(yaml.safe_dump(_ABLATION))

    def make_model(self, _out: Path) -> None:
        """A tiny model for the one command that needs it, since its libraries take seconds to import."""
        if not (self.folder / "omnigen2").exists():
            from tests.editors.large.tiny_omnigen2 import write_omnigen2

            write_omnigen2(self.folder / "omnigen2")


_TRAINING = {
    "name": "tiny",
    "trainee": "tests.training.tiny:Tiny",
    "seed": 3,
    "steps": 12,
    "batch": 4,
    "optimizer": {"lr": 1e-2, "warmup": 2},
    "precision": "fp32",
    "checkpoint": {"every": 4},
    "validate": {"every": 6},
    "log_every": 2,
}


# An experiment trains, edits and measures; its editor is one without weights, so that all this is quick.
_ABLATION = {
    "name": "ablation",
    "datasets": {"perception": "perception", "modification": "modification"},
    "train": {
        **{key: value for key, value in _TRAINING.items() if key not in ("name", "seed")},
        "trainee": "tests.training.tiny:TinyEditor",
        "steps": 4,
    },
    "seeds": [1],
    "match": ["steps"],
}


def _many(folder: Path) -> Path:
    """Enough images for two parts, which two processes can make."""
    return write_folder(folder, 70, patients=10, size=48)


def _transformation(folder: Path) -> dict[str, Any]:
    write_folder(folder / "mri", 5, patients=5)
    (folder / "pairs").mkdir()
    body = transformation_recipe(folder, {"per_case": 2})
    return {**body, "sources": body["sources"][:1]}


def answer(body: dict[str, Any]) -> str:
    """A verdict that depends on the question alone."""
    grades = [1 + (len("".join(texts_of(body))) + n) % 5 for n in range(8)]
    return json.dumps({"conclusion": "", "score_list": grades})


def judged(out: Path) -> int:
    """Replies of a model that are on disk."""
    folders = ("judge/", "replies/")
    return sum(data.count(b"\n") for name, data in appended(out).items() if name.startswith(folders))


def bought(out: Path) -> int:
    """Answers of a provider that are on disk, or were until their edits were."""
    lines = appended(out).get("answers/paid.jsonl", b"").splitlines()
    return len(
        {json.loads(line)["answer"] for line in lines} | {p.stem for p in out.glob("answers/*.answer")}
    )


def verbs(material: Material) -> dict[str, Verb]:
    at = lambda name: str(material.folder / name)

    def from_run(name: str) -> Callable[[Path], None]:
        return lambda out: shutil.copytree(material.folder / name, out, dirs_exist_ok=True) and None

    def building(name: str, *more: str) -> Callable[[Path], list[str]]:
        return lambda out: ["build", at(f"{name}.yaml"), "-o", str(out), *more]

    one = ("--workers", "1")
    judge = f"openai:tiny,base_url={material.judge.url}"
    provider = material.providers.spec("fal", ",price=0.01,budget=1")  # 20 edits cost 0.20
    omnigen2 = f"omnigen2:{at('omnigen2')},steps=1,device=cpu"
    both = ("kill", "kill one", "at random", "full", "broken")
    listed = [
        Verb("build perception", building("perception", *one)),
        Verb("build transformation", building("transformation", *one, "--no-stats"), codes=(0, 3)),
        Verb("build modification", building("modification", *one, "--no-stats")),
        Verb("build in two processes", building("many", "--workers", "2", "--no-stats"), share=1, kinds=both),
        Verb(
            "run",
            lambda out: ["run", at("perception"), "-e", "otsu", "-o", str(out), "--attempts", "2"],
            share=3,
        ),
        Verb(
            "run by a provider",
            lambda out: ["run", at("perception"), "-e", provider, "-o", str(out), "--attempts", "2"],
            share=3,
            paid=Paid(material.providers.raw, bought),
        ),
        Verb(
            "edit a folder",
            lambda out: ["edit", at("discs/images"), "Mark it in red.", "-e", "otsu", "-o", str(out)],
        ),
        Verb(
            "ground",
            lambda out: ["ground", at("perception"), "-e", omnigen2, "-o", str(out), "--limit", "2"],
            material.make_model,
            share=1,
        ),
        Verb("score", lambda out: ["score", str(out), "--workers", "1"], from_run("run"), codes=(0, 3)),
        Verb(
            "score with a judge",
            lambda out: ["score", str(out), "--workers", "1", "--judge", judge, "--judge-concurrency", "3"],
            from_run("changed"),
            share=3,
            paid=Paid(material.judge.requests, judged),
            codes=(0, 3),
        ),
        Verb("train", lambda out: ["train", at("train.yaml"), "-o", str(out), "--device", "cpu"], share=3),
        Verb(
            "experiment",
            lambda out: ["experiment", "ablation", at("ablation.yaml"), "-o", str(out), "--device", "cpu"],
        ),
        Verb(
            "merge",
            lambda out: ["merge", at("perception"), at("modification"), "-o", str(out), *one],
        ),
        Verb(
            "choose",
            lambda out: ["choose", at("perception"), "--quota", "4", "--split", "all", "-o", str(out), *one],
        ),
        Verb("pack", lambda out: ["pack", at("perception"), "-o", str(out), "--workers", "1"]),
        Verb("export", lambda out: ["export", at("perception"), "-f", "webdataset", "-o", str(out)]),
        Verb("import", lambda out: ["import", at("exported"), "-f", "folder", "-o", str(out)]),
        Verb("vqa build", lambda out: ["vqa", "build", at("questions.yaml"), "-o", str(out), *one]),
        Verb(
            "vqa run",
            lambda out: ["vqa", "run", at("questions"), "-a", judge, "-o", str(out), "--concurrency", "3"],
            share=3,
            paid=Paid(material.judge.requests, judged),
        ),
        Verb("vqa score", lambda out: ["vqa", "score", str(out)], from_run("answered")),
        Verb("report", lambda out: ["report", at("scored"), at("second"), "-o", str(out)]),
        Verb("board", lambda out: ["board", at("scored"), at("second"), "-o", str(out)]),
    ]
    return {verb.name: verb for verb in listed}
