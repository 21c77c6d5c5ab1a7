"""A small OmniGen2 (random start) trained on real images, to see loss, sampling and scoring work.

    python bench/omnigen2_small.py prepare DATASET -o PREPARED    # of `mie build` with bins: [128]
    python bench/omnigen2_small.py train PREPARED -o OUT          # `mie train`'s own loop

It is no fine-tune of the published model, and no autoencoder of that model is used: an image is its
orthonormal 4x4 cosine transform (48 channels, nothing is lost), each channel divided by the root of its
standard deviation, and a text is its MiniLM states. Of each lesion of the perception dataset two samples
are made: the lesion painted (perception), and a white hole over the lesion that shows it again (simulation,
a task of modification). Patients of the dataset's test split are held out.

Figures are PSNR inside the mask: of the edit, of the input as it is (identity), and for a hole also of the
mean colour outside it. Intervals draw patients. The sampler's first number of steps is the edit; fewer steps
give something nearer to the mean of all possible edits, which has a higher PSNR and less detail.
"""

from __future__ import annotations

import argparse
import io
import json
import sys
import time
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mie.networks.omnigen2 import OmniGen2Config, OmniGen2Transformer
from mie.training import loop
from mie.training.checkpoints import load_model, newest, read_ema
from mie.training.config import parse_config
from mie.training.edit_rows import EditRow, Encoded, Part
from mie.training.latent_cache import content_key
from mie.training.omnigen2 import OmniGen2, text_key
from mie.training.omnigen2_encoders import DROPPED, chat, fill_moments, to_pixels, to_values

SIDE, BLOCK = 128, 4
SHAPE = OmniGen2Config(
    in_channels=3 * BLOCK**2, hidden_size=640, num_layers=8, num_refiner_layers=1, num_attention_heads=10,
    num_kv_heads=5, axes_dim_rope=(24, 20, 20), text_feat_dim=384,
)  # fmt: skip
TINY = OmniGen2Config(
    in_channels=3 * BLOCK**2, hidden_size=48, num_layers=2, num_refiner_layers=1, num_attention_heads=4,
    num_kv_heads=2, multiple_of=16, axes_dim_rope=(4, 4, 4), text_feat_dim=384,
)  # fmt: skip


WEIGHTS = {"simulation": 3.0, "lesion": 1.0}


class CosineEncoders:
    """In place of autoencoder and language model."""

    channels, stride, shift, scale = 3 * BLOCK**2, BLOCK, 0.0, 1.0

    def __init__(self, deviations: Tensor, device: torch.device) -> None:
        k = torch.arange(BLOCK, dtype=torch.float64)
        wave = torch.cos(torch.pi * (k[None] + 0.5) * k[:, None] / BLOCK) * (2 / BLOCK) ** 0.5
        wave[0] /= 2**0.5
        pairs = torch.einsum("ia,jb->ijab", wave, wave).reshape(BLOCK**2, BLOCK, BLOCK)
        bank = torch.zeros(3, BLOCK**2, 3, BLOCK, BLOCK, dtype=torch.float64)
        for colour in range(3):
            bank[colour, :, colour] = pairs
        self._bank = bank.flatten(0, 1).float().to(device)
        self._divisor = deviations.sqrt().to(device)[:, None, None]
        self.image_digest = content_key("cosine", deviations.numpy().tobytes())
        self.text_digest = content_key("minilm")

    def moments(self, images: Tensor) -> tuple[Tensor, Tensor]:
        mean = F.conv2d(images.to(self._bank.device), self._bank, stride=BLOCK) / self._divisor
        return mean, torch.zeros_like(mean)

    def decode(self, latents: Tensor) -> Tensor:
        return F.conv_transpose2d(latents.float() * self._divisor, self._bank, stride=BLOCK)

    def release(self) -> None: ...


def moved(latents: Tensor, moves: Sequence[bool]) -> Tensor:
    """The latents of the image mirrored left to right, top to bottom, and about its diagonal."""
    x = latents.unflatten(0, (3, BLOCK, BLOCK))  # colour, vertical and horizontal wave, row, column
    odd = torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=x.dtype)  # odd waves change their sign
    if moves[0]:
        x = x.flip(-1) * odd[None, None, :, None, None]
    if moves[1]:
        x = x.flip(-2) * odd[None, :, None, None, None]
    if moves[2]:
        x = x.transpose(-1, -2).transpose(1, 2)
    return x.flatten(0, 2).contiguous()


class TimedRate:
    """The schedule by time instead of steps: it ends when the time is up, however fast the machine is.

    The first steps, which compile, do not count.
    """

    def __init__(self, seconds: float) -> None:
        self.deadline, self.began, self.real = time.monotonic() + seconds, 0.0, loop.learning_rate

    def __call__(self, step: int, steps: int, config: Any) -> float:
        now = time.monotonic()
        if step < 4:
            self.began = now
        passed = (now - self.began) / max(1.0, self.deadline - self.began)
        return self.real(min(steps - 1, max(step, int(passed * steps))), steps, config)


class Small(OmniGen2):
    """The trainee with those encoders, on what `prepare` wrote."""

    tiny = False

    def find_base(self) -> None:
        self.shape = TINY if self.tiny else SHAPE
        self.folder = self.config.path(self.net.base)
        self.facts = json.loads((self.folder / "prepared.json").read_text())

    def base_digest(self) -> str:
        return content_key(json.dumps(self.facts))

    def read_parts(self, split: str) -> list[Part]:
        rows = [EditRow(*row[:10], tuple(row[10]), *row[11:]) for row in self.facts[split]]
        tasks = sorted({row.task for row in rows})
        return [Part(task, [row for row in rows if row.task == task], WEIGHTS[task]) for task in tasks]

    def _example(self, row: EditRow, seed: int, drop: bool = True) -> Any:
        """Mirrored and turned at random, input and target alike; ultrasound stays upright."""
        example = super()._example(row, seed, drop)
        draw = np.random.default_rng(seed)
        upright = row.modality == "ultrasound"
        moves = (draw.random(3) < 0.5) & ([True, False, False] if upright else True)
        latents, *references = (moved(x, moves) for x in (example.latents, *example.references))
        return example._replace(latents=latents, references=references)

    def encoders(self, device: torch.device) -> Any:
        return CosineEncoders(torch.tensor(self.facts["deviations"]), device)

    def fill(self, encoders: Any, wanted: Any) -> None:
        for key, states in load_file(self.folder / "texts.safetensors").items():
            if not self.states.path(key).is_file():
                self.states.write(key, {"states": states})
        lacking = set(self.moments.missing(key for keys in self.facts["images"] for key in keys))
        images = (
            Encoded(key, pixels)
            for keys, three in zip(self.facts["images"], self.pictures(), strict=True)
            for key, pixels in zip(keys, three, strict=True)
            if key in lacking
        )
        fill_moments(self.moments, encoders, images, len(lacking), self.notify, batch=64)

    def pictures(self) -> Iterator[tuple[Any, Any, Any]]:
        """The image, the lesion painted, and the hole, of each lesion."""
        masks = np.load(self.folder / "masks.npz")["masks"]
        with zipfile.ZipFile(self.folder / "images.zip") as files:
            for at, packed in enumerate(masks):
                image, painted = (
                    np.array(Image.open(io.BytesIO(files.read(f"{at}{name}"))).convert("RGB"))
                    for name in ("", "-painted")
                )
                yield three_pictures(image, painted, unpacked(packed))

    def network(self) -> OmniGen2Transformer:
        net = OmniGen2Transformer(self.shape)
        # Gates and the last layer at zero, as is usual for a start from nothing.
        for name, p in net.named_parameters():
            if name.endswith(("norm1.linear.weight", "norm1.linear.bias")) or "norm_out.linear_2" in name:
                torch.nn.init.zeros_(p)
        return net

    def save(self, model: Any, path: Path, facts: Any) -> None:
        path.mkdir()
        save_file(model.state_dict(), path / "weights.safetensors")


def three_pictures(image: Any, painted: Any, inside: Any) -> tuple[Any, Any, Any]:
    within = inside[..., None]
    return image, np.where(within, painted, image), np.where(within, np.uint8(255), image)


def unpacked(bits: Any) -> Any:
    return np.unpackbits(bits)[: SIDE * SIDE].reshape(SIDE, SIDE).astype(bool)


def webp(pixels: Any, quality: int) -> bytes:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "WEBP", quality=quality, method=4)
    return data.getvalue()


def decoded(data: bytes) -> Any:
    return np.array(Image.open(io.BytesIO(data)).convert("RGB"))


def prepare(options: argparse.Namespace) -> None:
    """Make the samples of a perception dataset's lesions, and everything that training needs of them."""
    from mie.datasets.dataset import Dataset
    from mie.images.resize import fitted_size, resize_image, resize_labels
    from mie.networks.text import TextEncoder
    from mie.perspectives.modification.phrasings import SIMULATION, ask, words
    from mie.records import Target
    from mie.training.edit_rows import place_image

    out: Path = options.output
    out.mkdir(parents=True, exist_ok=True)
    rows: dict[str, list[EditRow]] = {"train": [], "val": [], "test": []}
    images: list[list[str]] = []
    masks, places, values, texts = [], {}, [], {DROPPED: "", chat(""): ""}
    encoders = CosineEncoders(torch.ones(48), torch.device("cpu"))
    with zipfile.ZipFile(out / "images.zip", "w") as pictures:
        for split in ("train", "test"):
            for sample in Dataset(options.dataset).samples(split):
                if sample.task != "lesion" or sample.mask is None:
                    continue
                scaled = fitted_size(*sample.input.shape[:2], SIDE)
                given = (SIDE, SIDE)
                seen = [
                    place_image(resize_image(x, scaled), scaled, given)
                    for x in (sample.input, sample.target_image)
                ]
                inside = np.zeros(given, bool)
                inside[: scaled[0], : scaled[1]] = resize_labels(sample.mask, scaled) > 0
                if not 40 <= inside.sum() <= 0.4 * inside.size:
                    continue
                number = int(content_key(sample.id)[:8], 16)
                target = Target(sample.target, "lesion")
                about = words(
                    [target], anatomy=sample.anatomy, modality=sample.modality, location="", size=""
                )
                prompt = ask(SIMULATION[number % len(SIMULATION)], about)
                files = webp(seen[0], 90), webp(seen[1], 50)  # of the second only the lesion is used
                three = three_pictures(decoded(files[0]), decoded(files[1]), inside)
                keys = [content_key("small", pixels.tobytes()) for pixels in three]
                for name, data in zip(("", "-painted"), files, strict=True):
                    pictures.writestr(f"{len(images)}{name}", data)
                images.append(keys)
                held = "val" if split == "train" and number % 20 == 0 else split
                common = (sample.target, sample.modality)
                place = (sample.source, sample.case_id, sample.patient_id or sample.case_id, SIDE, given)
                for n, (perspective, task, text, before, after) in enumerate((
                    ("perception", "lesion", sample.prompt, keys[0], keys[1]),
                    ("modification", "simulation", prompt, keys[2], keys[0]),
                )):  # fmt: skip
                    row = EditRow(f"{sample.id}{n}", perspective, task, *common, text, *place, before, after)
                    rows[held].append(row)
                    texts[chat(text)] = text
                    if held == "test":
                        places[row.id] = len(masks)
                masks.append(np.packbits(inside))
                if len(values) < 200:
                    values.append(encoders.moments(to_values([seen[0]]))[0][0])
    train_patients = {row.patient_id for row in rows["train"]}
    rows["val"] = [row for row in rows["val"] if row.patient_id not in train_patients]
    assert not train_patients & {row.patient_id for row in rows["test"]}
    encoder = TextEncoder()
    states = {}
    names = sorted(texts)
    for start in range(0, len(names), 64):
        part = names[start : start + 64]
        tokens, mask = encoder.encode([texts[name] or "an image" for name in part])
        for name, one, length in zip(part, tokens, mask.sum(1).tolist(), strict=True):
            states[text_key(name)] = one[: int(length)].to(torch.bfloat16).contiguous().clone()
    save_file(states, out / "texts.safetensors")
    np.savez_compressed(out / "masks.npz", masks=np.stack(masks))
    deviations = torch.stack(values).transpose(0, 1).flatten(1).std(1)
    squares = deviations.unflatten(0, (3, BLOCK, BLOCK))
    deviations = ((squares + squares.mT) / 2).flatten()  # so that a picture may be turned
    facts = {"deviations": deviations.tolist(), "images": images, "masks": places}
    facts |= {split: [astuple(row) for row in some] for split, some in rows.items()}
    (out / "prepared.json").write_text(json.dumps(facts))
    print({split: len(some) for split, some in rows.items()}, "texts", len(states))


def run(options: argparse.Namespace) -> None:
    from bench.omnigen2_small import (
        Small,
    )  # the loop imports it by that name; as a script this is another one

    Small.tiny = options.tiny
    body = {
        "name": "small", "trainee": "bench.omnigen2_small:Small", "seed": 1, "steps": options.steps,
        "batch": options.batch, "precision": "fp32" if options.tiny else "bf16", "ema": 0.995,
        "compile": not (options.tiny or options.eager), "channels_last": False,
        "optimizer": {"lr": 5e-4, "warmup": 300, "weight_decay": 0.01, "floor": 0.01, "betas": [0.9, 0.95]},
        "checkpoint": {"every": options.every, "keep": 1}, "validate": {"every": options.steps},
        "log_every": 1 if options.tiny else 20,
        "data": {
            "datasets": ["none"], "bins": [SIDE], "cache": str(options.output / "cache"),
            "caption_drop": 0.05, "reference_drop": 0.5, "validate_samples": 64,
        },
        "model": {
            "base": str(options.prepared.resolve()), "micro_batch": options.batch,
            "grid_steps": options.sampling[0], "guidance": {"text": 1.0, "image": 1.0},
        },
    }  # fmt: skip
    config = parse_config(body)
    began = time.perf_counter()
    device = "cpu" if options.tiny else None
    loop.learning_rate = TimedRate(options.seconds)
    result = loop.train(
        config, options.output / "run", device=device, stop_after=options.seconds, progress=show
    )
    seconds = time.perf_counter() - began
    trainee = Small(config)
    trainee.check()
    trainee.prepare(torch.device("cpu" if options.tiny else "cuda"))
    model = trainee.model().to(trainee.device).eval()
    where = newest(options.output / "run" / "checkpoints")
    load_model(model, read_ema(where), where)
    figures = {

        "parameters": sum(p.numel() for p in model.parameters()), "steps": result.info["step"],
        "training_seconds": round(seconds, 1), "batch": options.batch,
        "samples": {split: len(trainee.facts[split]) for split in ("train", "val", "test")},
        "by_sampling_steps": {},
    }  # fmt: skip
    for steps in options.sampling:
        trainee.net = trainee.net.model_copy(update={"grid_steps": steps})
        figures["by_sampling_steps"][steps] = evaluate(trainee, model, options)
        (options.output / "small.json").write_text(json.dumps(figures, indent=1))
        print(steps, json.dumps(figures["by_sampling_steps"][steps]), flush=True)


def show(at: Any) -> None:
    if at.note in ("reading the data", "compiling: the first step takes minutes", "saving", "validating"):
        print(round(time.perf_counter()), at.note, flush=True)
    if at.loss is not None or at.warning:
        print(at.step, at.loss, at.images_per_second, at.warning, flush=True)


@torch.no_grad()
def evaluate(trainee: Small, model: Any, options: argparse.Namespace) -> dict[str, Any]:
    rows = [row for part in trainee.read_parts("test") for row in part.rows]
    rows = sorted(rows, key=lambda row: content_key(row.id))[: options.test]
    masks = np.load(trainee.folder / "masks.npz")["masks"]
    encoders = trainee._encoders
    records, shown = [], {"lesion": [], "simulation": []}
    for start in range(0, len(rows), 64):
        part = rows[start : start + 64]
        half = torch.autocast("cuda", torch.bfloat16, enabled=trainee.device.type == "cuda")
        with half:
            latents = trainee.edit(model, part)
        edits = to_pixels(encoders.decode(latents))
        both = [[trainee._mean(getattr(row, name)) for row in part] for name in ("input", "target_image")]
        inputs, targets = (to_pixels(encoders.decode(torch.stack(m).to(trainee.device))) for m in both)
        for row, edit, before, after in zip(part, edits, inputs, targets, strict=True):
            inside = unpacked(masks[trainee.facts["masks"][row.id]])
            flat = np.broadcast_to(before[~inside].mean(0), before.shape)
            records.append({
                "task": row.task, "patient": row.patient_id, "modality": row.modality,
                "edit": psnr(edit, after, inside), "identity": psnr(before, after, inside),
                "flat": psnr(flat, after, inside), "outside": psnr(edit, after, ~inside),
            })  # fmt: skip
            if len(shown[row.task]) < 15:
                shown[row.task].append(np.concatenate([before, edit, after], 1))
    for task, pictures in shown.items():
        if pictures:
            columns = [np.concatenate(pictures[at::3]) for at in range(3) if pictures[at::3]]
            height = min(len(column) for column in columns)
            sheet = Image.fromarray(np.concatenate([column[:height] for column in columns], 1))
            sheet.save(options.output / f"{task}-{trainee.net.grid_steps}-steps.png")
    tables = {}
    for task in sorted({r["task"] for r in records}):
        mine = [r for r in records if r["task"] == task]
        tables[task] = {name: interval(mine, name) for name in ("edit", "identity", "flat", "outside")}
        tables[task]["edit - identity"] = interval([{**r, "d": r["edit"] - r["identity"]} for r in mine], "d")
        tables[task]["edit - flat"] = interval([{**r, "d": r["edit"] - r["flat"]} for r in mine], "d")
    return {"psnr_inside_db": tables}


def psnr(a: Any, b: Any, inside: Any) -> float:
    error = ((a.astype(float) - b.astype(float))[inside] ** 2).mean()
    return float(min(100.0, 10 * np.log10(255**2 / max(error, 1e-10))))


def interval(records: list[dict[str, Any]], name: str) -> dict[str, float]:
    """Mean over samples, 95 % interval over patients."""
    groups: dict[str, list[float]] = {}
    for record in records:
        groups.setdefault(record["patient"], []).append(record[name])
    sums = np.array([[sum(v), len(v)] for v in groups.values()])
    rng = np.random.default_rng(0)
    drawn = sums[rng.integers(0, len(sums), (2000, len(sums)))].sum(1)
    low, high = np.quantile(drawn[:, 0] / drawn[:, 1], (0.025, 0.975))
    mean = sums[:, 0].sum() / sums[:, 1].sum()
    return {
        "mean": round(mean, 3),
        "low": round(low, 3),
        "high": round(high, 3),
        "n": len(records),
        "patients": len(groups),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    making = verbs.add_parser("prepare")
    making.add_argument("dataset", type=Path)
    making.add_argument("-o", "--output", type=Path, required=True)
    making.set_defaults(do=prepare)
    training = verbs.add_parser("train")
    training.add_argument("prepared", type=Path)
    training.add_argument("-o", "--output", type=Path, required=True)
    training.add_argument("--steps", type=int, default=6000)
    training.add_argument("--batch", type=int, default=128)
    training.add_argument("--seconds", type=float, default=240, help="stop training after this")
    training.add_argument(
        "--sampling", type=int, nargs="+", default=[30, 8, 2], help="steps of the sampler, each scored"
    )
    training.add_argument("--every", type=int, default=1000, help="steps between checkpoints")
    training.add_argument("--eager", action="store_true", help="do not compile")
    training.add_argument("--test", type=int, default=400, help="held-out samples")
    training.add_argument("--tiny", action="store_true", help="a tiny model on the CPU")
    training.set_defaults(do=run)
    options = parser.parse_args()
    options.do(options)


if __name__ == "__main__":
    main()
