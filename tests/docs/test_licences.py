"""The model card names every data set that a shipped file was trained on, with its licence."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest
import yaml

from mie.networks.shipped import FOLDER, SHIPPED
from mie.sources.catalog import catalog
from tests.docs.pages import ROOT

CARD = FOLDER / "README.md"
# Of detectors, all but that of regions list their data sets in the header.
LISTED = [name for name in SHIPPED if "detector-" in name and "region" not in name]
LISTED.append("text-detector.safetensors")
# Weights whose header does not, and the recipes that they were trained on.
RECIPES = {
    "compact": ("perception", "transformation", "compact/data", "compact/pairs"),
    "flow": ("flow/data",),
}


@pytest.fixture(scope="module")
def licences() -> ModuleType:
    spec = importlib.util.spec_from_file_location("licences", ROOT / "examples/licences.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def card() -> dict[str, tuple[str, set[str]]]:
    """The licence and the weights beside each data set on the card."""
    lines: dict[str, tuple[str, set[str]]] = {}
    section = CARD.read_text(encoding="utf-8").partition("\n# Data sets and licences\n")[2]
    for line in section.splitlines():
        if line.startswith("| ") and "`" in line:
            licence, names, users = line.strip("| ").split(" | ")
            for name in re.findall(r"`(\w+)`", names):
                assert name not in lines
                lines[name] = (licence, set(users.split(", ")))
    return lines


def test_the_table_is_the_one_that_the_script_makes(licences: ModuleType) -> None:
    assert f"{licences.BEGIN}\n\n{licences.table()}\n\n{licences.END}" in CARD.read_text(encoding="utf-8")


def test_the_script_writes_between_the_two_lines_alone(
    licences: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"above\n{licences.BEGIN}\nold\n{licences.END}\nbelow\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["licences.py", str(page)])
    licences.main()
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"above\n{licences.BEGIN}\n\n| licence")
    assert text.endswith(f" |\n\n{licences.END}\nbelow\n")
    assert "old" not in text


def test_licences_are_those_of_the_catalogue(card: dict[str, tuple[str, set[str]]]) -> None:
    assert {name: licence for name, (licence, _) in card.items()} == {
        name: catalog()[name].license.name for name in card
    }


@pytest.mark.parametrize("name", LISTED)
def test_every_data_set_of_a_header_is_on_the_card(
    licences: ModuleType, card: dict[str, tuple[str, set[str]]], name: str
) -> None:
    meta = licences.header(FOLDER / name)
    sets = meta.get("sources") or [licences.FOLDERS.get(one, one) for one in meta["sets"]]
    assert sets
    assert [one for one in sets if one not in card or Path(name).stem not in card[one][1]] == []


@pytest.mark.parametrize("stem", RECIPES)
def test_every_data_set_of_a_recipe_is_on_the_card(
    licences: ModuleType, card: dict[str, tuple[str, set[str]]], stem: str
) -> None:
    for recipe in RECIPES[stem]:
        sources = yaml.safe_load((ROOT / f"examples/{recipe}.yaml").read_text(encoding="utf-8"))["sources"]
        names = {one["name"] for one in sources if one.get("split") == "train"}
        names |= {one["name"] for one in sources} - licences.TEST_ONLY
        assert sorted(one for one in names if one not in card or stem not in card[one][1]) == []


@pytest.mark.parametrize("recipe", ["structures", "nodules"])
def test_the_data_sets_that_examples_draw_into_are_on_the_card(
    card: dict[str, tuple[str, set[str]]], recipe: str
) -> None:
    body = yaml.safe_load((ROOT / f"examples/compact/{recipe}.yaml").read_text(encoding="utf-8"))
    for source in body["sources"]:
        licence, users = card[source["cohort"]]
        assert licence == source["license"]["name"]
        assert "compact" in users


def test_inpainters_of_a_pack_have_what_its_detectors_have(card: dict[str, tuple[str, set[str]]]) -> None:
    """The headers name the same pack; detectors list the data sets with lesions in it."""
    for family in ("ct", "dermoscopy", "endoscopy", "mri", "ultrasound"):
        sets = {name for name, (_, users) in card.items() if f"detector-{family}" in users}
        assert sets
        assert sets <= {name for name, (_, users) in card.items() if f"inpainter-{family}" in users}
