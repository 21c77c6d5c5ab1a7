"""Our LoRA against peft's, and merging."""

from __future__ import annotations

import copy

import pytest

pytest.importorskip("torch", reason="networks need the extra `models`")

import torch
from torch import nn

from mie.errors import ConfigError
from mie.networks.lora import LoraFactors, adapter_config, add_lora, merged, plain_state


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            nn.ModuleDict({"to_q": nn.Linear(5, 5), "out": nn.Linear(5, 5)}) for _ in range(2)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer["out"](layer["to_q"](x).relu())
        return x


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


def test_it_equals_peft_s(net: Net) -> None:
    peft = pytest.importorskip("peft")
    theirs = copy.deepcopy(net)
    config = peft.LoraConfig(r=2, lora_alpha=6, target_modules=["to_q"])
    theirs = peft.get_peft_model(theirs, config)
    places = add_lora(net, 2, 6, ["to_q"])
    ours = LoraFactors.fresh(net, places, 2)
    with torch.no_grad():
        for p in ours.parameters():
            p.normal_()
    tensors = ours.tensors()
    state = {name.replace(".default.", "."): p for name, p in theirs.named_parameters() if "lora_" in name}
    assert set(tensors) == set(state), "the names are peft's"
    with torch.no_grad():
        for name, p in state.items():
            p.copy_(tensors[name])
    x = torch.randn(3, 5)
    torch.testing.assert_close(ours(x), theirs(x))
    assert adapter_config(2, 6, ["to_q"])["lora_alpha"] == 6


def test_only_the_factors_are_trained_and_saved(net: Net) -> None:
    before = copy.deepcopy(net)
    lora = LoraFactors.fresh(net, add_lora(net, 2, 2, ["to_q", "out"]), 2)
    x = torch.randn(3, 5)
    assert torch.equal(lora(x), before(x)), "B is zero: nothing changes yet"
    assert len(lora.state_dict()) == 8
    lora(x).sum().backward()
    assert all(p.grad is None for p in net.parameters())
    assert any(p.grad is not None for p in lora.parameters())
    assert set(plain_state(net)) == set(before.state_dict())


def test_two_sets_of_factors_share_a_network(net: Net) -> None:
    first = LoraFactors.fresh(net, add_lora(net, 1, 1, ["to_q"]), 1)
    second = copy.deepcopy(first)
    with torch.no_grad():
        for p in second.parameters():
            p.add_(1)
    x = torch.randn(2, 5)
    a, b, again = first(x), second(x), first(x)
    assert torch.equal(a, again)
    assert not torch.equal(a, b)


def test_merging_and_back(net: Net) -> None:
    places = add_lora(net, 2, 4, ["to_q", "layers.1.out"])
    lora = LoraFactors.fresh(net, places, 2)
    with torch.no_grad():
        for p in lora.parameters():
            p.normal_()
    x = torch.randn(3, 5)
    wanted, before = lora(x), {name: value.clone() for name, value in plain_state(net).items()}
    plain = Net()
    with merged(places):
        torch.testing.assert_close(net(x), wanted)
        plain.load_state_dict(plain_state(net))
    torch.testing.assert_close(plain(x), wanted)
    after = plain_state(net)
    assert all(torch.equal(after[name], value) for name, value in before.items()), "the very weights are back"
    torch.testing.assert_close(lora(x), wanted)


def test_a_target_without_a_layer(net: Net) -> None:
    with pytest.raises(ConfigError, match=r"no linear layer 'to_k'[\s\S]*to_q"):
        add_lora(net, 2, 2, ["to_k"])
