"""The network: sizes, what the instruction's padding may do (nothing), and that all of it learns."""

import pytest

torch = pytest.importorskip("torch", reason="the compact editor needs the extra `models`")

from mie.editors.compact.network import CompactNet, NetConfig  # noqa: E402
from tests.editors.compact import tiny  # noqa: E402

PROMPTS = ["Paint the liver RED", "Remove the noise from this MRI slice of the brain"]


@pytest.fixture(scope="module")
def net():
    return tiny.network()


def given(height, width):
    draw = torch.Generator().manual_seed(0)
    tokens, mask = tiny.Words().encode(PROMPTS)
    return torch.rand(2, 3, height, width, generator=draw), tokens.float(), mask


@pytest.mark.parametrize("size", [(64, 64), (96, 128)])
def test_maps_have_the_size_of_the_image(net, size):
    with torch.no_grad():
        heads = net(*given(*size))
    assert heads.overlay.shape == heads.residual.shape == (2, 3, *size)
    assert heads.perspective.shape == (2, 3)
    assert heads.presence.shape == (2,)
    assert all(torch.isfinite(head).all() for head in heads)
    assert heads.overlay.std() > 0


@torch.no_grad()
def test_padded_tokens_have_no_influence(net):
    image, tokens, mask = given(64, 64)
    heads = net(image, tokens, mask)
    for other in (torch.randn_like(tokens), torch.full_like(tokens, 1e3)):
        again = net(image, torch.where(mask[..., None], tokens, other), mask)
        for a, b in zip(heads, again, strict=True):
            torch.testing.assert_close(a, b, rtol=0, atol=1e-6)
    longest = int(mask.sum(1).max())
    short = net(image, tokens[:, :longest], mask[:, :longest])
    for a, b in zip(heads, short, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_the_instruction_matters_and_neighbours_do_not(net):
    image, tokens, mask = given(64, 64)
    both = net(image, tokens, mask)
    alone = net(image[:1], tokens[:1], mask[:1])
    for a, b in zip(both, alone, strict=True):
        torch.testing.assert_close(a[:1], b, rtol=1e-4, atol=1e-5)
    swapped = net(image, tokens.flip(0), mask.flip(0))
    for a, b in zip(both, swapped, strict=True):
        assert (a - b).abs().max() > 1e-5
    torch.testing.assert_close(swapped.perspective, both.perspective.flip(0), rtol=1e-4, atol=1e-5)


@torch.no_grad()
def test_a_state_dict_makes_the_same_network(net):
    config = NetConfig.from_json(tiny.CONFIG.as_json() | {"widths": [8, 8, 8, 8]})  # as JSON has it
    assert config == tiny.CONFIG
    other = CompactNet(config).eval()
    other.load_state_dict(net.state_dict())
    inputs = given(64, 64)
    for a, b in zip(net(*inputs), other(*inputs), strict=True):
        assert torch.equal(a, b)


def test_every_parameter_learns():
    """From the very first weights, where some maps are zero: no part is cut off from the loss."""
    torch.manual_seed(0)
    net = CompactNet(tiny.CONFIG)
    for _ in range(2):  # the residual's map begins at zero and hides what lies behind it for one step
        net.zero_grad()
        sum((head * torch.randn_like(head)).sum() for head in net(*given(64, 64))).backward()
        with torch.no_grad():
            for p in net.parameters():
                p -= 1e-3 * p.grad.sign()
    still = [name for name, p in net.named_parameters() if p.grad is None or not p.grad.any()]
    assert not still


def test_the_first_network_restores_nothing():
    torch.manual_seed(0)
    with torch.no_grad():
        assert not CompactNet(tiny.CONFIG)(*given(64, 64)).residual.any()


def test_the_shape_that_ships_is_small_enough():
    """At most 30 M parameters, and 25 MB at a byte each."""
    with torch.device("meta"):
        count = sum(p.numel() for p in CompactNet(NetConfig()).parameters())
    assert 5e6 < count < 25e6
