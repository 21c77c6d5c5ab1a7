"""The training files of the rotation: each leaves whole data sets out, which are then scored.

    python examples/rotation/configs.py -o CONFIGS --pack PACK [--trunk FILE] [--steps 1000] [--compile]

What a left-out data set shows is still trained from another one, under the same name or nearly. Data sets
that show the same patients go out together; `mie train` takes twins (NAME_more) along by itself.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import yaml

# What is left out, by fold. In brackets what teaches the target instead.
FOLDS: dict[str, tuple[str, ...]] = {
    "fold-1": (
        "drive_vessel",  # [chasedb1_vessel]
        "open_ms_mri",  # [ms_lesion_*]
        "busbra_breast_us",  # [busi_breast_us, breast_lesions_usg]
        "curvas_abdomen_ct",  # [liver_tumor_ct, ct_mr_volumes, kits19]
        "tnbc_histology",  # [dsb2018_nuclei]
        "utsw_glioma_t2_mri",  # [brats2023_mri, fets2021_t2_mri]
        "jsrt_cxr",  # lungs: [cxr_shenzhen_lung]
        "monuseg_nuclei",  # [amonuseg_nuclei]
        "msd_hepatic_vessel_tumor_ct",  # liver tumours: [liver_tumor_ct]
        "brainix_glioma_mri",  # [brats21_brain_tumor]
    ),
    "fold-2": (
        "chasedb1_vessel",  # [drive_vessel]
        "ms_lesion_flair_mri",  # [open_ms_mri]
        "ms_lesion_t1_mri",
        "ms_lesion_t2_mri",
        "breast_lesions_usg",  # [busbra_breast_us, busi_breast_us]
        "kits19_kidney_tumor_ct",  # kidneys: [curvas_abdomen_ct]
        "kits19_kidney_ct_more",  # of the same data set under another name
        "krd_wbc_cells",  # [wbc_cells]
        "cxr_shenzhen_lung",  # [jsrt_cxr]
        "amonuseg_nuclei",  # [monuseg_nuclei, tnbc_histology]
        "chaos_liver_ct",  # [curvas_abdomen_ct]
        "idrid_lesions",  # optic disc: [drishti_disc_cup, smdg_disc_cup]
        "idrid_exudates",  # of the same images
    ),
    "fold-3": (
        "busi_breast_us",  # [busbra_breast_us, breast_lesions_usg]
        "brats2023_mri",  # [utsw_glioma_t2_mri]
        "fets2021_t2_mri",  # the same patients
        "brats21_brain_tumor",  # perhaps the same patients
        "brats2013_t1c_flair",  # perhaps the same patients
        "liver_tumor_ct",  # liver: [curvas_abdomen_ct, ct_mr_volumes]
        "edd2020_endoscopy",  # polyp: [kvasir_seg_polyp]
        "drishti_disc_cup",  # [smdg_disc_cup, which may show the same patients]
        "cpaisd_stroke_ct",  # [aisd_stroke_ct, realtime_stroke_ct]
        "msd_spleen_ct",  # [curvas_abdomen_ct]
        "nih_pancreas_ct",  # [curvas_abdomen_ct]
    ),
    "fold-4": (
        "brisc2025_brain_tumor",  # [brats2023_mri, utsw_glioma_t2_mri]
        "brisc2026_brain_tumor",  # the same patients
        "figshare_brain_tumor",
        "wbc_cells",  # [krd_wbc_cells]
        "aisd_stroke_ct",  # [cpaisd_stroke_ct]
        "realtime_stroke_ct",  # the same patients
        "ct_mr_volumes",  # liver: [curvas_abdomen_ct]
        "dsb2018_nuclei",  # [tnbc_histology]
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--pack", type=Path, required=True)
    parser.add_argument("--trunk", type=Path)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--batch", type=int, default=48)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--compile", action="store_true", help="two minutes more, then nearly twice as fast")
    options = parser.parse_args()

    from mie.training.pack import read_pack

    there = {row.source for row in read_pack(options.pack).rows}
    options.output.mkdir(parents=True, exist_ok=True)
    for name, sources in FOLDS.items():
        body = {
            "name": name,
            "trainee": "compact",
            "seed": options.seed,
            "steps": options.steps,
            "batch": options.batch,
            "optimizer": {
                "lr": 8.0e-4,
                "weight_decay": 0.06,
                "warmup": min(150, options.steps // 5),
                "floor": 0.01,
            },
            "ema": 0.997,
            "precision": "bf16",
            "compile": options.compile,
            "checkpoint": {"every": options.steps, "keep": 1},
            "validate": {"every": options.steps},
            "log_every": 50,
            "data": {
                "packs": [str(options.pack.resolve())],
                "shares": {"perception": 1},
                # A source of test rows alone is not in this pack; `score_pack.py` scores it in every fold.
                "leave_out": [source for source in sources if source in there],
                "merge": True,
                "patients": True,
                "augment": "strong",
                "smoothing": 0.05,
                "validate_rows": 100,
            },
            "model": {
                "backbone": "efficientnet-lite2",
                "trunk": str(options.trunk.resolve()) if options.trunk else None,
                "dropout": 0.1,
                "drop_path": 0.1,
                "local": True,
            },
        }
        (options.output / f"{name}.yaml").write_text(yaml.safe_dump(body, sort_keys=False))
    print(f"{options.output}: {len(FOLDS)} files")


if __name__ == "__main__":
    main()
