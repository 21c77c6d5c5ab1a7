"""The documentation does what it says: its examples run, its links lead somewhere, nothing is left out."""

from __future__ import annotations

import importlib.util
import inspect
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import pytest
import yaml
from pydantic import BaseModel

import mie
from mie.datasets import recipe as config
from mie.datasets.card import GATES
from mie.datasets.schema import SCHEMA
from mie.editors import EDITORS
from mie.images.windows import WINDOWS
from mie.judges.clients import JUDGES
from mie.judges.contracts import STATES
from mie.perspectives import PERSPECTIVES, modification
from mie.perspectives.modification.phrasings import PHRASINGS
from mie.perspectives.perception import PerceptionConfig
from mie.perspectives.transformation.targets import TARGETS
from mie.scoring import metrics
from mie.scoring.benchmarks import BENCHMARKS
from mie.scoring.benchmarks.imgedit.score import IMGEDIT
from mie.scoring.benchmarks.medebench.score import MEDEBENCH
from mie.scoring.benchmarks.miedb import MIEDB
from mie.scoring.benchmarks.omni_iie.score import OMNI_IIE
from mie.sources import catalog
from tests.docs.pages import DOCS, PAGES, ROOT, blocks, commands, name_of, prose

CARD = ROOT / "src/mie/weights/README.md"
MARKDOWN = [*PAGES, *(ROOT / name for name in ("CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"))]
MARKDOWN += [CARD, *sorted((ROOT / "examples").glob("*/README.md"))]
VERBS = sorted({name.split()[1] for name in commands()})

_LINK = re.compile(r"\]\(([^)\s]+)\)")


def test_the_page_of_build_shows_the_recipe_it_builds() -> None:
    shown = [yaml.safe_load(b.text) for b in blocks(ROOT / "docs/how-to/build.md") if b.info == "yaml"]
    assert shown == [yaml.safe_load((ROOT / "examples/quickstart.yaml").read_text(encoding="utf-8"))]


def test_recipes_and_entries_on_the_pages_are_sound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MIE_DATA", "/data")
    recipes = [yaml.safe_load(b.text) for b in blocks(ROOT / "docs/reference/recipes.md") if b.info == "yaml"]
    for body in recipes:
        config.parse_recipe(body, where="docs/reference/recipes.md", base=ROOT)
    entries = [
        yaml.safe_load(b.text) for b in blocks(ROOT / "docs/reference/catalogue.md") if b.info == "yaml"
    ]
    for name, body in (item for group in entries for item in group.items()):
        catalog.Entry(name=name, **body)
    assert len(recipes) >= 3
    assert entries


def test_the_recipe_with_every_key_shows_the_defaults() -> None:
    short, full = (yaml.safe_load(b.text) for b in blocks(ROOT / "docs/reference/recipes.md")[:2])
    parsed = [config.parse_recipe(body, where="", base=ROOT).public() for body in (short, full)]
    assert parsed[0] == parsed[1]
    assert set(full) == set(config.RecipeConfig.model_fields)


def test_links_lead_somewhere() -> None:
    for page, link in ((one, link) for one in MARKDOWN for link in _LINK.findall(prose(one))):
        if re.match(r"https?://", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.is_file(), f"{name_of(page)}: {link}"
        if anchor:
            assert anchor in anchors(target), f"{name_of(page)}: {link}"


@cache
def anchors(page: Path) -> set[str]:
    titles = re.findall(r"^#+ (.+)$", prose(page), re.MULTILINE)
    if page.name == "cli.md":  # its sections are generated
        titles += ["mie " + verb for verb in VERBS]
    return {re.sub(r"[^\w\s-]", "", title).strip().lower().replace(" ", "-") for title in titles}


def test_names_in_the_text_exist() -> None:
    """Modules and what is in them, `mie.a.b`, or the group of an entry point."""
    source = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "src/mie").rglob("*.py"))
    known = {*re.findall(r'group="(mie\.\w+)"', source), "mie.json", "mie.jsonl"}
    for page in MARKDOWN:
        if page.name == "CHANGELOG.md":
            continue
        text = page.read_text(encoding="utf-8")
        names = set(re.findall(r"(?<![\w./-])mie(?:\.[A-Za-z_]\w*)+", text)) - known
        names |= set(re.findall(r"(?:from|import) (mie\.[\w.]+)", text))
        assert [name for name in sorted(names) if not resolves(name)] == [], name_of(page)


@cache
def resolves(name: str) -> bool:
    try:
        pkgutil.resolve_name(name)
    except (ImportError, AttributeError):
        return False
    return True


def test_fences_are_one_word() -> None:
    """Python-Markdown takes "bash no-run" for text; in docs/ a block that must not run is `console`."""
    for page, block in ((one, block) for one in DOCS for block in blocks(one)):
        assert re.fullmatch(r"[a-z]+", block.info), f"{name_of(page)}: {block}"


def test_every_verb_has_its_page_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    for verb in VERBS:
        page = ROOT / "docs/how-to" / f"{verb}.md"
        assert page.read_text(encoding="utf-8").startswith(f"# mie {verb}\n"), verb
        assert f"(how-to/{verb}.md)" in index, verb


@pytest.fixture(scope="module")
def reference() -> dict[str, str]:
    """The generated reference of commands: name of a command -> its section."""
    spec = importlib.util.spec_from_file_location("hooks", ROOT / "docs/hooks.py")
    assert spec is not None
    assert spec.loader is not None
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = hooks.on_page_markdown((ROOT / "docs/reference/cli.md").read_text(encoding="utf-8"))
    sections = re.split(r"^##+ (mie .*)$", page, flags=re.MULTILINE)
    return dict(zip(sections[1::2], sections[2::2], strict=True))


def test_every_option_is_in_the_generated_reference(reference: dict[str, str]) -> None:
    options = [(n, p) for n, c in commands().items() for p in c.params if p.param_type_name == "option"]
    for name, option in ((name, option) for name, option in options if option.name != "help"):
        for spelling in (*option.opts, *option.secondary_opts):
            row = re.search(rf"^\| [^|]*`{spelling}`[^|]* \| (.+) \| .*\|$", reference[name], re.MULTILINE)
            assert row, f"{name}: {spelling}"
            assert row[1].strip(), f"{name}: {spelling} has no explanation"


def test_options_on_the_pages_exist() -> None:
    """Every `mie VERB ... --option` in a block or in running text."""
    asked = re.compile(r"\b(mie [a-z][a-z-]*(?: (?:list|show|check|get)\b)?)([^`\n|;&#]*)")
    texts = [(page, page.read_text(encoding="utf-8")) for page in MARKDOWN]
    for page, (name, rest) in ((page, found) for page, text in texts for found in asked.findall(text)):
        if name not in commands():
            continue
        known = {o for p in commands()[name].params for o in (*p.opts, *p.secondary_opts)} | {"--help"}
        assert set(re.findall(r"(?<= )--[a-z][a-z-]*", rest)) <= known, f"{name_of(page)}: {name}{rest}"


def test_every_key_is_explained() -> None:
    pages = (ROOT / "docs/reference/recipes.md", ROOT / "docs/reference/catalogue.md")
    explained = "".join(page.read_text(encoding="utf-8") for page in pages)
    models: list[type[BaseModel]] = [config.RecipeConfig, PerceptionConfig, config.SplitConfig]
    models += [config.GateConfig, config.SourceConfig, catalog.Entry, catalog.TargetEntry, catalog.License]
    models += [catalog.Window, catalog.FolderLayout, catalog.PairedLayout, catalog.VolumeLayout]
    models += [catalog.DicomLayout, catalog.MedSegBenchLayout]
    keys = {key for model in models for key in model.model_fields}
    keys -= {"entry"}  # not a key of the file: what the other keys of a source add up to
    assert [key for key in sorted(keys) if not re.search(rf"`{key}[`:]", explained)] == []


def test_every_key_and_bound_of_modification_is_explained() -> None:
    page = ROOT / "docs/explanation/modification.md"
    text = page.read_text(encoding="utf-8")
    keys = {*modification.ModificationConfig.model_fields, *modification.LimitsConfig.model_fields} - {"kind"}
    assert [key for key in sorted(keys) if f"`{key}`" not in text] == []
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    shown = {cells[0].strip("`"): cells[1] for cells in rows if len(cells) == 2}
    for name, value in modification.BoundsConfig().model_dump().items():
        said = f"{value[0]:g} to {value[1]:g}" if isinstance(value, tuple) else f"at most {value:g}"
        assert shown[name] == said
    defaults = modification.ModificationConfig(kind="modification")
    table = {cells[0].strip("`"): cells[1] for cells in rows if len(cells) == 3}
    for key in ("candidates", "per_case", "min_sensitivity"):
        assert table[key] == f"{getattr(defaults, key):g}"
    assert [task for task in PHRASINGS if f"`{task}`" not in text] == []
    recipes = [yaml.safe_load(block.text) for block in blocks(page) if block.info == "yaml"]
    assert len(recipes) == 2
    for recipe in recipes:
        config.parse_recipe(recipe, where=name_of(page), base=ROOT)


def test_everything_to_train_and_its_keys_are_explained() -> None:
    pytest.importorskip("torch", reason="trainees need the extra models")
    from mie.training.trainee import TRAINEES, trainee_class

    pages = "".join(
        (ROOT / "docs/how-to" / page).read_text(encoding="utf-8")
        for page in ("train.md", "flux-fill.md", "finetune-omnigen2.md")
    )
    for name in TRAINEES:
        assert f"trainee: {name}" in pages
        module = importlib.import_module(trainee_class(name).__module__)
        keys = {*module.DataConfig.model_fields, *module.ModelConfig.model_fields}
        assert [key for key in sorted(keys) if not re.search(rf"`{key}[`:]", pages)] == [], name


def test_the_model_card_has_the_figures_of_the_files() -> None:
    pytest.importorskip("torch", reason="reading weights needs the extra models")
    from mie.networks import weights
    from mie.networks.shipped import FOLDER, SHIPPED

    _, experts, detectors, region, _ = CARD.read_text(encoding="utf-8").split("\n# The ")[1:]
    for name in SHIPPED:
        kind, _, family = Path(name).stem.partition("-")
        label = {"mri": "MRI", "ct": "CT", "xray": "X-ray"}.get(family, family)
        if kind == "inpainter":
            meta = weights.load(FOLDER / name, format="inpainter 1").meta
            v = meta["validation"]
            figures = [f"{meta['step']:,}", f"{v['holes']:.0f}", f"{v['psnr']:.1f} dB"]
            figures += [f"{v[k]:.2f}" for k in ("variance_ratio", "spectrum_distance", "gradient_distance")]
            assert " | ".join((f"| {label}", *figures, f"{meta['grain']:.3f} |")) in experts
        elif family == "region":
            quality = weights.load(FOLDER / name, format="region detector 1").meta["quality"]
            for of, q in quality.items():
                shown = {"mri": "MRI", "ct": "CT", "xray": "X-ray"}.get(of, of)
                figures = [f"{q['lesions']:,}", str(q["patients"]), f"{q['sensitivity']:.2f}"]
                figures += [f"{q['places']:,}", f"{q['false_alarms']:.2f} |"]
                assert " | ".join((f"| {shown}", *figures)) in region
        elif kind == "detector":
            meta = weights.load(FOLDER / name, format="detector 1").meta
            q, trained = meta["quality"], meta["trained_on"]
            figures = [str(trained["images"]), str(len(meta["sources"]))]
            figures += [f"{q['images'] + q['healthy']} ({q['patients']})", str(q["lesions"])]
            shares = ("sensitivity", "false_positives_per_image", "precision", "dice")
            figures += [f"{q[key]:.2f}" for key in shares]
            assert " | ".join((f"| {label}", *figures)) + " |" in detectors


def test_every_transformation_and_every_window_is_explained() -> None:
    page = ROOT / "docs/explanation/transformation.md"
    text = page.read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in text.splitlines()]
    shown = {cells[0].strip("`"): cells for cells in rows if cells}
    for target in TARGETS.values():
        assert shown[target.key][1:3] == [target.name, ", ".join(target.modalities)], target.key
        effect = (
            (target.effect or "").removeprefix("mie.perspectives.transformation.physics.").replace(":", ".")
        )
        assert effect in shown[target.key][-1]
        assert target.name in shown, f"no baseline for {target.key}"
    for window in WINDOWS.values():
        assert shown[window.name][1:3] == [f"{window.level:g}", f"{window.width:g}"]
    (recipe,) = (yaml.safe_load(block.text) for block in blocks(page) if block.info == "yaml")
    config.parse_recipe(recipe, where=name_of(page), base=ROOT)


def test_every_column_and_every_gate_is_explained() -> None:
    columns = (ROOT / "docs/reference/datasets.md").read_text(encoding="utf-8")
    assert [name for name in SCHEMA.names if f"| `{name}` |" not in columns] == []
    gates = (ROOT / "docs/how-to/build.md").read_text(encoding="utf-8")
    own = [name for perspective in PERSPECTIVES.values() for name in perspective.card.gates]
    assert [name for name in (*GATES, *own) if f"| `{name}` |" not in gates] == []


@pytest.mark.parametrize("name", sorted(EDITORS))
def test_every_editor_and_its_options_are_explained(name: str) -> None:
    page = (ROOT / "docs/reference/editors.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| `{name}[`:]", page, re.MULTILINE)
    for option, parameter in inspect.signature(EDITORS[name]).parameters.items():
        assert parameter.kind is not parameter.KEYWORD_ONLY or f"| `{option}` |" in page, option


@pytest.mark.parametrize("name", sorted(JUDGES))
def test_every_judge_and_its_options_are_explained(name: str) -> None:
    page = (ROOT / "docs/reference/judges.md").read_text(encoding="utf-8")
    assert re.search(rf"^\| `{name}[`:]", page, re.MULTILINE)
    for option, parameter in inspect.signature(JUDGES[name]).parameters.items():
        assert parameter.kind is not parameter.KEYWORD_ONLY or f"| `{option}` |" in page, option


def test_every_state_of_an_answer_is_explained() -> None:
    page = (ROOT / "docs/reference/judges.md").read_text(encoding="utf-8")
    assert [state for state in STATES if f"| `{state}` |" not in page] == []


def test_every_metric_and_every_public_name_is_explained() -> None:
    protocol, arrays, python = (
        (ROOT / "docs/reference" / page).read_text(encoding="utf-8")
        for page in ("miedb.md", "metrics.md", "python.md")
    )
    ours = BENCHMARKS["miedb"]
    assert [n for n in ours.own_metrics if f"`{n}`" not in protocol and n not in ours.judged] == []
    assert [name for name in metrics.__all__ if f"`{name}`" not in arrays] == []
    assert [name for name in mie.__all__ if f"mie.{name}" not in python and name != "__version__"] == []


def test_the_published_results_are_those_of_the_report() -> None:
    page = (ROOT / "docs/reference/miedb.md").read_text(encoding="utf-8")
    shown = [[cell.strip() for cell in line.split("|")[1:-1]] for line in page.splitlines()]
    rows = {cells[0]: cells[1:] for cells in shown if len(cells) == 9}
    names = ("dice", "p_acc", "b_psnr", "b_ssim", "rubric", "rank", "psnr", "ssim")
    for row in MIEDB:
        assert [float(cell) for cell in rows[row.model]] == [getattr(row, name) for name in names], row.model


def test_every_benchmark_has_its_page_with_its_metrics_and_published_rows() -> None:
    names = BENCHMARKS.targets
    pages = {name: (ROOT / f"docs/reference/{name}.md").read_text(encoding="utf-8") for name in names}
    for name in ("medebench", "imgedit", "omni-iie"):
        assert [m for m in BENCHMARKS[name].own_metrics if f"`{m}`" not in pages[name]] == []
    for row in MEDEBENCH:
        numbers = f"{row.ea:.2f} | {row.cp:.2f} | {row.vq:.2f} | {row.fid:.2f}"
        assert f"| {row.model} | {numbers} |" in pages["medebench"]
    for model, overall in IMGEDIT.items():
        assert f"| {model} | {overall:.2f} |" in pages["imgedit"]
    for model, (single, multi) in OMNI_IIE.items():
        assert f"| {model} | {single:.3f} | {'' if multi is None else f'{multi:.3f} '}|" in pages["omni-iie"]


def test_every_package_is_explained_and_the_arrows_are_the_contracts() -> None:
    page = (ROOT / "docs/explanation/architecture.md").read_text(encoding="utf-8")
    packages = [path.parent.name for path in (ROOT / "src/mie").glob("*/__init__.py")]
    assert [name for name in packages if f"| `{name}` |" not in page] == []
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"]
    layers = [line.replace("mie.", "").replace(" :", ",") for line in contracts["contracts"][0]["layers"]]
    assert "\n".join(layers) in page


def test_numbers_in_the_catalogue_page() -> None:
    entries = catalog.catalog()
    family = [name for name in entries if name.startswith("medsegbench_")]
    samples = [name for name, entry in entries.items() if entry.samples]
    page = (ROOT / "docs/reference/catalogue.md").read_text(encoding="utf-8")
    public = len(entries) - len(family) - len(samples)
    assert f"{len(entries)} entries: {public} public data sets" in page
    assert f"({len(family)} entries) and {len(samples)} samples" in page


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    # Not --quiet: it hides warnings from --strict too.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path)]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}  # an advertisement of the theme's
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    assert (tmp_path / "how-to/build/index.html").is_file()
