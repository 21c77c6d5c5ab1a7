"""Train the text detector: `python train.py PICTURES FONTS WEIGHTS`.

PICTURES has one folder per data set of pictures without lettering; `sets.json` beside this file says which
ones are for training. FONTS is a folder of TrueType fonts. Lettering is drawn anew for each view.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import cv2
import lettering
import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from mie.networks import weights
from mie.networks.unet import NetConfig, UNet

FORMAT = "text detector 1"
NET = NetConfig(
    widths=(24, 32, 48, 80, 128), down=(1, 2, 2, 2, 2), up=(1, 1, 1, 1), pixel=8, trunk="none", side=384
)


class Views(IterableDataset):
    """Batches `(B, S, S, 3) uint8` and masks `(B, S, S)`. Everything random follows from (seed, number)."""

    def __init__(
        self, pictures: dict[str, list[np.ndarray]], fonts: list[Path], batch: int, steps: int, seed: int
    ):
        self.sets = sorted(pictures)
        self.pictures, self.fonts, self.batch, self.steps, self.seed = pictures, fonts, batch, steps, seed
        weight = np.sqrt([len(pictures[name]) for name in self.sets])
        self.share = weight / weight.sum()

    def __iter__(self):
        info = get_worker_info()
        cv2.setNumThreads(1)
        for step in range(info.id if info else 0, self.steps, info.num_workers if info else 1):
            rng = np.random.default_rng((self.seed, step))
            side = int(rng.choice((256, 320, 384, 384, 512)))
            count = max(8, round(self.batch * (384 / side) ** 2))
            views = [self.view(rng, side) for _ in range(count)]
            yield (
                torch.from_numpy(np.stack([v[0] for v in views])),
                torch.from_numpy(np.stack([v[1] for v in views])),
            )

    def view(self, rng: np.random.Generator, side: int) -> tuple[np.ndarray, np.ndarray]:
        name = self.sets[rng.choice(len(self.sets), p=self.share)]
        image = self.pictures[name][rng.integers(len(self.pictures[name]))]
        image = self.window(rng, image, side)
        mask = np.zeros(image.shape[:2], np.uint8)
        if rng.random() < 0.5:
            image = lettering.draw_distractors(rng, image, self.fonts)
        if rng.random() < 0.6:
            image, mask = lettering.draw_lettering(rng, image, self.fonts)
        return lettering.degrade(rng, image), mask

    def window(self, rng: np.random.Generator, image: np.ndarray, side: int) -> np.ndarray:
        """A part of the picture at another scale; a picture that is smaller lies somewhere on black."""
        scale = np.exp(rng.uniform(np.log(0.6), np.log(2.2)))
        cut = int(np.ceil(side / scale)) + 1
        y, x = (int(rng.integers(0, max(1, n - cut + 1))) for n in image.shape[:2])
        image = image[y : y + cut, x : x + cut]
        size = [max(16, round(n * scale)) for n in image.shape[1::-1]]
        image = cv2.resize(image, size, interpolation=cv2.INTER_AREA if scale < 1 else cv2.INTER_LINEAR)
        if rng.random() < 0.5:
            image = image[:, ::-1]
        if rng.random() < 0.3:
            image = np.rot90(image)
        if rng.random() < 0.1:
            image = 255 - image
        if rng.random() < 0.4:
            gamma = np.exp(rng.uniform(-0.6, 0.6))
            image = cv2.LUT(
                np.ascontiguousarray(image), (255 * (np.arange(256) / 255) ** gamma).astype(np.uint8)
            )
        if rng.random() < 0.2:
            image = np.ascontiguousarray(image.mean(-1, keepdims=True).astype(np.uint8).repeat(3, -1))
        part = image[:side, :side]
        view = np.zeros((side, side, 3), np.uint8)
        if rng.random() < 0.5 and part.size:  # as the detector pads: the last row and column repeated
            view = cv2.copyMakeBorder(
                part, 0, side - part.shape[0], 0, side - part.shape[1], cv2.BORDER_REPLICATE
            )
            return np.ascontiguousarray(view)
        y, x = (int(rng.integers(0, side - n + 1)) for n in part.shape[:2])
        view[y : y + part.shape[0], x : x + part.shape[1]] = part
        return view


def loss_of(logits: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    counted = (mask != lettering.UNDECIDED).float()
    wanted = (mask == lettering.TEXT).float()
    cross = F.binary_cross_entropy_with_logits(logits, wanted, reduction="none") * counted
    # The surest mistakes count most: they are what an image is refused for, or let through by.
    flat = cross.flatten(1)
    hard = flat.topk(max(1, flat.shape[1] // 50), 1).values.mean(1)
    p = logits.sigmoid() * counted
    both, all_ = (p * wanted).flatten(1).sum(1), (p + wanted * counted).flatten(1).sum(1)
    dice = 1 - (2 * both + 100) / (all_ + 100)
    return (flat.mean(1) * 2 + hard * 0.5 + dice * 0.5).mean()


def split_of(part: str) -> Any:
    """The data sets of a part: "train", "choose", "test" (by modality) or "lettered"."""
    return json.loads((Path(__file__).parent / "sets.json").read_text())[part]


def read(folder: Path, names: list[str]) -> dict[str, list[np.ndarray]]:
    found = {}
    for name in names:
        files = sorted((folder / name).iterdir()) if (folder / name).is_dir() else []
        if files:
            found[name] = [cv2.imread(str(file), cv2.IMREAD_COLOR)[..., ::-1].copy() for file in files]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("pictures", "fonts", "weights"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--steps", type=int, default=9000)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--lr", type=float, default=2e-3)
    parser.add_argument("--workers", type=int, default=14)
    parser.add_argument("--seconds", type=float, default=1e9, help="end the schedule by then")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    pictures = read(args.pictures, split_of("train"))
    fonts = sorted(file for file in args.fonts.iterdir() if file.suffix in (".ttf", ".otf"))
    print(
        f"{sum(map(len, pictures.values()))} pictures of {len(pictures)} sets, {len(fonts)} fonts, {device}",
        flush=True,
    )
    torch.manual_seed(args.seed)
    net = UNet(NET).to(device)
    kept = {name: value.detach().clone() for name, value in net.state_dict().items()}
    views = Views(pictures, fonts, args.batch, args.steps, args.seed)
    loader = DataLoader(
        views, batch_size=None, num_workers=args.workers, prefetch_factor=4 if args.workers else None
    )
    optimiser = torch.optim.AdamW(net.parameters(), lr=args.lr, weight_decay=0.01, betas=(0.9, 0.98))
    start, mean, step = time.monotonic(), None, 0
    for step, (image, mask) in enumerate(loader, 1):
        done = max(step / args.steps, (time.monotonic() - start) / args.seconds)
        rate = args.lr * min(1.0, step / 200) * max(0.01, 0.5 * (1 + np.cos(np.pi * min(1.0, done))))
        for group in optimiser.param_groups:
            group["lr"] = rate
        image = image.to(device, non_blocking=True).permute(0, 3, 1, 2).float() / 255
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            logits = net(image)
        loss = loss_of(logits.float(), mask.to(device, non_blocking=True)[:, None])
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimiser.step()
        decay = min(0.999, step / (step + 20))
        with torch.no_grad():
            for name, value in net.state_dict().items():
                kept[name].lerp_(value, 1 - decay)
        if step % 100 == 0 or step == 1:
            mean = loss.item() if mean is None else 0.7 * mean + 0.3 * loss.item()
            print(f"step {step} loss {mean:.4f} lr {rate:.2e} {time.monotonic() - start:.0f} s", flush=True)
        if step % 1500 == 0:
            weights.save(args.weights, kept, format=FORMAT, config=NET.as_json(), meta={"steps": step})
        if done >= 1:
            break
    meta = {"steps": step, "sets": sorted(pictures), "images": sum(map(len, pictures.values()))}
    weights.save(args.weights, kept, format=FORMAT, config=NET.as_json(), meta=meta)


if __name__ == "__main__":
    main()
