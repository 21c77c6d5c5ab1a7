"""Folders of image files and mask files, matched by pattern; optionally a second image of the same place."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from mie.errors import MieError
from mie.images.read import read_labels, read_picture
from mie.records import Case, Mask, Rejection, Unit
from mie.sources import patterns
from mie.sources.catalog import Entry, FolderLayout, PairedLayout, TargetEntry, patient_of, split_of
from mie.sources.markings import masks_of, uses_colours

_IMAGE_SUFFIXES = {".png", ".jpg", ".jpeg", ".tif", ".tiff", ".webp", ".bmp", ".gif", ".dcm"}


class FolderSource:
    """An image/mask data set, or an image/image one, in ordinary folders."""

    def __init__(self, entry: Entry, root: Path) -> None:
        assert isinstance(entry.layout, FolderLayout | PairedLayout)  # noqa: S101
        self.entry = entry
        self.root = root
        self.layout = entry.layout
        self._listing = patterns.Listing(root)

    # What stands beside an image: role -> pattern. Targets without files of their own share "masks".
    def _companions(self) -> dict[str, str]:
        roles: dict[str, str] = {}
        if isinstance(self.layout, PairedLayout):
            roles["pair"] = self.layout.pair
        if self.layout.masks is not None:
            roles["masks"] = self.layout.masks
        for target in self.entry.targets:
            if target.masks is not None:
                roles[f"mask:{target.name}"] = target.masks
        return roles

    def scan(self) -> Iterator[Unit | Rejection]:
        images = self._listing.matches(self.layout.images)
        companions = {
            role: patterns.Companions(self._listing, pattern, patterns.places(self.layout.images))
            for role, pattern in self._companions().items()
        }
        taken = {path for path, _ in images}
        for path, found in images:
            files: dict[str, tuple[str, ...]] = {"image": (path,)}
            missing = []
            for role, companion in companions.items():
                files[role] = companion.of(found)
                taken.update(files[role])
                if not files[role] and not role.startswith("mask:"):
                    missing.append(companion.expected(found))
            has_masks = any(files[r] for r in files if r.startswith("mask"))
            wants_masks = any(r.startswith("mask") for r in companions)
            if len(files.get("pair", ())) > 1:
                reason = f"{len(files['pair'])} files match as its pair, expected one"
                yield Rejection(self.entry.name, path, "source", reason)
                continue
            if missing or (wants_masks and not has_masks):
                reason = f"no file matches {', '.join(missing) or 'any mask pattern'}"
                yield Rejection(self.entry.name, path, "source", reason)
                continue
            split, no_split = split_of(self.entry, found)
            if no_split is not None:
                yield Rejection(self.entry.name, path, "source", no_split)
                continue
            files = {role: paths for role, paths in files.items() if paths}
            yield Unit(path, files, patient_of(self.entry, path, found), split)
        yield from self._unmatched(taken)
        yield from self._listing.odd(self.entry.name)

    def _unmatched(self, taken: set[str]) -> Iterator[Rejection]:
        """Image files in the folders we read that belong to nothing: a wrong pattern should not be silent."""
        named = {patterns.fixed_folder(self.layout.images)}
        named.update(patterns.fixed_folder(p) for p in self._companions().values())
        for folder in sorted(named):
            for path in self._listing.under(folder):
                if path not in taken and PurePosixPath(path).suffix.lower() in _IMAGE_SUFFIXES:
                    taken.add(path)
                    yield Rejection(self.entry.name, path, "source", "file matches no image, or has none")

    def load(self, unit: Unit) -> Iterator[Case | Rejection]:
        entry = self.entry
        window = entry.window.model_dump() if entry.window else {}
        picture = read_picture(self._listing.inside(unit.files["image"][0]), **window)
        size = picture.pixels.shape[:2]
        pair = None
        if "pair" in unit.files:
            pair = read_picture(self._listing.inside(unit.files["pair"][0]), **window)
            _same_size(size, pair.pixels.shape[:2], unit.files["pair"][0])
        masks: dict[str, Mask] = {}
        for role, paths in unit.files.items():
            if not role.startswith("mask"):
                continue
            for path in paths:
                for name, mask in self._masks(path, self.entry.targets_of(role), size).items():
                    masks[name] = masks[name] | mask if name in masks else mask
        yield Case(
            source=entry.name,
            case_id=unit.key,
            image=picture.pixels,
            modality=entry.modality,
            anatomy=entry.anatomy,
            masks={t.name: masks[t.name] for t in entry.targets if t.name in masks},
            targets={t.name: t.target for t in entry.targets},
            pair=None if pair is None else pair.pixels,
            pair_steps=() if pair is None else pair.steps,
            pairing=None if entry.pairing is None else entry.pairing.pairing,
            values=picture.values,
            units=None if picture.values is None else "HU",
            hu_range=entry.hu_range,
            patient_id=unit.patient_id,
            split=unit.split,
            spacing=picture.spacing,
            license=entry.license.name,
            steps=picture.steps,
        )

    def _masks(self, path: str, targets: tuple[TargetEntry, ...], size: tuple[int, ...]) -> dict[str, Mask]:
        labels = read_labels(self._listing.inside(path), as_colour=uses_colours(targets))
        _same_size(size, labels.shape[:2], path)
        if self.entry.upside_down:
            labels = labels[::-1]
        try:
            return masks_of(labels, targets, self.entry)
        except MieError as error:
            error.where = path
            raise


def _same_size(image: tuple[int, ...], other: tuple[int, ...], where: str) -> None:
    if image != other:
        raise MieError(
            "image and its companion differ in size",
            where=where,
            expected=f"{image[1]}x{image[0]}",
            found=f"{other[1]}x{other[0]}",
            fix="check that the files belong together; resample one of them if they do",
        )
