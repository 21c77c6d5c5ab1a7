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
BASE = ("judges", "review", "review-postgres", "ray", "marks", "faces")
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


def test_every_promise_of_the_security_page_has_its_test() -> None:
    page = (ROOT / "docs/explanation/security.md").read_text()
    named = re.findall(r"^\| [^|]+ \| `(tests/[\w/]+\.py)::(test_\w+)` \|$", page, re.MULTILINE)
    rows = page.partition("## Promises and their tests")[2].count("\n| ") - 2
    assert len(named) == rows >= 20
    for file, function in named:
        tree = ast.parse((ROOT / file).read_text())
        assert function in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}, function
