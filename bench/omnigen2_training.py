"""Fine-tuning OmniGen2 at full size (3.97 B, random weights) on one GPU: `mie train`'s own loop, steps timed.

    python bench/omnigen2_training.py -o FOLDER            # one CUDA device; about five minutes on an H200
    python bench/omnigen2_training.py -o FOLDER --tiny     # a small model on the CPU, to see that it runs

Latents and text states are random numbers in a cache on disk, read by the trainee as in a real training:
texts of 64 to 128 tokens, one reference of the image's size. A step has 16 images in micro-batches; it
includes clipping and the optimizer. Precision is bf16 with float32 weights and moments.

Operations: `mie.networks.omnigen2.pass_flops`, three times for forward and backward pass, without
what checkpointing recomputes. The share is of the dense bf16 peak, 989 TFLOP/s. "waits" is the share of a
step that the GPU is idle between two steps. Without a cache, each image would pass the autoencoder by
itself and each text the language model, as in the public script: the part `uncached` does both in every
step, with random weights.
"""

from __future__ import annotations

import argparse
import gc
import json
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))  # torch may be all there is
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from mie.networks.omnigen2 import OmniGen2Config, OmniGen2Transformer
from mie.training import loop, machine
from mie.training.batches import Prefetch
from mie.training.checkpoints import read_checkpoint, write_checkpoint
from mie.training.config import parse_config
from mie.training.edit_rows import EditRow, Mixture, Part
from mie.training.latent_cache import LatentCache, content_key
from mie.training.omnigen2 import OmniGen2, text_key
from mie.training.omnigen2_encoders import chat

PEAK = 989e12
BATCH = 16
PARTS = ("lora", "compiled", "uncached", "checkpoint", "eager")
TINY = OmniGen2Config(
    hidden_size=48, num_layers=2, num_refiner_layers=1, num_attention_heads=4, num_kv_heads=2, multiple_of=16,
    axes_dim_rope=(4, 4, 4), text_feat_dim=16,
)  # fmt: skip


class RandomEncoders:
    """Digests and sizes alone: the cache holds random numbers."""

    image_digest = text_digest = "0" * 64
    channels, stride, shift, scale = 16, 8, 0.0, 1.0

    def release(self) -> None: ...


class Synthetic(OmniGen2):
    """The trainee, but for the base model and the data."""

    tiny = False

    def find_base(self) -> None:
        self.shape = TINY if self.tiny else OmniGen2Config()

    def base_digest(self) -> str:
        return "random"

    def read_parts(self, split: str) -> list[Part]:
        return [] if split == "val" else [Part(str(bin_), rows(bin_), None) for bin_ in self.data.bins]

    def encoders(self, device: torch.device) -> Any:
        return RandomEncoders()

    def fill(self, encoders: Any, wanted: Any) -> None:
        draw = torch.Generator().manual_seed(0)
        texts = {chat(row.prompt): 64 + 4 * (at % 17) for at, row in enumerate(wanted)}
        for text, length in {chat(""): 40, **texts}.items():
            states = torch.randn(length, self.shape.text_feat_dim, generator=draw).to(torch.bfloat16)
            write(self.states, text_key(text), {"states": states})
        for row in wanted:
            size = (16, row.size[0] // 8, row.size[1] // 8)
            for key in (row.input, row.target_image):
                mean = torch.randn(size, generator=draw).half()
                write(self.moments, key, {"mean": mean, "std": torch.full(size, 0.1).half()})

    def network(self) -> OmniGen2Transformer:
        with self.device:
            return OmniGen2Transformer(self.shape)


def write(cache: LatentCache, key: str, tensors: Any) -> None:
    if not cache.path(key).is_file():
        cache.write(key, tensors)


def rows(bin_: int) -> list[EditRow]:
    keys = [[content_key("bench", str(bin_), str(n), which) for which in "it"] for n in range(48)]
    about = ("perception", "anatomy", "disc", "CT")
    return [
        EditRow(f"{bin_}-{n}", *about, f"{bin_} {n}", "bench", str(n), None, bin_, (bin_, bin_), *keys[n])
        for n in range(48)
    ]


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.began = options, time.perf_counter()
        self.device = torch.device("cpu" if options.tiny else "cuda")
        self.out: Path = options.output
        self.out.mkdir(parents=True, exist_ok=True)
        self.rows: list[dict[str, Any]] = []
        machine._WARM = 2  # sizes are compiled and allocated in these
        Synthetic.tiny = options.tiny
        self.state: Any = None
        self.inline = False
        self.vae: Any = None
        self.language: Any = None

    def late(self) -> bool:
        return time.perf_counter() - self.began > self.options.seconds

    def open(self, compiled: bool, lora: bool, bins: list[int]) -> None:
        """A new state; the old one goes first."""
        if self.state is not None:
            self.close()
        body = {
            "name": "bench", "trainee": "bench.omnigen2_training:Synthetic", "steps": 1000, "batch": BATCH,
            "precision": "bf16", "ema": 0, "compile": compiled, "channels_last": False,
            "optimizer": {"lr": 1e-6, "schedule": "constant", "betas": [0.9, 0.95]},
            "data": {"datasets": ["none"], "bins": bins, "cache": str(self.out / "cache")},
            "model": {"base": "random", "micro_batch": 8, "lora": {"rank": 8, "alpha": 8} if lora else None},
        }  # fmt: skip
        self.trainee = Synthetic(parse_config(body))
        self.trainee.check()
        self.accelerator = machine.open_accelerator(self.trainee.config, self.device.type)
        self.trainee.prepare(self.device)
        self.state = loop.TrainingState(self.trainee.config, self.trainee, self.accelerator)

    def compile(self) -> None:
        torch._dynamo.config.recompile_limit = 64
        for block in self.trainee.blocks(self.state.raw):
            block.compile(dynamic=True)

    def close(self) -> None:
        self.state = self.trainee = self.accelerator = None  # type: ignore[assignment]
        gc.collect()
        if self.device.type == "cuda":
            torch._dynamo.reset()
            torch.cuda.empty_cache()

    def measure(self, what: str, pixels: int, *, micro: int, checkpointing: bool) -> None:
        """Every row twice, on the same batches: new lengths of texts are compiled or tuned in the first."""
        for last in (False, True):
            if self.late():
                self.add({"what": what, "pixels": pixels, "skipped": "out of time"})
                return
            row = self.timed(what, pixels, micro=micro, checkpointing=checkpointing)
            if last or "skipped" in row:
                self.add(row)
                return

    def timed(
        self, what: str, pixels: int, *, micro: int, checkpointing: bool, steps: int = 4
    ) -> dict[str, Any]:
        trainee, state = self.trainee, self.state
        trainee.micro = micro
        trainee.mixture = Mixture([p for p in trainee.parts["train"] if p.name == str(pixels)], [pixels])
        net = getattr(state.raw, "network", state.raw)
        net.checkpointing = checkpointing
        began = time.perf_counter()
        profile = machine.Profile(steps, self.device)
        prefetch = Prefetch(
            lambda step: trainee.batch(step, 0, 1), 0, steps + 2, pin=self.device.type == "cuda"
        )
        flops = 0.0
        try:
            if self.device.type == "cuda":
                torch.cuda.reset_peak_memory_stats()
            for step, batch in prefetch:
                if self.inline:
                    self.encode_singly(BATCH, pixels)
                state.step(step, batch, profile)
                if step >= 2:
                    flops += trainee.flops(batch)
                profile.step_done()
            report = profile.report(BATCH, flops / BATCH / steps, PEAK / 1e12)
        except torch.OutOfMemoryError:
            state.optimizer.adamw.zero_grad(set_to_none=True)
            torch.cuda.empty_cache()
            return {"what": what, "pixels": pixels, "micro": micro, "skipped": "out of GPU memory"}
        finally:
            prefetch.close()
        return {
            "what": what, "pixels": pixels, "micro": micro, "checkpointing": checkpointing,
            "steps_per_second": round(report["images_per_second"] / BATCH, 4),
            "images_per_second": report["images_per_second"],
            "share_of_peak": report["utilisation"],
            "tflop_per_image": round(flops / BATCH / steps / 1e12, 3),
            "waits": report["phases"]["data wait"]["share"],
            "optimizer_ms": report["phases"]["optimizer"]["ms"],
            "peak_gib": machine.peak_gib(self.device),
            "with_warm_up_s": round(time.perf_counter() - began, 1),
        }  # fmt: skip

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        (self.out / "omnigen2_training.json").write_text(json.dumps({
            "torch": torch.__version__,
            "device": torch.cuda.get_device_name() if self.device.type == "cuda" else "CPU",
            "seconds": round(time.perf_counter() - self.began, 1), "rows": self.rows,
        }, indent=1))  # fmt: skip

    def checkpoint(self, what: str, pixels: int, most: float) -> None:
        """Write a checkpoint, step, read the checkpoint back, and take the same step again.

        Where the disk would take longer than `most` seconds, only what is said of the disk.
        """
        root = self.out / "cache" / "checkpoints"
        trainee, state = self.trainee, self.state
        began = time.perf_counter()
        probe = {"model": {"x": torch.zeros(2**28)}, "optimizer": {"x": torch.zeros(2)}}
        write_checkpoint(root, 0, probe, {})
        rate = 2**30 / (time.perf_counter() - began)
        shutil.rmtree(root)
        files = state.snapshot()
        size = sum(t.nbytes for tensors in files.values() for t in tensors.values())
        if size / rate > most or size > 0.9 * shutil.disk_usage(self.out).free:
            self.add({"what": what, "gb": round(size / 1e9, 2), "skipped": f"{rate / 1e9:.2f} GB/s of disk"})
            return
        before = sums(files)
        began = time.perf_counter()
        where = write_checkpoint(root, 1, files, {"skipped": 0, "skipped_in_a_row": 0})
        saved = time.perf_counter() - began
        del files
        trainee.mixture = Mixture([p for p in trainee.parts["train"] if p.name == str(pixels)], [pixels])
        first = self.one_step()
        after = sums(state.snapshot())
        self.sync()
        began = time.perf_counter()
        body, files = read_checkpoint(where)
        read = time.perf_counter() - began
        state.restore(files, body, where)
        self.sync()
        resumed = time.perf_counter() - began
        del files
        gc.collect()
        equal = sums(state.snapshot()) == before
        second = self.one_step()
        self.add(
            {
                "what": what, "gb": round(size / 1e9, 2), "disk_gb_s": round(rate / 1e9, 2),
                "save_s": round(saved, 1), "read_s": round(read, 1), "read_and_restore_s": round(resumed, 1),
                "tensors_equal_after_restore": equal, "step_changed_tensors": before != after,
                "next_loss": [first, second], "next_loss_equal": first == second,
                "next_tensors_equal": sums(state.snapshot()) == after,
            }
        )  # fmt: skip
        shutil.rmtree(root)

    def one_step(self) -> float:
        state = self.state
        state.meter.read(state.optimizer.skipped, state.optimizer.in_a_row)
        state.step(7, self.trainee.batch(7, 0, 1), machine.Profile(0, self.device))
        means, _ = state.meter.read(state.optimizer.skipped, state.optimizer.in_a_row)
        return float(means["loss"])

    def sync(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()

    def load_encoders(self) -> None:
        """FLUX's autoencoder and the language model of Qwen2.5-VL-3B, random weights."""
        from diffusers import AutoencoderKL
        from transformers import Qwen2_5_VLConfig
        from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLTextModel

        kind = torch.bfloat16
        small = self.options.tiny
        text = {
            "vocab_size": 1000 if small else 151936, "hidden_size": 64 if small else 2048,
            "intermediate_size": 64 if small else 11008, "num_hidden_layers": 2 if small else 36,
            "num_attention_heads": 2 if small else 16, "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "default", "rope_theta": 1e6,
                "mrope_section": [4, 6, 6] if small else [16, 24, 24],
            },
        }  # fmt: skip
        torch.set_default_dtype(kind)
        try:
            with self.device:
                self.vae = AutoencoderKL(
                    block_out_channels=(32, 32, 32, 32) if small else (128, 256, 512, 512),
                    layers_per_block=2, latent_channels=16,
                    down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
                    use_quant_conv=False, use_post_quant_conv=False,
                ).requires_grad_(False)  # fmt: skip
                config = Qwen2_5_VLConfig(text_config=text).text_config
                self.language = Qwen2_5_VLTextModel(config).requires_grad_(False)
        finally:
            torch.set_default_dtype(torch.float32)

    @torch.no_grad()
    def encode_singly(self, count: int, pixels: int) -> None:
        """What the public script does in a step: every image by itself, every text."""
        image = torch.randn(1, 3, pixels, pixels, dtype=torch.bfloat16, device=self.device)
        ids = torch.ones(1, 96, dtype=torch.long, device=self.device)
        for _ in range(count):
            self.vae.encode(image)
            self.vae.encode(image)
            self.language(input_ids=ids)

    def encoders(self, pixels: int, count: int = 8) -> None:
        seconds = {}
        image = torch.randn(1, 3, pixels, pixels, dtype=torch.bfloat16, device=self.device)
        ids = torch.ones(1, 96, dtype=torch.long, device=self.device)
        with torch.no_grad():
            for name, work in (
                ("image", lambda: self.vae.encode(image)),
                ("text", lambda: self.language(input_ids=ids)),
            ):
                for turn in range(count + 2):
                    if turn == 2:
                        self.sync()
                        began = time.perf_counter()
                    work()
                self.sync()
                seconds[name] = (time.perf_counter() - began) / count
        each = 2 * seconds["image"] + seconds["text"]
        self.add({
            "what": "encoders alone: two images and a text, one at a time", "pixels": pixels,
            "image_ms": round(1000 * seconds["image"], 2), "text_ms": round(1000 * seconds["text"], 2),
            "seconds_per_sample": round(each, 4),
            "parameters": [sum(p.numel() for p in m.parameters()) for m in (self.vae, self.language)],
        })  # fmt: skip


def sums(files: Mapping[str, Mapping[str, Tensor]]) -> dict[str, int]:
    """A number per tensor that changes with any of its bits."""
    return {
        f"{file}/{name}": int(_bits(tensor))
        for file, tensors in files.items()
        for name, tensor in tensors.items()
    }


def _bits(tensor: Tensor) -> Tensor:
    if tensor.element_size() == 4:
        words = tensor.detach().contiguous().view(torch.int32)
    else:
        words = tensor.detach().contiguous().reshape(-1).view(torch.uint8)
    words = words.flatten()
    # The position counts: equal values in another order are another tensor.
    total = torch.zeros((), dtype=torch.int64, device=words.device)
    for start in range(0, len(words), 1 << 24):
        part = words[start : start + (1 << 24)].long()
        place = torch.arange(start + 1, start + 1 + len(part), device=words.device)
        total += (part * (place * 2654435761 % 1000003)).sum()
    return total


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--tiny", action="store_true", help="a small model on the CPU")
    parser.add_argument("--parts", default=",".join(PARTS), help="which of %(default)s, in this order")
    parser.add_argument(
        "--seconds", type=float, default=260, help="start nothing new after this (default 260)"
    )
    parser.add_argument("--disk", type=float, default=60, help="no checkpoint that takes longer to write")
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        print("skipped: no CUDA device (--tiny runs a small model on the CPU)")
        return
    bench = Bench(options)
    sizes = [64] if options.tiny else [512, 256, 128]
    large, compiled = sizes[0], not options.tiny

    def whole(what: str, pixels: int, checkpointing: bool) -> None:
        micro = 4 if pixels == large and not checkpointing else 8
        bench.measure(what, pixels, micro=micro, checkpointing=checkpointing)

    for part in options.parts.split(","):
        if bench.late():
            bench.add({"what": part, "skipped": "out of time"})
            continue
        try:
            run_part(bench, part, sizes, whole, compiled)
        except Exception as error:  # one part must not cost the others
            traceback.print_exc()
            bench.add({"what": part, "skipped": f"{type(error).__name__}: {str(error)[:200]}"})


def run_part(bench: Bench, part: str, sizes: list[int], whole: Callable[..., None], compiled: bool) -> None:
    large = sizes[0]
    if part == "lora":
        began = time.perf_counter()
        bench.open(compiled=False, lora=True, bins=sorted(sizes))
        bench.add({"what": "LoRA: model made and moved", "s": round(time.perf_counter() - began, 1)})
        for pixels in sizes:
            bench.measure("LoRA", pixels, micro=8, checkpointing=False)
        bench.measure("LoRA", large, micro=8, checkpointing=True)
        bench.checkpoint("LoRA: checkpoint", sizes[-1], most=30)
    elif part == "eager":
        bench.open(compiled=False, lora=False, bins=sorted(sizes))
        for pixels, checkpointing in ((large, False), (large, True), *((side, False) for side in sizes[1:])):
            whole("all parameters", pixels, checkpointing)
    elif part == "compiled":
        # Small images first: one graph serves all sizes.
        bench.open(compiled=False, lora=False, bins=sorted(sizes))
        if compiled:
            bench.compile()
        for pixels in (*sizes[1:], large):
            whole("all parameters, compiled", pixels, False)
        return
    elif part == "uncached":
        # After "compiled", with its model: what the encoders cost inside of a step.
        bench.load_encoders()
        for pixels in sizes:
            bench.encoders(pixels)
        if bench.state is not None:
            for pixels in (*sizes[1:], large):
                bench.inline = True
                whole("all parameters, compiled, encoders in the step", pixels, False)
                bench.inline = False
        bench.vae = bench.language = None
        return
    elif part == "checkpoint":
        # After "compiled", with its model.
        if bench.state is None:
            bench.open(compiled=False, lora=False, bins=sorted(sizes))
            bench.trainee.micro = 8
            bench.one_step()
        gc.collect()
        bench.checkpoint("all parameters: checkpoint", sizes[-1], most=bench.options.disk)
    else:
        raise ValueError(f"no part {part}; expected {', '.join(PARTS)}")
    bench.close()


if __name__ == "__main__":
    main()
