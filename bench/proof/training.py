"""Every trainee for a few steps on a CPU with one thread: what is trained is the same to the last bit."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

from bench.proof.commands import CommandLine, stable

RECIPES: dict[str, dict[str, Any]] = {
    "perception": {
        "recipe": "perception",
        "sources": [
            "sample_brain_mri",
            "sample_breast_mri",
            "sample_lung_ct",
            {"name": "sample_abdomen_dicom", "layout": {"slices": 1}},
        ],
    },
    "transformation": {
        "recipe": {"kind": "transformation", "per_case": 1},
        "sources": [{"name": "sample_brain_mri", "layout": {"slices": 2}}, "sample_liver_mri"],
    },
    "modification": {
        "recipe": {"kind": "modification", "candidates": 1},
        "sources": [
            {"name": "sample_brain_mri", "layout": {"slices": 1}},
            {"name": "sample_lung_ct", "layout": {"slices": 1}},
        ],
    },
}
COMMON: dict[str, Any] = {
    "seed": 5,
    "steps": 3,
    "batch": 4,
    "optimizer": {"lr": 2e-3, "warmup": 1},
    "ema": 0.5,
    "precision": "fp32",
    "checkpoint": {"every": 2},
    "validate": {"every": 3},
    "log_every": 1,
}
SMALL = {"widths": [8, 8, 16, 16], "down": [1, 1, 1, 1], "up": [1, 1, 1]}
THREE = {"perception": 2, "transformation": 1, "modification": 1}
TRAININGS: dict[str, dict[str, Any]] = {
    "segmenter": {
        "trainee": "segmenter",
        "data": {"family": "mri", "side": 64},
        "model": {"encoder": "none", "widths": [8, 16, 16, 16, 16], "down": [1, 1, 0, 0, 1]},
    },
    "inpainter": {
        "trainee": "inpainter",
        "steps": 2,
        "batch": 2,
        "data": {"family": "mri", "holes": 1, "validate_holes": 1},
    },
    "compact": {
        "trainee": "compact",
        "data": {"shares": THREE, "validate_rows": 4, "absent": 0.3, "holes": 0.5},
        "model": SMALL,
    },
    "compact-mender": {
        "trainee": "compact",
        "data": {"shares": THREE, "validate_rows": 2, "fresh": 1, "augment": "strong"},
        "model": {**SMALL, "mender": [8, 8, 8, 16], "dropout": 0.1, "local": True},
    },
    "flux-fill-lora": {
        "trainee": "flux-fill-lora",
        "batch": 2,
        "data": {"family": "mri", "size": 64, "validate_rows": 2},
        "model": {"base": "flux", "rank": 4, "alpha": 8, "targets": ["to_q", "to_v"], "grid_steps": 1},
    },
}


def record(mie: CommandLine) -> dict[str, Any]:
    """The weights of each training, its checkpoints and its log."""
    datasets = [mie.make(f"training/{name}", partial(_build, mie, name)) for name in RECIPES]
    packing = ("pack", *datasets, "-o", "training/pack", "--validation", 0.3)
    mie.make("training/pack", partial(mie, *packing))
    pack = {"info": mie.document("training/pack/pack.json"), "files": mie.tree("training/pack")}
    found: dict[str, Any] = {"pack": pack}
    for name, changes in TRAININGS.items():
        if changes["trainee"] == "flux-fill-lora" and importlib.util.find_spec("diffusers") is None:
            found[name] = "skipped: diffusers is not installed"
            continue
        found[name] = _trained(mie, mie.make(f"training/out-{name}", partial(_train, mie, name, changes)))
    return found


def _build(mie: CommandLine, name: str) -> None:
    recipe = {"name": f"train-{name}", "seed": 11, "split": {"test": 0}, **RECIPES[name]}
    mie.write(f"training/{name}.yaml", recipe)
    mie("build", f"training/{name}.yaml", "-o", f"training/{name}", "--no-stats")


def _train(mie: CommandLine, name: str, changes: dict[str, Any]) -> None:
    if changes["trainee"] == "flux-fill-lora":
        _write_flux(mie)
    body = {"name": name, **COMMON, **changes}
    mie.write(f"training/{name}.yaml", {**body, "data": {"packs": ["pack"], **changes["data"]}})
    mie("train", f"training/{name}.yaml", "-o", f"training/out-{name}", "--device", "cpu")


def _write_flux(mie: CommandLine) -> None:
    mie.remove("training/flux")
    script = Path(__file__).with_name("tiny_flux.py")
    command = [sys.executable, str(script), str(mie.folder / "training/flux")]
    subprocess.run(command, check=True, env=mie.environment, capture_output=True)


def _trained(mie: CommandLine, out: str) -> dict[str, Any]:
    root = mie.folder / out
    info = mie.document(f"{out}/train.json")
    return {
        "train.json": {key: info[key] for key in ("status", "step", "best", "decisive") if key in info},
        "log": mie.lines(f"{out}/log.jsonl"),
        "weights": {
            path.relative_to(root).as_posix(): safetensors(mie, path)
            for path in sorted(root.rglob("*.safetensors"))
        },
        "grids": {name: digest for name, digest in mie.tree(out).items() if name.startswith("grids/")},
    }


def safetensors(mie: CommandLine, path: Path) -> dict[str, Any]:
    """SHA-256 of the file and of its tensors alone; what its metadata says."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    metadata = header.pop("__metadata__", {})
    tensors = hashlib.sha256(json.dumps(header, sort_keys=True).encode() + data[8 + length :])
    return {
        "file": hashlib.sha256(data).hexdigest(),
        "tensors": tensors.hexdigest(),
        "metadata": {key: _parsed(mie.plain(value)) for key, value in metadata.items()},
    }


def _parsed(text: str) -> Any:
    """Metadata are texts; many are JSON."""
    try:
        return stable(json.loads(text))
    except ValueError:
        return text
