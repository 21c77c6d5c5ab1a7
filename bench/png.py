"""Which PNG writer: time and size on medical images, against Pillow's default and OpenCV.

python bench/png.py
"""

from __future__ import annotations

import io
import statistics
import time
from pathlib import Path

import cv2
import numpy as np
import skimage
from PIL import Image

from mie.images.png import decode_png, encode_png

REPEATS = 7


def pictures() -> list[np.ndarray]:
    """512x512 RGB: a fundus photograph, stained tissue, an overlay on it, a grey cell."""
    shipped = Path(skimage.__file__).parent / "data"
    names = ("retina.jpg", "ihc.png", "cell.png", "microaneurysms.png")
    read = [cv2.imread(str(shipped / name))[..., ::-1] for name in names]
    return [np.ascontiguousarray(cv2.resize(p, (512, 512), interpolation=cv2.INTER_AREA)) for p in read]


def pillow(pixels: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, "PNG")
    return buffer.getvalue()


def opencv(pixels: np.ndarray) -> bytes:
    return cv2.imencode(".png", cv2.cvtColor(pixels, cv2.COLOR_RGB2BGR))[1].tobytes()


def main() -> None:
    cv2.setNumThreads(1)
    images = pictures()
    writers = {"Pillow": pillow, "OpenCV": opencv, "mie": encode_png}
    times: dict[str, list[float]] = {name: [] for name in writers}
    sizes: dict[str, int] = {}
    for _ in range(REPEATS):  # interleaved: the machine's mood hits all of them alike
        for name, write in writers.items():
            start = time.perf_counter()
            written = [write(image) for image in images]
            times[name].append(time.perf_counter() - start)
            sizes[name] = sum(map(len, written))
            assert all(np.array_equal(decode_png(w), i) for w, i in zip(written, images, strict=True))
    base_time, base_size = statistics.median(times["Pillow"]), sizes["Pillow"]
    print("PNG writers on 512x512 RGB medical images, one thread")
    for name in writers:
        seconds = statistics.median(times[name])
        print(
            f"{name:8s} {1e3 * seconds / len(images):7.2f} ms an image"
            f"   {base_time / seconds:5.1f} x Pillow's speed   {sizes[name] / base_size:5.2f} x its size"
        )


if __name__ == "__main__":
    main()
