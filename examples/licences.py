"""The data sets that the shipped weights were trained on, by licence: the table at the end of the model card.

    python examples/licences.py [src/mie/weights/README.md]

The text between the page's two comment lines is replaced. Headers of weights files decide where they list
data sets, recipes elsewhere; licences are the catalogue's. Nothing but the files of this repository is read.
"""

from __future__ import annotations

import argparse
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from mie.core.documents import markdown_table
from mie.core.files import atomic_write
from mie.images.families import family_of
from mie.networks.shipped import FOLDER, SHIPPED
from mie.sources.catalog import catalog

EXAMPLES = Path(__file__).parent
BEGIN, END = "<!-- data sets: begin -->", "<!-- data sets: end -->"

# All three trainings. What `compact/synthetic.py` draws, it draws into images of `compact/data`.
COMPACT = (
    *("perception", "transformation", "modification"),
    *("compact/data", "compact/pairs", "compact/structures", "compact/nodules"),
)
# The seed puts every patient of these into the test split, or the data set does.
TEST_ONLY = frozenset(
    {"chest_ct_organs", "cvc_clinicdb_polyp", "glas_glands", "harvard_pet_mri", "metal_artifact_ct"}
)
# Since removed from `perception`. The header of detector-ct has it, and that of inpainter-ct the same pack.
REMOVED = ("covid19_ct",)
# Folders of the text detector's pictures (text-detector/README.md).
FOLDERS = {"cxr_jsrt": "jsrt_cxr", "kvasir_right_half": "kvasir_seg_polyp"}


def trained_on() -> dict[str, set[str]]:
    """Catalogue names of data sets by weights file, without `.safetensors`."""
    return {(stem := Path(name).stem): set(_data_sets(stem, header(FOLDER / name))) for name in SHIPPED}


def header(path: Path) -> dict[str, Any]:
    """What a weights file says of its training, read without torch."""
    with path.open("rb") as file:
        length = int.from_bytes(file.read(8), "little")
        metadata = json.loads(file.read(length))["__metadata__"]
    meta: dict[str, Any] = json.loads(metadata["mie"])["meta"]
    return meta


def _data_sets(stem: str, meta: dict[str, Any]) -> Iterator[str]:
    kind, _, family = stem.partition("-")
    if "sources" in meta:
        yield from meta["sources"]
    elif "sets" in meta:
        yield from (FOLDERS.get(name, name) for name in meta["sets"])
    elif kind == "compact":
        for recipe in COMPACT:
            yield from of_recipe(recipe)
    elif kind == "flow":
        yield from of_recipe("flow/data")
    elif family == "region":
        yield from filter(_has_lesions, of_recipe("compact/data", "perception"))
    elif kind == "inpainter":
        sets = (*of_recipe("perception"), *REMOVED)
        yield from (name for name in sets if family_of(catalog()[name].modality) == family)
    else:
        raise ValueError(f"no data sets are known for {stem}")


def of_recipe(name: str, perspective: str | None = None) -> Iterator[str]:
    """Data sets with training samples; what an example made of one counts as that one."""
    recipe = yaml.safe_load((EXAMPLES / f"{name}.yaml").read_text(encoding="utf-8"))
    for source in recipe["sources"]:
        data_set = source["name"] if source["name"] in catalog() else source["cohort"]
        used = perspective is None or perspective in source.get("perspectives", [perspective])
        if used and data_set not in TEST_ONLY:
            yield data_set


def _has_lesions(name: str) -> bool:
    return any(target.kind == "lesion" for target in catalog()[name].targets)


def table() -> str:
    users: dict[str, list[str]] = defaultdict(list)
    for stem, names in trained_on().items():
        for name in names:
            users[name].append(stem)
    lines: dict[tuple[str, str], list[str]] = defaultdict(list)
    for name in sorted(users):
        lines[catalog()[name].license.name, ", ".join(sorted(users[name]))].append(f"`{name}`")
    rows = [[licence, ", ".join(names), by] for (licence, by), names in sorted(lines.items())]
    return markdown_table(["licence, as far as known", "data sets", "used by"], rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("page", type=Path, nargs="?", default=FOLDER / "README.md")
    page = parser.parse_args().page
    before, _, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        parser.error(f"{page} has no lines {BEGIN} and {END}")
    atomic_write(page, f"{before}{BEGIN}\n\n{table()}\n\n{END}{after}")


if __name__ == "__main__":
    main()
