"""Inpainters on held-out healthy tissue: the truth under the hole is known.

    python bench/inpainting.py --data FOLDER... -o OUT [--quick] [--families mri ct] [--methods exemplar]

A data set is a folder of FOLDER that carries the name of a catalogue entry. Held out is whom
`is_held_out` or the data set's own test split says. Holes are real lesion shapes of other patients of the
family, placed on tissue away from lesions. Images are scaled to 256 pixels on the longer side. Each fill is
blended as `BLEND` says. Written to OUT: results.json, results.md, and sheets truth | hole | each method.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
from skimage.metrics import structural_similarity

from bench.two_sample import accuracy, features
from mie.errors import MieError
from mie.images.families import FAMILIES, family_of, is_held_out
from mie.images.files import atomic_write
from mie.images.png import encode_png
from mie.images.resize import fitted_size, resize_image, resize_mask
from mie.inpainters import LesionShapes, make_inpainter
from mie.inpainters.blend import BLEND, KINDS, blend
from mie.metrics.seam import seam_energy
from mie.metrics.texture import compare, luma, texture
from mie.recipes.seeds import stable_hash
from mie.records import Case, Unit
from mie.sources.catalog import catalog
from mie.sources.open import open_source

DATA = [Path("../shared/data"), Path("../shared/data-extra")]
METHODS = ("telea", "navier-stokes", "exemplar", "compact")
LONGER = 256
AREA = (0.004, 0.06)  # of the image: smaller holes have no texture to measure
SHEET = 6  # rows


@dataclass(frozen=True)
class Region:
    """A hole in healthy tissue, as it goes to a worker."""

    family: str
    patient: str
    image: np.ndarray
    hole: np.ndarray
    seed: int
    methods: tuple[str, ...]


def cases(roots: list[Path], family: str) -> Iterator[tuple[Case, bool]]:
    """Every case of the family in a fixed shuffle, and whether it is held out."""
    found = []
    for name, entry in sorted(catalog().items()):
        if family_of(entry.modality) != family or entry.layout.kind != "folder":
            continue
        for root in (r / name for r in roots if (r / name).is_dir()):
            source = open_source(entry, root)
            found += [(source, unit) for unit in source.scan() if isinstance(unit, Unit)]
    found.sort(key=lambda item: stable_hash("inpainting bench", item[0].entry.name, item[1].key))
    for source, unit in found:
        try:
            for case in source.load(unit):
                if isinstance(case, Case):
                    out = is_held_out(case.source, case.patient_id or case.case_id) or case.split == "test"
                    yield case, out
        except MieError as error:
            print(f"  left out {source.entry.name}/{unit.key}: {error.reason}")


def small(case: Case) -> tuple[np.ndarray, np.ndarray]:
    """The image, and its lesions, at 256 pixels."""
    size = fitted_size(*case.image.shape[:2], LONGER)
    lesions = np.zeros(size, bool)
    for name, mask in case.masks.items():
        if case.targets[name].kind == "lesion":
            lesions |= resize_mask(mask, size)
    return resize_image(case.image, size), lesions


def healthy(image: np.ndarray, lesions: np.ndarray) -> np.ndarray:
    """Tissue away from lesions and from the dark surroundings."""
    body = cv2.GaussianBlur(luma(image), (0, 0), 4) > 16
    body = cv2.erode(body.astype(np.uint8), np.ones((5, 5)), borderValue=0).astype(bool)
    return body & ~cv2.dilate(lesions.astype(np.uint8), np.ones((17, 17))).astype(bool)


def regions(
    roots: list[Path], family: str, images: int, holes: int, methods: tuple[str, ...]
) -> tuple[list[Region], dict]:
    outlines, held = [], []
    per_patient: dict[str, int] = {}
    for case, out in cases(roots, family):
        if len(outlines) >= 150 and len(held) >= images:
            break
        patient = f"{case.source}:{case.patient_id or case.case_id}"
        if not out and len(outlines) < 150:
            outlines.append(small(case)[1])
        elif out and len(held) < images and per_patient.get(patient, 0) < 4:
            per_patient[patient] = per_patient.get(patient, 0) + 1
            held.append((patient, *small(case)))
    bank = LesionShapes.from_masks(outlines)
    facts = {"images": len(held), "patients": len(per_patient), "shapes": len(bank)}
    if len(bank):
        facts["shape_statistics"] = bank.statistics()
    found = []
    for patient, image, lesions in held:
        rng = np.random.default_rng(stable_hash("hole", patient, len(found)))
        free = healthy(image, lesions)
        for k in range(holes):
            hole = bank.sample(rng, *image.shape[:2], allowed=free, area=AREA)
            if hole is not None and texture(image, hole) is not None:
                found.append(Region(family, patient, image, hole, k, methods))
    return found, facts


def measure(region: Region) -> dict:
    """One region, every method: numbers per method, seam per blend, features for the two-sample test."""
    cv2.setNumThreads(1)
    image, hole = region.image, region.hole
    truth = texture(image, hole)
    line: dict = {"patient": region.patient, "seam": seam_energy(image, hole), "methods": {}, "fills": {}}
    line["features"] = features(image, hole)
    for method in region.methods:
        inpainter = make_inpainter(method, family=region.family)
        start = time.perf_counter()
        drawn = inpainter.fill(image, hole, seed=region.seed)
        seconds = time.perf_counter() - start
        joined = {kind: blend(kind, image, drawn, hole) for kind in KINDS}
        filled = joined[BLEND[region.family]]
        error = np.mean((filled[hole].astype(float) - image[hole]) ** 2)
        _, similar = structural_similarity(image, filled, channel_axis=2, full=True)
        line["methods"][method] = {
            "psnr": float(10 * np.log10(255**2 / max(error, 1e-2))),
            "ssim": float(similar[hole].mean()),
            **compare(texture(filled, hole), truth),
            "seam": seam_energy(filled, hole),
            "seconds": seconds,
            "blends": {
                kind: {
                    "seam": seam_energy(made, hole),
                    "psnr": float(
                        10 * np.log10(255**2 / max(np.mean((made[hole] * 1.0 - image[hole]) ** 2), 1e-2))
                    ),
                    "variance_ratio": compare(texture(made, hole), truth)["variance_ratio"],
                }
                for kind, made in joined.items()
            },
            "features": features(filled, hole),
        }
        line["fills"][method] = filled
    return line


def summarise(lines: list[dict], methods: tuple[str, ...]) -> dict:
    """Means over regions (variance ratio: median, as ratios are skewed)."""
    result: dict = {"regions": len(lines), "untouched_seam": float(np.mean([n["seam"] for n in lines]))}
    for method in methods:
        rows = [n["methods"][method] for n in lines]
        numbers = {
            k: float(np.mean([r[k] for r in rows])) for k in rows[0] if k not in ("blends", "features")
        }
        numbers["variance_ratio"] = float(np.median([r["variance_ratio"] for r in rows]))
        both = [
            n for n in lines if n["features"] is not None and n["methods"][method]["features"] is not None
        ]
        if both:
            real, made = (
                np.stack(f)
                for f in zip(*((n["features"], n["methods"][method]["features"]) for n in both), strict=True)
            )
            numbers["two_sample"] = accuracy(real, made, np.array([n["patient"] for n in both]))
        numbers["blends"] = {
            kind: {
                "seam_excess": float(
                    np.mean([r["blends"][kind]["seam"] - n["seam"] for r, n in zip(rows, lines, strict=True)])
                ),
                "psnr": float(np.mean([r["blends"][kind]["psnr"] for r in rows])),
                "variance_ratio": float(np.median([r["blends"][kind]["variance_ratio"] for r in rows])),
            }
            for kind in KINDS
        }
        result[method] = numbers
    return result


def usable(methods: list[str], family: str) -> tuple[list[str], dict[str, str]]:
    """Methods that open for this family, and why the others do not."""
    found, missing = [], {}
    for method in methods:
        try:
            make_inpainter(method, family=family)
            found.append(method)
        except (MieError, ImportError) as error:
            missing[method] = str(error).splitlines()[0]
    return found, missing


def sheet(found: list[Region], lines: list[dict], methods: tuple[str, ...]) -> np.ndarray:
    """Rows truth | hole | each method, cut around the hole and doubled; regions of different patients."""
    rows, seen = [], set()
    for region, line in zip(found, lines, strict=True):
        if region.patient in seen or len(rows) == SHEET:
            continue
        seen.add(region.patient)
        white = np.where(region.hole[..., None], np.uint8(255), region.image)
        pictures = [region.image, white, *(line["fills"][m] for m in methods)]
        y, x = (int(at.mean()) for at in np.nonzero(region.hole))
        padded = [np.pad(p, ((64, 64), (64, 64), (0, 0)))[y : y + 128, x : x + 128] for p in pictures]
        rows.append(np.hstack([cv2.resize(p, (256, 256), interpolation=cv2.INTER_CUBIC) for p in padded]))
    return np.vstack(rows)


def tables(results: dict) -> str:
    text = [
        "| family | method | regions (patients) | PSNR dB | SSIM | variance ratio | NPS distance"
        " | gradient distance | seam (untouched) | told apart % | s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    blends = ["| family | method | " + " | ".join(KINDS) + " |", "| --- | --- |" + " --- |" * len(KINDS)]
    for family, r in results.items():
        for method in (m for m in METHODS if m in r):
            n, t = r[method], r[method].get("two_sample")
            told = f"{100 * t['accuracy']:.0f} ({100 * t['low']:.0f}–{100 * t['high']:.0f})" if t else "–"
            text.append(
                f"| {family} | {method} | {r['regions']} ({r['patients']}) | {n['psnr']:.1f}"
                f" | {n['ssim']:.2f} | {n['variance_ratio']:.2f} | {n['spectrum_distance']:.2f} | {n['gradient_distance']:.2f}"
                f" | {n['seam']:.2f} ({r['untouched_seam']:.2f}) | {told} | {n['seconds']:.2f} |"
            )
            cells = [
                f"{b['seam_excess']:+.2f}, {b['psnr']:.1f} dB, {b['variance_ratio']:.2f}"
                for b in n["blends"].values()
            ]
            blends.append(f"| {family} | {method} | " + " | ".join(cells) + " |")
    note = "\n\nSeam energy minus that of the untouched region, PSNR and variance ratio, per blend:\n\n"
    return "\n".join(text) + note + "\n".join(blends) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", nargs="+", type=Path, default=DATA)
    parser.add_argument("-o", "--out", type=Path, default=Path("out/inpainting"))
    parser.add_argument("--quick", action="store_true", help="fewer regions: about six minutes on two cores")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    given = parser.parse_args()
    roots = [root for root in given.data if root.is_dir()]
    if not roots:
        print(f"skipped: no data sets (looked for {', '.join(map(str, given.data))})")
        return
    given.out.mkdir(parents=True, exist_ok=True)
    images, holes = (32, 3) if given.quick else (120, 4)
    results = {}
    # Not forked: OpenCV's threads do not survive that.
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as pool:
        for family in given.families:
            methods, missing = usable(given.methods, family)
            for method, why in missing.items():
                print(f"{family}: without {method}: {why}")
            found, facts = regions(roots, family, images, holes, tuple(methods))
            if len(found) < 2:
                print(f"{family}: skipped: {len(found)} regions in {facts}")
                continue
            lines = list(pool.map(measure, found, chunksize=4))
            results[family] = {**facts, **summarise(lines, tuple(methods)), "missing": missing}
            atomic_write(given.out / f"{family}.png", encode_png(sheet(found, lines, tuple(methods))))
            print(tables({family: results[family]}).split("\n\n")[0], flush=True)
    atomic_write(given.out / "results.json", json.dumps(results, indent=1) + "\n")
    atomic_write(given.out / "results.md", tables(results))
    print(tables(results))


if __name__ == "__main__":
    main()
