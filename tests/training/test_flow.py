"""The flow expert's training: crops, holes clear of lesions, a loss that falls, a file that opens."""

import json

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="training needs the extra `models`")

from mie.errors import ConfigError  # noqa: E402
from mie.images.families import FAMILIES  # noqa: E402
from mie.networks import weights  # noqa: E402
from mie.networks.flow import FORMAT, FlowConfig, FlowNet  # noqa: E402
from mie.perspectives.modification.inpainters.flow import open_flow  # noqa: E402
from mie.training.config import parse_config  # noqa: E402
from mie.training.flow import Flow, go_on_from  # noqa: E402
from mie.training.flow_crops import CANVAS, OUTSIDE, Cutter, lesion_contrast  # noqa: E402
from mie.training.flow_data import flow_data, lesion_names  # noqa: E402
from mie.training.flow_loss import around, measured_strengths  # noqa: E402
from mie.training.loop import train  # noqa: E402
from mie.training.pack import TRAIN, Pack, Row, write_pack  # noqa: E402
from tests.conftest import ellipse  # noqa: E402
from tests.training.test_inpainter import made_pack  # noqa: E402


@pytest.fixture(scope="module")
def pack():
    """Ultrasound-like pictures, each with a lesion that is 80 grey levels brighter; the last two held out."""
    pack = made_pack(8)
    for image, mask in zip(pack.images, pack.masks, strict=True):
        image[mask > 0] = np.clip(image[mask > 0].astype(int) + 80, 0, 255)
    return pack


def config(path, **changes):
    body = {
        "name": "t", "trainee": "flow", "steps": 12, "batch": 8, "precision": "fp32", "ema": 0.5,
        "optimizer": {"lr": 2e-3, "warmup": 2}, "checkpoint": {"every": 12}, "validate": {"every": 12},
        "log_every": 4, "data": {"packs": [str(path)], "least": 2, "validate_crops": 4},
        "model": {"widths": [8, 8, 16], "steps": [2, 1], "measured": 16},
    }  # fmt: skip
    return parse_config({**body, **changes})


def test_data_marks_lesions_and_what_lies_beyond_the_image(pack):
    assert lesion_names([pack], TRAIN, 6) == ("lesion",)
    assert lesion_names([pack], TRAIN, 7) == ()
    data = flow_data([pack], TRAIN, ("lesion",), 0)
    assert data.images.shape == (6, 3, CANVAS, CANVAS)
    assert (data.labels[:, 160:] == OUTSIDE).all()
    assert (data.labels[0, :160, :160] == (pack.masks[0] > 0)).all()
    for points, labels in zip(data.points, data.labels, strict=True):
        rows, columns = points.astype(int).T
        assert (labels[rows, columns] == 0).all()
    image, label, target, row, column, _ = data.lesions[0]
    assert (image, label, target) == (0, 1, 0)
    assert pack.masks[0][int(row), int(column)] > 0


def test_a_lesion_without_a_learnt_name_is_not_healthy_either(pack):
    row = pack.rows[0]
    other = Pack(pack.images, pack.masks, [*pack.rows[1:], Row(**{**_fields(row), "target": "other"})],
                 pack.instructions, {})  # fmt: skip
    data = flow_data([other], TRAIN, ("lesion",), 0)
    place = next(n for n, name in enumerate(data.patients) if name == row.patient_id)
    assert place not in data.lesions[:, 0]
    assert (data.labels[place] == 1).sum() == (pack.masks[0] > 0).sum()


def _fields(row):
    return {name: getattr(row, name) for name in row.__slots__}


def test_crops_show_holes_where_they_should_be(pack):
    cutter = Cutter(flow_data([pack], TRAIN, ("lesion",), 0), torch.device("cpu"))
    crops = cutter.cut(32, 5)
    lesions, healthy = slice(0, 16), slice(16, None)
    assert (crops.conditions.target[healthy] < 2).all()
    assert (crops.conditions.target[lesions] != 1).all()
    assert (crops.lesion[healthy] == 0).all()
    assert (crops.lesion[lesions].sum((1, 2, 3)) > 0).all()
    assert (crops.hole * crops.beyond == 0).all(), "what lies beyond the image is not drawn"
    assert (crops.hole[lesions] >= crops.lesion[lesions]).all(), "a lesion lies in its hole"
    assert (crops.target[lesions] == 2).all(), "known also where the conditions do not name it"
    assert (crops.target[healthy] == 1).all()
    assert crops.conditions.contrast[healthy].isnan().all()
    given = ~crops.conditions.contrast.isnan()
    assert 0 < int(given[lesions].sum()) < 16
    assert (crops.conditions.contrast[given] > 0.1).all(), "these lesions are brighter"
    again = cutter.cut(32, 5)
    assert torch.equal(crops.image, again.image)
    assert not torch.equal(crops.image, cutter.cut(32, 6).image)


def test_holes_in_healthy_tissue_are_clear_of_lesions(pack):
    """Lesions are painted white: no pixel of a hole in healthy tissue may be."""
    white = Pack([np.where(m > 0, 255, np.minimum(i, 120)).astype(np.uint8)
                  for i, m in zip(pack.images, pack.masks, strict=True)],
                 pack.masks, pack.rows, pack.instructions, {})  # fmt: skip
    crops = Cutter(flow_data([white], TRAIN, ("lesion",), 0), torch.device("cpu")).cut(32, 1)
    hidden = crops.image[16:] * crops.hole[16:]
    assert crops.hole[16:].sum() > 1000
    assert hidden.max() < 0.75
    assert crops.image[16:].max() > 0.75


def test_contrast_is_the_lesion_above_its_surroundings():
    region = torch.from_numpy(ellipse(0).astype(np.float32))[None, None]
    image = (0.4 + 0.25 * region).expand(-1, 3, -1, -1)
    assert lesion_contrast(image, region).item() == pytest.approx(0.25, abs=1e-5)
    assert lesion_contrast(image, 0 * region).item() == 0


def test_bands_are_in_units_of_their_own_strength(pack):
    """Lesions are 80 grey levels brighter than their surroundings, healthy tissue is not."""
    cutter = Cutter(flow_data([pack], TRAIN, ("lesion",), 0), torch.device("cpu"))
    net = FlowNet(FlowConfig(("lesion",), FAMILIES, (8, 8, 16), (1, 1, 1), (1, 1, 1), 16))
    net.strengths.copy_(measured_strengths(cutter, net, 64, 0))
    healthy, lesion = net.strengths[FAMILIES.index("ultrasound"), 1:, 0, 0].tolist()
    assert lesion > 2 * healthy
    crops = cutter.cut(32, 1000)
    seen = around(net, crops)
    band = seen.coarse(seen.added(crops.image))
    power = (seen.covered * band[:, :1] ** 2).sum((1, 2, 3)) / seen.covered.sum((1, 2, 3)).clamp(min=1e-3)
    for part in (power[:16], power[16:]):
        assert 0.4 < float(part.mean()) < 2.5


def test_too_large_images_and_odd_widths_are_refused(pack, tmp_path):
    row = Row(**{**_fields(pack.rows[0]), "input": 0, "mask": 0})
    large = Pack([np.zeros((400, 300), np.uint8)], [np.ones((400, 300), np.uint8)], [row], [], {})
    with pytest.raises(ConfigError, match="--longest 384"):
        flow_data([large], TRAIN, ("lesion",), 0)
    with pytest.raises(ConfigError, match="multiples of 8"):
        Flow(config(tmp_path, model={"widths": [8, 12, 16]}))


def test_goes_on_from_weights_by_the_names_of_families_and_lesions(pack, tmp_path):
    """The other file knows fewer families, and its lesions in another order."""
    torch.manual_seed(0)
    old = FlowNet(FlowConfig(("cyst", "lesion"), FAMILIES[1:3], (8, 8, 16)))
    with torch.no_grad():
        for value in old.parameters():
            value.uniform_(-1, 1)
        old.strengths.uniform_(0.1, 2)
    weights.save(tmp_path / "old", old.state_dict(), format=FORMAT, config=old.config.as_json())
    stored = weights.build(lambda: FlowNet(old.config), weights.load(tmp_path / "old", format=FORMAT), "old")
    net = FlowNet(FlowConfig(("lesion", "new"), FAMILIES, (8, 8, 16)))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    go_on_from(net, tmp_path / "old")
    assert torch.equal(net.stem.weight, stored.stem.weight)
    us = FAMILIES.index("ultrasound")
    assert torch.equal(net.family.weight[us], stored.family.weight[1])
    assert torch.equal(net.family.weight[0], before["family.weight"][0]), "a new family starts afresh"
    for new, at in ((0, 0), (1, 1), (2, 3)):  # none, healthy, lesion
        assert torch.equal(net.target.weight[new], stored.target.weight[at])
        assert torch.equal(net.strengths[us, new], stored.strengths[1, at])
    assert torch.equal(net.target.weight[3], before["target.weight"][3])
    with pytest.raises(ConfigError, match="another size"):
        go_on_from(FlowNet(FlowConfig(("lesion",), FAMILIES, (8, 16, 16))), tmp_path / "old")


def test_trains_and_the_expert_opens_the_file(pack, tmp_path):
    write_pack(tmp_path / "pack", pack)
    result = train(config(tmp_path / "pack"), tmp_path / "out", device="cpu")
    assert result.complete
    lines = [json.loads(line) for line in (tmp_path / "out/log.jsonl").read_text().splitlines()]
    losses = [line["loss"] for line in lines if line["event"] == "train"]
    assert losses[-1] < losses[0]
    (figures,) = (line["figures"] for line in lines if line["event"] == "validation")
    parts = [figures[f"{band}_{kind}"] for band in ("coarse", "fine") for kind in ("lesions", "healthy")]
    assert figures["score"] == pytest.approx(-sum(parts) / 4)
    expert = open_flow(str(tmp_path / "out/weights.safetensors"), {}, "ultrasound")
    assert expert.targets == ("lesion",)
    low, high = expert.extent("lesion")
    assert 0.05 < low <= high < 0.9, "as large as the lesions that it learnt from"
    image = np.repeat(pack.images[7][..., None], 3, 2)
    hole = ellipse(7).astype(bool)
    filled = expert.fill(image, hole, seed=0)
    assert (filled[~hole] == image[~hole]).all()
    assert (filled[hole] != image[hole]).any()
