"""LPIPS against its formula worked in NumPy, with random weights that both share."""
# ruff: noqa: E402 - what needs PyTorch is imported after the question whether it is there

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="perceptual metrics need the extra `models`")

from mie.errors import ConfigError
from mie.scoring.metrics import MetricError
from mie.scoring.metrics.perceptual import Lpips, keep, load_lpips, scaled_again, signed, unit
from mie.scoring.metrics.perceptual.lpips import ALEX, TRUNKS, VGG, alexnet, vgg16
from tests.conftest import crop, ellipse

# The published layer lists: (channels, kernel, stride, padding), or (kernel, stride) of a maximum.
LAYERS = {
    "alex": [(64, 11, 4, 2), (3, 2), (192, 5, 1, 2), (3, 2), (384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1)],
    "vgg": [
        *[(64, 3, 1, 1)] * 2,
        (2, 2),
        *[(128, 3, 1, 1)] * 2,
        (2, 2),
        *[(256, 3, 1, 1)] * 3,
        (2, 2),
        *[(512, 3, 1, 1)] * 3,
        (2, 2),
        *[(512, 3, 1, 1)] * 3,
    ],
}
# After which convolutions LPIPS looks: the last of each block for VGG16, all of AlexNet's.
LOOKS = {"alex": {1, 2, 3, 4, 5}, "vgg": {2, 4, 7, 10, 13}}


def windows(x, kernel, stride):
    seen = np.lib.stride_tricks.sliding_window_view(x, (kernel, kernel), axis=(1, 2))
    return seen[:, ::stride, ::stride]


def activations(net, image, tensors):
    """Every tapped activation `(C, H, W)` in float64; `tensors`: (weight, bias) of each convolution."""
    x, out, number = image.transpose(2, 0, 1).astype(np.float64), [], 0
    for layer in LAYERS[net]:
        if len(layer) == 2:
            x = windows(x, *layer).max(axis=(3, 4))
            continue
        _, kernel, stride, padding = layer
        weight, bias = tensors[number]
        number += 1
        padded = np.pad(x, ((0, 0), (padding, padding), (padding, padding)))
        x = np.tensordot(weight, windows(padded, kernel, stride), ((1, 2, 3), (0, 3, 4)))
        x = np.maximum(x + bias[:, None, None], 0)
        if number in LOOKS[net]:
            out.append(x)
    return out


def by_hand(net, a, b, tensors, linear):
    scaled = [
        (image.astype(np.float64) - [-0.030, -0.088, -0.188]) / [0.458, 0.448, 0.450] for image in (a, b)
    ]
    total = 0.0
    both = (activations(net, image, tensors) for image in scaled)
    for first, second, weight in zip(*both, linear, strict=True):
        first, second = (u / (np.sqrt((u**2).sum(0)) + 1e-10) for u in (first, second))
        total += (weight[:, None, None] * (first - second) ** 2).sum(0).mean()
    return total


def random_weights(net):
    torch.manual_seed(3)
    layers = alexnet() if net == "alex" else vgg16()
    trunk = {f"features.{name}": tensor.clone() for name, tensor in layers.state_dict().items()}
    trunk["classifier.1.weight"] = torch.zeros(2, 2)  # a published file has a classifier too
    linear = {
        f"lin{at}.model.1.weight": torch.rand(1, count, 1, 1) for at, count in enumerate(TRUNKS[net].channels)
    }
    return trunk, linear


@pytest.fixture(scope="module", params=["alex", "vgg"])
def net(request):
    return request.param


@pytest.fixture(scope="module")
def weights(net):
    return random_weights(net)


@pytest.fixture(scope="module")
def lpips(net, weights):
    return Lpips(net, *weights, device="cpu")


def pair(number, height=48, width=41):
    image = crop(number, height, width)
    noise = np.random.default_rng(number).normal(0, 25, image.shape)
    return image, np.clip(image + noise, 0, 255).astype(np.uint8)


@pytest.mark.parametrize(
    "scale", [signed, unit, lambda i: scaled_again(keep(signed(i), ellipse(1, *i.shape[:2])))]
)
def test_the_formula(net, weights, lpips, scale):
    trunk, linear = weights
    pairs = zip(
        *[iter(t.numpy().astype(np.float64) for n, t in trunk.items() if "features" in n)] * 2, strict=True
    )
    a, b = (scale(image) for image in pair(0))
    expected = by_hand(net, a, b, list(pairs), [t.numpy().ravel() for t in linear.values()])
    assert expected > 1e-3
    assert lpips(a, b) == pytest.approx(expected, rel=2e-4)


def test_scales():
    image = np.array([[[0, 51, 255]]], np.uint8)
    np.testing.assert_allclose(signed(image).ravel(), [-1, -0.6, 1], atol=1e-6)
    np.testing.assert_allclose(unit(image).ravel(), [0, 0.2, 1], atol=1e-6)
    # Released by Omni IIE Bench: outside is 0 after the first scaling and -1 after the second.
    twice = scaled_again(keep(signed(np.concatenate([image, image])), np.array([[True], [False]])))
    np.testing.assert_allclose(twice[:, 0], [[-3, -2.2, 1], [-1, -1, -1]], atol=1e-6)


def test_equal_images_are_0_apart_and_the_order_does_not_matter(lpips):
    a, b = map(signed, pair(1))
    assert lpips(a, a) == 0
    assert lpips(a, b) == pytest.approx(lpips(b, a), rel=1e-5)
    assert lpips(a, b) > 0


def test_more_noise_is_further_away(lpips):
    image = crop(2, 64, 64)
    noise = np.random.default_rng(0).normal(0, 1, image.shape)
    outputs = [np.clip(image + noise * level, 0, 255).astype(np.uint8) for level in (5, 20, 60)]
    distances = [lpips(signed(image), signed(output)) for output in outputs]
    assert distances == sorted(distances)


def test_batches_of_mixed_sizes_come_back_in_order(lpips):
    sizes = [(48, 41), (48, 41), (35, 60), (48, 41)]
    pairs = [tuple(map(signed, pair(n, *size))) for n, size in enumerate(sizes)]
    together = list(lpips.distances(iter(pairs)))
    assert together == pytest.approx([lpips(*one) for one in pairs], rel=1e-5)
    assert list(lpips.distances([])) == []


def test_what_cannot_be_measured_says_why(net, lpips):
    small = np.zeros((TRUNKS[net].smallest - 1, 64, 3), np.float32)
    with pytest.raises(MetricError, match="too small for LPIPS"):
        lpips(small, small)
    fits = np.zeros((TRUNKS[net].smallest, 64, 3), np.float32)
    assert lpips(fits, fits) == 0
    with pytest.raises(MetricError, match="differ in size"):
        lpips(fits, fits[:, :50])
    with pytest.raises(MetricError, match="not scaled"):
        lpips(fits.astype(np.uint8), fits.astype(np.uint8))
    with pytest.raises(MetricError, match="8-bit RGB"):
        signed(np.zeros((4, 4), np.uint8))


def test_weights_of_another_network_are_refused(weights):
    _, linear = weights
    with pytest.raises(MetricError, match="another network"):
        Lpips("alex", {"features.0.weight": torch.zeros(1)}, linear)
    other = {name: tensor for name, tensor in linear.items() if "lin2" not in name}
    for net, layers in (("alex", alexnet()), ("vgg", vgg16())):
        state = {f"features.{n}": t for n, t in layers.state_dict().items()}
        with pytest.raises(MetricError, match="linear layers"):
            Lpips(net, state, other)


def test_loaded_from_files_with_their_digests(tmp_path):
    trunk, linear = random_weights("alex")
    torch.save(trunk, tmp_path / "trunk.pth")
    torch.save(linear, tmp_path / "linear.pth")
    loaded = load_lpips("alex", trunk=tmp_path / "trunk.pth", linear=tmp_path / "linear.pth", device="cpu")
    a, b = map(signed, pair(3))
    assert loaded(a, b) == Lpips("alex", trunk, linear, device="cpu")(a, b)
    about = loaded.about()
    assert [entry["file"] for entry in about["weights"]] == ["trunk.pth", "linear.pth"]
    assert all(len(entry["sha256"]) == 64 for entry in about["weights"])


def test_a_file_with_code_in_it_is_refused(tmp_path):
    class Runs:
        def __reduce__(self):
            return print, ("never",)

    torch.save({"features.0.weight": Runs()}, tmp_path / "trunk.pth")
    with pytest.raises(MetricError, match="not a file of weights"):
        load_lpips("alex", trunk=tmp_path / "trunk.pth", linear=tmp_path / "trunk.pth")
    torch.save([torch.zeros(1)], tmp_path / "list.pth")
    with pytest.raises(MetricError, match="not a file of weights"):
        load_lpips("alex", trunk=tmp_path / "list.pth", linear=tmp_path / "list.pth")


def test_without_weights_the_reason_names_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("MIE_WEIGHTS", str(tmp_path))
    with pytest.raises(MetricError) as caught:
        load_lpips("vgg")
    assert "mie weights get lpips-vgg" in caught.value.reason
    (tmp_path / "vgg16-397923af.pth").write_bytes(b"something else")
    with pytest.raises(MetricError, match="not the published weights"):
        load_lpips("vgg")
    with pytest.raises(ConfigError, match="squeeze"):
        load_lpips("squeeze")


def test_the_tables_agree_with_the_layers():
    for trunk, layers in ((ALEX, alexnet()), (VGG, vgg16())):
        for place, channels in zip(trunk.taps, trunk.channels, strict=True):
            assert isinstance(layers[place], torch.nn.ReLU)
            assert layers[place - 1].out_channels == channels
