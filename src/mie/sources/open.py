"""The adapter for a layout, by name: an unknown data set never costs an import."""

from __future__ import annotations

import importlib
from pathlib import Path

from mie.errors import MieError
from mie.sources.base import Source
from mie.sources.catalog import Entry

_ADAPTERS = {
    "folder": "mie.sources.folder:FolderSource",
    "paired": "mie.sources.folder:FolderSource",
    "medsegbench": "mie.sources.medsegbench:MedSegBenchSource",
    "volume": "mie.sources.volumes:VolumeSource",
    "dicom": "mie.sources.dicom_series:DicomSource",
}


def open_source(entry: Entry, root: Path | None) -> Source:
    """The data set at `root`; a sample set needs none."""
    if root is None:
        if not entry.samples:
            raise MieError(
                "this data set needs a folder",
                where=entry.name,
                expected="root: the folder that holds it",
                fix=f"download it ({entry.home or 'see its paper'}) and give its folder as `root`",
            )
        from mie.sources.samples import samples_root

        root = samples_root(names=[entry.name]) / entry.name
    if not root.is_dir():
        raise MieError("no such folder", where=entry.name, expected="the data set's folder", found=root)
    module, name = _ADAPTERS[entry.layout.kind].split(":")
    adapter = getattr(importlib.import_module(module), name)
    source: Source = adapter(entry, root)
    return source
