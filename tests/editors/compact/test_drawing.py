"""Modifications by the flow expert: every attempt another one, and nothing beyond what was asked."""

from types import SimpleNamespace

import cv2
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the compact editor needs the extra `models`")
pytest.importorskip("transformers", reason="the compact editor needs the extra `models`")

from mie.editors import Request, open_editor  # noqa: E402
from mie.editors.compact import inference  # noqa: E402
from mie.editors.compact.compose import Composed  # noqa: E402
from mie.editors.compact.drawing import Drawn, _inner, drawer, family_in  # noqa: E402
from mie.editors.compact.holes import find_hole  # noqa: E402
from mie.editors.compact.understanding import question  # noqa: E402
from mie.errors import ConfigError  # noqa: E402
from mie.images.overlay import is_grey  # noqa: E402
from mie.networks.compact import Heads  # noqa: E402
from mie.perspectives.modification.inpainters import flow  # noqa: E402
from tests.conftest import shipped  # noqa: E402
from tests.editors.compact import tiny  # noqa: E402

ALL = frozenset({"addition", "removal", "inpainting", "simulation"})
ADD = "Add hard exudates in the upper left quadrant of the image."
REMOVE = "Remove the retinal haemorrhages from this fundus photograph."
FILL = "Fill the white area with healthy retina."
SIMULATE = "Draw hard exudates exactly where the retina is white."
SIZE = 224


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(flow, "STEPS", (1, 1))
    monkeypatch.setattr(inference, "TextEncoder", tiny.Words)


def retina():
    """Without exact white, which would be a hole."""
    return np.minimum(cv2.resize(shipped("retina.jpg"), (SIZE, SIZE), interpolation=cv2.INTER_AREA), 250)


def disc(row, column, radius=14):
    area = np.zeros((SIZE, SIZE), np.uint8)
    cv2.circle(area, (column, row), radius, 1, cv2.FILLED)
    return area.astype(bool)


def with_hole(image, row=120, column=90, radius=14):
    image = image.copy()
    image[disc(row, column, radius)] = 255
    return image


def drawn(image, instruction, area, seed=0, modality=None, kinds=ALL):
    asked = question(instruction, modality)._replace(modality=modality)
    hole = find_hole(image)
    composed = Composed(image, area | hole, 0.9, hole)
    return drawer(kinds)(Request(image, instruction, seed), asked, composed)


EVERY = [
    (ADD, retina(), disc(70, 70)),
    (REMOVE, retina(), disc(120, 100)),
    (FILL, with_hole(retina()), disc(120, 90)),
    (SIMULATE, with_hole(retina()), disc(120, 90)),
]
IDS = ["addition", "removal", "inpainting", "simulation"]


@pytest.mark.parametrize(("instruction", "image", "area"), EVERY, ids=IDS)
def test_attempts_differ_and_repeat_and_leave_the_rest_alone(instruction, image, area):
    before = image.copy()
    modality = "fundus"
    first, again, other = (drawn(image, instruction, area, seed, modality) for seed in (1, 1, 2))
    assert isinstance(first, Drawn)
    assert np.array_equal(first.image, again.image)
    assert np.array_equal(first.changed, again.changed)
    assert not np.array_equal(first.image, other.image)
    assert np.array_equal(image, before), "the request's image is not touched"
    for one in (first, other):
        assert np.array_equal(one.image[~one.changed], image[~one.changed])
        assert (one.image != image).any(2)[one.changed].mean() > 0.8
        assert one.meta["drawn"]["by"] == "flow"
    assert first.meta["drawn"]["lesion"] == ("hard exudates" if "exudates" in instruction else None)


@pytest.mark.parametrize(("instruction", "image", "area"), EVERY[2:], ids=IDS[2:])
def test_a_hole_is_filled_to_its_rim_and_not_beyond(instruction, image, area):
    result = drawn(image, instruction, area, modality="fundus")
    assert np.array_equal(result.changed, area)
    assert not (result.image[area] == 255).all(1).any()


def test_what_is_under_a_removed_lesion_does_not_shine_through():
    area = disc(120, 100)
    image, other = retina(), retina()
    other[area] = (10, 200, 10)
    first, second = (drawn(picture, REMOVE, area, modality="fundus") for picture in (image, other))
    assert np.array_equal(first.image[first.changed], second.image[first.changed])
    assert (first.changed & ~area).sum() > 0, "a rim around the area goes too"


@pytest.mark.parametrize(
    "instruction", ["Add a liver tumour in the centre.", "Fill the white area with a liver tumour."]
)
def test_grey_stays_grey(instruction):
    grey = np.repeat(retina()[..., 1:2], 3, 2)
    image = with_hole(grey) if "white" in instruction else grey
    result = drawn(image, instruction, disc(112, 112, 30) if image is grey else disc(120, 90))
    assert isinstance(result, Drawn)
    assert is_grey(result.image)
    assert (result.image != image).any()


@pytest.mark.parametrize(
    ("instruction", "modality", "word"),
    [
        (
            "Add a consolidation in the centre.",
            "CT",
            "has not learnt consolidation here, but bone metastases",
        ),
        ("Add a glioma in the centre.", "CT", "has not learnt glioma"),
        ("Add tumour glands in the centre.", "microscopy", "does not know microscopy"),
        ("Add cystoid fluid in the centre.", "OCT", "the modality must be known"),
        ("Fill the white area with healthy breast tissue.", None, "the modality must be known"),
        ("Fill the white area with healthy retina.", "fundus", "no white area was found"),
    ],
)
def test_what_the_expert_does_not_know_is_left_to_the_network_with_a_reason(instruction, modality, word):
    reason = drawn(retina(), instruction, disc(112, 112), modality=modality)
    assert isinstance(reason, str)
    assert reason.startswith("drawn by the network: ")
    assert word in reason


def test_healthy_tissue_of_a_grey_image_needs_no_modality():
    grey = np.repeat(retina()[..., 1:2], 3, 2)
    image, area = with_hole(grey), disc(120, 90)
    unknown = drawn(image, "Fill the white area with healthy brain tissue.", area)
    assert "drawn as in MRI: the modality was not given" in unknown.note
    assert is_grey(unknown.image)
    known = drawn(image, "Fill the white area with healthy brain tissue.", area, modality="MRI")
    assert np.array_equal(known.image, unknown.image)
    assert known.note is None
    refused = drawn(image, "Fill the white area with healthy retina.", area, modality="OCT")
    assert isinstance(refused, str), "a modality that is known is never taken for another"


def test_a_lesion_by_a_more_general_name_is_said():
    result = drawn(retina(), "Add a melanoma in the centre.", disc(112, 112), modality="dermoscopy")
    assert result.meta["drawn"]["lesion"] == "skin lesion"
    assert "drawn as skin lesion" in result.note


def test_kinds_that_are_left_to_the_network_need_no_reason():
    assert drawn(retina(), REMOVE, disc(112, 112), kinds=frozenset({"addition"})) == ""
    assert drawn(retina(), REMOVE, np.zeros((SIZE, SIZE), bool), modality="fundus") == ""


@pytest.mark.parametrize(
    ("instruction", "modality", "family"),
    [
        ("Remove the polyp.", None, "endoscopy"),
        ("Remove the polyp.", "CT", "ct"),
        ("Add a pancreatic tumour.", None, None),  # CT or MRI
        ("Fill the white area with healthy skin.", None, "dermoscopy"),
        ("Fill the white area with healthy tissue.", None, None),
    ],
)
def test_the_family_comes_from_the_words(instruction, modality, family):
    asked = question(instruction, modality)._replace(modality=modality)
    assert family_in(asked, np.repeat(retina()[..., :1], 3, 2), None) == family


class Gate(torch.nn.Module):
    """Takes everything for one perspective; its gate is open in a square, where it adds a tenth."""

    def __init__(self, perspective):
        super().__init__()
        self.config = tiny.CHANGE
        self.logits = 5.0 * (torch.arange(3) == tiny.PERSPECTIVES[perspective])

    def reader(self, tokens, mask):
        return SimpleNamespace(perspective=self.logits[None].float(), vector=torch.zeros(1, 4))

    def forward(self, image, tokens, mask, hole=None):
        change = torch.full_like(image[:, :1], -5)
        change[..., 90:130, 80:120] = 5
        logit = 20 * (image.mean(1) - 0.3)
        overlay = torch.stack([logit - 3, logit, logit - 3], 1)
        residual = torch.full_like(image, 0.1)
        return Heads(overlay, residual, self.logits[None], torch.tensor([3.0] * len(image)), change)


@pytest.fixture
def editor(monkeypatch, tmp_path):
    def make(perspective, spec=""):
        net = Gate(perspective)
        monkeypatch.setattr(inference, "load_network", lambda path: (net, {}))
        (tmp_path / "w").write_bytes(b"")
        return open_editor(f"compact:{tmp_path / 'w'},precision=fp32,device=cpu{spec}")

    return make


def test_the_editor_draws_by_the_seed_of_each_attempt(editor):
    requests = [Request(retina(), REMOVE, seed) for seed in (3, 4, 3)]
    first, other, again = editor("modification").edit_batch(requests)
    assert np.array_equal(first.image, again.image)
    assert first.meta == again.meta
    assert not np.array_equal(first.image, other.image)
    changed = (first.image != retina()).any(2)
    assert changed[95:125, 85:115].mean() > 0.8
    assert not changed[:80].any()
    assert first.meta["drawn"]["by"] == "flow"
    network = editor("modification", ",draw=network")
    one, two = network.edit_batch(requests[:2])
    assert np.array_equal(one.image, two.image), "the network has no chance"
    assert "drawn" not in one.meta
    square = np.rint(retina()[90:130, 80:120] + 25.5).clip(0, 255)
    assert np.array_equal(one.image[90:130, 80:120], square)


def test_a_reason_is_in_the_note_and_the_network_draws(editor):
    instruction = "Remove the cystoid fluid from this OCT image."
    plain, note = (
        editor("modification", spec).edit(retina(), instruction, seed=0, history=())
        for spec in (",draw=network", "")
    )
    assert np.array_equal(plain.image, note.image)
    assert "drawn by the network" in note.meta["note"]
    assert "note" not in plain.meta or "drawn" not in plain.meta["note"]


@pytest.mark.parametrize(
    ("perspective", "instruction"),
    [("perception", "Highlight the retinal vessels in GREEN"), ("transformation", "Remove the noise")],
)
def test_other_perspectives_are_the_same_whoever_draws(editor, perspective, instruction):
    edits = [
        editor(perspective, spec).edit(retina(), instruction, seed=seed, history=())
        for spec, seed in (("", 0), ("", 1), (",draw=flow", 0), (",draw=network", 0))
    ]
    assert (edits[0].image != retina()).any()
    for other in edits[1:]:
        assert np.array_equal(other.image, edits[0].image)
        assert other.meta == edits[0].meta


def test_a_run_records_who_drew(editor):
    assert editor("modification").about()["flow_sha256"] == flow.open_flow(None, {}, "ct").weights
    assert "flow_sha256" not in editor("modification", ",draw=network").about()


def test_many_small_holes_are_filled_and_each_shows_the_lesion():
    """A hole beside a much larger one is not found by its look alone: the gate opens on it."""
    image, area = retina(), disc(120, 90, 20) | disc(60, 120, 5) | disc(150, 140, 4)
    image[area] = 255
    image[185:190, 100:105] = 255  # a highlight where the gate stays shut
    result = drawn(image, SIMULATE, area, modality="fundus")
    assert np.array_equal(result.changed, area)
    inner = _inner(area, "fundus")
    for one in (disc(120, 90, 20), disc(60, 120, 5), disc(150, 140, 4)):
        assert 0.05 < inner[one].mean() < 0.9
    assert not (inner & ~area).any()


def test_an_unknown_way_to_draw_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="auto, flow or network"):
        open_editor("compact,draw=exemplar")
