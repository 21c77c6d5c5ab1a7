"""Nothing leaves the machine unless somebody says that no patient can be identified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mie.errors import MieError
from mie.judges.contracts import Client


def check_may_leave(client: Client, dataset: Mapping[str, Any], *, acknowledged: bool) -> None:
    """`MieError` where images would go to another machine and nobody vouches for the dataset.

    `dataset` is what `dataset.json` says: `deidentified` is true where every source's provider states that
    its images are de-identified.
    """
    if not client.remote or acknowledged or dataset.get("deidentified") is True:
        return
    recipe = dataset.get("recipe") or {}
    open_sources = [
        source["entry"]["name"]
        for source in recipe.get("sources", ())
        if isinstance(source, Mapping) and not source.get("entry", {}).get("deidentified")
    ]
    silent = ", ".join(open_sources or sorted(dataset.get("licenses", {}))) or "its source"
    raise MieError(
        "images would leave this machine, and the dataset is not marked as de-identified",
        where=f"dataset {dataset.get('name', '')}, judge at {client.provider}",
        expected="deidentified: true in dataset.json",
        found=f"no statement for {silent}",
        fix="look at the images and the provider's terms; then say so with --deidentified, or with "
        "`deidentified: true` at the source in the recipe and a new build; "
        "or ask a judge on this machine (local:FOLDER, or base_url=http://127.0.0.1:PORT/v1)",
    )
