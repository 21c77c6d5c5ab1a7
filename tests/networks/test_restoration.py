"""The restoration network: what may move it, that it learns, and that no feature swells or fades."""

import math
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="the compact editor needs the extra `models`")

from mie.networks.compact import CompactNet, NetConfig  # noqa: E402
from mie.networks.compact_layers import RestorationNet  # noqa: E402
from tests.conftest import crop  # noqa: E402
from tests.editors.compact import tiny  # noqa: E402
from tests.networks.test_compact import given  # noqa: E402

TEXT = 16


def said(rows=2):
    """A vector, tokens and a mask, of another instruction in each row."""
    draw = torch.Generator().manual_seed(0)
    mask = torch.arange(6).expand(rows, 6) < 4
    return torch.randn(rows, TEXT, generator=draw), torch.randn(rows, 6, TEXT, generator=draw), mask


def pictures(rows, height, width):
    return (
        torch.stack([torch.from_numpy(crop(n, height, width)) for n in range(rows)]).permute(0, 3, 1, 2) / 255
    )


def alive(widths=(8, 8, 16, 16), seed=0):
    torch.manual_seed(seed)
    net = RestorationNet(widths, TEXT, 2)
    with torch.no_grad():
        for value in net.parameters():
            value.add_(0.05 * torch.randn_like(value))
    return net.eval()


@pytest.mark.parametrize("size", [(32, 32), (96, 160), (32, 224)])
@torch.no_grad()
def test_a_residual_of_the_size_of_the_image_and_nothing_at_first(size):
    assert not RestorationNet((8, 8, 16, 16), TEXT, 2)(pictures(2, *size), *said()).any()
    made = alive()(pictures(2, *size), *said())
    assert made.shape == (2, 3, *size)
    assert torch.isfinite(made).all()
    assert made.std() > 0


@torch.no_grad()
def test_the_text_matters_and_neighbours_and_padding_do_not():
    net, image = alive(), pictures(2, 64, 64)
    vector, tokens, mask = said()
    made = net(image, vector, tokens, mask)
    torch.testing.assert_close(
        net(image[:1], vector[:1], tokens[:1], mask[:1]), made[:1], rtol=1e-4, atol=1e-5
    )
    assert (net(image, vector.flip(0), tokens, mask) - made).abs().max() > 1e-4
    assert (net(image, vector, tokens.flip(0), mask) - made).abs().max() > 1e-5
    padded = torch.where(mask[..., None], tokens, 1e3)
    torch.testing.assert_close(net(image, vector, padded, mask), made, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_field_multiplies_the_image():
    net, image = RestorationNet((8, 8, 16, 16), TEXT, 2), pictures(2, 64, 96)
    net.field.bias.fill_(math.log(1.5))
    torch.testing.assert_close(net(image, *said()), 0.5 * image)
    # One that changes does so slowly: it is drawn at every sixteenth pixel.
    net.field.weight.normal_(std=0.3, generator=torch.Generator().manual_seed(0))
    gain = 1 + net(image, *said()) / image.clamp(min=1e-3)
    steps = gain.diff(dim=3)[image[..., 1:].minimum(image[..., :-1]) > 0.1].abs()
    assert gain.std() > 0.05
    assert steps.max() < gain.amax() / 8


@torch.no_grad()
def test_the_other_end_of_the_image_is_seen():
    """Ghosts come from there, further than convolutions at these strides reach."""
    net, image = alive(), pictures(1, 32, 512)
    other = image.clone()
    other[..., -16:] = 1 - other[..., -16:]
    far = (net(other, *said(1)) - net(image, *said(1)))[..., :16]
    assert far.abs().max() > 1e-6


@pytest.mark.parametrize("half", [False, True])
@torch.no_grad()
def test_features_neither_swell_nor_fade_through_the_depth(half):
    torch.manual_seed(0)
    net = RestorationNet((16, 24, 32, 48), TEXT, 2)
    deviations = []
    for part in (net.stem, *net.down, *net.up, net.look, *(block for some in net.decode for block in some)):
        part.register_forward_hook(lambda _, __, made: deviations.append(float(made.float().std())))
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        net(pictures(2, 128, 128), *said())
    assert len(deviations) == 14
    assert min(deviations) > 0.3
    assert max(deviations) < 5


@torch.no_grad()
def test_half_precision_differs_by_its_rounding():
    net, image = alive(), pictures(2, 64, 64)
    whole = net(image, *said())
    with torch.autocast("cpu", torch.bfloat16):
        half = net(image, *said()).float()
    assert (half - whole).square().mean().sqrt() < 0.02 * whole.square().mean().sqrt()


def test_it_learns_two_things_by_their_text():
    """One text darkens, another brightens the same picture: after a few steps each does its own."""
    torch.manual_seed(0)
    net, image = RestorationNet((8, 8, 16, 16), TEXT, 2), pictures(1, 32, 32).expand(2, -1, -1, -1)
    vector, tokens, mask = said()
    wanted = image * torch.tensor([0.5, 1.5])[:, None, None, None]
    descent = torch.optim.AdamW(net.parameters(), lr=3e-3)
    first = ((image - wanted) ** 2).mean((1, 2, 3))
    for _ in range(60):
        descent.zero_grad()
        made = image + net(image, vector, tokens, mask)
        ((made - wanted) ** 2).mean().backward()
        descent.step()
    with torch.no_grad():
        made = image + net(image, vector, tokens, mask)
        assert (((made - wanted) ** 2).mean((1, 2, 3)) < 0.1 * first).all()
        swapped = image + net(image, vector.flip(0), tokens.flip(0), mask)
        assert (((swapped - wanted) ** 2).mean((1, 2, 3)) > 2 * first).all()


def test_every_parameter_learns():
    torch.manual_seed(0)
    net = CompactNet(tiny.RESTORATION)
    for _ in range(3):  # its last map and the text's begin at zero and hide what lies behind them for a step
        net.zero_grad()
        made = net.restore(*given(64, 64))
        (made * torch.randn_like(made)).sum().backward()
        with torch.no_grad():
            for p in net.restoration.parameters():
                p -= 1e-3 * p.grad.sign()
    assert not [name for name, p in net.restoration.named_parameters() if not p.grad.any()]
    assert net.reader.asked.grad.any()
    assert all(
        p.grad is None for name, p in net.named_parameters() if not name.startswith(("mender.", "reader."))
    )


@torch.no_grad()
def test_both_networks_in_one_pass_give_what_each_gives_alone():
    net = tiny.network(config=tiny.RESTORATION)
    image, tokens, mask = given(64, 96)
    heads = net(image, tokens, mask, restore=(image.flip(0), tokens.flip(0), mask.flip(0)))
    alone = net(image, tokens, mask)
    for name, head in alone.known().items():
        found = getattr(heads, name)
        torch.testing.assert_close(found[:2], head, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(heads.perspective[2:], alone.perspective.flip(0), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(heads.restored.flip(0), net.restore(image, tokens, mask), rtol=1e-4, atol=1e-5)
    only = net(image[:0], tokens[:0], mask[:0], restore=(image, tokens, mask))
    torch.testing.assert_close(only.restored, heads.restored.flip(0), rtol=1e-4, atol=1e-5)
    assert only.overlay.shape == (0, 3, 64, 96)
    assert only.presence.shape == (0,)
    assert only.perspective.shape == (2, 3)


def test_a_restoration_network_changes_nothing_of_the_network_beside_it():
    """The same seed, the same first weights; and what an older file holds is all there is without one."""
    nets = []
    for config in (tiny.CHANGE, tiny.RESTORATION):
        torch.manual_seed(0)
        nets.append(CompactNet(config))
    plain, restoring = (net.state_dict() for net in nets)
    assert {name for name in restoring if name not in plain} == {
        n for n in restoring if n.startswith("mender.")
    }
    assert all(torch.equal(restoring[name], value) for name, value in plain.items())


def test_the_shape_of_the_example_is_small_enough():
    from torch.utils.flop_counter import FlopCounterMode

    with torch.device("meta"):
        config = NetConfig(change=True, local=True, backbone="efficientnet-lite2")
        net = CompactNet(replace(config, restoration=(64, 96, 160, 224)))
        inputs = torch.empty(1, 3, 256, 256), torch.empty(1, 48, 384), torch.ones(1, 48, dtype=torch.bool)
        with FlopCounterMode(display=False) as counter:
            net.restore(*inputs)
    assert sum(p.numel() for p in net.restoration.parameters()) < 6e6
    assert sum(p.numel() for p in net.parameters()) < 25e6
    assert counter.get_total_flops() / 2 < 10e9
    assert replace(net.config, restoration=()) == config
