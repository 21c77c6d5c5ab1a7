"""OmniGen2 at full size with random weights on one GPU: time of an edit and of a training step.

    python bench/omnigen2.py            # one CUDA device, torch alone; under six minutes on an H200
    python bench/omnigen2.py --tiny     # a small model on the CPU, to see that it runs

An edit is 512x512 pixels (latents 64x64x16) with one reference of the same size, 128 text tokens, a negative
text of as many, and three passes in each of 50 steps. A few steps are timed and multiplied; the last column
says how many. "one batch" runs the three passes as one padded batch with a mask, not one after the other.

Floating-point operations of one pass, counted: 2 · tokens · weights of every linear layer the tokens pass
through, plus 4 · tokens² · width for each attention, without norms and activations; a backward pass counts
twice its forward pass; what checkpointing recomputes is not counted. The share is of the dense bf16 peak,
989 TFLOP/s. A JSON file goes into the folder $OUT if it is set.
"""

from __future__ import annotations

import argparse
import gc
import itertools
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))  # torch and numpy may be all there is

from mie.networks.omnigen2 import OmniGen2Config, OmniGen2Transformer
from mie.networks.omnigen2 import pass_flops as sample_flops
from mie.networks.omnigen2_flow import Conditions, Guidance, flow_loss, sample

PEAK = 989e12
STEPS = 50
TEXT = 128
TINY = OmniGen2Config(
    in_channels=4,
    hidden_size=48,
    num_layers=2,
    num_refiner_layers=1,
    num_attention_heads=4,
    num_kv_heads=2,
    multiple_of=16,
    axes_dim_rope=(4, 4, 4),
    text_feat_dim=16,
)


@dataclass(frozen=True)
class Row:
    what: str
    seconds: float  # per edit or per training step
    images: int
    timed: str
    gigabytes: float
    teraflops: float  # operations, counted

    @property
    def share(self) -> float:
        return self.teraflops * 1e12 / self.seconds / PEAK

    def line(self) -> str:
        return (
            f"{self.what:<62} {self.seconds:>8.3f} s {self.seconds / self.images:>8.3f} s/image "
            f"{self.gigabytes:>7.1f} GB {self.teraflops:>8.1f} TFLOP {100 * self.share:>5.1f} %  {self.timed}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU")
    parser.add_argument("--steps", type=int, default=10, help="sampler steps that are timed (default 10)")
    parser.add_argument(
        "--seconds", type=float, default=330, help="start nothing new after this (default 330)"
    )
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        print("skipped: no CUDA device (--tiny runs a small model on the CPU)")
        return
    bench = Bench(options)
    bench.edits()
    bench.training()
    if os.environ.get("OUT"):
        path = Path(os.environ["OUT"]) / "omnigen2.json"
        path.write_text(json.dumps(bench.document(), indent=1))
        print(f"wrote {path}")


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.started = time.perf_counter()
        self.tiny, self.steps, self.budget = options.tiny, options.steps, options.seconds
        self.device = torch.device("cpu" if self.tiny else "cuda")
        self.config = TINY if self.tiny else OmniGen2Config()
        self.rows: list[Row] = []
        self.skipped: list[str] = []
        self.model = self.fresh()
        self.count = sum(p.numel() for p in self.model.parameters())
        name = "CPU" if self.tiny else torch.cuda.get_device_name()
        print(f"torch {torch.__version__}, {name}, {self.count / 1e9:.3f} B parameters, bf16", flush=True)

    def fresh(self) -> OmniGen2Transformer:
        """The model with random weights, made where it runs."""
        torch.manual_seed(0)
        before = torch.get_default_dtype()
        torch.set_default_dtype(torch.bfloat16)
        try:
            with self.device:
                return OmniGen2Transformer(self.config).requires_grad_(False)
        finally:
            torch.set_default_dtype(before)

    def edits(self) -> None:
        side = 8 if self.tiny else 64
        for batch in (1, 4):
            self.edit_row(f"edit, batch {batch}, eager", batch, side, together=False)
            self.edit_row(f"edit, batch {batch}, eager, one batch", batch, side, together=True)
        if self.tiny:
            return
        # A shape is a graph of its own; beyond the limit torch would silently run eagerly.
        torch._dynamo.config.recompile_limit = 64
        self.compile()
        for batch in (1, 4):
            self.edit_row(f"edit, batch {batch}, compiled", batch, side, together=False)
            self.edit_row(f"edit, batch {batch}, compiled, one batch", batch, side, together=True)
        self.graph_row("edit, batch 1, compiled, one CUDA graph per step", side)

    def compile(self) -> None:
        for block in self.model.blocks:
            block.compile(dynamic=False)

    def edit_row(self, what: str, batch: int, side: int, *, together: bool) -> None:
        conditions = self.conditions(batch, side)
        negative = self.conditions(batch, side)
        noise = self.random(batch, self.config.in_channels, side, side)
        steps = self.steps
        latents = [(side, side)]
        passes = [([TEXT], [latents]), ([TEXT], [latents]), ([TEXT], [[]])]
        flops = batch * STEPS * sum(pass_flops(self.model, *p, latents) for p in passes)

        if together:
            work = lambda: self.one_batch(noise, conditions, negative, steps)
        else:
            work = lambda: sample(
                self.model, noise, conditions, negative, steps=steps, guidance=Guidance(5, 2)
            )
        self.measure(what, work, batch, flops, scale=STEPS / steps, timed=f"{steps} of {STEPS} steps")

    @torch.no_grad()
    def one_batch(self, noise: Tensor, given: Conditions, negative: Conditions, steps: int) -> Tensor:
        """The same sampler with its three passes in one batch."""
        batch, _, height, width = noise.shape
        text = torch.cat([given.text, negative.text, negative.text])
        references = [*given.references, *negative.references, *[()] * batch]
        three = Conditions(text, [*given.lengths, *negative.lengths, *negative.lengths], references)
        layout = three.layout(self.model, [(height, width)] * 3 * batch)
        z = noise.float()
        times = torch.linspace(0, 1, steps + 1, device=z.device)
        for t, after in itertools.pairwise(times):
            out = self.model(z.repeat(3, 1, 1, 1), t.expand(3 * batch), text, references, layout)
            v, vr, vu = torch.stack(out).float().chunk(3)
            z = z + (after - t) * (vu + 2 * (vr - vu) + 5 * (v - vr))
            if not torch.isfinite(z).all():
                raise ArithmeticError("not finite")
        return z

    def graph_row(self, what: str, side: int) -> None:
        """The three passes of a step recorded once and replayed: no time to launch kernels."""
        given, negative = self.conditions(1, side), self.conditions(1, side)
        bare = negative.without_references()
        passes = [(c, c.layout(self.model, [(side, side)])) for c in (given, negative, bare)]
        z, t = self.random(1, self.config.in_channels, side, side), torch.zeros(1, device=self.device)

        @torch.no_grad()
        def step() -> Tensor:
            v, vr, vu = (self.model(z, t, c.text, c.references, layout)[0].float() for c, layout in passes)
            return z + 0.02 * (vu + 2 * (vr - vu) + 5 * (v - vr))

        recorded: list[tuple[torch.cuda.CUDAGraph, Tensor]] = []

        def work() -> None:
            if not recorded:
                step()
                torch.cuda.synchronize()
                graph = torch.cuda.CUDAGraph()
                with torch.cuda.graph(graph):
                    after = step()
                recorded.append((graph, after))
            graph, after = recorded[0]
            for _ in range(self.steps):
                graph.replay()
                z.copy_(after)
                if not torch.isfinite(z).all():
                    raise ArithmeticError("not finite")

        latents = [(side, side)]
        flops = STEPS * sum(
            pass_flops(self.model, [TEXT], [refs], latents) for refs in (latents, latents, [])
        )
        self.measure(what, work, 1, flops, scale=STEPS / self.steps, timed=f"{self.steps} of {STEPS} steps")

    def training(self) -> None:
        batch = 2 if self.tiny else 8
        del self.model  # what the edits' graphs hold would be counted here
        gc.collect()
        if not self.tiny:
            torch._dynamo.reset()
            torch.cuda.empty_cache()
        self.model = self.fresh().requires_grad_(True)
        for compiled in (False,) if self.tiny else (False, True):
            if compiled:
                self.compile()
            for pixels in (64,) if self.tiny else (128, 256, 512):
                for checkpointing in (True, False):
                    self.training_row(pixels, batch, checkpointing, compiled)

    def training_row(self, pixels: int, batch: int, checkpointing: bool, compiled: bool) -> None:
        side = pixels // 8
        conditions = self.conditions(batch, side)
        images = self.random(batch, self.config.in_channels, side, side)
        noise = self.random(batch, self.config.in_channels, side, side)
        t = torch.rand(batch, device=self.device)
        self.model.checkpointing = checkpointing

        def work() -> None:
            layout = conditions.layout(self.model, [(side, side)] * batch)
            mixed = t[:, None, None, None] * images + (1 - t[:, None, None, None]) * noise
            velocity = self.model(mixed, t, conditions.text, conditions.references, layout)
            flow_loss(velocity, images, noise).backward()
            for parameter in self.model.parameters():
                parameter.grad = None

        how = "compiled" if compiled else "eager"
        kept = "checkpointing" if checkpointing else "all kept"
        flops = 3 * batch * pass_flops(self.model, [TEXT], [[(side, side)]], [(side, side)])
        what = f"forward + backward, {pixels} px, batch {batch}, {how}, {kept}"
        self.measure(what, work, batch, flops, repeats=2, timed="the faster of 2")

    def measure(
        self,
        what: str,
        work: Callable[[], Any],
        images: int,
        flops: float,
        *,
        scale: float = 1.0,
        repeats: int = 1,
        timed: str,
    ) -> None:
        """Run once to warm up, then time; a row that does not fit is skipped with its reason."""
        if time.perf_counter() - self.started > self.budget:
            self.skip(what, "out of time")
            return
        seconds, reason = [], None
        try:
            for _ in range(1 + repeats):
                if not self.tiny:
                    torch.cuda.reset_peak_memory_stats()
                began = time.perf_counter()
                work()
                if not self.tiny:
                    torch.cuda.synchronize()
                seconds.append(time.perf_counter() - began)
        except torch.OutOfMemoryError:
            reason = "out of GPU memory"
        except Exception as error:  # one form that a torch version cannot do must not cost the others
            reason = f"{type(error).__name__}: {str(error).splitlines()[0][:200]}"
        if reason is not None:
            self.model.zero_grad(set_to_none=True)
            if not self.tiny:
                torch.cuda.empty_cache()
            self.skip(what, reason)
            return
        peak = 0.0 if self.tiny else torch.cuda.max_memory_allocated() / 1e9
        row = Row(what, scale * min(seconds[1:]), images, timed, peak, flops / 1e12)
        self.rows.append(row)
        print(row.line(), flush=True)

    def skip(self, what: str, why: str) -> None:
        self.skipped.append(f"{what}: {why}")
        print(f"{what:<62} skipped: {why}", flush=True)

    def conditions(self, batch: int, side: int) -> Conditions:
        references = [[self.random(self.config.in_channels, side, side)] for _ in range(batch)]
        return Conditions(self.random(batch, TEXT, self.config.text_feat_dim), [TEXT] * batch, references)

    def random(self, *shape: int) -> Tensor:
        return torch.randn(*shape, device=self.device)

    def document(self) -> dict[str, Any]:
        name = "CPU" if self.tiny else torch.cuda.get_device_name()
        return {
            "torch": torch.__version__,
            "device": name,
            "parameters": self.count,
            "peak_flops": PEAK,
            "rows": [{**asdict(row), "share_of_peak": row.share} for row in self.rows],
            "skipped": self.skipped,
            "seconds": time.perf_counter() - self.started,
        }


def pass_flops(
    model: OmniGen2Transformer,
    text: Sequence[int],
    references: Sequence[Sequence[tuple[int, int]]],
    sizes: Sequence[tuple[int, int]],
) -> float:
    """Operations of one forward pass over a batch, counted from the layers' sizes."""
    return sum(map(partial(sample_flops, model.config), text, references, sizes))


if __name__ == "__main__":
    main()
