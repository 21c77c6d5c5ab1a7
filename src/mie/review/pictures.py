"""The images of an item as PNG, at display size, kept for a while in memory.

A picture's name never says which run it comes from: outputs are named by a keyed hash of item and run.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import numpy as np
from sqlalchemy import Row, select

from mie.errors import MieError
from mie.images.limits import Limits, check_pixels
from mie.images.png import decode_png, encode_png, png_size
from mie.images.resize import resize_image, resize_labels
from mie.records import Pixels
from mie.review.database import Database, masks, runs
from mie.review.errors import Refused
from mie.review.material import Material
from mie.review.proposals import proposals

SIDES: Final = (256, 512, 1024, 2048)
_COLUMNS: Final = {"input": "input", "reference": "target_image", "mask": "mask"}
_TURN: Final = re.compile(r"turn(\d{1,3})-(input|reference|output)")
_CACHE_BYTES: Final = 96 * 2**20
_LIMITS: Final = Limits(max_pixels=250_000_000)


class Cache:
    """The bytes that were asked for last, up to a total."""

    def __init__(self, limit: int = _CACHE_BYTES) -> None:
        self._limit = limit
        self._held: OrderedDict[tuple[Any, ...], bytes] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def get(self, key: tuple[Any, ...], make: Callable[[], bytes]) -> bytes:
        with self._lock:
            if key in self._held:
                self._held.move_to_end(key)
                return self._held[key]
        data = make()  # outside the lock: two may do the same work, nobody waits
        with self._lock:
            if key not in self._held:
                self._held[key] = data
                self._bytes += len(data)
            while self._bytes > self._limit and len(self._held) > 1:
                self._bytes -= len(self._held.popitem(last=False)[1])
        return data


class Pictures:
    def __init__(self, database: Database, material: Material) -> None:
        self._database = database
        self._material = material
        self._cache = Cache()
        self._secret = bytes.fromhex(database.value("secret") or "")
        with database.read() as connection:
            self._run_names = {row.id: row.name for row in connection.execute(select(runs))}

    def token(self, item_id: int, run_id: int) -> str:
        """What an output is called in a URL: the same for every rater, another for every item."""
        text = f"{item_id}:{run_id}".encode()
        return hmac.new(self._secret, text, hashlib.sha256).hexdigest()[:24]

    def png(self, kind: str, item: Row[Any], name: str, side: int | None) -> bytes:
        """Only what an item of this kind offers: any other name could tell who made an output."""
        full = self._cache.get((item.id, item.version, name), lambda: self._full(kind, item, name))
        if side is None or max(png_size(full)) <= side:
            return full
        is_mask = name == "mask" or name.startswith(("proposal-", "upload-"))
        resize = resize_labels if is_mask else resize_image
        return self._cache.get((item.id, item.version, name, side), lambda: _shrunk(full, side, resize))

    def remember(self, item: Row[Any], name: str, png: bytes) -> None:
        """A picture that was read along with something else."""
        self._cache.get((item.id, item.version, name), lambda: png)

    def _full(self, kind: str, item: Row[Any], name: str) -> bytes:
        what, _, rest = name.partition("-")
        if name in _COLUMNS:
            return self._stored(item.places[0], _COLUMNS[name])
        if kind == "mask" and what == "proposal":
            if rest in (made := self._proposals(item)):
                return made[rest]
        elif kind == "mask" and what == "upload":
            return self._upload(item.id, rest)
        elif kind == "rank" and what == "output":
            for run_id, sample_id, sha256 in item.outputs:
                if hmac.compare_digest(self.token(item.id, run_id), rest):
                    return self._output(run_id, sample_id, sha256)
        elif kind == "questions" and (found := _TURN.fullmatch(name)):
            turn = int(found[1])
            if turn < len(item.places) and found[2] == "output":
                return self._output(*item.outputs[turn])
            if turn < len(item.places):
                return self._stored(item.places[turn], _COLUMNS[found[2]])
        raise Refused(404, "unknown", "there is no such picture")

    def _stored(self, place: Any, column: str) -> bytes:
        stored = self._material.row(place, [column])[column]
        if stored is None:
            raise Refused(404, "unknown", "there is no such picture")
        return bytes(stored["bytes"])

    def _output(self, run_id: int, sample_id: str, sha256: str) -> bytes:
        try:
            return self._material.output(self._run_names[run_id], sample_id, sha256)
        except (MieError, KeyError, OSError):
            raise Refused(404, "unknown", "this output is not there any more") from None

    def _proposals(self, item: Row[Any]) -> dict[str, bytes]:
        row = self._material.row(item.places[0], ["input", "mask"])
        mask = None if row["mask"] is None else decode_png(row["mask"]["bytes"])
        made: dict[str, Pixels] = {}
        if item.outputs and mask is not None:  # models' regions, beside the data set's own
            made = {"source": np.where(mask > 127, np.uint8(255), np.uint8(0))}
        elif mask is not None:
            made = proposals(mask, decode_png(row["input"]["bytes"]))
        encoded = {name: encode_png(each) for name, each in made.items()}
        encoded |= {name: self._upload(item.id, sha256) for name, _, sha256 in item.outputs}
        for name, png in encoded.items():
            self.remember(item, f"proposal-{name}", png)
        return encoded

    def proposal_names(self, item: Row[Any]) -> list[str]:
        names = self._cache.get(
            (item.id, item.version, "proposals"), lambda: ",".join(self._proposals(item)).encode()
        )
        return names.decode().split(",")

    def _upload(self, item_id: int, sha256: str) -> bytes:
        with self._database.read() as connection:
            png = connection.scalar(
                select(masks.c.png).where(masks.c.sha256 == sha256, masks.c.item_id == item_id)
            )
        if png is None:
            raise Refused(404, "unknown", "there is no such picture")
        return bytes(png)


def _shrunk(data: bytes, side: int, resize: Callable[[Pixels, tuple[int, int]], Pixels]) -> bytes:
    height, width = png_size(data)
    check_pixels(height, width, where="a picture", limits=_LIMITS)
    scale = side / max(height, width)
    size = max(1, round(height * scale)), max(1, round(width * scale))
    return encode_png(resize(decode_png(data), size))
