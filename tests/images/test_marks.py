"""Marks of synthetic images: text in the file, Content Credentials, watermark, derived DICOM."""

from __future__ import annotations

import datetime
import io
import json
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image
from pydicom.data import get_testdata_file
from typer.testing import CliRunner

from mie.cli import app
from mie.errors import ConfigError, ImageError, MieError
from mie.images.credentials import read_credentials, sign_png
from mie.images.dicom import read_dicom
from mie.images.dicom_write import derived_dicom
from mie.images.inspection import inspect_image
from mie.images.png import decode_png, encode_png
from mie.images.provenance import SOURCE_TYPE, copied_xmp, edit_mark, mark_png, read_mark, read_source_type
from mie.images.watermark import THRESHOLD, add_watermark, has_watermark, watermark_score
from tests.editors.conftest import make_dataset

MARK = edit_mark('a "model" <1> & ü', synthetic=True, seed=7, sample="s/1", attempt=2)


def _scene(height: int = 200, width: int = 240) -> np.ndarray:
    """A picture with edges and grain, as an image of the body has them."""
    y, x = np.mgrid[:height, :width]
    draw = np.random.default_rng(3)
    disc = np.hypot(y - height / 2, x - width / 2) < height / 3
    grey = 60 + 90 * disc + 12 * np.sin(x / 9) + draw.normal(0, 6, (height, width))
    return np.repeat(np.clip(grey, 0, 255).astype(np.uint8)[..., None], 3, axis=2)


def test_a_mark_comes_back_and_leaves_the_pixels_alone(tmp_path: Path) -> None:
    pixels = _scene()
    path = tmp_path / "a.png"
    path.write_bytes(mark_png(encode_png(pixels), MARK))
    assert read_mark(path) == MARK
    assert read_source_type(path) == SOURCE_TYPE
    assert np.array_equal(decode_png(path.read_bytes()), pixels)
    with Image.open(path) as image:  # a reader of somebody else's sees it too, and the file is sound
        image.verify()
    with Image.open(path) as image:
        assert SOURCE_TYPE in str(image.info.get("xmp") or image.text)


def test_a_copy_as_webp_keeps_the_mark(tmp_path: Path) -> None:
    source, copy = tmp_path / "a.png", tmp_path / "a.webp"
    source.write_bytes(mark_png(encode_png(_scene()), MARK))
    Image.fromarray(_scene()).save(copy, xmp=copied_xmp(source))
    assert read_mark(copy)["editor"] == MARK["editor"]


def test_a_run_marks_its_outputs_and_a_folder_of_them_keeps_the_marks(tmp_path: Path) -> None:
    import mie

    dataset = make_dataset(tmp_path / "dataset", 1)
    run = mie.run(dataset, lambda image, instruction: 255 - image, tmp_path / "run")
    (output,) = (tmp_path / "run/outputs").iterdir()
    mark = read_mark(output)
    assert mark["synthetic"] is True
    assert mark["sample"] == run.sample_ids()[0]
    mie.run(dataset, f"folder:{tmp_path}/run/outputs", tmp_path / "again")
    assert (tmp_path / "again/outputs" / output.name).read_bytes() == output.read_bytes()
    mie.run(dataset, "identity", tmp_path / "plain")
    assert read_mark(next((tmp_path / "plain/outputs").iterdir())) == {}


def test_a_picture_without_a_mark_says_nothing(tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encode_png(_scene()))
    assert read_mark(path) == {}
    assert copied_xmp(path) == b""


@pytest.mark.parametrize("body", ["[1]", "{", "[" * 5000, "&quot;"])
def test_a_forged_mark_is_no_mark(tmp_path: Path, body: str) -> None:
    from mie.images.png import insert_text

    path = tmp_path / "a.png"
    path.write_bytes(insert_text(encode_png(_scene()), "XML:com.adobe.xmp", f'<a mie:mark="{body}"/>'))
    assert read_mark(path) == {}


def test_a_picture_beyond_pillows_limit_has_no_mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(mark_png(encode_png(_scene()), MARK))
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    assert read_mark(path) == {}


def test_what_is_no_picture_is_said(tmp_path: Path) -> None:
    (tmp_path / "a.png").write_bytes(b"nothing")
    with pytest.raises(ImageError, match="not a picture"):
        read_mark(tmp_path / "a.png")


def test_the_watermark_is_found_also_cropped_and_as_jpeg() -> None:
    pixels = _scene(256, 320)
    marked = add_watermark(pixels)
    assert watermark_score(pixels) < THRESHOLD - 1
    assert np.abs(marked.astype(int) - pixels).max() <= 9
    assert (marked[..., 0] == marked[..., 1]).all()  # grey stays grey
    assert has_watermark(marked)
    assert has_watermark(marked[23:, 41:])
    stream = io.BytesIO()
    Image.fromarray(marked).save(stream, "JPEG", quality=85)
    assert has_watermark(np.asarray(Image.open(stream)))
    assert not has_watermark(np.zeros((128, 128), np.uint8))


def test_a_picture_too_small_for_a_watermark_is_refused() -> None:
    with pytest.raises(ImageError, match="too small"):
        add_watermark(_scene(127, 200))


@pytest.fixture(scope="module")
def signer(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A certificate chain and its key, made for this test."""
    pytest.importorskip("c2pa", reason="Content Credentials need the extra `marks`")
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

    now = datetime.datetime.now(datetime.UTC)
    kinds = (NameOID.ORGANIZATION_NAME, NameOID.COMMON_NAME)
    names = {n: x509.Name([x509.NameAttribute(kind, n) for kind in kinds]) for n in ("authority", "signer")}
    keys = {n: ec.generate_private_key(ec.SECP256R1()) for n in names}
    certificates = {}
    for name in names:
        is_authority = name == "authority"
        builder = (
            x509.CertificateBuilder()
            .subject_name(names[name])
            .issuer_name(names["authority"])
            .public_key(keys[name].public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=2))
            .add_extension(x509.BasicConstraints(is_authority, None), True)
            .add_extension(
                x509.KeyUsage(not is_authority, *[False] * 4, is_authority, is_authority, False, False), True
            )
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(keys["authority"].public_key()), False
            )
        )
        if not is_authority:
            usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.EMAIL_PROTECTION])
            builder = builder.add_extension(usage, False)
        certificates[name] = builder.sign(keys["authority"], hashes.SHA256())
    folder = tmp_path_factory.mktemp("signer")
    pem = serialization.Encoding.PEM
    chain = b"".join(certificates[name].public_bytes(pem) for name in ("signer", "authority"))
    (folder / "chain.pem").write_bytes(chain)
    (folder / "key.pem").write_bytes(
        keys["signer"].private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    return folder / "chain.pem", folder / "key.pem"


def test_credentials_are_signed_read_and_broken_by_a_change(
    signer: tuple[Path, Path], tmp_path: Path
) -> None:
    pixels = _scene()
    data = sign_png(mark_png(encode_png(pixels), MARK), MARK, *signer)
    path = tmp_path / "signed.png"
    path.write_bytes(data)
    found = read_credentials(path)
    assert found is not None
    assert (found["state"], found["signer"], found["mark"]) == ("Valid", "signer", MARK)
    assert found["problems"] == ["signingCredential.untrusted"]
    assert np.array_equal(decode_png(data), pixels)
    assert inspect_image(path)["synthetic"] is True
    changed = bytearray(data)
    changed[bytes(data).rindex(b"IDAT") + 40] ^= 1
    path.write_bytes(changed)
    broken = read_credentials(path)
    assert broken is not None
    assert broken["state"] == "Invalid"


def test_a_file_without_credentials_has_none(signer: tuple[Path, Path], tmp_path: Path) -> None:
    path = tmp_path / "a.png"
    path.write_bytes(encode_png(_scene()))
    assert read_credentials(path) is None
    assert inspect_image(path)["synthetic"] is False


def test_a_key_that_does_not_fit_is_said(signer: tuple[Path, Path]) -> None:
    with pytest.raises(MieError, match="cannot be signed"):
        sign_png(encode_png(_scene()), MARK, signer[1], signer[0])


@pytest.mark.parametrize("colour", [False, True])
def test_a_derived_dicom_is_new_and_says_so(tmp_path: Path, colour: bool) -> None:
    source = Path(str(get_testdata_file("CT_small.dcm")))
    original = pydicom.dcmread(source)
    pixels = read_dicom(source).pixels.copy()
    if colour:
        pixels[5:9, 5:9] = (255, 0, 0)
    data = derived_dicom(source, pixels, MARK, "centre 40, width 400")
    path = tmp_path / "derived.dcm"
    path.write_bytes(data)
    derived = pydicom.dcmread(path)
    assert derived.SyntheticData == "YES"
    assert derived.ImageType[0] == "DERIVED"
    assert derived.ContentQualification == "RESEARCH"
    assert derived.LossyImageCompression == "00"
    assert derived.StudyInstanceUID == original.StudyInstanceUID
    assert derived.PatientID == original.PatientID
    assert derived.SOPInstanceUID != original.SOPInstanceUID
    assert derived.SeriesInstanceUID != original.SeriesInstanceUID
    assert derived.SourceImageSequence[0].ReferencedSOPInstanceUID == original.SOPInstanceUID
    assert derived.PhotometricInterpretation == ("RGB" if colour else "MONOCHROME2")
    assert "WindowCenter" not in derived
    assert derived.PixelSpacing == original.PixelSpacing
    assert np.array_equal(read_dicom(path).pixels, pixels)  # read by our own path, unchanged
    assert derived_dicom(source, pixels, MARK, "centre 40, width 400") == data
    other = pydicom.dcmread(io.BytesIO(derived_dicom(source, pixels, {**MARK, "seed": 8}, "")))
    assert other.SOPInstanceUID != derived.SOPInstanceUID
    found = inspect_image(path)
    assert found["synthetic"] is True
    assert 'a "model"' in found["mark"]["derivation"]


def _edit(*words: object) -> object:
    return CliRunner().invoke(app, ["edit", *map(str, words)])


def _worker(tmp_path: Path) -> str:
    """A model of somebody's: it inverts the image."""
    program = tmp_path / "invert.py"
    program.write_text(
        "import sys; from PIL import Image, ImageOps\n"
        "ImageOps.invert(Image.open(sys.argv[1]).convert('RGB')).save(sys.argv[2])\n"
    )
    import sys

    return f"command:{sys.executable} {program} {{input}} {{output}}"


def test_edit_marks_what_a_model_made_and_inspect_reads_it(tmp_path: Path) -> None:
    image = tmp_path / "in.png"
    image.write_bytes(encode_png(_scene()))
    out = tmp_path / "out.png"
    assert _edit(image, "Invert.", "-e", _worker(tmp_path), "-o", out, "--watermark").exit_code == 0
    shown = CliRunner().invoke(app, ["inspect", str(out), "--json"])
    found = json.loads(shown.stdout)
    assert found["synthetic"] is True
    assert found["mark"]["editor"] == "command"
    assert found["watermark"]["found"] is True
    text = CliRunner().invoke(app, ["inspect", str(out)]).stdout
    assert "synthetic" in text.splitlines()[0]
    plain = tmp_path / "plain.png"
    assert _edit(image, "Nothing.", "-e", "identity", "-o", plain).exit_code == 0
    assert json.loads(CliRunner().invoke(app, ["inspect", str(plain), "--json"]).stdout)["mark"] == {}


def test_edit_a_folder_resumes_and_reports_what_failed(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    (folder / "a.png").write_bytes(encode_png(_scene(40, 50)))
    (folder / "b.dcm").write_bytes(Path(str(get_testdata_file("CT_small.dcm"))).read_bytes())
    (folder / "c.png").write_bytes(encode_png(_scene(40, 50))[:200])
    (folder / "notes.txt").write_text("no picture")
    out = tmp_path / "out"
    first = _edit(folder, "Nothing.", "-e", "identity", "-o", out, "--dicom", "--json")
    document = json.loads(first.stdout)
    assert first.exit_code == 1
    assert sorted(path.name for path in out.iterdir()) == ["a.png", "b.dcm"]
    assert [Path(one["image"]).name for one in document["failed"]] == ["c.png"]
    before = (out / "a.png").stat().st_mtime_ns
    (folder / "c.png").write_bytes(encode_png(_scene(40, 50)))
    second = json.loads(_edit(folder, "Nothing.", "-e", "identity", "-o", out, "--dicom", "--json").stdout)
    assert second["kept"] == 2
    assert [Path(one["output"]).name for one in second["edits"]] == ["c.png"]
    assert (out / "a.png").stat().st_mtime_ns == before


def test_a_picture_is_not_written_as_dicom(tmp_path: Path) -> None:
    image = tmp_path / "in.png"
    image.write_bytes(encode_png(_scene()))
    done = _edit(image, "Nothing.", "-e", "identity", "-o", tmp_path / "out.dcm")
    assert isinstance(done.exception, ConfigError)
    assert "only an edited DICOM" in str(done.exception)


def test_two_files_of_one_name_are_refused(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("a.png", "a.PNG2"):
        (folder / name).write_bytes(encode_png(_scene(20, 20)))
    done = _edit(folder, "Nothing.", "-e", "identity", "-o", tmp_path / "out")
    assert "same file" in str(done.exception)


def test_a_certificate_without_its_key_is_refused(tmp_path: Path) -> None:
    image = tmp_path / "in.png"
    image.write_bytes(encode_png(_scene()))
    done = _edit(image, "x", "-e", "identity", "-o", tmp_path / "o.png", "--certificate", image)
    assert "both" in str(done.exception)
