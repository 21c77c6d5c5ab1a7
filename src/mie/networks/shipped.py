"""The weights that ship inside the package, and what each file's SHA-256 must be."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from mie.core.files import digest
from mie.core.yaml_files import read_mapping
from mie.errors import ConfigError, MieError

FOLDER: Final = Path(__file__).parents[1] / "weights"
COMPACT: Final = "compact.safetensors"
FLOW: Final = "flow.safetensors"
# File name -> SHA-256. A file that is not named here is not ours.
SHIPPED: Final[dict[str, str]] = {
    COMPACT: "cd6352fe4301b27706a5076483878ac021001b4be8c8842d19bbe38da446dcaa",
    "detector-ct.safetensors": "94a0b9d44c73d30ed20939ab9c9e10e04b45780822dd03c7819e259815ec7101",
    "detector-dermoscopy.safetensors": "32082be1c88db0ee9bf80de38e399e0950f0fef97d59d74222a9c38f4579a986",
    "detector-endoscopy.safetensors": "55d3d2443c0c7dec3e4cadee718ded73b64812c8dca9af158f42cf784b6a5ed3",
    "detector-fundus.safetensors": "65585dcee65c3cea9b421997972b61aa7414f822d98485c695a9f2c1a19ac10c",
    "detector-mri.safetensors": "7fe45bf594faa34412d8371bbfed9c1c5d852e5b9e07b9843556ef48198a985b",
    "detector-region.safetensors": "08ce065fae72c429c00e6e45ddabb89d54fb1a11cf3b0afab26d39d392dae5ae",
    "detector-ultrasound.safetensors": "ed758245ab5608bdde726bf60c3d3e49990540c9da80f6298b6829786eee8264",
    FLOW: "508d6bbacc93545be5a2954c33d25a75491e66febc7bdf524eeefe9f1a5da57b",
    "inpainter-ct.safetensors": "1cae5b6fc6272e4ff5292621004a7d57ccc616bdfe4baa79e6c44015478c404a",
    "inpainter-dermoscopy.safetensors": "5e7f0a2189e9b71f22e4ee6e9f6ff4f9197b8cd3449b882ee431713f306d0b34",
    "inpainter-endoscopy.safetensors": "4de182e5fb5bfdc3014a498c34f27991d2b2eaff6493551c6209fb6ce944b0f1",
    "inpainter-fundus.safetensors": "4773999ae4170a75948169bc07b5698f708b1365923b75a0d4a0d068cfac5f9b",
    "inpainter-mri.safetensors": "138136689f17774d030e86cdcef40bed484aab621956518ad2648d75c96394a1",
    "inpainter-ultrasound.safetensors": "db052c8cf899473fe15f49515dbf1963e33272107d1456c7f2b6dfdf4ac87173",
    "inpainter-xray.safetensors": "19081ef3cb35b20845de49e630fc9d764e1a68b0a26c2bea3d168db3b12f4e02",
    "text-detector.safetensors": "6e5ab4b48577ec201bfebc450bd2febffe24823005aeaab349db73430bc865b1",
}


def shipped_targets() -> dict[str, list[str]]:
    """What the compact editor's file was trained to paint, by modality."""
    body = read_mapping(FOLDER / "compact.yaml", "list of targets", expected="targets:")
    return {str(modality): list(names) for modality, names in body["targets"].items()}


def shipped_weights(name: str, *, fix: str) -> Path:
    """The file of that name inside this package, checked. `fix`: what to do where there is none."""
    path = FOLDER / name
    if name not in SHIPPED or not path.is_file():
        raise ConfigError("no weights in this installation", where=path, fix=fix)
    sha256 = digest(path)
    if sha256 != SHIPPED[name]:
        raise MieError(
            "the shipped weights are not the ones that were published",
            where=path,
            expected=f"SHA-256 {SHIPPED[name]}",
            found=sha256,
            fix="install mie again",
        )
    return path
