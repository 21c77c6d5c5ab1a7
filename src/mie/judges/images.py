"""Images as `data:` URLs, each distinct image encoded once while it is in use."""

from __future__ import annotations

import asyncio
import base64
from collections import OrderedDict
from typing import Final

import cv2
import numpy as np

from mie.images.png import encode_png
from mie.judges.contracts import Image
from mie.records import Pixels

_MEMORY: Final = 64 * 2**20  # characters of base64


class DataUrls:
    """Encodes in threads and remembers the last 64 MiB. For one event loop."""

    def __init__(self, memory: int = _MEMORY) -> None:
        self._memory = memory
        self._used = 0
        self._made: OrderedDict[str, asyncio.Future[bytes]] = OrderedDict()
        self.encoded = 0

    async def of(self, image: Image) -> bytes:
        """`data:image/png;base64,...`; a second call for the same pixels waits for the first."""
        made = self._made.get(image.digest)
        if made is not None:
            self._made.move_to_end(image.digest)
            return await asyncio.shield(made)
        task = self._made[image.digest] = asyncio.ensure_future(asyncio.to_thread(data_url, image))
        self.encoded += 1
        try:
            url = await asyncio.shield(task)
        except BaseException:
            self._made.pop(image.digest, None)
            raise
        self._used += len(url)
        while self._used > self._memory and len(self._made) > 1:
            self._forget_oldest()
        return url

    def _forget_oldest(self) -> None:
        digest, made = next(iter(self._made.items()))
        if not made.done():
            self._made.move_to_end(digest)
            return
        del self._made[digest]
        self._used -= len(made.result())


def data_url(image: Image) -> bytes:
    return b"data:image/png;base64," + base64.b64encode(encode_png(_least(image.pixels)))


def _least(pixels: Pixels) -> Pixels:
    """Grey values in three equal channels as one: the same picture in half the bytes, and sooner encoded."""
    if pixels.ndim == 2 or not (pixels[0] == pixels[0, :, :1]).all():  # most colour shows in the first row
        return pixels
    first, *others = cv2.split(pixels)
    return first if all(np.array_equal(first, other) for other in others) else pixels
