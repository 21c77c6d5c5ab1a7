"""An editor for `mie run -e 'command:...,jsonl=true'`: the input with noise, by the seed; some edits fail."""

from __future__ import annotations

import json
import sys

import numpy as np
from PIL import Image


def main() -> None:
    for line in sys.stdin:
        request = json.loads(line)
        draw = np.random.default_rng(int(request["seed"]))
        if draw.random() < 0.08:
            print(json.dumps({"error": "no edit for this seed"}), flush=True)
            continue
        image = np.asarray(Image.open(request["input"]).convert("RGB"), np.float64)
        if draw.random() < 0.15:  # a drift that scoring must notice
            image = np.roll(image, 9, axis=1)
        noisy = np.clip(image + draw.normal(0, 6, image.shape), 0, 255).astype(np.uint8)
        Image.fromarray(noisy).save(request["output"])
        print(json.dumps({"output": request["output"]}), flush=True)


if __name__ == "__main__":
    main()
