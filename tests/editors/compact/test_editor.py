"""The editor: any size in, the same size out, and a word when it could not do what was asked."""

import subprocess
import sys
from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import cv2
import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the compact editor needs the extra `models`")
pytest.importorskip("transformers", reason="the compact editor needs the extra `models`")

from mie.editors import Edited, EditError, Request, open_editor  # noqa: E402
from mie.editors.base import SampleRef  # noqa: E402
from mie.editors.compact import inference  # noqa: E402
from mie.errors import ConfigError  # noqa: E402
from mie.images.overlay import deblend, dice  # noqa: E402
from mie.networks.compact import Heads  # noqa: E402
from tests.conftest import crop, shipped  # noqa: E402
from tests.editors.compact import tiny  # noqa: E402

ASK = "Highlight the retinal vessels in GREEN"


@pytest.fixture(autouse=True)
def words(monkeypatch):
    monkeypatch.setattr(inference, "TextEncoder", tiny.Words)


class Bright(torch.nn.Module):
    """Paints green what is brighter than one half, brightens by a tenth; remembers what it was shown."""

    def __init__(self, perspective, presence=3.0, sure=5.0):
        super().__init__()
        self.config = tiny.CONFIG
        self.logits = sure * (torch.arange(3) == tiny.PERSPECTIVES[perspective])
        self.chance = presence
        self.seen = []

    def reader(self, tokens, mask):
        return SimpleNamespace(perspective=self.logits[None].float(), vector=torch.zeros(1, 4))

    def forward(self, image, tokens, mask, hole=None):
        self.seen.append(tuple(image.shape))
        logit = 40 * (image.mean(1) - 0.5)
        overlay = torch.stack([logit - 3, logit, -logit.abs() - 9], 1)
        presence = torch.full((len(image),), self.chance)
        return Heads(overlay, torch.full_like(image, 0.1), self.logits[None], presence)


@pytest.fixture
def bright(monkeypatch, tmp_path):
    """An editor around `Bright`."""

    def make(perspective, spec="", **options):
        net = Bright(perspective, **options)
        monkeypatch.setattr(inference, "load_network", lambda path: (net, {}))
        (tmp_path / "w").write_bytes(b"")
        return open_editor(f"compact:{tmp_path / 'w'},precision=fp32,device=cpu{spec}"), net

    return make


def disc(height, width):
    """A bright disc with a thin bright line through the image, on dark."""
    canvas = np.full((height, width), 40, np.uint8)
    cv2.circle(canvas, (width // 3, height // 2), height // 5, 210, -1)
    cv2.line(canvas, (0, height // 4), (width, height // 3), 210, max(2, width // 256))
    return np.repeat(canvas[..., None], 3, 2)


@pytest.mark.parametrize(
    ("size", "shapes"),
    [
        ((120, 200), [(160, 256)]),
        ((300, 300), [(256, 256)]),
        ((400, 300), [(256, 192), (512, 384)]),
        ((900, 1300), [(192, 256), (384, 512)]),
    ],
)
def test_an_overlay_at_any_size(bright, size, shapes):
    editor, net = bright("perception")
    image = disc(*size)
    edited = editor.edit(image, ASK, seed=0, history=())
    assert [shape[2:] for shape in net.seen] == shapes
    assert edited.image.shape == image.shape
    painted = deblend(image, edited.image, "green")
    assert dice(painted, image[..., 0] > 128) > 0.97
    assert np.array_equal(edited.image[~painted], image[~painted])
    assert edited.meta["perspective"] == "perception"
    assert edited.meta["painted"] == pytest.approx(painted.mean(), abs=1e-5)
    assert "note" not in edited.meta
    understood = float(torch.tensor([5.0, 0, 0]).softmax(0)[0])
    presence = float(torch.tensor(3.0).sigmoid())
    # Most painted pixels are fully decided; those at the rim are not.
    assert 0.9 * understood * presence < edited.meta["confidence"] < understood * presence


def test_a_size_can_be_forced(bright):
    editor, net = bright("perception", ",size=320")
    editor.edit(disc(400, 300), ASK, seed=0, history=())
    assert [shape[2:] for shape in net.seen] == [(320, 256)]


def test_thin_structures_survive_the_way_through_a_small_view(bright):
    editor, _ = bright("perception")
    image = np.full((1024, 1024, 3), 60, np.uint8)
    for at in range(100, 1000, 100):
        cv2.line(image, (at, 0), (at - 50, 1023), (255, 255, 255), 6)
    edited = editor.edit(image, ASK, seed=0, history=())
    assert dice(deblend(image, edited.image, "green"), image[..., 0] > 128) > 0.85


@pytest.mark.parametrize("size", [(90, 130), (512, 300), (1000, 1440)])
def test_a_transformation_adds_its_residual_at_full_resolution(bright, size):
    editor, net = bright("transformation")
    image = cv2.resize(shipped("retina.jpg"), size[::-1], interpolation=cv2.INTER_AREA)
    edited = editor.edit(image, "Remove the noise", seed=0, history=())
    expected = np.clip(np.rint(image + 25.5), 0, 255)
    assert np.abs(edited.image - expected).max() <= 1
    inner = max(size) if max(size) <= 512 else 1018
    assert max(net.seen[0][2:]) == -(-inner // 32) * 32
    assert edited.meta["changed"] > 0.9
    assert ("small for this network" in edited.meta.get("note", "")) == (max(size) < 256)


def test_super_resolution_keeps_what_a_coarse_image_measured(bright):
    kspace = np.fft.fftshift(np.fft.fft2(crop(1, 128, 128)[..., 0].astype(float)))
    kspace[:33] = kspace[96:] = kspace[:, :33] = kspace[:, 96:] = 0  # of 128 lines the 63 around zero stay
    coarse = np.clip(np.rint(np.fft.ifft2(np.fft.ifftshift(kspace)).real), 0, 255).astype(np.uint8)
    coarse = np.repeat(coarse[..., None], 3, 2)
    editor, _ = bright("transformation")
    finer, other = (
        editor.edit(coarse, words, seed=0, history=())
        for words in ("Apply super-resolution.", "Remove the noise from this MRI.")
    )
    brighter = np.clip(np.rint(coarse + 25.5), 0, 255)
    assert "factor" not in other.meta
    assert np.abs(other.image - brighter).max() <= 1
    assert finer.meta["factor"] == 2
    assert np.abs(finer.image.mean() - coarse.mean()) < 0.5  # the mean is measured: it may not brighten


@pytest.mark.parametrize(
    ("words", "size", "seen"),
    [
        ("Remove the sparse-view streaks from this CT.", (101, 122), (224, 256)),
        ("Remove the sparse-view streaks from this CT.", (200, 256), (224, 256)),
        ("Remove the sparse-view streaks from this CT.", (300, 380), (320, 384)),
        ("Remove the noise from this low-dose CT.", (101, 122), (128, 128)),
    ],
)
def test_a_small_ct_is_enlarged_before_streaks_are_removed(bright, words, size, seen):
    editor, net = bright("transformation")
    image = cv2.resize(shipped("retina.jpg"), size[::-1], interpolation=cv2.INTER_AREA)
    edited = editor.edit(image, words, seed=0, history=())
    assert net.seen == [(1, 3, *seen)]
    assert np.abs(edited.image - np.clip(np.rint(image + 25.5), 0, 255)).max() <= 1


def test_what_is_not_understood_changes_nothing(bright):
    editor, net = bright("perception", sure=0.5)
    image = crop(0)
    edited = editor.edit(image, "Make me a sandwich", seed=0, history=())
    assert np.array_equal(edited.image, image)
    assert net.seen == []
    assert edited.meta["confidence"] == 0
    assert "nothing that can be done to an image is asked for" in edited.meta["note"]


def test_a_refusal_needs_no_network_and_no_sample_is_looked_at():
    editor = open_editor("compact")
    sample = SampleRef("0" * 16, "0" * 16)
    for asked in (Request(disc(64, 64), "Is this malignant?"), Request(disc(64, 64), "hello", sample=sample)):
        (edited,) = editor.edit_batch([asked])
        assert np.array_equal(edited.image, asked.image)
        assert edited.meta["parse"]["operation"] == "none"
    assert "_inference" not in vars(editor)


def test_a_general_word_is_looked_for_in_every_kind(bright):
    editor, net = bright("perception")
    editor.__dict__["_trained"] = frozenset(("kidney tumour", "lung tumour"))
    words = "Where is the tumour? Show it in green."
    editor.edit(disc(128, 128), words, seed=0, history=())
    assert len(net.seen) == 1, "without a modality the general word itself is asked for"
    editor._modality = "CT"
    edited = editor.edit(disc(128, 128), words, seed=0, history=())
    assert len(net.seen) == 4
    assert edited.meta["painted"] > 0
    assert edited.meta["asked"] == "Highlight the kidney tumour in green."
    assert edited.meta["trained"] == {"kidney tumour": True}
    assert edited.meta["parse"]["targets"][0]["name"] == "kidney tumour"
    assert "seen about as well: lung tumour" in edited.meta["note"]
    absent, net = bright("perception", presence=-2.0)
    absent.__dict__["_trained"] = frozenset(("kidney tumour", "lung tumour"))
    absent._modality = "CT"
    edited = absent.edit(disc(128, 128), "Where is the tumour?", seed=0, history=())
    assert np.array_equal(edited.image, disc(128, 128))
    assert "no tumour was found in this image; presence: kidney tumour 0.12" in edited.meta["note"]


def test_absent_and_nothing_found_are_said(bright):
    editor, _ = bright("perception", presence=-0.2)
    edited = editor.edit(disc(128, 128), ASK, seed=0, history=())
    assert edited.meta["note"] == "what is asked for may not be in this image"
    assert edited.meta["confidence"] < 0.46
    assert edited.meta["painted"] > 0
    sure, _ = bright("perception", presence=-0.5)
    edited = sure.edit(disc(128, 128), ASK, seed=0, history=())
    assert np.array_equal(edited.image, disc(128, 128))
    assert (edited.meta["painted"], edited.meta["confidence"]) == (0, 0)
    assert edited.meta["note"] == "no retinal vessels was found in this image; presence 0.38"
    dark = np.zeros((64, 64, 3), np.uint8)
    edited = editor.edit(dark, ASK, seed=0, history=())
    assert np.array_equal(edited.image, dark)
    assert (edited.meta["painted"], edited.meta["confidence"]) == (0, 0)
    assert "nothing was found" in edited.meta["note"]


@pytest.mark.parametrize("restoration", [(), (8, 8, 8, 8)], ids=["alone", "restoration"])
@pytest.mark.parametrize("perspective", ["perception", "modification", "transformation"])
def test_a_network_from_a_file_alone_and_in_a_batch(tmp_path, perspective, restoration):
    config = replace(tiny.CONFIG, restoration=restoration)
    path = tiny.weights(tmp_path / "w.safetensors", perspective, config=config)
    grey = np.repeat(crop(3)[..., :1], 3, 2)
    images = [crop(0), crop(1, 100, 220), grey, crop(2)]
    requests = [Request(image, f"{ASK} {n}") for n, image in enumerate(images)]
    together = open_editor(f"compact:{path},words=raw").edit_batch(requests)
    editor = open_editor(f"compact:{path},words=raw")
    for request, outcome in zip(reversed(requests), reversed(together), strict=True):
        assert isinstance(outcome, Edited)
        assert outcome.meta["perspective"] == perspective
        assert outcome.image.shape == request.image.shape
        alone = editor.edit(request.image, request.instruction, seed=9, history=())
        assert np.array_equal(alone.image, outcome.image)
        assert alone.meta == outcome.meta
    if perspective != "perception":
        assert (together[2].image == together[2].image[..., :1]).all()
        assert any((o.image != i).any() for o, i in zip(together, images, strict=True))
    assert editor.about()["weights_sha256"] == open_editor(f"compact:{path}").about()["weights_sha256"]


def test_precisions_agree(tmp_path):
    path = tiny.weights(tmp_path / "w.safetensors", "transformation")
    whole, half = (
        open_editor(f"compact:{path},words=raw,precision={p}")
        .edit(crop(0), "Remove noise", seed=0, history=())
        .image
        for p in ("fp32", "bf16")
    )
    assert np.abs(whole.astype(int) - half).mean() < 1
    assert np.abs(whole.astype(int) - crop(0)).mean() > 5


@pytest.mark.parametrize("perspective", ["perception", "modification", "transformation"])
def test_a_network_with_a_gate(tmp_path, perspective):
    path = tiny.weights(tmp_path / "w.safetensors", perspective, config=tiny.CHANGE)
    image = np.minimum(crop(1, 100, 150), 250)
    image[30:60, 40:90] = 255
    edited = open_editor(f"compact:{path},words=raw,precision=fp32").edit(
        image, "Fill the hole", seed=0, history=()
    )
    assert edited.meta["perspective"] == perspective
    assert edited.image.shape == image.shape
    assert 0 <= edited.meta["confidence"] <= 1


def test_the_network_is_told_of_the_hole_only_when_something_is_to_be_modified(tmp_path, monkeypatch):
    image = np.minimum(crop(1, 96, 128), 250)
    image[30:60, 40:90] = 255
    told = {}
    for perspective in tiny.PERSPECTIVES:
        net = tiny.network(perspective, config=tiny.CHANGE)
        forward = net.forward
        net.forward = lambda *given, p=perspective, f=forward: told.update({p: given[3]}) or f(*given)
        monkeypatch.setattr(inference, "load_network", lambda path, n=net: (n, {}))
        (tmp_path / "w").write_bytes(b"")
        editor = open_editor(f"compact:{tmp_path / 'w'},words=raw,size=128,precision=fp32,device=cpu")
        editor.edit(image, "Fill the hole", seed=0, history=())
    assert told["modification"][0, 0, 30:60, 40:90].all()
    assert told["modification"].sum() == 30 * 50
    assert not told["perception"].any()
    assert not told["transformation"].any()


class Counted:
    """Calls of a network's two ways, by name."""

    def __init__(self, net, monkeypatch):
        self.calls = []
        for name in ("forward", "restore"):
            monkeypatch.setattr(net, name, self._counting(name, getattr(net, name)))

    def _counting(self, name, work):
        return lambda *given: self.calls.append((name, len(given[0]))) or work(*given)


@pytest.mark.parametrize("perspective", ["perception", "modification", "transformation"])
@pytest.mark.parametrize("tta", ["none", "flip"])
def test_only_one_of_two_networks_runs(tmp_path, monkeypatch, perspective, tta):
    net = tiny.network(perspective, config=tiny.RESTORATION)
    counted = Counted(net, monkeypatch)
    monkeypatch.setattr(inference, "load_network", lambda path: (net, {}))
    (tmp_path / "w").write_bytes(b"")
    editor = open_editor(f"compact:{tmp_path / 'w'},words=raw,precision=fp32,device=cpu,tta={tta}")
    image = crop(0, 96, 128)
    edited = editor.edit(image, "Do it", seed=0, history=())
    times = 2 if tta == "flip" and perspective != "modification" else 1
    restores = perspective == "transformation"
    assert counted.calls == [("restore" if restores else "forward", 1)] * times
    assert ("presence" in edited.meta) == (not restores)
    assert 0 <= edited.meta["confidence"] <= 1
    if restores and tta == "none":
        tokens, mask = tiny.Words().encode(["Do it"])
        given = torch.from_numpy(image).permute(2, 0, 1)[None] / 255
        with torch.no_grad():
            added = 255 * net.restore(given, tokens.float(), mask)[0].permute(1, 2, 0).numpy()
        assert np.abs(edited.image - np.clip(image + added, 0, 255)).max() <= 0.51
        assert np.abs(edited.image - image.astype(float)).mean() > 1


def test_a_batch_of_both_kinds_is_shared_out_and_comes_back_in_order(monkeypatch):
    """As on a GPU, where rows of one size go together."""
    net = tiny.network(config=tiny.RESTORATION)
    kinds = ["perception", "transformation", "modification", "transformation"]
    working = inference.Inference(net, tiny.Words(), torch.device("cpu"), half=False)
    asked = [working.interpret(f"Do {n}")._replace(perspective=kind) for n, kind in enumerate(kinds)]
    images = [crop(n, 64, 64) for n in range(4)]
    alone = working.run(images, asked)
    counted = Counted(net, monkeypatch)
    monkeypatch.setattr(working, "device", SimpleNamespace(type="gpu"))
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())
    monkeypatch.setattr(torch.Tensor, "to", lambda self, *_: self)
    together = working.run(images, asked)
    assert counted.calls == [("forward", 2), ("restore", 2)]
    for kind, one, other in zip(kinds, alone, together, strict=True):
        assert np.allclose(one.residual, other.residual, atol=1e-4)
        assert (other.presence is None) == (kind == "transformation")


def test_mirrored_views_are_averaged_but_not_where_a_side_is_asked_for(tmp_path):
    path = tiny.weights(tmp_path / "w.safetensors", "transformation")
    plain, flip = (open_editor(f"compact:{path},words=raw,precision=fp32,tta={t}") for t in ("none", "flip"))
    image = crop(0, 64, 96)

    def made(editor, picture, instruction):
        return editor.edit(picture, instruction, seed=0, history=()).image

    once, mean = made(plain, image, "Remove noise"), made(flip, image, "Remove noise")
    mirrored = made(plain, image[:, ::-1].copy(), "Remove noise")[:, ::-1]
    assert not np.array_equal(once, mean)
    inside = ((once > 0) & (once < 255) & (mirrored > 0) & (mirrored < 255)).all(2)
    expected = (once.astype(float) + mirrored) / 2
    assert np.abs(mean - expected)[inside].max() <= 1
    assert np.array_equal(made(plain, image, "The LEFT lung"), made(flip, image, "The LEFT lung"))


def test_one_bad_request_does_not_spoil_the_batch(bright, monkeypatch):
    editor, _ = bright("perception", ",words=raw")
    read = inference.Inference._interpret

    def fussy(self, instruction):
        if "bad" in instruction:
            raise RuntimeError("no such luck")
        return read(self, instruction)

    monkeypatch.setattr(inference.Inference, "_interpret", fussy)
    outcomes = editor.edit_batch([Request(disc(64, 64), word) for word in ("good", "bad", "good")])
    assert [type(o) for o in outcomes] == [Edited, EditError, Edited]


@pytest.mark.parametrize(
    ("spec", "word"),
    [
        ("compact:nowhere.safetensors", "no such weights file"),
        ("compact:nowhere.safetensors,size=7", "no size to work at"),
        ("compact:nowhere.safetensors,precision=fp8", "no such precision"),
        ("compact:nowhere.safetensors,tta=rotate", "no such test-time averaging"),
    ],
)
def test_what_makes_no_sense_is_refused_at_once(spec, word):
    with pytest.raises(ConfigError, match=word):
        open_editor(spec)


def test_a_missing_gpu_is_said(tmp_path):
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    path = tiny.weights(tmp_path / "w")
    with pytest.raises(ConfigError, match="no GPU"):
        open_editor(f"compact:{path},device=cuda").edit(crop(0), ASK, seed=0, history=())


def test_opening_it_does_not_import_torch(tmp_path):
    path = tiny.weights(tmp_path / "w")
    code = f"import sys; from mie.editors import open_editor; open_editor('compact:{path}'); "
    subprocess.run([sys.executable, "-c", code + "sys.exit('torch' in sys.modules)"], check=True)
