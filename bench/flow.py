"""The flow expert on held-out patients: can it be told from real tissue, does it copy, does it vary?

    python -m bench.flow --train PACK --test PACK -o OUT [--weights FILE] [--crops 2048] [--device cuda]
    python -m bench.flow --train PACK --fold validation -o OUT --steps 4,4 6,6 --guidance 1 1.5

PACK is a folder of `mie pack`, the second made with `--split test`. Crops are cut as in training: half
lesions in their own outlines, half lesion-shaped holes in healthy tissue. Written to OUT: results.json, and a
sheet for each family: hole | four draws | truth. Several settings are compared on validation patients, which
choose; the first is measured in full.

told apart    balanced accuracy of `told_apart`, one network for all families; the control is a smooth fill
              with noise as strong as the tissue's grain
PSNR          in the hole: of one draw, of the mean of four, of the smooth fill alone
variance      energy of differences between neighbouring pixels in the hole, over the truth's: median
diversity     standard deviation over four seeds in the hole, over the truth's standard deviation: median
nearest       correlation of a lesion with the training lesion of its family that is most like it, at 32 x 32
              pixels, all mirror images and turns: quantiles for drawn ones and for real test lesions
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.told_apart import told_apart
from mie.images.families import FAMILIES
from mie.networks import weights
from mie.networks.flow import FORMAT, Bands, Conditions, FlowConfig, FlowNet, Steps
from mie.training.flow_crops import Crops, Cutter, FlowData
from mie.training.flow_loss import around, drawn, energy, noise_like, psnr

SEEDS = 4
SHEET = 12
BOX = 32
AT_ONCE = 128
CUT = 64
KNOWN = 4096  # crops of training lesions
STEPS = Steps(6, 6)
Setting = tuple[Steps, float]  # steps, guidance


def load(path: Path, device: torch.device) -> FlowNet:
    found = weights.load(path, format=FORMAT)
    net = weights.build(lambda: FlowNet(FlowConfig.from_json(found.config)), found, path)
    return net.eval().requires_grad_(False).to(device)


def fill(net: FlowNet, crops: Crops, seed: int, setting: Setting) -> Tensor:
    """Each crop with its hole drawn; a lesion by its name, without its contrast."""
    random = torch.Generator(crops.image.device).manual_seed(seed)

    def half(*inputs: object) -> Tensor:
        with torch.autocast("cuda", torch.bfloat16, enabled=crops.image.is_cuda):
            return net(*inputs)

    made = [drawn(half, net, some, noise_like(net, some, random), *setting) for some in pieces(crops)]
    return torch.cat(made) * crops.hole + crops.image * (1 - crops.hole)


def pieces(crops: Crops) -> list[Crops]:
    return [crops.part(slice(start, start + AT_ONCE)) for start in range(0, len(crops.image), AT_ONCE)]


def smooth(net: FlowNet, crops: Crops, seed: int | None) -> Tensor:
    """The smooth fill; with a seed (the control), white noise as strong as the grain around the hole."""
    random = torch.Generator(crops.image.device).manual_seed(seed or 0)
    made = []
    for some in pieces(crops):
        seen, noise = around(net, some), noise_like(net, some, random)
        grain = seen.strength.fine / net.spread(some.conditions.family, some.target)[:, 1, :, None, None]
        added = (0.0 if seed is None else 0.7) * grain / seen.strength.fine * noise.fine
        made.append(seen.compose(Bands(torch.zeros_like(noise.coarse), added)))
    return torch.cat(made) * crops.hole + crops.image * (1 - crops.hole)


def boxes(image: Tensor, region: Tensor) -> Tensor:
    """Each lesion's box, a fifth wider, at 32 x 32 pixels, grey, of mean 0 and norm 1: `(N, 1024)`."""
    rows, columns = region.amax(3)[:, 0], region.amax(2)[:, 0]
    size = region.shape[-1]
    at = torch.arange(size, device=region.device)

    def span(line: Tensor) -> tuple[Tensor, Tensor]:
        first = torch.where(line > 0, at, size).amin(1)
        last = torch.where(line > 0, at, -1).amax(1) + 1
        return (first + last) / size - 1, 1.2 * (last - first).clamp(min=1) / size

    (y, tall), (x, wide) = span(rows), span(columns)
    zero = torch.zeros_like(x)
    theta = torch.stack([torch.stack([wide, zero, x], 1), torch.stack([zero, tall, y], 1)], 1).float()
    grid = F.affine_grid(theta, [len(x), 1, BOX, BOX], align_corners=False)
    grey = F.grid_sample(
        image.mean(1, keepdim=True), grid, padding_mode="border", align_corners=False
    ).flatten(1)
    return F.normalize(grey - grey.mean(1, keepdim=True), dim=1)


def nearest(found: Tensor, family: Tensor, known: Tensor, known_family: Tensor) -> np.ndarray:
    """The highest correlation of each with any of its family, mirrored and turned."""
    best = torch.full((len(found),), -1.0, device=found.device)
    picture = known.view(-1, BOX, BOX)
    turned = [other.rot90(k, (1, 2)).flatten(1) for other in (picture, picture.flip(2)) for k in range(4)]
    for other in turned:
        for start in range(0, len(found), 256):
            some = slice(start, start + 256)
            likeness = found[some] @ other.T
            likeness[family[some][:, None] != known_family[None]] = -1
            best[some] = torch.maximum(best[some], likeness.amax(1))
    return best.cpu().numpy()


def to_bytes(image: Tensor) -> Tensor:
    return (image.clamp(0, 1) * 255).round().byte()


def cut(cutter: Cutter, count: int, seed: int) -> dict[str, Crops]:
    """So many crops of each kind, named; piece by piece, as large images are sampled for each."""
    some = [usable(cutter.cut(2 * CUT, seed + at)) for at in range(-(-count // CUT))]
    kinds = {"lesions": lambda crops: crops.target > 1, "healthy": lambda crops: crops.target == 1}
    return {
        kind: joined([crops.part(torch.nonzero(of(crops)).flatten()) for crops in some], count)
        for kind, of in kinds.items()
    }


def usable(crops: Crops) -> Crops:
    """Without crops whose hole is too small to judge; by name, without contrast."""
    crops = crops.part(torch.nonzero(crops.hole.sum((1, 2, 3)) >= 60).flatten())
    unknown = torch.full_like(crops.conditions.contrast, torch.nan)
    return crops._replace(conditions=crops.conditions._replace(target=crops.target, contrast=unknown))


def joined(some: list[Crops], count: int) -> Crops:
    conditions = Conditions(*(torch.cat(v)[:count] for v in zip(*(c.conditions for c in some), strict=True)))
    tensors = [torch.cat([crops[k] for crops in some])[:count] for k in range(4)]
    target, of = (torch.cat([getattr(crops, name) for crops in some])[:count] for name in ("target", "of"))
    return Crops(*tensors, conditions, target, of)


def measure(
    net: FlowNet,
    train: FlowData,
    test: FlowData,
    device: torch.device,
    count: int,
    settings: list[Setting],
) -> tuple[dict, dict[str, np.ndarray]]:
    """The first of the settings is measured in full."""
    cutter = Cutter(FlowData(**{**test.arrays(), "shapes": train.shapes}), device)
    results: dict = {"crops": {}, "told_apart": {}, "settings": [named(s) for s in settings]}
    sheets: dict[str, list[np.ndarray]] = {}
    learnt = cut(Cutter(train, device), KNOWN, 100_000)["lesions"]
    real_boxes = boxes(learnt.image, learnt.lesion)
    for kind, crops in cut(cutter, count, 7).items():
        family = crops.conditions.family
        patients = test.patients[crops.of.cpu().numpy()]
        real, holes = to_bytes(crops.image), crops.hole.byte()
        draws = torch.stack([fill(net, crops, seed, settings[0]) for seed in range(SEEDS)])
        made = draws[0]
        numbers = {
            "psnr": psnr(made, crops),
            "psnr_of_mean": psnr(draws.mean(0), crops),
            "psnr_smooth": psnr(smooth(net, crops, None), crops),
            "variance": (energy(made, crops.hole) + 1e-6) / (energy(crops.image, crops.hole) + 1e-6),
            "diversity": spread(draws, crops),
        }
        fakes = {"control": smooth(net, crops, 3), named(settings[0]): made}
        fakes |= {named(s): fill(net, crops, 0, s) for s in settings[1:]}
        right = {name: told_apart(real, to_bytes(fake), holes, patients) for name, fake in fakes.items()}
        if kind == "lesions":
            for name, image in (("drawn", made), ("real", crops.image)):
                likeness = nearest(boxes(image, crops.lesion), family, real_boxes, learnt.conditions.family)
                results[f"nearest_{name}"] = {
                    str(q): float(np.quantile(likeness, q)) for q in (0.5, 0.9, 0.99, 1.0)
                }
        results["crops"][kind] = {}
        for number, name in enumerate(FAMILIES):
            at = (family == number).cpu()
            if not at.any():
                continue
            figures = {
                key: float(
                    value.cpu()[at].median() if key in ("variance", "diversity") else value.cpu()[at].mean()
                )
                for key, value in numbers.items()
            }
            told = {key: float(value[:, at.numpy()].mean()) for key, value in right.items()}
            results["crops"][kind][name] = {
                "crops": int(at.sum()), "patients": len(set(patients[at.numpy()])),
                **figures, "told_apart": told,
            }  # fmt: skip
            sheets.setdefault(name, []).append(sheet(crops, draws, at))
        results["told_apart"][kind] = {key: float(value.mean()) for key, value in right.items()}
        # All of it, so that a measurement that is stopped has not been in vain.
        print(kind, len(real), results["told_apart"][kind], json.dumps(results["crops"][kind]), flush=True)
    return results, {name: np.hstack(pictures) for name, pictures in sheets.items()}


def named(setting: Setting) -> str:
    (coarse, fine), guidance = setting
    return f"{coarse} and {fine} steps, guidance {guidance:g}"


def spread(draws: Tensor, crops: Crops) -> Tensor:
    area = crops.hole.sum((1, 2, 3)).clamp(min=1)
    grey = draws.mean(2)
    variance = (grey.var(0) * crops.hole[:, 0]).sum((1, 2)) / area
    truth = crops.image.mean(1, keepdim=True)
    mean = (truth * crops.hole).sum((1, 2, 3)) / area
    own = (((truth - mean.view(-1, 1, 1, 1)) ** 2) * crops.hole).sum((1, 2, 3)) / area
    return ((variance + 1e-7) / (own + 1e-7)).sqrt()


def sheet(crops: Crops, draws: Tensor, at: Tensor) -> np.ndarray:
    """Hole | four draws | truth, of different images."""
    rows, seen = [], set()
    for n in torch.nonzero(at).flatten().tolist():
        if int(crops.of[n]) in seen or len(rows) == SHEET or crops.hole[n].mean() < 0.02:
            continue
        seen.add(int(crops.of[n]))
        hidden = crops.image[n] * (1 - crops.hole[n]) + 0.5 * crops.hole[n]
        pictures = [hidden, *draws[:4, n], crops.image[n]]
        rows.append(np.hstack([to_bytes(p).permute(1, 2, 0).cpu().numpy() for p in pictures]))
    blank = np.zeros((128, 128 * (2 + len(draws[:4])), 3), np.uint8)
    return np.vstack(rows + [blank] * (SHEET - len(rows)))


def main() -> None:
    from mie.core.files import atomic_write
    from mie.images.png import encode_png
    from mie.networks.shipped import FOLDER
    from mie.training.flow_data import flow_data
    from mie.training.pack import TRAIN, read_pack

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, help="the training pack itself by default")
    parser.add_argument("--fold", default="test")
    parser.add_argument("-o", "--out", type=Path, default=Path("out/flow"))
    parser.add_argument("--weights", type=Path, default=FOLDER / "flow.safetensors")
    parser.add_argument("--crops", type=int, default=2048)
    parser.add_argument("--steps", nargs="+", default=[f"{STEPS.coarse},{STEPS.fine}"])
    parser.add_argument("--guidance", nargs="+", type=float, default=[1.0])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    device = torch.device(given.device)
    net = load(given.weights, device)
    folds = [
        flow_data([read_pack(path)], fold, net.config.targets, 1)
        for path, fold in ((given.train, TRAIN), (given.test or given.train, given.fold))
    ]
    steps = [Steps(*map(int, text.split(","))) for text in given.steps]
    start = time.perf_counter()
    settings = [(step, guidance) for guidance in given.guidance for step in steps]
    results, sheets = measure(net, folds[0], folds[1], device, given.crops, settings)
    results["seconds"] = time.perf_counter() - start
    given.out.mkdir(parents=True, exist_ok=True)
    for name, picture in sheets.items():
        atomic_write(given.out / f"{name}.png", encode_png(picture))
    atomic_write(given.out / "results.json", json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
