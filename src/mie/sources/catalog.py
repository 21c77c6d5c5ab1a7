"""The catalogue: what each known data set holds, how it lies on disk, and on which terms.

An entry is data, not code. Users write the same keys under `sources:` in a recipe, either in full or on top
of a catalogue entry.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib.metadata import entry_points
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Final, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from mie.core.registry import suggestion
from mie.core.yaml_files import read_mapping
from mie.errors import ConfigError, MieError
from mie.images.dicom import read_header
from mie.images.limits import decoding
from mie.privacy.identifiers import dicom_identifiers, header_tags
from mie.records import Pairing, Target, Unit
from mie.sources import patterns
from mie.vocabulary import LICENSE_USES, MODALITIES, SPLITS, TARGET_KINDS

RGB = tuple[int, int, int]


class Strict(BaseModel):
    """Unknown keys are errors, not silence."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class TargetEntry(Strict):
    """One thing that is marked, and how the mask file marks it. Exactly one of the markings."""

    name: str = Field(description="as a clinician says it: 'hard exudates'")
    kind: Literal["anatomy", "lesion"]
    plural: bool = False
    value: int | tuple[int, ...] | None = Field(None, description="mask value(s) of this target")
    colour: RGB | tuple[RGB, ...] | None = Field(None, description="mask colour(s) of this target")
    nonzero: bool = Field(False, description="every value but 0 (instance ids)")
    above: int | None = Field(None, description="every value above this one (soft or JPEG masks)")
    below: int | None = Field(None, description="every value below this one (target drawn dark)")
    masks: str | None = Field(None, description="this target's own mask files, when they are separate")
    filled: bool = Field(False, description="the mask draws its outline: what that encloses belongs to it")
    opened: int = Field(
        0, ge=0, description="drop what is thinner than so many pixels: a rim left by scaling"
    )

    @model_validator(mode="after")
    def _one_marking(self) -> TargetEntry:
        given = [
            k
            for k in ("value", "colour", "nonzero", "above", "below")
            if getattr(self, k) not in (None, False)
        ]
        if len(given) != 1:
            raise ValueError(
                f"target {self.name!r} needs exactly one of value, colour, nonzero, above, below; "
                f"it has {', '.join(given) or 'none'}"
            )
        return self

    @field_validator("masks")
    @classmethod
    def _pattern(cls, value: str | None) -> str | None:
        return None if value is None else patterns.check(value)

    @property
    def target(self) -> Target:
        return Target(self.name, self.kind, self.plural)

    @property
    def values(self) -> tuple[int, ...]:
        if self.value is None:
            return ()
        return self.value if isinstance(self.value, tuple) else (self.value,)

    @property
    def colours(self) -> tuple[RGB, ...]:
        if self.colour is None:
            return ()
        if isinstance(self.colour[0], tuple):
            return self.colour
        return (self.colour,)


class Window(Strict):
    """How many-bit values become 8 bits: a fixed range, or percentiles of the image (or volume)."""

    low: float | None = None
    high: float | None = None
    percentiles: tuple[float, float] | None = None

    @model_validator(mode="after")
    def _one_way(self) -> Window:
        fixed = self.low is not None and self.high is not None
        if fixed == (self.percentiles is not None):
            raise ValueError("a window is either low and high, or percentiles: [p, q]")
        low, high = (self.low, self.high) if fixed else self.percentiles  # type: ignore[misc]
        if not low < high:  # type: ignore[operator]
            raise ValueError(f"a window needs low < high, got {low} and {high}")
        return self


class _Files(Strict):
    images: str
    masks: str | None = None

    @field_validator("images", "masks", "pair", "series", "seg", "files", check_fields=False)
    @classmethod
    def _pattern(cls, value: str | None) -> str | None:
        return None if value is None else patterns.check(value)


class FolderLayout(_Files):
    """Image files and mask files. `masks` may match several files (several masks, one image)."""

    kind: Literal["folder"]


class PairedLayout(_Files):
    """Two folders of images of the same place: `images` and `pair`, masks optional."""

    kind: Literal["paired"]
    pair: str


Slices = Annotated[int, Field(ge=1, le=512)] | Literal["all"]


class _Slices(Strict):
    """Which slices of a volume become images."""

    around: float | None = Field(
        None, ge=0, description="with `slices: all`: only so many millimetres beyond what is marked"
    )

    @model_validator(mode="after")
    def _needs_all(self) -> _Slices:
        if self.around is not None and getattr(self, "slices", None) != "all":
            raise ValueError("`around` is for `slices: all`")
        return self

    @model_serializer(mode="wrap")
    def _without_the_default(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As written before the keys existed: an entry without them is the same entry as ever."""
        body: dict[str, Any] = handler(self)
        return {k: v for k, v in body.items() if v is not None or k not in ("around", "channel")}


class VolumeLayout(_Files, _Slices):
    """NIfTI, NRRD or MHA volumes with label maps (or one mask volume per target), or pairs of volumes."""

    kind: Literal["volume"]
    pair: str | None = Field(None, description="a second volume of the same place")
    planes: tuple[Literal["axial", "coronal", "sagittal"], ...] = ("axial",)
    slices: Slices = Field(3, description="at most this many slices per plane and target; or all")
    gap: float = Field(5.0, ge=0, description="millimetres between chosen slices")
    channel: int | None = Field(None, ge=0, description="which volume of four-axis NIfTI files, from 0")


class DicomLayout(_Slices):
    """One folder per series; masks as DICOM-SEG objects or label volumes."""

    kind: Literal["dicom"]
    series: str = Field(description="the series' files: '{patient}/{series}/{instance}.dcm'")
    pair: str | None = Field(None, description="the files of a second series of the same place")
    masks: str | None = None
    planes: tuple[Literal["axial", "coronal", "sagittal"], ...] = ("axial",)
    slices: Slices = 3
    gap: float = Field(5.0, ge=0)

    @field_validator("series", "masks", "pair")
    @classmethod
    def _pattern(cls, value: str | None) -> str | None:
        return None if value is None else patterns.check(value)


class MedSegBenchLayout(Strict):
    """A MedSegBench archive: `{split}_images`, `{split}_label`, or their per-category `_C1` form."""

    kind: Literal["medsegbench"]
    files: str = "{name}.npz"
    category: str | None = Field(None, description="'C1' for {split}_images_C1 and {split}_label_C1")

    @field_validator("files")
    @classmethod
    def _pattern(cls, value: str) -> str:
        return patterns.check(value)


class OtherLayout(BaseModel):
    """What an installed package reads (entry points of the group `mie.sources`); the keys are its own."""

    model_config = ConfigDict(extra="allow", frozen=True)

    kind: str


_OTHER: Final = "of an installed package"


def _layout_tag(value: Any) -> str | None:
    kind = value.get("kind") if isinstance(value, Mapping) else getattr(value, "kind", None)
    ours = ("folder", "paired", "volume", "dicom", "medsegbench")
    if not isinstance(kind, str) or kind in ours:
        return kind if isinstance(kind, str) else None
    return _OTHER if any(point.name == kind for point in entry_points(group="mie.sources")) else kind


Layout = Annotated[
    Annotated[FolderLayout, Tag("folder")]
    | Annotated[PairedLayout, Tag("paired")]
    | Annotated[VolumeLayout, Tag("volume")]
    | Annotated[DicomLayout, Tag("dicom")]
    | Annotated[MedSegBenchLayout, Tag("medsegbench")]
    | Annotated[OtherLayout, Tag(_OTHER)],
    Discriminator(
        _layout_tag,
        custom_error_type="unknown_layout",
        custom_error_message="`kind` is none of folder, paired, volume, dicom and medsegbench, nor a layout "
        "that an installed package reads",
    ),
]


class PairingEntry(Strict):
    """What the two images of a pair are to each other: `layout.images` leads to `layout.pair`."""

    target: str = Field(description="the transformation between them: 'ct_mri'")
    image: str = Field("", description="what the first is called: 'CT', 'T1-weighted MRI', 'arterial phase'")
    pair: str = Field("", description="what the second is called")
    modality: str | None = Field(None, description="the second's modality, where it differs")
    directions: Literal["forward", "both"] = Field(
        "forward", description="'both' where the way back makes sense"
    )

    @model_validator(mode="after")
    def _names_for_the_way_back(self) -> PairingEntry:
        if self.directions == "both" and not (self.image and self.pair):
            raise ValueError("a pairing in both directions names its `image` and its `pair`")
        return self

    @property
    def pairing(self) -> Pairing:
        return Pairing(self.target, self.image, self.pair, self.modality, self.directions == "both")


class License(Strict):
    name: str
    use: Literal["open", "non-commercial", "research", "unknown"]
    basis: str = Field("stated", description="'stated' by the provider, or 'recalled' and not verified")


class SplitTable(Strict):
    """The data set's own list of which case is in which split: a CSV file, or one case a line."""

    file: str
    case: str | None = Field(None, description="the CSV column that names a case; None: one case a line")
    split: str = Field(description="the CSV column of the split, or the split of all cases that are listed")
    key: str = Field(
        "([^/]+?)(?:\\.[^/]*)?$", description="regular expression on an image's path; group 1 is the case"
    )

    @field_validator("file")
    @classmethod
    def _inside(cls, value: str) -> str:
        return patterns.check(value)

    @field_validator("key")
    @classmethod
    def _expression(cls, value: str) -> str:
        return patterns.check_expression(value, "key")


# Keys that were added later: left out where they say nothing, so that stored recipes stay as they are.
_ADDED: Final[dict[str, Any]] = {
    "layout_basis": "files",
    "published": None,
    "split_tables": (),
    "checksums": {},
}


class Entry(Strict):
    """One data set."""

    name: str
    title: str
    modality: str
    # Not part of stored recipes, which would no longer be those of earlier builds.
    submodality: str | None = Field(
        None, exclude=True, description="sequence, stain or view: T1W, FLAIR, mammography"
    )
    anatomy: str
    targets: tuple[TargetEntry, ...] = ()
    layout: Layout
    license: License
    home: str | None = Field(None, description="where people get the data set")
    cohort: str | None = Field(None, description="data sets that share patients share a cohort")
    split: Literal["train", "val", "test"] | None = Field(None, description="the whole set's official split")
    splits: Mapping[str, str] = Field(
        default_factory=dict, description="{split} as written -> train|val|test"
    )
    one_patient: str | None = Field(None, description="the name of the patient that all files are of")
    patient: str | None = Field(
        None, description="regular expression on the file's stem; group 1 is the patient"
    )
    window: Window | None = None
    pairing: PairingEntry | None = Field(None, description="what the two images of a pair are to each other")
    hu_range: tuple[float, float] | None = Field(
        None, description="the Hounsfield units that grey 0 and 255 of an 8-bit CT stand for, about"
    )
    snap: bool = Field(False, description="take each mask pixel to the nearest known value or colour")
    ignore: tuple[int | RGB, ...] = Field((), description="mask values or colours that are no target")
    upside_down: bool = Field(False, description="the mask files' first row is the image's last one")
    deidentified: bool = Field(False, description="the provider states that no patient can be identified")
    samples: bool = Field(False, description="comes with `mie` itself: no root needed")
    layout_basis: Literal["files", "loaders", "unconfirmed"] = Field(
        "files",
        description="where the layout was read: from the files, from public loaders; or not confirmed",
    )
    published: int | None = Field(None, ge=1, description="images or volumes in the whole data set")
    split_tables: tuple[SplitTable, ...] = Field((), description="the data set's own lists of its splits")
    checksums: Mapping[str, str] = Field(
        default_factory=dict, description="SHA-256 of some files, as published"
    )
    notes: str | None = None

    @model_serializer(mode="wrap")
    def _as_ever(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        body: dict[str, Any] = handler(self)
        for key, default in _ADDED.items():
            if getattr(self, key) == default:
                body.pop(key, None)
        return body

    @field_validator("patient")
    @classmethod
    def _patient(cls, value: str | None) -> str | None:
        return None if value is None else patterns.check_expression(value, "patient")

    @field_validator("modality")
    @classmethod
    def _modality(cls, value: str) -> str:
        if value not in MODALITIES:
            hint = suggestion(value, MODALITIES) or ""
            raise ValueError(f"unknown modality {value!r}; {hint} (known: {', '.join(MODALITIES)})")
        return value

    @model_validator(mode="after")
    def _sound(self) -> Entry:
        names = [t.name for t in self.targets]
        if len(set(names)) != len(names):
            raise ValueError(f"target names must differ, got {names}")
        bad = {v for v in self.splits.values() if v not in SPLITS}
        if bad:
            raise ValueError(f"splits must map to {SPLITS}, got {sorted(bad)}")
        flat = isinstance(self.layout, FolderLayout | PairedLayout)
        if not flat and (self.upside_down or any(t.filled or t.opened for t in self.targets)):
            raise ValueError("`upside_down`, `filled` and `opened` are for mask files that are pictures")
        if self.hu_range is not None and not self.hu_range[0] < self.hu_range[1]:
            raise ValueError(f"hu_range needs low < high, got {self.hu_range}")
        if self.pairing is not None:
            if getattr(self.layout, "pair", None) is None:
                raise ValueError("`pairing` needs a layout with a `pair`")
            if self.pairing.directions == "both" and self.pairing.modality not in (None, *MODALITIES):
                raise ValueError(f"unknown modality {self.pairing.modality!r} of the pair")
        return self

    @property
    def patient_cohort(self) -> str:
        return self.cohort or self.name

    def targets_of(self, role: str) -> tuple[TargetEntry, ...]:
        """The targets that files of a role mark: "masks" for those without files of their own."""
        return tuple(t for t in self.targets if role == ("masks" if t.masks is None else f"mask:{t.name}"))


@lru_cache(maxsize=1)
def catalog() -> dict[str, Entry]:
    """Every known data set by name, sorted."""
    entries: dict[str, Entry] = {}
    for path in sorted(Path(__file__).parent.glob("catalog*.yaml")):
        for name, body in read_mapping(path, "catalogue", expected="NAME: {title: ...}").items():
            entries[name] = Entry(name=name, **body)
    return dict(sorted(entries.items()))


def find(name: str) -> Entry:
    """The catalogue entry of that name; a near miss is suggested."""
    entries = catalog()
    if name in entries:
        return entries[name]
    near = suggestion(name, entries)
    raise ConfigError(
        f"no data set named {name!r} in the catalogue",
        fix=(f"{near} " if near else "") + "`mie sources list` shows all of them",
    )


def override(entry: Entry, changes: Mapping[str, Any]) -> Entry:
    """The entry with some keys replaced; `layout` and `license` are merged key by key."""
    body = {**entry.model_dump(exclude_unset=True), "submodality": entry.submodality}
    for key, value in changes.items():
        if (
            key in ("layout", "license")
            and isinstance(value, Mapping)
            and value.get("kind")
            in (
                None,
                body.get(key, {}).get("kind"),
            )
        ):
            body[key] = {**body[key], **value}
        else:
            body[key] = value
    return Entry.model_validate(body)


__all__ = [
    "LICENSE_USES",
    "TARGET_KINDS",
    "DicomLayout",
    "Entry",
    "FolderLayout",
    "License",
    "MedSegBenchLayout",
    "PairedLayout",
    "PairingEntry",
    "SplitTable",
    "TargetEntry",
    "VolumeLayout",
    "Window",
    "catalog",
    "find",
    "override",
]


def deidentification(entry: Entry, root: Path, units: Iterable[Unit]) -> tuple[bool, str]:
    """(stated, in which words). Of pixels nothing is known: text in an image is not looked for.

    The words name no file, since `dataset.json` is there to be shared.
    """
    if entry.deidentified:
        return True, "the entry states it"
    if not isinstance(entry.layout, DicomLayout):
        return False, "not stated"
    files = [file for unit in units for role in ("image", "pair") for file in unit.files.get(role, ())]
    for file in files:
        try:
            header = read_header(root / file, header_tags())
            with decoding("DICOM", where=file):
                identifiers = dicom_identifiers(header)
        except MieError:
            return False, "not every file can be read"
        if header.get("PatientIdentityRemoved") != "YES":
            return False, "not every file says PatientIdentityRemoved"
        if identifiers:
            return False, f"a file says PatientIdentityRemoved and still has {', '.join(identifiers)}"
        if header.get("BurnedInAnnotation") == "YES":
            return False, "a file says BurnedInAnnotation"
    return bool(files), "every file says PatientIdentityRemoved"


def patient_of(entry: Entry, name: str, places: Mapping[str, str]) -> str | None:
    """`cohort/patient`, so that one patient in two data sets of a cohort has one name; None where unknown."""
    patient = entry.one_patient or places.get("patient")
    if patient is None and entry.patient is not None:
        # "case_01.nii.gz" has the stem "case_01", not "case_01.nii".
        stem = PurePosixPath(re.sub(r"\.gz$", "", name, flags=re.IGNORECASE)).stem
        match = re.search(entry.patient, stem)
        patient = match[1] if match else None
    return None if patient is None else f"{entry.patient_cohort}/{patient}"


def split_of(entry: Entry, places: Mapping[str, str]) -> tuple[str | None, str | None]:
    """(split, reason why there is none). The data set's own split is written in the path or fixed for all."""
    if (written := places.get("split")) is None:
        return entry.split, None
    if (split := entry.splits.get(written, written)) in SPLITS:
        return split, None
    return None, f"unknown split {written!r}; map it to train, val or test under `splits`"
