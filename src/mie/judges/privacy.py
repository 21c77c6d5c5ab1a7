"""Nothing leaves the machine unless somebody says that no patient can be identified."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mie.errors import MieError
from mie.judges.contracts import Client


def check_may_leave(client: Client, dataset: Mapping[str, Any], *, acknowledged: bool) -> None:
    """`MieError` where images would go to another machine and nobody vouches for the dataset.

    `dataset` is what `dataset.json` says: `deidentified` is true where each source's provider, or each of its
    DICOM files, states that its images are de-identified; `deidentification` has the reasons.
    """
    if not client.remote or acknowledged or dataset.get("deidentified") is True:
        return
    reasons = dataset.get("deidentification") or {}  # absent where the dataset was imported
    found = "; ".join(f"{source}: {reason}" for source, reason in reasons.items())
    raise MieError(
        "images would leave this machine, and the dataset is not marked as de-identified",
        where=f"dataset {dataset.get('name', '')}, judge at {client.provider}",
        expected="deidentified: true in dataset.json",
        found=found or "no statement",
        fix="look at the images and the provider's terms; then say so with --deidentified, or with "
        "`deidentified: true` at the source in the recipe and a new build; "
        "or ask a judge on this machine (local:FOLDER, or base_url=http://127.0.0.1:PORT/v1)",
    )
