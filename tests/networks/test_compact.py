"""The network: sizes, what the instruction's padding may do (nothing), and that all of it learns."""

from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="the compact editor needs the extra `models`")


from mie.networks.compact import CompactNet, NetConfig  # noqa: E402
from tests.editors.compact import tiny  # noqa: E402

PROMPTS = ["Paint the liver RED", "Remove the noise from this MRI slice of the brain"]


@pytest.fixture(scope="module", params=[tiny.CONFIG, tiny.CHANGE], ids=["first", "change"])
def net(request):
    return tiny.network(config=request.param)


def given(height, width):
    draw = torch.Generator().manual_seed(0)
    tokens, mask = tiny.Words().encode(PROMPTS)
    return torch.rand(2, 3, height, width, generator=draw), tokens.float(), mask


def holed(height, width):
    """As `given`, with a white hole in each image."""
    image, tokens, mask = given(height, width)
    hole = torch.zeros(2, 1, height, width)
    hole[0, :, 10:30, 20:50] = 1
    hole[1, :, 40:60, 5:20] = 1
    return torch.where(hole > 0, 1.0, image), tokens, mask, hole


def pairs(one, two):
    return zip(one.known().values(), two.known().values(), strict=True)


@pytest.mark.parametrize("size", [(64, 64), (96, 128)])
def test_maps_have_the_size_of_the_image(net, size):
    with torch.no_grad():
        heads = net(*given(*size))
    assert heads.overlay.shape == heads.residual.shape == (2, 3, *size)
    assert heads.perspective.shape == (2, 3)
    assert heads.presence.shape == (2,)
    assert all(torch.isfinite(head).all() for head in heads.known().values())
    assert (heads.change is None) == (not net.config.change)
    if net.config.change:
        assert heads.change.shape == (2, 1, *size)
    assert heads.overlay.std() > 0


@torch.no_grad()
def test_padded_tokens_have_no_influence(net):
    image, tokens, mask = given(64, 64)
    heads = net(image, tokens, mask)
    for other in (torch.randn_like(tokens), torch.full_like(tokens, 1e3)):
        again = net(image, torch.where(mask[..., None], tokens, other), mask)
        for a, b in pairs(heads, again):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    longest = int(mask.sum(1).max())
    short = net(image, tokens[:, :longest], mask[:, :longest])
    for a, b in pairs(heads, short):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_instruction_matters_and_neighbours_do_not(net):
    image, tokens, mask = given(64, 64)
    both = net(image, tokens, mask)
    alone = net(image[:1], tokens[:1], mask[:1])
    for a, b in pairs(both, alone):
        torch.testing.assert_close(a[:1], b, rtol=1e-4, atol=1e-5)
    swapped = net(image, tokens.flip(0), mask.flip(0))
    for a, b in pairs(both, swapped):
        assert (a - b).abs().max() > 1e-5
    torch.testing.assert_close(swapped.perspective, both.perspective.flip(0), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_state_dict_makes_the_same_network(net):
    config = NetConfig.from_json(net.config.as_json() | {"widths": [8, 8, 8, 8]})  # as JSON has it
    assert config == net.config
    other = CompactNet(config).eval()
    other.load_state_dict(net.state_dict())
    inputs = given(64, 64)
    for a, b in pairs(net(*inputs), other(*inputs)):
        assert torch.equal(a, b)


@pytest.mark.parametrize(
    "config", [tiny.CONFIG, tiny.CHANGE, tiny.EFFICIENT], ids=["first", "change", "efficientnet"]
)
def test_every_parameter_learns(config):
    """From the very first weights, where some maps are zero: no part is cut off from the loss."""
    torch.manual_seed(0)
    net = CompactNet(config)
    inputs = holed(64, 64) if config.change else given(64, 64)
    for _ in range(2):  # the residual's map begins at zero and hides what lies behind it for one step
        net.zero_grad()
        sum((head * torch.randn_like(head)).sum() for head in net(*inputs).known().values()).backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 1e-3 * p.grad.sign()
    still = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still


@pytest.mark.parametrize("config", [tiny.CONFIG, tiny.CHANGE], ids=["first", "change"])
def test_the_first_network_restores_nothing(config):
    torch.manual_seed(0)
    with torch.no_grad():
        assert not CompactNet(config)(*given(64, 64)).residual.any()


@torch.no_grad()
def test_what_lies_under_a_hole_has_no_influence_and_the_hole_has():
    net = tiny.network(config=tiny.CHANGE)
    image, tokens, mask, hole = holed(64, 64)
    heads = net(image, tokens, mask, hole)
    other = torch.where(hole > 0, torch.rand_like(image), image)
    again = net(other, tokens, mask, hole)
    for name in ("overlay", "presence", "change"):
        torch.testing.assert_close(getattr(again, name), getattr(heads, name), rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(other + again.residual, image + heads.residual, rtol=1e-4, atol=1e-5)
    assert (net(image, tokens, mask).overlay - heads.overlay).abs().max() > 1e-3


@torch.no_grad()
def test_a_new_network_fills_a_hole_smoothly():
    """From its very first weights: what surrounds the hole, no brighter and no darker."""
    net = CompactNet(tiny.CHANGE)
    ramp = torch.linspace(0.2, 0.6, 96).expand(2, 3, 96, 96)
    hole = torch.zeros(2, 1, 96, 96)
    hole[:, :, 30:60, 30:60] = 1
    _, tokens, mask = given(96, 96)
    filled = torch.where(hole > 0, 1.0, ramp)
    filled = filled + net(filled, tokens, mask, hole).residual
    assert torch.equal(torch.where(hole > 0, 0.0, filled), torch.where(hole > 0, 0.0, ramp))
    assert (filled - ramp).abs().max() < 0.12
    inside = filled[:, :, 30:60, 30:60]
    assert inside.min() > 0.2
    assert inside[..., -1].mean() > inside[..., 0].mean()


def test_dropout_and_drop_path_are_for_training_alone():
    torch.manual_seed(0)
    net = CompactNet(replace(tiny.CONFIG, dropout=0.3, drop_path=0.3))
    with torch.no_grad():
        for value in net.parameters():
            value.add_(0.05 * torch.randn_like(value))
        inputs = given(64, 64)
        one, two = net(*inputs).overlay, net(*inputs).overlay
        assert not torch.equal(one, two)
        net.eval()
        assert torch.equal(net(*inputs).overlay, net(*inputs).overlay)
        plain = CompactNet(tiny.CONFIG).eval()
        plain.load_state_dict(net.state_dict())
        assert torch.equal(net(*inputs).overlay, plain(*inputs).overlay)


def test_the_shape_that_ships_is_small_enough():
    """At most 30 M parameters, and 25 MB at a byte each."""
    with torch.device("meta"):
        count = sum(p.numel() for p in CompactNet(NetConfig(change=True, detail=6)).parameters())
    assert 5e6 < count < 25e6
