"""Real medical images that arrive with our dependencies or inside small packages, laid out as data sets.

`samples_root()/<name>` is the root of the catalogue entry `<name>` (catalog_samples.yaml), read by the same
adapters as any other data set. What is downloaded is 55 to 70 MB, once.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Final

from mie.core.files import cache_folder, digest
from mie.errors import MieError
from mie.sources.fetch import Progress, extract, fetch_distribution

_FILES: Final = "files.json"  # in each set's folder: where it is from and every file's SHA-256


@dataclass(frozen=True, slots=True)
class Archive:
    """One published file of a package; its checksum fixes every byte inside it."""

    project: str
    version: str
    filename: str
    sha256: str
    size: int  # bytes to download
    license: str


@dataclass(frozen=True, slots=True)
class Installed:
    """A package that may be installed, in whatever version: its files are copied as they are.

    Where it is not, they come from `archive`; None for a dependency of ours, which is always there.
    """

    project: str
    license: str
    archive: Archive | None = None


@dataclass(frozen=True, slots=True)
class SampleSet:
    origin: Archive | Installed
    files: Mapping[str, str]  # path in the set -> path in the package
    finish: Callable[[Path], None] | None = None  # what is made from the files, given the set's folder


def _tissue_map(folder: Path) -> None:
    """Probability maps (uint8, 255 is certain) -> one label map, by majority: 1 grey, 2 white matter."""
    import nibabel as nib
    import numpy as np

    parts = folder / "parts"
    grey = nib.load(parts / "grey_matter.nii.gz")
    white = nib.load(parts / "white_matter.nii.gz")
    labels = np.zeros(grey.shape, np.uint8)
    labels[np.asarray(grey.dataobj) > 127] = 1
    labels[np.asarray(white.dataobj) > 127] = 2
    (folder / "masks").mkdir()
    # mtime=0: the same map is the same file on every day.
    with (folder / "masks/mni152.nii.gz").open("wb") as raw, gzip.GzipFile("", "wb", 6, raw, mtime=0) as file:
        file.write(nib.Nifti1Image(labels, grey.affine).to_bytes())
    shutil.rmtree(parts)


_PYRADIOMICS: Final = Archive(
    "pyradiomics",
    "3.0.1",
    "pyradiomics-3.0.1.tar.gz",
    "47c57f441d6cb7973fa3b2ea48d3948df78e3348e1c69e1e2ff19001601fc2f5",
    34_473_030,
    "BSD-3-Clause",
)
_STARDIST: Final = Archive(
    "stardist",
    "0.9.2",
    "stardist-0.9.2.tar.gz",
    "65120fe0a092608f3d76fc664c67cdf147d02ac4a101937fb806a60a7bcb055a",
    890_804,
    "BSD-3-Clause",
)
_NILEARN: Final = Archive(
    "nilearn",
    "0.14.1",
    "nilearn-0.14.1-py3-none-any.whl",
    "725206484e9fb3f6691f9c2d20204a068759d5072f12055324702ee0cb2bbe8a",
    11_509_444,
    "BSD-3-Clause",
)
_TOTALSEGMENTATOR: Final = Archive(
    "TotalSegmentator",
    "2.4.0",
    "TotalSegmentator-2.4.0.tar.gz",
    "1274bb64e483db7b144bcab6f59adea0704d7423303c1ee23b42a40e8be81eb6",
    8_178_887,
    "Apache-2.0",
)
_SCIKIT_IMAGE: Final = Installed(
    "scikit-image",
    "BSD-3-Clause",
    Archive(
        "scikit-image",
        "0.26.0",
        "scikit_image-0.26.0-cp311-cp311-manylinux_2_24_x86_64.manylinux_2_28_x86_64.whl",
        "74aa5518ccea28121f57a95374581d3b979839adc25bb03f289b1bc9b99c58af",
        13_711_217,
        "BSD-3-Clause",
    ),
)
_PYDICOM: Final = Installed("pydicom", "MIT")


def _pyradiomics(*cases: str) -> SampleSet:
    inside = "pyradiomics-3.0.1"
    files = {"LICENSE.txt": f"{inside}/LICENSE.txt"}
    for case in cases:
        files[f"images/{case}.nrrd"] = f"{inside}/data/{case}_image.nrrd"
        files[f"masks/{case}.nrrd"] = f"{inside}/data/{case}_label.nrrd"
    return SampleSet(_PYRADIOMICS, files)


def _totalsegmentator(files: Mapping[str, str]) -> SampleSet:
    inside = "TotalSegmentator-2.4.0"
    named = {path: f"{inside}/tests/reference_files/{member}" for path, member in files.items()}
    return SampleSet(_TOTALSEGMENTATOR, {"LICENSE.txt": f"{inside}/LICENSE", **named})


# The instance numbers that end the 20 files' names, in order along the body.
_SERIES: Final = {
    f"images/abdomen1/{n:02}.dcm": (
        f"example_ct_dicom/CT.1.3.12.2.1107.5.1.4.60064.300000221208081134280000{16573 + n}"
    )
    for n in range(20)
}

SAMPLES: Final[Mapping[str, SampleSet]] = {
    "sample_brain_mri": _pyradiomics("brain1", "brain2"),
    "sample_breast_mri": _pyradiomics("breast1"),
    "sample_lung_ct": _pyradiomics("lung1", "lung2"),
    "sample_nuclei": SampleSet(
        _STARDIST,
        {
            "LICENSE.txt": "stardist-0.9.2/LICENSE.txt",
            "images/nuclei1.tif": "stardist-0.9.2/stardist/data/images/img2d.tif",
            "masks/nuclei1.tif": "stardist-0.9.2/stardist/data/images/mask2d.tif",
        },
    ),
    "sample_brain_template": SampleSet(
        _NILEARN,
        {
            "LICENSE.txt": "nilearn-0.14.1.dist-info/licenses/LICENSE",
            **{
                path: f"nilearn/datasets/data/mni_icbm152_{part}_tal_nlin_sym_09a_converted.nii.gz"
                for path, part in (
                    ("images/mni152.nii.gz", "t1"),
                    ("parts/grey_matter.nii.gz", "gm"),
                    ("parts/white_matter.nii.gz", "wm"),
                )
            },
        },
        _tissue_map,
    ),
    "sample_abdomen_ct": _totalsegmentator(
        {"images/abdomen2.nii.gz": "example_ct_sm.nii.gz", "masks/abdomen2.nii.gz": "example_seg.nii.gz"}
    ),
    "sample_abdomen_mri": _totalsegmentator(
        {"images/abdomen3.nii.gz": "example_mr_sm.nii.gz", "masks/abdomen3.nii.gz": "example_seg_mr.nii.gz"}
    ),
    "sample_abdomen_dicom": _totalsegmentator(
        {**_SERIES, "masks/abdomen1.nii.gz": "example_seg_dicom.nii.gz"}
    ),
    "sample_fundus": SampleSet(
        _SCIKIT_IMAGE,
        {
            "images/normal.jpg": "skimage/data/retina.jpg",
            "images/hrf_07_dr.png": "skimage/data/microaneurysms.png",
        },
    ),
    "sample_colon_ihc": SampleSet(_SCIKIT_IMAGE, {"images/colon1.png": "skimage/data/ihc.png"}),
    "sample_cell": SampleSet(_SCIKIT_IMAGE, {"images/cell1.png": "skimage/data/cell.png"}),
    "sample_spine_ct": SampleSet(_PYDICOM, {"images/ct1.dcm": "pydicom/data/test_files/CT_small.dcm"}),
    "sample_liver_mri": SampleSet(
        _PYDICOM, {"images/mr1.dcm": "pydicom/data/test_files/examples_overlay.dcm"}
    ),
    "sample_echo": SampleSet(_PYDICOM, {"images/us1.dcm": "pydicom/data/test_files/examples_ybr_color.dcm"}),
}


def samples_root(progress: Progress | None = None, *, names: Iterable[str] | None = None) -> Path:
    """The folder that holds every sample set (or those in `names`), each complete and checked.

    Sets that come from installed packages need no network. Safe to call from several processes at once:
    a set appears under its name in one rename, when all of it is there.
    """
    cache = cache_folder()
    root = cache / "samples-v1"
    root.mkdir(parents=True, exist_ok=True)
    for name in SAMPLES if names is None else names:
        if not _complete(root / name):
            _lay_out(name, root, cache / "downloads", progress)
    return root


def _complete(folder: Path) -> bool:
    try:
        files = json.loads((folder / _FILES).read_text(encoding="utf-8"))["files"]
        return all(digest(folder / path) == sha256 for path, sha256 in files.items())
    except (FileNotFoundError, ValueError):
        return False


def _lay_out(name: str, root: Path, downloads: Path, progress: Progress | None) -> None:
    samples = SAMPLES[name]
    origin = samples.origin
    with tempfile.TemporaryDirectory(dir=root, prefix=f".{name}.") as scratch:
        folder = Path(scratch, name)
        folder.mkdir()
        if isinstance(origin, Installed) and origin.archive is not None and not _is_installed(origin.project):
            origin = origin.archive
        if isinstance(origin, Archive):
            archive = fetch_distribution(
                origin.project, origin.filename, origin.sha256, cache=downloads, progress=progress
            )
            extract(archive, {member: folder / path for path, member in samples.files.items()})
            version = origin.version
        else:
            version = _copy_installed(origin, samples.files, folder)
        if samples.finish is not None:
            samples.finish(folder)
        made = sorted(p for p in folder.rglob("*") if p.is_file())
        about = {
            "package": origin.project,
            "version": version,
            "license": origin.license,
            "files": {p.relative_to(folder).as_posix(): digest(p) for p in made},
        }
        (folder / _FILES).write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
        _put(folder, root / name, Path(scratch))


def _is_installed(project: str) -> bool:
    try:
        metadata.distribution(project)
    except metadata.PackageNotFoundError:
        return False
    return True


def _copy_installed(origin: Installed, files: Mapping[str, str], folder: Path) -> str:
    found = metadata.distribution(origin.project)
    for path, inside in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            shutil.copyfile(str(found.locate_file(inside)), target)
        except FileNotFoundError as error:
            raise MieError(
                f"{origin.project} {found.version} does not carry the sample image {inside}",
                where=error.filename,
                fix=f"install another version of {origin.project}, or leave this sample set out",
            ) from None
    return found.version


def _put(folder: Path, place: Path, scratch: Path) -> None:
    """Moves the finished folder to its place; a damaged one there goes, another process's sound one stays."""
    while not _complete(place):
        if place.exists():
            place.rename(Path(tempfile.mkdtemp(dir=scratch)) / "damaged")
        try:
            folder.rename(place)
        except OSError:
            if not place.exists():  # else another process was faster: look at what it put there
                raise
