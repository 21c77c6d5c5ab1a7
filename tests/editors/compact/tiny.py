"""A network small enough for tests, and text without a language model."""

import zlib
from dataclasses import replace

import torch

from mie.networks.compact import CompactNet, NetConfig, save_weights
from mie.networks.text import TOKENS, WIDTH

CONFIG = NetConfig(widths=(8, 8, 8, 8), down=(1, 1, 1, 1), up=(1, 1, 1), text=16, heads=2, pixel=4)
CHANGE = replace(CONFIG, change=True, detail=1, local=True)  # with all that came later
RESTORATION = replace(CHANGE, restoration=(8, 8, 8, 8))
EFFICIENT = replace(CONFIG, backbone="efficientnet-lite2")
PERSPECTIVES = {"perception": 0, "modification": 1, "transformation": 2}


class Words:
    """An encoder that gives each word a random vector of its own."""

    def encode(self, prompts):
        tokens = torch.zeros((len(prompts), TOKENS, WIDTH), dtype=torch.float16)
        mask = torch.zeros((len(prompts), TOKENS), dtype=torch.bool)
        for row, prompt in enumerate(prompts):
            for at, word in enumerate(["[CLS]", *prompt.split()][:TOKENS]):
                draw = torch.Generator().manual_seed(zlib.crc32(word.encode()))
                tokens[row, at] = torch.randn(WIDTH, generator=draw)
                mask[row, at] = True
        return tokens, mask


def network(perspective=None, seed=0, config=CONFIG):
    """Random, with all heads alive; `perspective` is what it takes every instruction for."""
    torch.manual_seed(seed)
    net = CompactNet(config)
    with torch.no_grad():
        for name, value in net.named_parameters():
            if value.ndim > 1 and not name.startswith("trunk"):
                value.add_(0.05 * torch.randn_like(value))
        if perspective is not None:
            net.reader.perspective.weight.zero_()
            net.reader.perspective.bias.copy_(5.0 * (torch.arange(3) == PERSPECTIVES[perspective]))
    return net.eval()


def weights(path, perspective=None, seed=0, config=CONFIG):
    save_weights(path, network(perspective, seed, config).state_dict(), config, {"note": "random"})
    return path
