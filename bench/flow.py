"""The flow expert on held-out patients: can it be told from real tissue, does it copy, does it vary?

    python -m bench.flow --train PACK --test PACK -o OUT [--weights FILE] [--crops 2048] [--device cuda]

PACK is a folder of `mie pack`, the second made with `--split test`. Crops of the test split are cut as in
training: half lesions in their own outlines, half lesion-shaped holes in healthy tissue. Written to OUT:
results.json, and a sheet for each family: hole | four draws | truth.

told apart    balanced accuracy of `told_apart`, one network for all families; the control is a smooth fill
              with noise as strong as the tissue's grain
PSNR          in the hole: of one draw, of the mean of eight, of the smooth fill alone
variance      energy of differences between neighbouring pixels in the hole, over the truth's: median
diversity     standard deviation over eight seeds in the hole, over the truth's standard deviation: median
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
from mie.core.files import atomic_write
from mie.images.families import FAMILIES
from mie.images.png import encode_png
from mie.networks import weights
from mie.networks.flow import FORMAT, Conditions, FlowConfig, FlowNet, Scene, draw, scene
from mie.networks.shipped import FOLDER
from mie.training.flow import _energy as energy
from mie.training.flow import _part as part
from mie.training.flow_data import Crops, Cutter, FlowData, flow_data
from mie.training.pack import TRAIN, read_pack

SEEDS = 8
SHEET = 12
BOX = 32
AT_ONCE = 128
CUT = 64
KNOWN = 4096  # crops of training lesions
STEPS = 8


def load(path: Path, device: torch.device) -> FlowNet:
    found = weights.load(path, format=FORMAT)
    net = weights.build(lambda: FlowNet(FlowConfig.from_json(found.config)), found, path)
    return net.eval().requires_grad_(False).to(device)


def around(crops: Crops) -> Scene:
    return scene(crops.image, crops.hole, crops.lesion)


def fill(net: FlowNet, crops: Crops, seed: int, steps: int, guidance: float = 1.0) -> Tensor:
    """Each crop with its hole drawn; a lesion by its name, without its contrast."""
    random = torch.Generator(crops.image.device).manual_seed(seed)
    made = []
    for start in range(0, len(crops.image), AT_ONCE):
        some = part(crops, slice(start, start + AT_ONCE))
        noise = torch.randn(some.image.shape, generator=random, device=some.image.device)
        seen = around(some)
        noise = noise * net.channels(some.conditions.family)
        with torch.autocast("cuda", torch.bfloat16, enabled=noise.is_cuda):
            drawn = draw(net, seen, some.conditions, noise, steps=steps, guidance=guidance)
        made.append(seen.compose(drawn.float()))
    # Outside the hole, and beyond the image, nothing is judged.
    return torch.cat(made) * crops.learnt + crops.image * (1 - crops.learnt)


def control(crops: Crops, seed: int) -> Tensor:
    """The smooth fill with white noise as strong as the grain around the hole."""
    made = []
    random = torch.Generator(crops.image.device).manual_seed(seed)
    for start in range(0, len(crops.image), AT_ONCE):
        some = part(crops, slice(start, start + AT_ONCE))
        seen = around(some)
        noise = torch.randn(some.image.shape, generator=random, device=some.image.device)
        grey = (some.image.amax(1) - some.image.amin(1)).amax((1, 2)) < 1e-3
        noise = torch.where(
            grey.view(-1, 1, 1, 1) & (torch.arange(3, device=grey.device).view(1, 3, 1, 1) > 0),
            torch.zeros_like(noise),
            noise,
        )
        made.append(seen.compose(0.7 * noise))
    return torch.cat(made) * crops.learnt + crops.image * (1 - crops.learnt)


def psnr(made: Tensor, crops: Crops) -> Tensor:
    area = crops.learnt.sum((1, 2, 3)).clamp(min=1)
    error = (crops.learnt * (made - crops.image) ** 2).sum((1, 2, 3)) / (3 * area)
    return -10 * error.clamp(min=1e-6).log10()


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
    """So many crops of each kind; piece by piece, as large images are sampled for each."""
    pieces = [cutter.cut(2 * CUT, seed + at) for at in range(-(-count // CUT))]
    kinds = {"lesions": slice(0, CUT), "healthy": slice(CUT, None)}
    return {kind: joined([part(piece, which) for piece in pieces], count) for kind, which in kinds.items()}


def joined(pieces: list[Crops], count: int) -> Crops:
    conditions = Conditions(
        *(torch.cat(v)[:count] for v in zip(*(p.conditions for p in pieces), strict=True))
    )
    tensors = [torch.cat([piece[k] for piece in pieces])[:count] for k in range(4)]
    return Crops(*tensors, conditions, torch.cat([piece.of for piece in pieces])[:count])


def usable(crops: Crops) -> Crops:
    """Without crops whose hole is too small to judge."""
    keep = crops.learnt.sum((1, 2, 3)) >= 60
    conditions = type(crops.conditions)(*(value[keep] for value in crops.conditions))
    conditions = conditions._replace(contrast=torch.full_like(conditions.contrast, torch.nan))
    return Crops(*(value[keep] for value in crops[:4]), conditions, crops.of[keep])


def named(crops: Crops, target: Tensor) -> Crops:
    return crops._replace(conditions=crops.conditions._replace(target=target))


def measure(
    net: FlowNet,
    train: FlowData,
    test: FlowData,
    device: torch.device,
    count: int,
    settings: list[tuple[int, float]],
) -> tuple[dict, dict[str, np.ndarray]]:
    """`settings`: numbers of steps and guidance to compare; the first is measured in full."""
    cutter = Cutter(FlowData(**{**test.arrays(), "shapes": train.shapes}), device)
    known = Cutter(train, device)
    results: dict = {"crops": {}, "told_apart": {}, "settings": settings}
    sheets: dict[str, list[np.ndarray]] = {}
    learnt = cut(known, KNOWN, 100_000)["lesions"]
    real_boxes = boxes(learnt.image, learnt.lesion)
    for kind, crops in cut(cutter, count, 7).items():
        crops = usable(crops)
        if kind == "healthy":
            crops = named(crops, torch.ones_like(crops.conditions.target))
        family = crops.conditions.family
        patients = test.patients[crops.of.cpu().numpy()]
        real, holes = to_bytes(crops.image), crops.learnt.byte()
        draws = torch.stack([fill(net, crops, seed, settings[0][0], settings[0][1]) for seed in range(SEEDS)])
        made = draws[0]
        smooth = torch.cat(
            [
                around(part(crops, slice(s, s + AT_ONCE))).compose(torch.zeros(1, device=device))
                for s in range(0, len(crops.image), AT_ONCE)
            ]
        )
        names = FAMILIES
        numbers = {
            "psnr": psnr(made, crops),
            "psnr_of_mean": psnr(draws.mean(0), crops),
            "psnr_smooth": psnr(smooth, crops),
            "variance": (energy(made, crops.learnt) + 1e-6) / (energy(crops.image, crops.learnt) + 1e-6),
            "diversity": spread(draws, crops),
        }  # fmt: skip
        right: dict[str, np.ndarray] = {
            "control": told_apart(real, to_bytes(control(crops, 3)), holes, patients)
        }
        for steps, guidance in settings:
            other = made if (steps, guidance) == settings[0] else fill(net, crops, 0, steps, guidance)
            right[f"{steps} steps, guidance {guidance:g}"] = told_apart(
                real, to_bytes(other), holes, patients
            )
        if kind == "lesions":
            for name, image in (("drawn", made), ("real", crops.image)):
                likeness = nearest(boxes(image, crops.lesion), family, real_boxes, learnt.conditions.family)
                results[f"nearest_{name}"] = {
                    str(q): float(np.quantile(likeness, q)) for q in (0.5, 0.9, 0.99, 1.0)
                }
        results["crops"][kind] = {}
        for number, name in enumerate(names):
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
        print(kind, len(real), results["told_apart"][kind], flush=True)
    return results, {name: np.hstack(pictures) for name, pictures in sheets.items()}


def spread(draws: Tensor, crops: Crops) -> Tensor:
    area = crops.learnt.sum((1, 2, 3)).clamp(min=1)
    grey = draws.mean(2)
    variance = (grey.var(0) * crops.learnt[:, 0]).sum((1, 2)) / area
    truth = crops.image.mean(1, keepdim=True)
    mean = (truth * crops.learnt).sum((1, 2, 3)) / area
    own = (((truth - mean.view(-1, 1, 1, 1)) ** 2) * crops.learnt).sum((1, 2, 3)) / area
    return ((variance + 1e-7) / (own + 1e-7)).sqrt()


def sheet(crops: Crops, draws: Tensor, at: Tensor) -> np.ndarray:
    """Hole | four draws | truth, of different images."""
    rows, seen = [], set()
    for n in torch.nonzero(at).flatten().tolist():
        if int(crops.of[n]) in seen or len(rows) == SHEET or crops.learnt[n].mean() < 0.02:
            continue
        seen.add(int(crops.of[n]))
        hidden = crops.image[n] * (1 - crops.learnt[n]) + 0.5 * crops.learnt[n]
        pictures = [hidden, *draws[:4, n], crops.image[n]]
        rows.append(np.hstack([to_bytes(p).permute(1, 2, 0).cpu().numpy() for p in pictures]))
    blank = np.zeros((128, 128 * (2 + len(draws[:4])), 3), np.uint8)
    return np.vstack(rows + [blank] * (SHEET - len(rows)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--train", type=Path, required=True)
    parser.add_argument("--test", type=Path, required=True)
    parser.add_argument("-o", "--out", type=Path, default=Path("out/flow"))
    parser.add_argument("--weights", type=Path, default=FOLDER / "flow.safetensors")
    parser.add_argument("--crops", type=int, default=2048)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    given = parser.parse_args()
    device = torch.device(given.device)
    net = load(given.weights, device)
    folds = [
        flow_data([read_pack(path)], fold, net.config.targets, 1)
        for path, fold in ((given.train, TRAIN), (given.test, "test"))
    ]
    start = time.perf_counter()
    results, sheets = measure(net, folds[0], folds[1], device, given.crops, [(given.steps, 1.0)])
    results["seconds"] = time.perf_counter() - start
    given.out.mkdir(parents=True, exist_ok=True)
    for name, picture in sheets.items():
        atomic_write(given.out / f"{name}.png", encode_png(picture))
    atomic_write(given.out / "results.json", json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
