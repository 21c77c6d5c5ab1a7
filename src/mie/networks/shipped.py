"""The weights that ship inside the package, and what each file's SHA-256 must be."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mie.errors import ConfigError, MieError
from mie.images.files import digest

FOLDER: Final = Path(__file__).parents[1] / "weights"
COMPACT: Final = "compact.safetensors"
# File name -> SHA-256. A file that is not named here is not ours.
SHIPPED: Final[dict[str, str]] = {
    COMPACT: "85436be67986d21fd5836fc71dde2e26f356581360b76184b0e9ed78d9958323",
}


def shipped_weights(name: str, *, fix: str) -> Path:
    """The file of that name inside this package, checked. `fix`: what to do where there is none."""
    path = FOLDER / name
    if name not in SHIPPED or not path.is_file():
        raise ConfigError("no weights in this installation", where=path, fix=fix)
    found = digest(path)
    if found != SHIPPED[name]:
        raise MieError(
            "the shipped weights are not the ones that were published",
            where=path,
            expected=f"SHA-256 {SHIPPED[name]}",
            found=found,
            fix="install mie again",
        )
    return path
