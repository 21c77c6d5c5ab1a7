"""Can a convolutional network tell filled crops from real ones? Balanced accuracy; 50% is indistinguishable.

It sees a crop and where its hole is. Half of the patients train it, the other half are tested, and the other
way round. A control shows that it is able to: smooth fills with noise of the tissue's own strength.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

WIDTH = 48
STEPS = 600
BATCH = 128
SMOOTH = 6.0  # pixels: the control's noise is what changes faster than this, in strength


class Judge(nn.Module):
    """Crop and hole `(B, 4, S, S)` to a logit, averaged over the hole and its rim."""

    def __init__(self, width: int = WIDTH) -> None:
        super().__init__()
        sizes = [4, width, width, 2 * width, 2 * width, 4 * width]
        strides = [1, 1, 2, 1, 2]
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, stride, 1), nn.BatchNorm2d(b), nn.ReLU())
                for a, b, stride in zip(sizes, sizes[1:], strides, strict=False)
            )
        )
        self.last = nn.Linear(8 * width, 1)

    def forward(self, image: Tensor, hole: Tensor) -> Tensor:
        x = self.layers(torch.cat([2 * image - 1, hole], 1))
        where = F.adaptive_max_pool2d(hole, x.shape[2:])
        mean = (x * where).sum((2, 3)) / where.sum((2, 3)).clamp(min=1)
        most = (x - 1e4 * (1 - where)).amax((2, 3))
        logit: Tensor = self.last(torch.cat([mean, most.clamp(min=0)], 1))[:, 0]
        return logit


def told_apart(
    real: Tensor, made: Tensor, holes: Tensor, patients: np.ndarray, *, steps: int = STEPS, seed: int = 0
) -> np.ndarray:
    """Which were told rightly, `(2, N) bool`: the real and the made crop of each row.

    `real` and `made (N, 3, S, S)`, `holes (N, 1, S, S)` of uint8, on one device.
    """
    rng = np.random.default_rng(seed)
    people = rng.permutation(np.unique(patients))
    second = np.isin(patients, people[: len(people) // 2])
    right = np.zeros((2, len(real)), bool)
    for test in (second, ~second):
        torch.manual_seed(seed)
        judge = Judge().to(real.device)
        optimizer = torch.optim.AdamW(judge.parameters(), lr=2e-3, weight_decay=0.05)
        schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
        rows = np.flatnonzero(~test)
        for _ in range(steps):
            some = torch.from_numpy(rng.choice(rows, BATCH // 2)).to(real.device)
            image = torch.cat([real[some], made[some]]).float() / 255
            hole = holes[some].float().repeat(2, 1, 1, 1)
            if rng.random() < 0.5:
                image, hole = image.flip(3), hole.flip(3)
            image = image * (0.9 + 0.2 * torch.rand(len(some), 1, 1, 1, device=image.device)).repeat(
                2, 1, 1, 1
            )
            wanted = torch.arange(2, device=image.device).repeat_interleave(len(some)).float()
            with torch.autocast(image.device.type, torch.bfloat16, enabled=image.is_cuda):
                logits = judge(image.clamp(0, 1), hole)
            loss = F.binary_cross_entropy_with_logits(logits.float(), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
        judge.eval()
        with torch.no_grad():
            for k, crops in enumerate((real, made)):
                for part in np.array_split(np.flatnonzero(test), max(1, test.sum() // 256)):
                    at = torch.from_numpy(part).to(real.device)
                    said = judge(crops[at].float() / 255, holes[at].float()) > 0
                    right[k, part] = said.cpu().numpy() == bool(k)
    return right
