"""The data card: a dataset's README.md, with the front matter that the Hugging Face Hub reads.

Everything comes from `dataset.json`; equal datasets give equal cards (no date, no place on a disk).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import yaml

from mie.core.documents import (
    DatasetInfo,
    facts_of,
    maker_settings,
    markdown_cell,
    markdown_table,
    plural,
    source_entries,
)
from mie.datasets.schema import FEATURES, REFERENCES, SCHEMA
from mie.perspectives import PERSPECTIVES, Card
from mie.vocabulary import LICENSE_USES, MODALITIES, SPLITS

# Identifiers that the Hub knows; `license: other` needs a `license_name` beside it.
_HUB_LICENSES: Final = """
    apache-2.0 bsd-2-clause bsd-3-clause cc-by-2.0 cc-by-2.5 cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0
    cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0 cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0
    cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 gpl-2.0 gpl-3.0 lgpl-3.0 mit mpl-2.0 odbl odc-by pddl
"""
_SIZES: Final = (
    *((10**3, "n<1K"), (10**4, "1K<n<10K"), (10**5, "10K<n<100K"), (10**6, "100K<n<1M")),
    *((10**7, "1M<n<10M"), (10**8, "10M<n<100M")),
)
_NO_LICENSE: Final = {"name": "not stated", "use": "unknown", "basis": "stated"}

MEANINGS: Final[dict[str, str]] = {
    "id": "name of the sample, derived from its content; never changes",
    "perspective": "perception, modification or transformation",
    "task": "what is asked for inside the perspective, e.g. structure, lesion, holistic",
    "target": "the structure or lesion, as a clinician says it; several are joined by commas",
    "modality": "how the image was taken: " + ", ".join(MODALITIES),
    "anatomy": "part of the body",
    "prompt": "the instruction",
    "prompt_template": "the phrasing that the instruction was made from",
    "description": "the change in one sentence, for judges and readers",
    "input": "the image before the edit, RGB",
    "target_image": "the image after the edit, RGB, same size",
    "mask": "the region that the edit is about, grey (values below); null where there is none",
    "colour": "overlay colour: red, green or blue; one per class, joined by commas",
    "split": "train, val or test",
    "bin": "length of the longer side after scaling; null: original size",
    "source": "the data set that the image comes from",
    "case_id": "the image inside its data set, by a pseudonym unless names were kept",
    "patient_id": "the patient, by a pseudonym unless names were kept; null: the data set does not tell",
    "group": "samples that belong together (the turns of one dialogue, the four of one pair); null: none",
    "turn": "place inside the group, from 0; null: none",
    "recipe": "what made the sample",
    "recipe_version": "its version",
    "params": "JSON: parameters of the sample, original size, steps from the file to 8-bit pixels",
    "seed": "the sample's own seed",
    "parents": "ids of the samples that this one was made from",
    "license": "licence of the source data set",
    "sha256": "digest of all fields and of the decoded pixels of this row",
}

_REFERENCES_MEANING: Final = (
    "further input images: `image`, `role` (reference, or before and after of a demonstration) and `text`"
)

GATES: Final[dict[str, str]] = {
    "source": "the file fits no pattern of its data set, or its partner is missing",
    "image": "the file could not be turned into pixels that can be trusted",
    "blank": "the image shows a single colour, or nothing",
    "empty": "no target is marked in the image, or no target of the recipe fits it",
    "area": "the region is empty, too small or nearly the whole image",
    "duplicate": "the same image and region is already there",
    "leak": "the patient, or a nearly equal image, is also in a better guarded split",
    "review": "rejected by the people who reviewed the dataset",
    "score": "its target image missed the threshold of `mie filter`, or has no score",
    "error": "an unexpected error while the file was read",
}

PLOTS: Final[dict[str, str]] = {
    "modality": "Samples by modality and split",
    "targets": "The most frequent targets",
    "area": "Region area by modality",
    "sizes": "Image sizes",
}


_SNIPPETS: Final = """\
```python
from datasets import load_dataset

data = load_dataset("NAME")  # the path of this folder
data["SPLIT"][0]["target_image"]  # a PIL image
```

```python
from mie.datasets.dataset import Dataset

for sample in Dataset("NAME").samples("SPLIT"):
    sample.input, sample.prompt, sample.target_image  # images as (height, width, 3) uint8
```

```python
import pandas

pandas.read_parquet("NAME/data", columns=["id", "split", "prompt"])
```

```sql
-- DuckDB
SELECT modality, target, count(*) FROM 'NAME/data/*.parquet' GROUP BY ALL ORDER BY 3 DESC;
```"""


def data_card(info: DatasetInfo) -> str:
    """README.md of the dataset that `info` (the content of `dataset.json`) describes."""
    head = yaml.safe_dump(_front_matter(info), sort_keys=False, allow_unicode=True, width=10_000)
    sections = (
        f"# {info['name']}",
        _summary(info),
        "## Open it\n\n" + _opening(info),
        "## What is in it\n\n" + _counts(info),
        "## How the samples were made\n\n" + _making(info),
        *_own_sections(info),
        *_choosing(info),
        "## What was refused\n\n" + _refused(info),
        "## Columns\n\n" + _columns(info),
        "## Plots\n\n" + "\n\n".join(f"![{title}](stats/{name}.png)" for name, title in _plots(info)),
        "## Terms of use\n\n" + _terms(info),
        "## Digest and versions\n\n" + _provenance(info),
    )
    return f"---\n{head}---\n\n" + "\n\n".join(sections) + "\n"


def _plots(info: DatasetInfo) -> list[tuple[str, str]]:
    """Return name and title of each plot; edits of whole images alone have no region to measure."""
    names = info["counts"]["by_perspective"]
    regions = any(name not in PERSPECTIVES or PERSPECTIVES[name].needs_mask for name in names)
    return [(name, title) for name, title in PLOTS.items() if regions or name != "area"]


def _front_matter(info: DatasetInfo) -> dict[str, Any]:
    counts = info["counts"]
    tags = ["medical", "image-editing", *counts["by_perspective"], *counts["by_modality"]]
    matter: dict[str, Any] = {
        "pretty_name": info["name"],
        "language": ["en"],
        **hub_license(list(_licenses(info).values())),
        "task_categories": ["image-to-image"],
        "tags": [tag.lower().replace(" ", "-") for tag in tags],
        "size_categories": [hub_size(counts["samples"])],
        # `datasets` caches by this front matter alone: without the digest, a rebuilt dataset would open as
        # the old one.
        "dataset_info": {"config_name": "default", "description": f"digest {info['digest']}"},
    }
    # Named one by one, so that `rejected.parquet` is not taken for data.
    files = [{"split": split, "path": f"data/{split}-*.parquet"} for split in _splits(info)]
    if files:
        matter["configs"] = [{"config_name": "default", "data_files": files}]
    return matter


def hub_size(count: int) -> str:
    """How the Hub says so many rows."""
    return next((name for n, name in _SIZES if count < n), "100M<n<1B")


def hub_license(licenses: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """An identifier only where every source states that licence; else `other`, named by what it allows."""
    names = {_slug(terms["name"]) for terms in licenses}
    stated = all(terms["basis"] == "stated" for terms in licenses)
    if len(names) == 1:
        (name,) = names
        if stated and name in _HUB_LICENSES.split():
            return {"license": name}
        return {"license": "other", "license_name": name if stated else f"{name}-unverified"}
    strictest = max((terms["use"] for terms in licenses), key=LICENSE_USES.index, default="unknown")
    return {"license": "other", "license_name": f"mixed-{strictest}" if names else "none"}


def _slug(name: str) -> str:
    slug = re.sub(r"[^a-z0-9.]+", "-", name.lower()).strip("-.")
    return {"cc0": "cc0-1.0"}.get(slug, slug) or "unnamed"


def _summary(info: DatasetInfo) -> str:
    counts = info["counts"]
    modalities, sources = len(counts["by_modality"]), len(counts["by_source"])
    text = (
        f"{counts['samples']:,} text-guided medical image edits: each sample is an input image, an "
        "instruction in words, and the image that the instruction asks for. "
        f"They cover {plural(modalities, 'modality')} and come from {plural(sources, 'data set')}"
    )
    if len(counts["by_perspective"]) == 1:
        text += _card(next(iter(counts["by_perspective"]))).summary
    return "\n\n".join([text + ".", *([info["description"].strip()] if info.get("description") else [])])


def _opening(info: DatasetInfo) -> str:
    split = next(iter(_splits(info)), "train")
    return _SNIPPETS.replace("NAME", info["name"]).replace("SPLIT", split)


def _counts(info: DatasetInfo) -> str:
    counts = info["counts"]
    by_split = {split: counts["by_split"][split] for split in _splits(info)}
    tables = [
        markdown_table((title, "samples"), [(name, f"{n:,}") for name, n in numbers.items()])
        for title, numbers in (
            ("split", by_split),
            *([("perspective", counts["by_perspective"])] if len(counts["by_perspective"]) > 1 else []),
            ("task", counts["by_task"]),
            ("modality", counts["by_modality"]),
        )
    ]
    entries = source_entries(_recipe(info))
    columns, numbers_of = source_counts(info)
    rows = []
    for name, terms in _licenses(info).items():
        entry = entries.get(name, {})
        title, home = markdown_cell(entry.get("title") or name), entry.get("home")
        checked = "" if terms["basis"] == "stated" else " (not verified)"
        linked = f"[{title}]({home})" if home else title
        licence = markdown_cell(terms["name"]) + checked
        rows.append((f"`{markdown_cell(name)}`", linked, *numbers_of[name], licence, terms["use"]))
    tables.append(markdown_table(("source", "data set", *columns, "licence", "use"), rows))
    tables.append(f"Patients told apart by their data sets: {counts['patients_known']:,}.")
    return "\n\n".join(tables)


def source_counts(info: DatasetInfo) -> tuple[list[str], dict[str, list[str]]]:
    """Columns, and each data set's numbers: its samples, by perspective, beside the images it publishes."""
    counts = info["counts"]
    pairs = counts.get("by_source_and_perspective", {})
    perspectives = list(counts["by_perspective"]) if pairs else []
    entries = source_entries(_recipe(info))
    published = {name: entries.get(name, {}).get("published") for name in counts["by_source"]}
    known = any(number is not None for number in published.values())
    rows = {
        name: [
            f"{total:,}",
            *(f"{pairs.get(name, {}).get(perspective, 0):,}" for perspective in perspectives),
            *([f"{number:,}" if (number := published[name]) is not None else "not found"] if known else []),
        ]
        for name, total in counts["by_source"].items()
    }
    return ["samples", *perspectives, *(["images published"] if known else [])], rows


def _making(info: DatasetInfo) -> str:
    merged = _recipe(info).get("merged")
    if not merged:
        return _made_by(info, _recipe(info))
    parts = [
        f"### {markdown_cell(str(parent['name']))}\n\nDigest `{parent['digest'][:16]}`. "
        + _made_by(info, parent.get("recipe") or {})
        for parent in merged
    ]
    return "The dataset was merged from these, and all samples were compared again.\n\n" + "\n\n".join(parts)


def _made_by(info: DatasetInfo, config: Mapping[str, Any]) -> str:
    split, gates = (config.get(key) or {} for key in ("split", "gates"))
    makers = maker_settings(config)
    several = len(makers) > 1
    rows: list[tuple[str, Any]] = []
    last: list[tuple[str, Any]] = []
    making = ""
    for maker in makers:
        card, said = _card(maker.get("kind")), f"{maker.get('kind')}: " if several else ""
        making += card.making
        rows += [
            (f"{said}recipe" if not several else "perspective", maker.get("kind")),
            (f"{said}tasks", ", ".join(maker.get("tasks") or maker.get("kinds") or ())),
            *([] if several else [("seed", config.get("seed"))]),
            (f"{said}wordings", maker.get("wordings")),
            *((said + label, value) for label, value in _settings(card.settings, maker)),
        ]
        last += [(said + label, value) for label, value in _settings(card.details, maker)]
    rows += [
        *([("seed", config.get("seed"))] if len(makers) != 1 else []),
        ("longer side of train and val images", ", ".join(f"{b} px" for b in config.get("bins", ()))),
        *((f"share of {name} where a data set has no split", share) for name, share in split.items()),
        *((f"gate `{name}`", limit) for name, limit in gates.items()),
        *_rephrasing(info),
    ]
    if all(value in (None, "") for _, value in rows):
        return "The dataset was imported; `recipe` and `params` hold what its origin told about each sample."
    text = (
        "A data set's own split is followed; where it has none, patients (not images) are drawn by a seeded "
        "hash. Test images keep their original size; the others are scaled so that the longer side is the "
        "nearest of the lengths below."
    )
    if several:
        text += " A patient is on one side of the split for every perspective."
    known = [(name, str(value)) for name, value in rows + last if value not in (None, "")]
    return text + making + "\n\n" + markdown_table(("setting", "value"), known)


def _settings(pairs: Iterable[tuple[str, str]], recipe: Mapping[str, Any]) -> list[tuple[str, Any]]:
    values = ((label, recipe.get(key)) for label, key in pairs)
    return [(label, ", ".join(map(str, v)) if isinstance(v, list | tuple) else v) for label, v in values]


def _own_sections(info: DatasetInfo) -> Iterator[str]:
    """What each perspective says about its facts."""
    for name in _perspectives(info):
        card, facts = _card(name), facts_of(info, name)
        if facts and card.section is not None:
            yield f"## {card.title}\n\n" + card.section(facts)


def _choosing(info: DatasetInfo) -> Iterator[str]:
    """How a benchmark was drawn from a larger dataset, and who accepted its samples."""
    chosen = _recipe(info).get("chosen")
    if not chosen:
        return
    parent = chosen["parent"]
    text = (
        f"{info['counts']['samples']:,} of the {plural(parent['samples'], 'sample')} of "
        f"`{markdown_cell(parent['name'])}` (digest `{parent['digest'][:16]}`) were chosen. Each stratum "
        f"({', '.join(chosen['strata'])}) has its part of the quota ({chosen['allocation']}); inside a "
        "stratum the images were clustered, and each cluster gave one sample."
    )
    reviews = chosen.get("reviews")
    if reviews:
        text += (
            f" People reviewed the candidates: a sample needed {reviews['needed']} who accepted it and none "
            f"who rejected it. {plural(len(reviews['raters']), 'rater')} took part; `dataset.json` says "
            "who accepted what."
        )
    yield "## How the samples were chosen\n\n" + text


def _perspectives(info: DatasetInfo) -> list[str]:
    kinds = {maker["kind"] for maker in maker_settings(_recipe(info)) if maker.get("kind")}
    return sorted({*info["counts"]["by_perspective"], *kinds})


def _card(perspective: str | None) -> Card:
    """Nothing for a dataset that was imported, or of a perspective that is not installed here."""
    if perspective is None or perspective not in PERSPECTIVES:
        return Card()
    return PERSPECTIVES[perspective].card


def _rephrasing(info: DatasetInfo) -> list[tuple[str, str]]:
    done = info.get("rephrased")
    if not done:
        return []
    shown = f"{done['samples']:,} by {', '.join(done['answered_by']) or 'nobody'}"
    return [("instructions in other words than the template's", shown)]


def _refused(info: DatasetInfo) -> str:
    if not info["rejected"]:
        return "Nothing."
    own = [_card(name).gates for name in _perspectives(info)]
    meanings = {**GATES, **{gate: why for gates in own for gate, why in gates.items()}}
    rows = [
        (f"`{gate}`", f"{n:,}", meanings.get(gate, "see the column `reason`"))
        for gate, n in info["rejected"].items()
    ]
    text = "Every rejection, with its reason and the numbers behind it, is in `rejected.parquet`."
    return text + "\n\n" + markdown_table(("gate", "rejected", "why"), rows)


def _columns(info: DatasetInfo) -> str:
    rows = [(f"`{name}`", _kind(FEATURES[name]), MEANINGS[name]) for name in SCHEMA.names]
    if info.get("references"):
        rows.append((f"`{REFERENCES}`", "list", _REFERENCES_MEANING))
    return markdown_table(("column", "type", "meaning"), rows) + (
        "\n\n`mask`: 0 is background; class *k* of *n* has the value round(255 *k* / *n*), so a single class "
        "is 255, two are 128 and 255, three are 85, 170 and 255. Classes stand in the order of `colour`."
    )


def _terms(info: DatasetInfo) -> str:
    lines = ["**Not for clinical use**: not for diagnosis, treatment or triage."]
    bound = [(name, terms) for name, terms in _licenses(info).items() if terms["use"] != "open"]
    if bound:
        lines.append("These sources restrict what may be done with the dataset, or do not say:")
        lines.append(
            "\n".join(f"- `{name}`: {terms['use']} ({markdown_cell(terms['name'])})" for name, terms in bound)
        )
    else:
        lines.append("Every source allows open use; give the credit that each licence asks for.")
    if any(terms["basis"] != "stated" for terms in _licenses(info).values()):
        lines.append("Licences that are not verified were not checked with the provider: do that first.")
    lines.append(
        "Every provider states that no patient can be identified."
        if info["deidentified"]
        else "Not every provider states that its images are de-identified: look before you share them."
    )
    return "\n\n".join(lines)


def _provenance(info: DatasetInfo) -> str:
    rows = [(name, str(version)) for name, version in info["versions"].items()]
    return f"Content digest (SHA-256): `{info['digest']}`\n\n" + markdown_table(("software", "version"), rows)


def _licenses(info: DatasetInfo) -> dict[str, Mapping[str, str]]:
    return {name: {**_NO_LICENSE, **info["licenses"].get(name, {})} for name in info["counts"]["by_source"]}


def _recipe(info: DatasetInfo) -> Mapping[str, Any]:
    return info.get("recipe") or {}  # imported datasets have none


def _splits(info: DatasetInfo) -> list[str]:
    return [split for split in SPLITS if info["counts"]["by_split"].get(split)]


def _kind(feature: Mapping[str, Any]) -> str:
    return {"Image": "image", "List": "list of string"}.get(feature["_type"]) or str(feature["dtype"])
