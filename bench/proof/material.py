"""What the parts work on: small datasets from sample images, layouts of other benchmarks, and runs."""

from __future__ import annotations

import shlex
import sys
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from bench.proof.commands import CommandLine

RECIPES: dict[str, dict[str, Any]] = {
    "perception": {
        "recipe": "perception",
        "split": {"test": 0.4, "val": 0.2},
        "sources": [
            {"name": "sample_brain_mri", "layout": {"slices": 2}},
            {"name": "sample_lung_ct", "layout": {"slices": 2}},
            {"name": "sample_breast_mri", "layout": {"slices": 1}},
            "sample_nuclei",
            {"name": "sample_abdomen_mri", "layout": {"slices": 1}},
        ],
    },
    "transformation": {
        "recipe": {"kind": "transformation", "per_case": 2},
        "split": {"test": 0.5},
        "sources": [
            {"name": "sample_brain_mri", "layout": {"slices": 1}},
            {"name": "sample_lung_ct", "layout": {"slices": 1}},
            {"name": "sample_abdomen_dicom", "layout": {"slices": 1}},
            "sample_echo",
        ],
    },
    "modification": {
        "recipe": {"kind": "modification", "candidates": 2},
        "split": {"test": 0.5},
        "sources": [
            {"name": "sample_brain_mri", "layout": {"slices": 2}},
            {"name": "sample_lung_ct", "layout": {"slices": 1}},
        ],
    },
}
NOISY = f"command:{shlex.quote(sys.executable)} {shlex.quote(str(Path(__file__).with_name('noisy.py')))}"
NOISY += ",jsonl=true"
# Run -> dataset, editor and options of `mie run`.
RUNS: dict[str, tuple[str, str, tuple[object, ...]]] = {
    "p-identity": ("perception", "identity", ()),
    "p-oracle": ("perception", "oracle", ()),
    "p-noisy": ("perception", NOISY, ("--attempts", 3)),
    "p-otsu": ("perception", "otsu", ()),
    "p-kmeans": ("perception", "kmeans", ()),
    "p-compact": ("perception", "compact,size=256", ("--split", "test")),
    "p-folder": ("perception", "folder:given", ("--attempts", 2)),
    "t-identity": ("transformation", "identity", ()),
    "t-oracle": ("transformation", "oracle", ()),
    "t-noisy": ("transformation", NOISY, ("--attempts", 2)),
    "t-nlm": ("transformation", "nlm", ()),
    "t-bilateral": ("transformation", "bilateral", ()),
    "t-compact": ("transformation", "compact", ("--limit", 6)),
    "m-identity": ("modification", "identity", ()),
    "m-oracle": ("modification", "oracle", ()),
    "m-noisy": ("modification", NOISY, ()),
    "m-telea": ("modification", "telea", ()),
    "m-compact": ("modification", "compact", ()),
    "miedb-noisy": ("import-miedb", NOISY, ()),
    "medebench-noisy": ("import-medebench", NOISY, ("--attempts", 2)),
    "imgedit-free": ("import-imgedit", NOISY, ()),
    "omni-free": ("import-omni-iie", NOISY, ()),
    "omni-forced": ("import-omni-iie", NOISY, ("--turns", "forced")),
}


class Material:
    """Datasets and runs, each made when it is first asked for, or reused from the work folder."""

    def __init__(self, mie: CommandLine) -> None:
        self.mie = mie

    def dataset(self, name: str) -> str:
        """The folder of a dataset: of RECIPES, or `import-` and the name of a layout."""
        folder = f"datasets/{name}"
        return self.mie.make(folder, partial(self._build if name in RECIPES else self._import, name, folder))

    def _build(self, name: str, folder: str) -> None:
        body = {"name": f"proof-{name}", "seed": 284, **RECIPES[name]}
        recipe = self.mie.write(f"recipes/{name}.yaml", body)
        self.mie("build", recipe.relative_to(self.mie.folder), "-o", folder, "--no-stats")

    def _import(self, name: str, folder: str) -> None:
        layout = name.removeprefix("import-")
        source = getattr(self, f"_{layout.replace('-', '_')}")()
        self.mie("import", source, "-f", layout, "-o", folder, "--name", f"proof-{layout}")

    def run(self, name: str) -> str:
        """The folder of a run of RUNS, without scores."""
        self.dataset(RUNS[name][0])
        return self.mie.make(f"runs/{name}", partial(self._run, name))

    def _run(self, name: str) -> None:
        dataset, editor, options = RUNS[name]
        if editor == "folder:given":
            self._given(dataset)
        self.mie("run", self.dataset(dataset), "-e", editor, "-o", f"runs/{name}", *options)

    def _given(self, dataset: str) -> None:
        """Outputs made elsewhere: the reference, the input, the next sample's reference, or nothing."""
        rows = self.mie.rows(self.dataset(dataset))
        for at, row in enumerate(rows):
            after = rows[(at + 1) % len(rows)]
            choices = (row["target_image"], row["input"], after["target_image"], None)
            for k in (0, 1):
                image = choices[(at + k) % 4]
                if image is not None:
                    self.mie.write(f"given/{row['id']}_{k}.png", image["bytes"])

    @cached_property
    def _samples(self) -> list[dict[str, Any]]:
        """A dozen samples: several tasks of each perspective."""
        chosen: list[dict[str, Any]] = []
        for name in RECIPES:
            seen: set[tuple[str, str]] = set()
            for row in self.mie.rows(self.dataset(name)):
                key = (row["task"], row["modality"])
                if key not in seen and len(seen) < 4:
                    seen.add(key)
                    chosen.append(row)
        return chosen

    def _pictures(self, folder: str) -> list[dict[str, str | None]]:
        """The images of the samples as files in `folder`; their relative paths by column."""
        found: list[dict[str, str | None]] = []
        for number, row in enumerate(self._samples):
            paths: dict[str, str | None] = {}
            for column in ("input", "target_image", "mask"):
                image = row[column]
                paths[column] = None if image is None else f"{column}/{number}.png"
                if image is not None:
                    self.mie.write(f"{folder}/{paths[column]}", image["bytes"])
            found.append(paths)
        return found

    def _miedb(self) -> str:
        """A MieDB folder from elsewhere: without what `mie export` writes beside it."""
        folder, records = "layouts/miedb", []
        for number, row in enumerate(self._samples):
            colours = (row["colour"] or "").split(",")
            suffix = "_multi" if len(colours) > 1 else f"_{colours[0]}" if colours[0] else ""
            names = {"input_image": f"input/{number}.png", "output_image": f"output/{number}{suffix}.png"}
            self.mie.write(f"{folder}/{names['input_image']}", row["input"]["bytes"])
            self.mie.write(f"{folder}/{names['output_image']}", row["target_image"]["bytes"])
            record = {"idx": number, "category": row["perspective"].capitalize(), **names}
            record["prompt"] = row["prompt"]
            records.append({**record, "note": "Multiclasses"} if len(colours) > 1 else record)
        records.append({**records[0], "idx": 99, "input_image": "input/absent.png"})
        self.mie.write(f"{folder}/metadata.json", records)
        return folder

    def _medebench(self) -> str:
        folder, records = "layouts/medebench", []
        for number, (row, paths) in enumerate(
            zip(self._samples, self._pictures(f"{folder}/editing"), strict=True)
        ):
            record = {
                "id": number,
                "Organ": row["anatomy"],
                "Task": row["task"],
                "prompt": row["prompt"],
                "detailed_prompt": f"The image after this edit: {row['prompt']}" if number % 3 else None,
                "previous_image": f"editing/{paths['input']}",
                "changed_image": f"editing/{paths['target_image']}",
                "url": "https://example.org",
            }
            if paths["mask"]:
                record["previous_mask"] = f"editing/{paths['mask']}"
            records.append(record)
        records.append({**records[0], "id": 99, "prompt": None})
        self.mie.write(f"{folder}/editing/editing_metadata.json", {"samples": records})
        return folder

    def _imgedit(self) -> str:
        folder = "layouts/imgedit"
        images = [str(paths["input"]) for paths in self._pictures(folder)]
        kinds = ("adjust", "remove", "add", "replace", "background", "style", "Hybrid", "extract", "action")
        basic = {
            str(number): {"id": image, "prompt": f"Do the {kind} edit.", "edit_type": kind}
            for number, (image, kind) in enumerate(zip(images, kinds, strict=False))
        }
        basic["absent"] = {"id": "absent.png", "prompt": "Remove it.", "edit_type": "remove"}
        turns = {"turn1": "Keep it green.", "turn2": "Paint the left half.", "turn3": "Undo the last edit."}
        self.mie.write(f"{folder}/basic_edit.json", basic)
        uge = {str(n): {"id": image, "prompt": "The one on the left."} for n, image in enumerate(images[:2])}
        self.mie.write(f"{folder}/UGE_edit.json", uge)
        for at, name in enumerate(("content_memory", "content_understand", "version_backtracking")):
            self.mie.write(f"{folder}/{name}.json", {str(at): {"id": images[at], **turns}})
        return folder

    def _omni_iie(self) -> str:
        folder, records = "layouts/omni-iie", []
        for number, paths in enumerate(self._pictures(folder)):
            if paths["mask"] is None:
                continue
            questions = (
                [{"question": "Is the change there?", "correct_answer": "yes"}] if number % 2 else None
            )
            for name, level, kind in (
                (f"pair{number}", "low", "attribute"),
                (f"pair{number}", "high", "entity"),
                (f"talk{number}", 1, "attribute"),
                (f"talk{number}", 2, "entity"),
                (f"talk{number}", 3, "attribute"),
            ):
                record = {
                    "sample_id": name,
                    "level": level,
                    "original_image_path": paths["input"],
                    "modified_image_path": paths["target_image"],
                    "modification_text": f"Edit {name} at level {level}.",
                    "source_mask_path": paths["mask"],
                    "edit_type": kind,
                }
                records.append({**record, "qa_pairs": questions} if questions else record)
            if len(records) >= 25:
                break
        records.append({**records[0], "level": "middle"})
        self.mie.write(f"{folder}/proof.json", records)
        return folder
