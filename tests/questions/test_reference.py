"""The pages about questions say what the code does."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

from mie.questions.formats import FORMATS
from mie.questions.recipe import (
    CurateConfig,
    HealedConfig,
    QuestionRecipe,
    parse_question_recipe,
    read_question_recipe,
)
from mie.questions.record import TASKS
from mie.questions.store import SCHEMA
from mie.questions.templates import TEMPLATES

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/reference/questions.md").read_text(encoding="utf-8")


def test_every_key_template_column_and_format_is_explained() -> None:
    models: list[tuple[str, type[BaseModel]]] = [
        ("", QuestionRecipe),
        ("healed.", HealedConfig),
        ("curate.", CurateConfig),
    ]
    keys = {f"{prefix}{key}" for prefix, model in models for key in model.model_fields} - {"healed", "curate"}
    names = {*keys, *TEMPLATES, *TASKS, *FORMATS, *SCHEMA.names}
    assert [name for name in sorted(names) if f"`{name}`" not in PAGE] == []
    for template in TEMPLATES.values():
        assert template.rule in PAGE


def test_the_defaults_on_the_page_are_the_defaults() -> None:
    rows = dict(re.findall(r"^\| `([a-z_.]+)` \| ([^|]+) \|", PAGE, re.MULTILINE))
    recipe = QuestionRecipe.model_fields
    for key in ("size", "least", "per_image", "open"):
        assert float(rows[key]) == recipe[key].default
    curate = CurateConfig()
    assert float(rows["curate.most_same_answer"]) == curate.most_same_answer
    assert rows["curate.strata"].strip() == ", ".join(curate.strata)
    assert rows["curate.blind"].strip() == curate.blind


def test_the_recipes_of_pages_and_examples_are_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIE_DATA", "/data")
    text = (ROOT / "docs/how-to/vqa.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    parse_question_recipe(yaml.safe_load(block), where="vqa.md", base=ROOT)
    for path in (*(ROOT / "examples").glob("questions*.yaml"), ROOT / "src/mie/cli/demo_questions.yaml"):
        read_question_recipe(path)
