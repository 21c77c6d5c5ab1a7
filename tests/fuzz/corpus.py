"""Good files of every format that is read, small, made here: what the mutations start from."""

from __future__ import annotations

import gzip
import io
import json
import zipfile
import zlib
from pathlib import Path

import nibabel as nib
import numpy as np
import pyarrow.parquet as pq
import torch
from PIL import Image
from pydicom.data import get_testdata_file

from mie.datasets.schema import SCHEMA, RowEncoder, table
from mie.networks import weights
from mie.networks.unet import NetConfig, UNet
from mie.records import Sample

DICOM = (
    *("CT_small.dcm", "MR_small_RLE.dcm", "MR_small_jpeg_ls_lossless.dcm", "MR_small_jp2klossless.dcm"),
    *("SC_rgb_jpeg_dcmtk.dcm", "image_dfl.dcm", "SC_rgb_rle_2frame.dcm"),
)
RECIPE = """name: discs
seed: 3
sources:
  - name: discs
    root: .
    title: &title Discs
    notes: *title
    modality: CT
    anatomy: abdomen
    license: {name: CC0-1.0, use: open}
    layout: {kind: folder, images: "images/{patient}_{id:[0-9]+}.png", masks: "masks/{patient}_{id}.png"}
    targets: [{name: liver, kind: anatomy, value: 1}]
"""


def seeds(folder: Path) -> dict[str, list[bytes]]:
    """Files by format; `folder` is for what can only be written to a disk."""
    rng = np.random.default_rng(0)
    grey = rng.integers(0, 255, (24, 20), np.uint8)
    rgb = rng.integers(0, 255, (24, 20, 3), np.uint8)
    volume = rng.integers(0, 500, (5, 6, 7)).astype("<i2")
    files: dict[str, list[bytes]] = {
        "png": [
            *(
                _picture(array, "PNG")
                for array in (grey, rgb, np.dstack([rgb, grey]), grey.astype(np.uint16) * 9)
            ),
            _picture(grey, "PNG", palette=True),
        ],
        "jpeg": [_picture(grey, "JPEG"), _picture(rgb, "JPEG", progressive=True)],
        "tiff": [
            *(
                _picture(rgb, "TIFF", compression=how)
                for how in ("raw", "tiff_lzw", "tiff_adobe_deflate", "jpeg")
            ),
            _picture(grey.astype(np.float32), "TIFF"),
            _pages(grey),
        ],
        "webp": [_picture(rgb, "WebP"), _picture(rgb, "WebP", lossless=True)],
        "gif": [_picture(grey, "GIF")],
        "bmp": [_picture(rgb, "BMP")],
        "dicom": [Path(str(get_testdata_file(name))).read_bytes() for name in DICOM],
        "nrrd": [_nrrd(volume, "raw"), _nrrd(volume, "gzip")],
        "mha": [_mha(volume, compressed=False), _mha(volume, compressed=True)],
    }
    image = nib.Nifti1Image(volume, np.diag([1.0, 2.0, 3.0, 1.0]))
    image.header.set_slope_inter(2.0, 1.0)
    second = nib.Nifti2Image(volume.astype(np.float32), np.eye(4))
    files["nii"] = [image.to_bytes(), second.to_bytes()]
    files["nii.gz"] = [gzip.compress(data, mtime=0) for data in files["nii"]]
    arrays = {"train_images": np.stack([rgb] * 3), "train_label": np.stack([grey % 2] * 3)}
    files["npz"] = [_npz(arrays, how) for how in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)]
    files["parquet"] = [_parquet(folder / "seed.parquet", rgb, grey)]
    torch.manual_seed(0)
    config = NetConfig((8, 8, 8, 8, 8), (0, 0, 0, 0, 1), (1, 1, 1, 1), 4, "none", 32)
    weights.save(
        folder / "a.safetensors", UNet(config).state_dict(), format="unet 1", config=config.as_json()
    )
    files["safetensors"] = [(folder / "a.safetensors").read_bytes()]
    edit = {"sample_id": "ab", "attempt": 0, "seed": 1, "state": "failed", "seconds": 0.5}
    files["jsonl"] = [b"".join(json.dumps({**edit, "attempt": n}).encode() + b"\n" for n in range(4))]
    files["yaml"] = [RECIPE.encode()]
    return files


def _picture(array: np.ndarray, kind: str, *, palette: bool = False, **how: object) -> bytes:
    stream = io.BytesIO()
    image = Image.fromarray(array)
    (image.convert("P") if palette else image).save(stream, kind, **how)
    return stream.getvalue()


def _pages(array: np.ndarray) -> bytes:
    stream = io.BytesIO()
    page = Image.fromarray(array)
    page.save(stream, "TIFF", save_all=True, append_images=[page, page])
    return stream.getvalue()


def _nrrd(volume: np.ndarray, encoding: str) -> bytes:
    body = volume.tobytes(order="F")
    text = (
        f"NRRD0004\n# a comment\ntype: short\ndimension: 3\nspace: left-posterior-superior\nsizes: 5 6 7\n"
        f"space directions: (1,0,0) (0,2,0) (0,0,3)\nkinds: domain domain domain\nendian: little\n"
        f"encoding: {encoding}\nspace origin: (1,2,3)\nkey:=value\n\n"
    )
    return text.encode() + (gzip.compress(body, mtime=0) if encoding == "gzip" else body)


def _npz(arrays: dict[str, np.ndarray], compression: int) -> bytes:
    """As `numpy.savez`, which would also write the time."""
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", compression) as archive:
        for name, array in arrays.items():
            body = io.BytesIO()
            np.save(body, array)
            member = zipfile.ZipInfo(f"{name}.npy")
            member.compress_type = compression
            archive.writestr(member, body.getvalue())
    return stream.getvalue()


def _mha(volume: np.ndarray, *, compressed: bool) -> bytes:
    body = volume.tobytes(order="F")
    body = zlib.compress(body) if compressed else body
    text = (
        f"ObjectType = Image\nNDims = 3\nBinaryData = True\nBinaryDataByteOrderMSB = False\n"
        f"CompressedData = {compressed}\nTransformMatrix = 1 0 0 0 1 0 0 0 1\nOffset = 1 2 3\n"
        f"ElementSpacing = 1 2 3\nDimSize = 5 6 7\nElementType = MET_SHORT\nElementDataFile = LOCAL\n"
    )
    return text.encode() + body


def _parquet(path: Path, rgb: np.ndarray, grey: np.ndarray) -> bytes:
    texts = dict.fromkeys(("prompt_template", "description", "anatomy", "license", "recipe"), "a")
    sample = Sample(
        id="ab",
        perspective="perception",
        task="segmentation",
        target="liver",
        modality="CT",
        prompt="Paint the liver.",
        input=rgb,
        target_image=rgb,
        mask=grey,
        colour="red",
        split="train",
        bin=None,
        source="discs",
        case_id="a",
        patient_id="a/b",
        recipe_version=1,
        params={"classes": ["liver"]},
        seed=1,
        **texts,
    )
    row, _ = RowEncoder().row(sample)
    pq.write_table(table([row] * 3, SCHEMA), path)
    return path.read_bytes()
