"""What a release is made of: locks, workflows, and a security page whose promises have tests."""

from __future__ import annotations

import ast
import re
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
BASE = ("review", "review-postgres", "ray", "storage", "marks", "faces")
LOCKS = {"base.txt": BASE, "models.txt": (*BASE, "models", "onnx")}


def entries(name: str) -> dict[str, list[Requirement]]:
    """The locked requirements by package, each with at least one checksum."""
    locked: dict[str, list[Requirement]] = {}
    for entry in re.split(r"\n(?=\S)", (ROOT / "locks" / name).read_text().strip()):
        text, *hashes = entry.split(" \\\n")
        assert hashes, text
        assert all(re.fullmatch(r"\s+--hash=sha256:[0-9a-f]{64}", line) for line in hashes), text
        requirement = Requirement(text)
        locked.setdefault(canonicalize_name(requirement.name), []).append(requirement)
    return locked


def wanted(extras: tuple[str, ...]) -> list[Requirement]:
    lists = [PROJECT["dependencies"], *(PROJECT["optional-dependencies"][extra] for extra in extras)]
    requirements = [Requirement(text) for texts in lists for text in texts]
    return [requirement for requirement in requirements if requirement.name != PROJECT["name"]]


@pytest.mark.parametrize("name", LOCKS)
def test_locks_match_the_project(name: str) -> None:
    locked = entries(name)
    for requirement in wanted(LOCKS[name]):
        versions = locked.get(canonicalize_name(requirement.name), [])
        assert versions, f"{requirement.name} is missing: run `make lock`"
        for version in versions:
            number = str(version.specifier).removeprefix("==")
            assert requirement.specifier.contains(number), (
                f"{version} is outside {requirement}: run `make lock`"
            )
    text = (ROOT / "locks" / name).read_text()
    assert not re.search(r"://|--index|--find-links|--extra-index", text)


def test_locks_have_the_versions_that_were_tried_together() -> None:
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    tried = {canonicalize_name(name): number for name, number in (line.split("==") for line in lines)}
    for name in LOCKS:
        for package, versions in entries(name).items():
            numbers = {str(version.specifier).removeprefix("==") for version in versions}
            assert numbers == {tried.get(package, *numbers)}, package


def test_torch_is_in_one_lock_only() -> None:
    assert "torch" in entries("models.txt")
    assert not {"torch", "triton"} & set(entries("base.txt"))


@pytest.mark.parametrize(
    "path", sorted((ROOT / ".github/workflows").glob("*.yml")), ids=lambda path: path.name
)
def test_workflows_have_few_rights_and_named_versions(path: Path) -> None:
    workflow = yaml.safe_load(path.read_text())
    assert workflow["permissions"] == {"contents": "read"}
    steps = [step for job in workflow["jobs"].values() for step in job["steps"]]
    actions = [step["uses"] for step in steps if "uses" in step]
    assert actions
    assert all(re.fullmatch(r"[\w/-]+@(v\d+(\.\d+)*|[0-9a-f]{40})", action) for action in actions)
    # Text from outside never becomes a part of a script.
    assert not any("${{ github.event" in step.get("run", "") for step in steps)


def test_the_release_is_audited_listed_and_signed() -> None:
    jobs = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())["jobs"]
    build = [step.get("run", "") for step in jobs["build"]["steps"]]
    order = [build.index(command) for command in ("make test", "make audit", "make wheel-check")]
    assert order == sorted(order)
    assert "make wheel sbom" in build[order[-1] :]
    (signing,) = (step["with"] for step in jobs["publish"]["steps"] if "sigstore" in step.get("uses", ""))
    assert signing["inputs"].split() == [
        f"dist/{name}" for name in ("*.whl", "SHA256SUMS", "weights.sha256", "sbom.json")
    ]
    assert jobs["publish"]["permissions"] == {"contents": "write", "id-token": "write"}


# What would run code from data, by the call's last names. `torch.load` has one place, which restricts it.
RUNS_CODE = re.compile(
    r"(eval|exec|compile|os\.system|os\.popen|getoutput|getstatusoutput|"
    r"((c|cloudpickle|dill)?pickle|marshal|shelve|joblib|dill)\.(load|loads|open)|"
    r"yaml\.(load|full_load|unsafe_load|load_all)|torch\.load|torch\.jit\.load)"
)
ALLOWED = {("mie/networks/pretrained.py", "torch.load")}


def test_no_module_runs_what_it_reads() -> None:
    """No `eval`, pickle, YAML with tags or shell in the package, by the syntax tree of each module."""
    wrong = []
    for path in sorted((ROOT / "src").rglob("*.py")):
        name = path.relative_to(ROOT / "src").as_posix()
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.Call):
                continue
            called = ast.unparse(node.func)
            options = {option.arg: ast.unparse(option.value) for option in node.keywords}
            if RUNS_CODE.fullmatch(called):
                restricted = called != "torch.load" or options.get("weights_only") == "True"
                wrong += [f"{name}: {called}"] if (name, called) not in ALLOWED or not restricted else []
            for option in ("shell", "trust_remote_code", "allow_pickle"):
                if options.get(option, "False") != "False":
                    wrong.append(f"{name}: {called}({option}=...)")
    assert wrong == []


def test_every_promise_has_its_test() -> None:
    page = (ROOT / "docs/reference/promises.md").read_text()
    named = re.findall(r"^\| [^|]+ \| `(tests/[\w/]+\.py)::(test_\w+)` \|$", page, re.MULTILINE)
    headings = re.findall(r"^## (.+)$", page, re.MULTILINE)
    assert len(named) == page.count("\n| ") - 2 * len(headings) >= 90
    for file, function in named:
        tree = ast.parse((ROOT / file).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, function
    policy = re.findall(r"^## (.+)$", (ROOT / "SECURITY.md").read_text(), re.MULTILINE)
    assert headings == policy[1:], "each section of SECURITY.md but the first, which says how to report"
