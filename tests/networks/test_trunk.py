"""The trunk with folded batch norms is the network that it was folded from."""

import math

import pytest

torch = pytest.importorskip("torch", reason="the compact editor needs the extra `models`")
import torch.nn.functional as F  # noqa: E402

from mie.errors import MieError  # noqa: E402
from mie.networks.trunk import BACKBONES, SHORT_TAPS, TAPS, Trunk  # noqa: E402


class MobileNet:
    """MobileNetV2 (Sandler et al., 2018), table 2: (expansion, channels, repeats, stride, kernel)."""

    key, name = "mobilenetv2", "MobileNetV2"
    epsilon, mean, std = 1e-5, (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
    stages = (
        (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 32, 3, 2, 3), (6, 64, 4, 2, 3), (6, 96, 3, 1, 3),
        (6, 160, 3, 2, 3), (6, 320, 1, 1, 3),
    )  # fmt: skip
    stem = ("features.0.0", "features.0.1")
    head = ("features.18.0", "features.18.1")

    @staticmethod
    def names(block):
        """Convolution and norm of the expansion, of the filter, and of the projection."""
        places = ((None, None), (0, 1), (3, 4)) if block == 1 else ((0, 1), (3, 4), (6, 7))
        return [tuple(f"features.{block}.conv.{place}" for place in pair) for pair in places]

    @staticmethod
    def padding(size, kernel, stride):
        return kernel // 2, kernel // 2


class EfficientNet:
    """EfficientNet-B0 (Tan and Le, 2019), table 1, 1.1 times as wide and 1.2 times as deep.

    Channels are rounded to multiples of 8; the lite networks do not repeat the first and the last stage.
    """

    key, name = "efficientnet-lite2", "EfficientNet-Lite2"
    epsilon, mean, std = 1e-3, (127 / 255,) * 3, (128 / 255,) * 3
    stages = tuple(
        (expansion, 8 * round(1.1 * channels / 8), math.ceil(1.2 * repeats) if repeats > 1 else 1, *rest)
        for expansion, channels, repeats, *rest in (
            (1, 16, 1, 1, 3), (6, 24, 2, 2, 3), (6, 40, 2, 2, 5), (6, 80, 3, 2, 3), (6, 112, 3, 1, 5),
            (6, 192, 4, 2, 5), (6, 320, 1, 1, 3),
        )
    )  # fmt: skip
    stem = ("_conv_stem", "_bn0")
    head = ("_conv_head", "_bn1")

    @staticmethod
    def names(block):
        parts = ("_expand_conv", "_bn0"), ("_depthwise_conv", "_bn1"), ("_project_conv", "_bn2")
        return [tuple(f"_blocks.{block - 1}.{part}" for part in pair) for pair in parts]

    @staticmethod
    def padding(size, kernel, stride):
        """TensorFlow's 'SAME': as much as ceil(size / stride) steps need, the odd pixel behind."""
        missing = max((math.ceil(size / stride) - 1) * stride + kernel - size, 0)
        return missing // 2, missing - missing // 2


NETWORKS = pytest.mark.parametrize("network", [MobileNet, EfficientNet])


def blocks(network):
    """(number, channels in, channels out, expansion, stride, kernel) of each block."""
    width, at = 32, 0
    for expansion, channels, repeats, stride, kernel in network.stages:
        for repeat in range(repeats):
            at += 1
            yield at, width, channels, expansion, 1 if repeat else stride, kernel
            width = channels


def pretrained(network=MobileNet):
    """A state dict as the pretrained file has it, with norms that are far from the identity."""
    draw = torch.Generator().manual_seed(0)
    state = {}

    def layer(names, out, of, size):
        conv, norm = names
        spread = (2 / (of * size * size)) ** 0.5
        state[f"{conv}.weight"] = torch.randn(out, of, size, size, generator=draw) * spread
        state[f"{norm}.weight"] = torch.rand(out, generator=draw) + 0.5
        state[f"{norm}.bias"] = torch.randn(out, generator=draw) * 0.3
        state[f"{norm}.running_mean"] = torch.randn(out, generator=draw) * 0.3
        state[f"{norm}.running_var"] = torch.rand(out, generator=draw) + 0.3
        state[f"{norm}.num_batches_tracked"] = torch.tensor(7)

    layer(network.stem, 32, 3, 3)
    for at, width, out, expansion, _, kernel in blocks(network):
        expand, filter_, project = network.names(at)
        inner = width * expansion
        if expansion > 1:
            layer(expand, inner, width, 1)
        layer(filter_, inner, 1, kernel)
        layer(project, out, inner, 1)
    layer(network.head, 1280, out, 1)  # in the file, and not used
    return state


def unfolded(network, state, image):
    """Every block's output, by padding, convolution and batch norm one after the other."""

    def layer(x, names, stride=1, groups=1, relu=True):
        conv, norm = names
        weight = state[f"{conv}.weight"]
        rows, columns = (network.padding(size, weight.shape[2], stride) for size in x.shape[2:])
        x = F.conv2d(F.pad(x, (*columns, *rows)), weight, stride=stride, groups=groups)
        parts = (state[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        x = F.batch_norm(x, *parts, eps=network.epsilon)
        return x.clamp(0, 6) if relu else x

    mean, std = (torch.tensor(values)[:, None, None] for values in (network.mean, network.std))
    x = layer((image - mean) / std, network.stem, stride=2)
    found = {}
    for at, width, out, expansion, stride, _ in blocks(network):
        expand, filter_, project = network.names(at)
        y = layer(x, expand) if expansion > 1 else x
        y = layer(y, filter_, stride, groups=width * expansion)
        y = layer(y, project, relu=False)
        x = x + y if stride == 1 and width == out else y
        found[at] = x
    return found


@NETWORKS
@torch.no_grad()
def test_folded_norms_change_nothing(network):
    # In double precision: what differs is not rounding.
    backbone, state = BACKBONES[network.key], pretrained(network)
    trunk, state = Trunk(backbone=backbone).double(), {name: value.double() for name, value in state.items()}
    image = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(1)).double()
    before = trunk(image)
    trunk.load_pretrained(state)
    found = trunk(image)
    expected = [out for at, out in unfolded(network, state, image).items() if at in backbone.taps]
    assert [tuple(map_.shape) for map_ in found] == [
        (2, channels, 64 // stride, 96 // stride)
        for channels, stride in zip(backbone.taps.values(), (2, 4, 8, 16, 32), strict=True)
    ]
    for a, b, untrained in zip(found, expected, before, strict=True):
        scale = b.std()
        torch.testing.assert_close(a / scale, b / scale, rtol=0, atol=1e-6)
        assert ((a - untrained).abs() > 0.1 * scale).any()


@torch.no_grad()
def test_a_short_trunk_is_the_beginning_of_the_whole_one():
    state = pretrained()
    short, image = Trunk(SHORT_TAPS), torch.rand(1, 3, 64, 64, generator=torch.Generator().manual_seed(2))
    short.load_pretrained(state)
    whole = unfolded(MobileNet, state, image)
    for at, found in zip(SHORT_TAPS, short(image), strict=True):
        torch.testing.assert_close(found, whole[at], rtol=1e-3, atol=1e-3 * whole[at].std().item())
        assert found.shape[1] == SHORT_TAPS[at]
    assert len(short.features) == 11


@NETWORKS
def test_the_last_layer_of_each_stride_is_tapped(network):
    """Nothing at that stride comes later, except after the fifth, where the trunk ends."""
    stride, last = 2, {}
    for at, _, out, _, step, _ in blocks(network):
        stride *= step
        last[stride] = (at, out)
    assert list(BACKBONES[network.key].taps.items()) == list(last.values())


def test_a_trunk_is_a_mobilenet_unless_told():
    """Files of the time when there was no other say nothing of a backbone."""
    assert Trunk().backbone is BACKBONES["mobilenetv2"]
    assert Trunk().backbone.taps == TAPS
    names = [name for name in Trunk().state_dict() if name.startswith(("features.0.", "features.2."))]
    assert names == [
        f"features.{layer}.{part}"
        for layer in ("0.0", "2.conv.0", "2.conv.2", "2.conv.4")
        for part in ("weight", "bias")
    ]


@NETWORKS
def test_a_file_of_another_network_is_refused(network):
    whole = pretrained(network)
    conv, norm = network.names(9)[1]
    name, norm = f"{conv}.weight", f"{norm}.running_var"
    (other,) = {MobileNet, EfficientNet} - {network}
    for state, place in (
        ({key: value for key, value in whole.items() if key != name}, name),
        ({key: value for key, value in whole.items() if key != norm}, norm),
        (whole | {name: whole[name][:64]}, name),
        (whole | {name: whole[name][..., :1, :1]}, name),
        (pretrained(other), network.stem[0]),
    ):
        with pytest.raises(MieError, match=f"not the weights of {network.name}") as rejection:
            Trunk(backbone=BACKBONES[network.key]).load_pretrained(state)
        assert place in str(rejection.value)
