"""Region proposals for new data: an open-vocabulary detector finds boxes for a name, a segmenter fills them.

Both are models of `transformers` in folders on this machine (a zero-shot detector such as Grounding DINO, and
SAM); nothing is fetched and no code of the folders is run. Where a folder is absent there are no proposals:
the source's own mask stays. A person picks among them; nothing is chosen by score alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from mie.core.environment import install_hint
from mie.core.files import atomic_write
from mie.core.hashing import file_stem
from mie.core.journal import Journal
from mie.datasets.dataset import Dataset
from mie.errors import MieError
from mie.images.png import encode_png
from mie.networks.pretrained import refuse_pickles
from mie.records import Mask, Pixels
from mie.scoring.reference import in_colour

COUNT: Final = 3
THRESHOLD: Final = 0.05  # low on purpose: a person looks at what is found


@dataclass(frozen=True, slots=True)
class Proposal:
    """A region that may be meant: `(H, W) bool`, its box (x0, y0, x1, y1), and the detector's score."""

    mask: Mask
    box: tuple[float, float, float, float]
    score: float


class Proposer:
    """Both models, loaded once."""

    def __init__(self, detector: Path | str, segmenter: Path | str, *, device: str | None = None) -> None:
        transformers = _transformers()
        import torch

        for folder in (detector, segmenter):
            if not (Path(folder) / "config.json").is_file():
                raise MieError(
                    "no model in this folder",
                    where=folder,
                    expected="config.json and weights as `transformers` saves them",
                    fix="download the model into the folder, or use the source's masks",
                )
            files = [path.name for path in Path(folder).iterdir()]
            if not any(name.endswith(".safetensors") for name in files):
                refuse_pickles(Path(folder), files)
        self._torch = torch
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        local: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        weights = {**local, "use_safetensors": True}
        self._find_inputs = transformers.AutoProcessor.from_pretrained(detector, **local)
        found = transformers.AutoModelForZeroShotObjectDetection.from_pretrained(detector, **weights)
        self._finder = found.to(self._device).eval()
        self._fill_inputs = transformers.SamProcessor.from_pretrained(segmenter, **local)
        self._filler = transformers.SamModel.from_pretrained(segmenter, **weights).to(self._device).eval()

    def propose(self, image: Pixels, name: str, *, count: int = COUNT) -> list[Proposal]:
        """The best `count` regions of `(H, W, 3) uint8` for a name such as "optic disc"; maybe fewer."""
        with self._torch.inference_mode():
            boxes = self._boxes(image, name)[:count]
            return self._filled(image, boxes) if boxes else []

    def _boxes(self, image: Pixels, name: str) -> list[tuple[float, tuple[float, ...]]]:
        """(score, box) with the best first."""
        text = name.strip().lower().rstrip(".") + "."  # Grounding DINO ends each phrase with a full stop
        inputs = self._find_inputs(images=image, text=[[text]], return_tensors="pt").to(self._device)
        outputs = self._finder(**inputs)
        (found,) = self._find_inputs.post_process_grounded_object_detection(
            outputs, threshold=THRESHOLD, target_sizes=[image.shape[:2]]
        )
        pairs = zip(found["scores"].tolist(), found["boxes"].tolist(), strict=True)
        return sorted(((score, tuple(box)) for score, box in pairs), reverse=True)

    def _filled(self, image: Pixels, boxes: list[tuple[float, tuple[float, ...]]]) -> list[Proposal]:
        corners = [[list(box) for _, box in boxes]]
        inputs = self._fill_inputs(images=image, input_boxes=corners, return_tensors="pt").to(self._device)
        outputs = self._filler(**inputs, multimask_output=False)
        (masks,) = self._fill_inputs.post_process_masks(
            outputs.pred_masks.cpu(), inputs["original_sizes"].cpu(), inputs["reshaped_input_sizes"].cpu()
        )
        filled = np.asarray(masks[:, 0], np.bool_)
        return [
            Proposal(mask, (box[0], box[1], box[2], box[3]), score)
            for mask, (score, box) in zip(filled, boxes, strict=True)
        ]


def write_proposals(
    dataset_folder: Path | str,
    output: Path | str,
    proposer: Proposer | None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Regions to choose from for every sample: `<id>_<n>.png` (255 inside), and `proposals.jsonl` about them.

    The source's own mask is `<id>_source.png` where there is one; without a proposer it is the only one. A
    sample that has a line is not looked at again, so that a call that was stopped resumes.
    """
    dataset, output = Dataset(dataset_folder), Path(output)
    path = output / "proposals.jsonl"
    with closing(Journal(path)) as journal:
        seen = {json.loads(line)["id"] for line in journal.lines()}
        for done, sample in enumerate(dataset.samples()):
            if progress is not None:
                progress(done, len(dataset))
            if sample.id in seen:
                continue
            found = [] if proposer is None else proposer.propose(in_colour(sample.input), sample.target)
            regions = {str(n): one.mask for n, one in enumerate(found)}
            if sample.mask is not None:
                regions["source"] = sample.mask > 0
            for name, region in regions.items():
                png = encode_png(region.astype(np.uint8) * np.uint8(255))
                atomic_write(output / f"{file_stem(sample.id)}_{name}.png", png)
            about = [{"score": one.score, "box": one.box} for one in found]
            body = {"id": sample.id, "name": sample.target, "regions": list(regions), "proposals": about}
            journal.append(json.dumps(body, ensure_ascii=False).encode() + b"\n")
    return path


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError:
        raise MieError("transformers is not installed", fix=install_hint("models")) from None
    return transformers
