"""The trunk with folded batch norms is the MobileNetV2 that it was folded from."""

import pytest

torch = pytest.importorskip("torch", reason="the compact editor needs the extra `models`")
import torch.nn.functional as F  # noqa: E402, N812

from mie.errors import MieError  # noqa: E402
from mie.networks.trunk import SHORT_TAPS, TAPS, Trunk  # noqa: E402

# MobileNetV2 (Sandler et al., 2018), table 2, written out: (channels in, channels out, expansion, stride).
BLOCKS = [
    (32, 16, 1, 1),
    (16, 24, 6, 2), (24, 24, 6, 1),
    (24, 32, 6, 2), (32, 32, 6, 1), (32, 32, 6, 1),
    (32, 64, 6, 2), (64, 64, 6, 1), (64, 64, 6, 1), (64, 64, 6, 1),
    (64, 96, 6, 1), (96, 96, 6, 1), (96, 96, 6, 1),
    (96, 160, 6, 2), (160, 160, 6, 1), (160, 160, 6, 1),
    (160, 320, 6, 1),
]  # fmt: skip


def pretrained():
    """A state dict as the pretrained file has it, with norms that are far from the identity."""
    draw = torch.Generator().manual_seed(0)
    state = {}

    def layer(conv, norm, out, of, size):
        spread = (2 / (of * size * size)) ** 0.5
        state[f"{conv}.weight"] = torch.randn(out, of, size, size, generator=draw) * spread
        state[f"{norm}.weight"] = torch.rand(out, generator=draw) + 0.5
        state[f"{norm}.bias"] = torch.randn(out, generator=draw) * 0.3
        state[f"{norm}.running_mean"] = torch.randn(out, generator=draw) * 0.3
        state[f"{norm}.running_var"] = torch.rand(out, generator=draw) + 0.3
        state[f"{norm}.num_batches_tracked"] = torch.tensor(7)

    layer("features.0.0", "features.0.1", 32, 3, 3)
    for at, (width, out, expansion, _) in enumerate(BLOCKS, start=1):
        name, inner, k = f"features.{at}.conv", width * expansion, 0
        if expansion > 1:
            layer(f"{name}.0", f"{name}.1", inner, width, 1)
            k = 3
        layer(f"{name}.{k}", f"{name}.{k + 1}", inner, 1, 3)
        layer(f"{name}.{k + 3}", f"{name}.{k + 4}", out, inner, 1)
    layer("features.18.0", "features.18.1", 1280, 320, 1)  # in the file, and not used
    return state


def unfolded(state, image):
    """Every block's output, by convolution and batch norm one after the other."""

    def layer(x, conv, norm, stride=1, groups=1, relu=True):
        weight = state[f"{conv}.weight"]
        x = F.conv2d(x, weight, stride=stride, padding=weight.shape[2] // 2, groups=groups)
        x = F.batch_norm(
            x, *(state[f"{norm}.{part}"] for part in ("running_mean", "running_var", "weight", "bias"))
        )
        return x.clamp(0, 6) if relu else x

    mean, std = (torch.tensor(v)[:, None, None] for v in ([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]))
    x = layer((image - mean) / std, "features.0.0", "features.0.1", stride=2)
    found = {}
    for at, (width, out, expansion, stride) in enumerate(BLOCKS, start=1):
        name, y, k = f"features.{at}.conv", x, 0
        if expansion > 1:
            y, k = layer(y, f"{name}.0", f"{name}.1"), 3
        y = layer(y, f"{name}.{k}", f"{name}.{k + 1}", stride, groups=width * expansion)
        y = layer(y, f"{name}.{k + 3}", f"{name}.{k + 4}", relu=False)
        x = x + y if stride == 1 and width == out else y
        found[at] = x
    return found


@torch.no_grad()
def test_folded_norms_change_nothing():
    # In double precision: what differs is not rounding.
    trunk, state = Trunk().double(), {name: value.double() for name, value in pretrained().items()}
    image = torch.rand(2, 3, 64, 96, generator=torch.Generator().manual_seed(1)).double()
    before = trunk(image)
    trunk.load_pretrained(state)
    found = trunk(image)
    expected = [out for at, out in unfolded(state, image).items() if at in TAPS]
    assert [tuple(map_.shape) for map_ in found] == [
        (2, channels, 64 // stride, 96 // stride)
        for channels, stride in zip(TAPS.values(), (2, 4, 8, 16, 32), strict=True)
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
    whole = unfolded(state, image)
    for at, found in zip(SHORT_TAPS, short(image), strict=True):
        torch.testing.assert_close(found, whole[at], rtol=1e-3, atol=1e-3 * whole[at].std().item())
        assert found.shape[1] == SHORT_TAPS[at]
    assert len(short.features) == 11


def test_the_last_layer_of_each_stride_is_tapped():
    """Nothing at that stride comes later, except after the fifth, where the trunk ends."""
    stride, last = 2, {}
    for at, (_, out, _, step) in enumerate(BLOCKS, start=1):
        stride *= step
        last[stride] = (at, out)
    assert list(TAPS.items()) == list(last.values())


def test_a_file_of_another_network_is_refused():
    whole = pretrained()
    name = "features.9.conv.3.weight"
    missing = {key: value for key, value in whole.items() if key != name}
    for state in (missing, whole | {name: whole[name][:64]}, whole | {name: whole[name][..., :1, :1]}):
        with pytest.raises(MieError, match=r"MobileNetV2[\s\S]*features\.9\.conv\.3\.weight"):
            Trunk().load_pretrained(state)
