"""The region detector's training: where its healthy places lie, who is held out, a file that opens."""

from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra `models`")
pytest.importorskip("accelerate", reason="training needs the extra `models`")

from mie.errors import ConfigError  # noqa: E402
from mie.networks import weights  # noqa: E402
from mie.networks.region import FORMAT, load_region  # noqa: E402
from mie.perspectives.modification.detectors.region import Looked, open_region, region_quality  # noqa: E402
from mie.training.config import parse_config  # noqa: E402
from mie.training.flow_data import flow_data  # noqa: E402
from mie.training.loop import train  # noqa: E402
from mie.training.pack import TRAIN, write_pack  # noqa: E402
from mie.training.region import Region, with_quality  # noqa: E402
from mie.training.region_crops import SquareCutter  # noqa: E402
from tests.training.test_inpainter import made_pack  # noqa: E402


@pytest.fixture(scope="module")
def pack():
    """Ultrasound-like pictures, each with a lesion that is 90 grey levels brighter; the last two held out."""
    pack = made_pack(12)
    for image, mask in zip(pack.images, pack.masks, strict=True):
        image[mask > 0] = np.clip(image[mask > 0].astype(int) + 90, 0, 255)
    return pack


def config(path, **changes):
    body = {
        "name": "t", "trainee": "region", "steps": 30, "batch": 16, "precision": "fp32", "ema": 0.5,
        "optimizer": {"lr": 2e-3, "warmup": 2}, "checkpoint": {"every": 30}, "validate": {"every": 30},
        "log_every": 10, "data": {"packs": [str(path)]}, "model": {"width": 16, "blocks": 1, "dropout": 0},
    }  # fmt: skip
    return parse_config({**body, **changes})


def test_lesions_and_healthy_places_differ_in_nothing_but_the_tissue(pack):
    data = flow_data([pack], TRAIN, ("lesion",), 0)
    cutter = SquareCutter(data, torch.device("cpu"), np.zeros(len(data.images), np.bool_))
    of = torch.arange(len(cutter.lesions)).repeat(8)
    lesions, healthy = cutter.held_out(of, 1.0, 0), cutter.held_out(of, 0.0, 0)
    valid = healthy.valid > 0
    assert valid.sum() >= 5, "lesions are large here, and leave little room"
    inside = [
        (s.image.mean(1, keepdim=True) * s.outline).sum((1, 2, 3)) / s.outline.sum((1, 2, 3))
        for s in (lesions, healthy)
    ]
    assert (inside[0][valid] - inside[1][valid]).mean() > 0.2, (
        "lesions are brighter: healthy places are clear"
    )
    areas = [s.outline.sum((1, 2, 3))[valid] for s in (lesions, healthy)]
    assert torch.allclose(areas[0], areas[1], rtol=0.35), "an outline keeps its size, whatever lies under it"
    middle = torch.arange(128).float()
    for squares in (lesions, healthy):
        rows = (squares.outline.sum(3)[:, 0] * middle).sum(1) / squares.outline.sum((1, 2, 3))
        assert (rows[valid] - 64).abs().max() < 12


def test_healthy_places_never_lie_in_images_of_the_other_side(pack):
    data = flow_data([pack], TRAIN, ("lesion",), 0)
    held_out = np.arange(len(data.images)) % 3 == 0
    cutter = SquareCutter(data, torch.device("cpu"), held_out)
    rows = cutter.lesions.repeat(200, 1)
    random = torch.Generator().manual_seed(0)
    own = rows[:, 0].long()
    images, _ = cutter._healthy_place(own, rows[:, 3:5], rows[:, 5], random)
    assert (images != own).any(), "some lie in another image"
    assert (held_out[images.numpy()] == held_out[own.numpy()]).all()
    assert {int(n) for n in images} == set(range(len(held_out))), "and any image may be taken"


def test_a_training_tells_lesions_and_its_file_opens(pack, tmp_path):
    write_pack(tmp_path / "pack", pack)
    train(config(tmp_path / "pack"), tmp_path / "out")
    net, meta = load_region(tmp_path / "out" / "weights.safetensors")
    looked = [Looked(*one[:5], tuple(one[5])) for one in meta["looked"]]
    patients = {row.patient_id for row in pack.rows if row.fold != TRAIN}
    assert {one.patient for one in looked} == patients, "those of the validation fold, and nobody else"
    lesions = np.mean([one.lesion for one in looked])
    places = np.mean([p for one in looked for p in one.healthy])
    assert lesions > places + 0.2
    # Figures of more people go into a new file, with the same network.
    more = [
        Looked("ultrasound", "lesion", f"p{n}", f"i{n}", 0.9, (0.1 + n / 100, 0.2, 0.3)) for n in range(30)
    ]
    with_quality(tmp_path / "out" / "weights.safetensors", tmp_path / "with.safetensors", more)
    again = weights.load(tmp_path / "with.safetensors", format=FORMAT)
    assert again.meta["quality"] == region_quality(more)
    assert "looked" not in again.meta
    for name, tensor in net.state_dict().items():
        assert torch.allclose(again.state[name], tensor, atol=0.02 * float(tensor.abs().max()) + 1e-6)
    detector = open_region(str(tmp_path / "with.safetensors"), {}, "ultrasound")
    assert detector.quality()["patients"] == 30
    mask = pack.masks[0] > 0
    image = np.repeat(pack.images[0][..., None], 3, 2) if pack.images[0].ndim == 2 else pack.images[0]
    assert detector.within(image, mask).score == detector.within(image, mask).score


def test_who_is_held_out(pack, tmp_path):
    write_pack(tmp_path / "pack", pack)
    parts = []
    for at in range(3):
        trainee = Region(config(tmp_path / "pack", data={"packs": [str(tmp_path / "pack")], "part": [at, 3]}))
        trainee.check()
        trainee.prepare(torch.device("cpu"))
        held_out = set(trainee.patients[trainee.measured.numpy()])
        trained = set(trainee.patients[np.flatnonzero(trainee.chances.numpy())])
        assert not held_out & trained
        parts.append(held_out)
    assert set().union(*parts) == {row.patient_id for row in pack.rows}
    assert sum(map(len, parts)) == len(set().union(*parts)), "each patient is held out once"
    others = replace(pack, rows=[replace(row, patient_id=f"other {row.patient_id}") for row in pack.rows])
    write_pack(tmp_path / "others", others)
    data = {"packs": [str(tmp_path / "pack")], "measured": [str(tmp_path / "others")]}
    trainee = Region(config(tmp_path / "pack", data=data))
    trainee.check()
    trainee.prepare(torch.device("cpu"))
    assert set(trainee.patients[trainee.measured.numpy()]) == {row.patient_id for row in others.rows}
    for wrong in ({"part": [3, 3]}, {"part": [0, 3], "measured": ["x"]}):
        with pytest.raises(ConfigError):
            Region(config(tmp_path / "pack", data={"packs": ["x"], **wrong}))
