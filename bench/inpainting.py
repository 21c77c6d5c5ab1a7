"""Inpainters on held-out healthy tissue: the truth under the hole is known.

    python -m bench.inpainting --data FOLDER... -o OUT [--quick] [--images 32] [--holes 3] [--families mri ct]
        [--methods exemplar]

A data set is a folder of FOLDER that carries the name of a catalogue entry. Without --data, FOLDER is data
and data-extra in the folder MIE_DATA, as in the recipes. Held out is the test split of
examples/perception.yaml, which the shipped experts never saw. Holes are real lesion shapes of other patients
of the family, placed on tissue away from lesions. Images are scaled to 256 pixels on the longer side. Each
fill is blended as `BLEND` says. Written to OUT: results.json, results.md, and sheets truth | hole | each
method. A method that draws a sample (`flow`) is drawn four times: PSNR is also that of the mean, and
diversity the standard deviation over seeds against the tissue's own (median).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import cv2
import numpy as np
import yaml
from rich.console import Console
from rich.progress import track
from skimage.metrics import structural_similarity

from bench.two_sample import OWN, accuracy, features
from mie.core.files import atomic_write
from mie.core.hashing import stable_hash
from mie.datasets.recipe import SplitConfig, split_of
from mie.errors import MieError
from mie.images.families import FAMILIES, family_of
from mie.images.png import encode_png
from mie.images.resize import fitted_size, resize_image, resize_mask
from mie.images.texture import compare, luma, seam_energy, texture
from mie.perspectives.modification.inpainters import make_inpainter
from mie.perspectives.modification.inpainters.blend import BLEND, KINDS, blend
from mie.perspectives.modification.inpainters.holes import LesionShapes
from mie.records import Case, Unit
from mie.sources.catalog import catalog
from mie.sources.source import open_source

# Not data-2: RECIPE does not say which data sets of it are for training alone.
FOLDERS = ("data", "data-extra")
METHODS = ("telea", "navier-stokes", "harmonic", "exemplar", "compact", "flow")
TEXTURED = ("exemplar", "compact", "flow")
SAMPLED = ("flow",)
SEEDS = 4
LIKENESS = ("variance_ratio", "spectrum_distance", "gradient_distance")
# Its test split is what the shipped experts never saw; some data sets are for training alone.
RECIPE = Path(__file__).parents[1] / "examples" / "perception.yaml"
SEED = 20260101  # of that recipe
LONGER = 256
AREA = (0.004, 0.06)  # of the image: smaller holes have no texture to measure
SHEET = 12  # rows


@dataclass(frozen=True)
class Region:
    """A hole in healthy tissue, as it goes to a worker."""

    family: str
    patient: str
    image: np.ndarray
    hole: np.ndarray
    other: np.ndarray | None  # another place in the same image
    seed: int
    methods: tuple[str, ...]


def cases(roots: list[Path], family: str) -> Iterator[tuple[Case, bool]]:
    """Every case of the family in a fixed shuffle, and whether it is held out."""
    recipe = yaml.safe_load(RECIPE.read_text(encoding="utf-8"))
    trained = {source["name"] for source in recipe["sources"] if source.get("split") == "train"}
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
                    tested = case.source not in trained and split_of(case, SplitConfig(), SEED) == "test"
                    yield case, tested
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
    facts: dict = {"images": len(held), "shapes": len(bank)}
    if len(bank):
        facts["shape_statistics"] = bank.statistics()
    found = []
    for patient, image, lesions in held:
        rng = np.random.default_rng(stable_hash("hole", patient, len(found)))
        free = healthy(image, lesions)
        drawn = [bank.sample(rng, *image.shape[:2], allowed=free, area=AREA) for _ in range(holes)]
        drawn = [hole for hole in drawn if hole is not None and texture(image, hole) is not None]
        for k, hole in enumerate(drawn):
            other = drawn[k - 1] if len(drawn) > 1 else None
            found.append(Region(family, patient, image, hole, other, k, methods))
    # Not of all images: some have no place for a hole.
    facts["patients"] = len({region.patient for region in found})
    return found, facts


def measure(region: Region) -> dict:
    """One region, every method: numbers per method and blend, and features for the two-sample test."""
    cv2.setNumThreads(1)
    image, hole = region.image, region.hole
    truth = texture(image, hole)
    line: dict = {
        "patient": region.patient,
        "seam": seam_energy(image, hole),
        "features": features(image, hole),
        "elsewhere": None if region.other is None else compare(texture(image, region.other), truth),
        "methods": {},
        "fills": {},
    }
    for method in region.methods:
        inpainter = make_inpainter(method, family=region.family)
        start = time.perf_counter()
        drawn = inpainter.fill(image, hole, seed=region.seed)
        seconds = time.perf_counter() - start
        joined = {kind: blend(kind, image, drawn, hole) for kind in KINDS}
        draws = [joined[BLEND[region.family]]]
        if method in SAMPLED:
            more = (inpainter.fill(image, hole, seed=region.seed + 1000 * k) for k in range(1, SEEDS))
            draws += [blend(BLEND[region.family], image, made, hole) for made in more]
        numbers = {kind: against_truth(made, image, hole) for kind, made in joined.items()}
        chosen = BLEND[region.family]
        _, similar = structural_similarity(image, joined[chosen], channel_axis=2, full=True)
        line["methods"][method] = {
            **numbers[chosen],
            **over_seeds(draws, image, hole),
            "ssim": float(similar[hole].mean()),
            "seconds": seconds,
            "blends": numbers,
            "features": features(joined[chosen], hole),
        }
        line["fills"][method] = joined[chosen]
    return line


def over_seeds(draws: list[np.ndarray], image: np.ndarray, hole: np.ndarray) -> dict[str, float]:
    """PSNR of the mean of draws, and how much they differ, against how much the tissue itself varies."""
    if len(draws) < 2:
        return {}
    values = np.stack([made[hole] for made in draws]).astype(float)
    error = np.mean((values.mean(0) - image[hole]) ** 2)
    spread = np.sqrt(values.var(0, ddof=1).mean())
    return {
        "psnr_of_mean": float(10 * np.log10(255**2 / max(error, 1e-2))),
        "diversity": float(spread / (luma(image)[hole].std() + 1)),
    }


def against_truth(made: np.ndarray, image: np.ndarray, hole: np.ndarray) -> dict[str, float]:
    error = np.mean((made[hole].astype(float) - image[hole]) ** 2)
    return {
        "psnr": float(10 * np.log10(255**2 / max(error, 1e-2))),
        **compare(texture(made, hole), texture(image, hole)),
        "seam": seam_energy(made, hole),
        "seam_excess": seam_energy(made, hole) - seam_energy(image, hole),
    }


def average(rows: list[dict]) -> dict[str, float]:
    """Means; of ratios, which are skewed, the median."""
    numbers = {k: float(np.mean([r[k] for r in rows])) for k, v in rows[0].items() if isinstance(v, float)}
    for key in {"variance_ratio", "diversity"} & numbers.keys():
        numbers[key] = float(np.median([r[key] for r in rows]))
    return numbers


def summarise(lines: list[dict], methods: tuple[str, ...]) -> dict:
    result: dict = {
        "regions": len(lines),
        "untouched_seam": float(np.mean([n["seam"] for n in lines])),
        "elsewhere": average([n["elsewhere"] for n in lines if n["elsewhere"] is not None]),
        "methods": {},
    }
    for method in methods:
        rows = [n["methods"][method] for n in lines]
        numbers: dict = average(rows)
        numbers["blends"] = {kind: average([r["blends"][kind] for r in rows]) for kind in KINDS}
        pairs = [
            (n["features"], r["features"], n["patient"])
            for n, r in zip(lines, rows, strict=True)
            if n["features"] is not None and r["features"] is not None
        ]
        if pairs:
            real, made, patients = (np.stack(part) for part in zip(*pairs, strict=True))
            numbers["two_sample"] = {
                "region": accuracy(real[:, :OWN], made[:, :OWN], patients),
                "with_surroundings": accuracy(real, made, patients),
            }
        result["methods"][method] = numbers
    result["blend"] = best_blend(result["methods"])
    return result


def best_blend(methods: dict) -> str:
    """Seam energy nearest to the untouched region's; of those within 0.05, the variance ratio nearest to 1.

    Averaged over the methods that draw texture: the others leave no seam to hide.
    """
    rows = [methods[m]["blends"] for m in methods if m in TEXTURED] or [m["blends"] for m in methods.values()]
    seam = {k: abs(np.mean([r[k]["seam_excess"] for r in rows])) for k in KINDS}
    ratio = {k: abs(np.log(np.mean([r[k]["variance_ratio"] for r in rows]))) for k in KINDS}
    return min((k for k in KINDS if seam[k] <= min(seam.values()) + 0.05), key=lambda k: ratio[k])


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
        if region.patient in seen or len(rows) == SHEET or min(region.hole.shape) < 128:
            continue
        seen.add(region.patient)
        white = np.where(region.hole[..., None], np.uint8(255), region.image)
        corner = [
            int(np.clip(at.mean() - 64, 0, side - 128))
            for at, side in zip(np.nonzero(region.hole), region.hole.shape, strict=True)
        ]
        cut = tuple(slice(c, c + 128) for c in corner)
        pictures = [p[cut] for p in (region.image, white, *(line["fills"][m] for m in methods))]
        rows.append(np.hstack([cv2.resize(p, (256, 256), interpolation=cv2.INTER_CUBIC) for p in pictures]))
    return np.vstack(rows)


def tables(results: dict) -> str:
    """Markdown: a table of methods and one of blends."""
    head = "family|method|regions (patients)|PSNR dB|PSNR of mean|diversity|SSIM|variance ratio|NPS distance"
    head += "|gradient distance|seam|told apart %|with surroundings %|s"
    main, blends = [head.split("|")], [["family", "method", *KINDS, "chosen"]]
    for family, r in results.items():
        count = f"{r['regions']} ({r['patients']})"
        e = r["elsewhere"]
        real = [f"{e[k]:.2f}" for k in LIKENESS]
        main.append(
            [family, "real tissue", count, "", "", "", "", *real, f"{r['untouched_seam']:.2f}", "", "", ""]
        )
        for method, n in r["methods"].items():
            likeness = [f"{n[k]:.2f}" for k in LIKENESS]
            told = [percent(n.get("two_sample", {}).get(k)) for k in ("region", "with_surroundings")]
            drawn = [f"{n[k]:.{d}f}" if k in n else "" for k, d in (("psnr_of_mean", 1), ("diversity", 2))]
            numbers = [f"{n['psnr']:.1f}", *drawn, f"{n['ssim']:.2f}", *likeness, f"{n['seam']:.2f}"]
            main.append([family, method, count, *numbers, *told, f"{n['seconds']:.2f}"])
            cells = [
                f"{b['seam_excess']:+.2f}, {b['psnr']:.1f}, {b['variance_ratio']:.2f}"
                for b in n["blends"].values()
            ]
            blends.append([family, method, *cells, r["blend"]])
    note = "Real tissue: another untouched region of the same image against the truth under the hole."
    blend_note = "Seam energy minus that of the untouched region, PSNR in dB, variance ratio, per blend:"
    return f"{markdown(main)}\n\n{note}\n\n{blend_note}\n\n{markdown(blends)}\n"


def percent(told: dict | None) -> str:
    if not told:
        return "–"
    return f"{100 * told['accuracy']:.0f} ({100 * told['low']:.0f}–{100 * told['high']:.0f})"


def markdown(rows: list[list[str]]) -> str:
    return "\n".join("| " + " | ".join(row) + " |" for row in [rows[0], ["---"] * len(rows[0]), *rows[1:]])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--data", nargs="+", type=Path, metavar="FOLDER")
    parser.add_argument("-o", "--out", type=Path, default=Path("out/inpainting"))
    parser.add_argument("--quick", action="store_true", help="fewer regions: about four minutes on two cores")
    parser.add_argument("--images", type=int, help="held-out images of each family")
    parser.add_argument("--holes", type=int, help="holes in each image")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), choices=FAMILIES)
    parser.add_argument("--methods", nargs="+", default=list(METHODS))
    given = parser.parse_args()
    data = given.data
    if data is None and "MIE_DATA" in os.environ:
        data = [Path(os.environ["MIE_DATA"]) / name for name in FOLDERS]
    roots = [root for root in data or () if root.is_dir()]
    if not roots:
        looked = f"no folder {' or '.join(map(str, data))}" if data else "MIE_DATA is not set"
        print(f"skipped: no data sets: {looked}; give --data FOLDER...")
        return
    given.out.mkdir(parents=True, exist_ok=True)
    images, holes = (12, 2) if given.quick else (120, 4)
    images, holes = given.images or images, given.holes or holes
    results = {}
    os.environ["OMP_NUM_THREADS"] = "1"  # of each process: with more, they wait for each other
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
            measured = pool.map(measure, found)
            lines = list(track(measured, family, len(found), console=Console(stderr=True)))
            results[family] = {**facts, **summarise(lines, tuple(methods)), "missing": missing}
            atomic_write(given.out / f"{family}.png", encode_png(sheet(found, lines, tuple(methods))))
            print(f"{family}: {len(lines)} regions, blend {results[family]['blend']}", flush=True)
    atomic_write(given.out / "results.json", json.dumps(results, indent=1) + "\n")
    atomic_write(given.out / "results.md", tables(results))
    print(tables(results))


if __name__ == "__main__":
    main()
