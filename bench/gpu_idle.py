"""How long the GPU waits during `mie run` with a mid-sized pipeline of diffusers, random weights.

    python bench/gpu_idle.py DATASET -o FOLDER           # one CUDA device; about two minutes on an H200
    python bench/gpu_idle.py DATASET -o FOLDER --tiny    # tiny pipelines on the CPU, to see that it runs

DATASET is copied with every sample several times, so that a few images make a run of some length. Pipelines:
FLUX Kontext with 1.1 billion parameters in its transformer, and InstructPix2Pix at the size of Stable
Diffusion 1.5.

"waits" is the share of the time from the beginning of the first call of the pipeline to the end of the last
in which no call is in progress, by CUDA events on the GPU's own clock: what reading, decoding, resizing,
encoding, syncing and the journal cost the GPU. What a call itself leaves idle (its kernels' launches, its
texts) is the pipeline's own; "busy" says how much of the same time kernels run, from torch's profiler, for a
run and for a bare loop of calls.
"""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "src"))

import itertools

from mie.datasets.dataset import Dataset
from mie.editors import open_editor
from mie.editors.requests import sample_requests
from mie.editors.run import run_editor

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,-'"


def clip_tokenizer() -> Any:
    from tokenizers import pre_tokenizers
    from transformers import CLIPTokenizer

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    names = ["<|startoftext|>", "<|endoftext|>", *letters, *(f"{c}</w>" for c in letters)]
    return CLIPTokenizer(vocab={word: at for at, word in enumerate(names)}, merges=[], model_max_length=77)


def t5_tokenizer() -> Any:
    from transformers import T5TokenizerFast

    special = [("<pad>", 0.0), ("</s>", 0.0), ("<unk>", 0.0)]
    return T5TokenizerFast(vocab=[*special, *((c, -1.0) for c in ["▁", *LETTERS])], extra_ids=0)


def clip_text(tiny: bool) -> Any:
    from transformers import CLIPTextConfig, CLIPTextModel

    width = 16 if tiny else 768
    return CLIPTextModel(
        CLIPTextConfig(
            vocab_size=2 + 2 * 256, hidden_size=width, intermediate_size=4 * width,
            num_hidden_layers=1 if tiny else 12, num_attention_heads=2 if tiny else 12, projection_dim=width,
            bos_token_id=0, eos_token_id=1,
        )
    )  # fmt: skip


def autoencoder(tiny: bool, channels: int, **changes: Any) -> Any:
    from diffusers import AutoencoderKL

    return AutoencoderKL(
        block_out_channels=(4, 4, 8, 8) if tiny else (128, 256, 512, 512),
        down_block_types=("DownEncoderBlock2D",) * 4, up_block_types=("UpDecoderBlock2D",) * 4,
        latent_channels=channels, norm_num_groups=2 if tiny else 32, layers_per_block=1 if tiny else 2,
        **changes,
    )  # fmt: skip


def on_cpu(kind: Any, **options: Any) -> Any:
    """A scheduler works with NumPy while it is made."""
    with torch.device("cpu"):
        return kind(**options)


def kontext(tiny: bool) -> Any:
    from diffusers import FlowMatchEulerDiscreteScheduler, FluxKontextPipeline, FluxTransformer2DModel
    from transformers import T5Config, T5EncoderModel

    width = 16 if tiny else 1024
    t5 = T5Config(
        vocab_size=128, d_model=width, d_kv=8 if tiny else 64, d_ff=16 if tiny else 2816,
        num_layers=1 if tiny else 12, num_heads=2 if tiny else 16,
    )  # fmt: skip
    transformer = FluxTransformer2DModel(
        in_channels=64, num_layers=1 if tiny else 4, num_single_layers=1 if tiny else 8,
        attention_head_dim=16 if tiny else 128, num_attention_heads=2 if tiny else 16,
        joint_attention_dim=width, pooled_projection_dim=16 if tiny else 768, guidance_embeds=True,
        axes_dims_rope=(4, 4, 8) if tiny else (16, 56, 56),
    )  # fmt: skip
    flux = {"use_quant_conv": False, "use_post_quant_conv": False}
    flux |= {"shift_factor": 0.1, "scaling_factor": 0.36}
    return FluxKontextPipeline(
        scheduler=on_cpu(FlowMatchEulerDiscreteScheduler, use_dynamic_shifting=True),
        vae=autoencoder(tiny, 16, **flux), text_encoder=clip_text(tiny), tokenizer=clip_tokenizer(),
        text_encoder_2=T5EncoderModel(t5), tokenizer_2=t5_tokenizer(), transformer=transformer,
    )  # fmt: skip


def pix2pix(tiny: bool) -> Any:
    from diffusers import (
        EulerAncestralDiscreteScheduler,
        StableDiffusionInstructPix2PixPipeline,
        UNet2DConditionModel,
    )

    small = {
        "block_out_channels": (8, 16), "layers_per_block": 1, "norm_num_groups": 4, "attention_head_dim": 2,
        "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D"),
        "up_block_types": ("CrossAttnUpBlock2D", "UpBlock2D"),
    }  # fmt: skip
    net = UNet2DConditionModel(
        sample_size=64, in_channels=8, out_channels=4, cross_attention_dim=16 if tiny else 768,
        **(small if tiny else {}),
    )  # fmt: skip
    return StableDiffusionInstructPix2PixPipeline(
        vae=autoencoder(tiny, 4), text_encoder=clip_text(tiny), tokenizer=clip_tokenizer(), unet=net,
        scheduler=on_cpu(EulerAncestralDiscreteScheduler), safety_checker=None, feature_extractor=None,
        requires_safety_checker=False,
    )  # fmt: skip


PIPELINES: dict[str, Callable[[bool], Any]] = {"kontext": kontext, "pix2pix": pix2pix}


def copies(source: Path, out: Path, times: int) -> Path:
    """The dataset with every sample so many times, under names of their own."""
    shutil.copytree(source, out)
    total = 0
    for path in Dataset(out).shards(None):
        table = pq.ParquetFile(path).read()
        metadata = table.schema.metadata
        at = table.schema.get_field_index("id")
        parts = []
        for turn in range(times):
            names = [f"{name}-{turn}" for name in table.column("id").to_pylist()]
            column = pa.array(names, table.schema[at].type)
            parts.append(table.set_column(at, table.schema[at], column))
        whole = pa.concat_tables(parts).replace_schema_metadata(metadata)
        pq.write_table(whole, path, row_group_size=8)
        total += len(whole)
    info = json.loads((out / "dataset.json").read_text())
    print(f"{total} samples; dataset.json keys {sorted(info)}", flush=True)
    return out


@contextmanager
def watched(pipe: Any, cuda: bool) -> Iterator[list[tuple[Any, Any]]]:
    """Marks at the beginning and the end of each call, on the GPU's clock."""
    kind, marks = type(pipe), []
    call = kind.__call__

    def mark() -> Any:
        if not cuda:
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def timed(self: Any, *values: Any, **options: Any) -> Any:
        first = mark()
        result = call(self, *values, **options)
        marks.append((first, mark()))
        return result

    kind.__call__ = timed
    try:
        yield marks
    finally:
        kind.__call__ = call


def between(a: Any, b: Any) -> float:
    """Seconds."""
    return a.elapsed_time(b) / 1000 if hasattr(a, "elapsed_time") else b - a


def waits(marks: list[tuple[Any, Any]]) -> dict[str, float]:
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    whole = between(marks[0][0], marks[-1][1])
    gaps = [max(0.0, between(a[1], b[0])) for a, b in itertools.pairwise(marks)]
    calls = [between(*mark) for mark in marks]
    return {
        "edits": len(marks), "seconds": round(whole, 3), "call_ms": round(1000 * float(np.median(calls)), 2),
        "gap_ms": round(1000 * float(np.median(gaps)), 3), "largest_gap_ms": round(1000 * max(gaps), 2),
        "waits": round(sum(gaps) / whole, 5),
    }  # fmt: skip


def busy(work: Callable[[], None], trace: Path) -> float | None:
    """The share of the time from the first kernel to the last in which a kernel or copy runs."""
    from torch.profiler import ProfilerActivity, profile

    with profile(activities=[ProfilerActivity.CUDA]) as seen:
        work()
        torch.cuda.synchronize()
    seen.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    trace.unlink()
    wanted = {"kernel", "gpu_memcpy", "gpu_memset"}
    spans = sorted((e["ts"], e["ts"] + e["dur"]) for e in events if e.get("cat") in wanted and "dur" in e)
    if not spans:
        return None
    used, end = 0.0, spans[0][0]
    for first, last in spans:
        used += max(0.0, last - max(first, end))
        end = max(end, last)
    return round(used / (end - spans[0][0]), 4)


def bare(pipe: Any, name: str, work: list[Any], steps: int) -> None:
    """Only calls, with the arguments that the editor passes."""
    for request in work:
        height, width = request.image.shape[:2]
        sized = {"height": height, "width": width, "max_area": height * width, "_auto_resize": False}
        pipe(
            image=Image.fromarray(request.image), prompt=request.instruction, num_inference_steps=steps,
            generator=torch.Generator("cpu").manual_seed(request.seed), output_type="np",
            **(sized if name == "kontext" else {}),
        )  # fmt: skip


class Bench:
    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.out = options, options.output
        self.rows: list[dict[str, Any]] = []
        self.device = "cpu" if options.tiny else "cuda"
        self.out.mkdir(parents=True, exist_ok=True)
        self.work = Path(options.work)
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)

    def add(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        print(json.dumps(row), flush=True)
        name = torch.cuda.get_device_name() if self.device == "cuda" else "CPU"
        body = {"torch": torch.__version__, "device": name, "rows": self.rows}
        (self.out / "gpu_idle.json").write_text(json.dumps(body, indent=1))

    def pipeline(self, name: str, dataset: Path, few: Path) -> None:
        tiny, steps = self.options.tiny, self.options.steps
        began = time.perf_counter()
        torch.manual_seed(0)
        with torch.device(self.device):
            pipe = PIPELINES[name](tiny)
        net = getattr(pipe, "transformer", None) or pipe.unet
        parameters = sum(p.numel() for p in net.parameters())
        pipe.to(dtype=torch.float32 if tiny else torch.bfloat16).save_pretrained(self.work / name)
        del pipe, net
        print(f"{name}: made and saved in {time.perf_counter() - began:.0f} s", flush=True)
        kind = "fp32" if tiny else "bf16"
        settings = f"steps={steps},dtype={kind},device={self.device}"
        editor: Any = open_editor(f"diffusers:{self.work / name},{settings}")
        editor.load()
        warm = self.run(few, editor, f"{name}-warm")
        print(f"{name}: warm", warm, flush=True)
        with watched(editor.pipe, self.device == "cuda") as marks:
            began = time.perf_counter()
            states = self.run(dataset, editor, f"{name}-run")
            wall = time.perf_counter() - began
        row = {"pipeline": name, "parameters": parameters, "steps": steps, "states": states}
        row |= {"run_seconds": round(wall, 2), **waits(marks)}
        self.add(row)
        requests = self.requests(dataset)[: self.options.bare]
        with watched(editor.pipe, self.device == "cuda") as marks:
            bare(editor.pipe, name, requests, steps)
        self.add({"pipeline": name, "what": "bare loop of calls", **waits(marks)})
        if self.device == "cuda":
            trace = self.work / "trace.json"
            shares = [
                busy(lambda: bare(editor.pipe, name, requests[:8], steps), trace),
                busy(lambda: self.run(few, editor, f"{name}-traced"), trace),
            ]
            self.add({"pipeline": name, "what": "busy by kernels", "bare": shares[0], "mie run": shares[1]})
        if self.device == "cuda":
            torch.cuda.empty_cache()

    def requests(self, dataset: Path) -> list[Any]:
        opened = Dataset(dataset)
        todo = {sample: [0] for sample in opened.table(["id"])["id"]}
        return list(sample_requests(opened, None, todo, needs_target=False))

    def run(self, dataset: Path, editor: Any, name: str) -> dict[str, int]:
        shutil.rmtree(self.work / f"run-{name}", ignore_errors=True)
        found = run_editor(dataset, editor, self.work / f"run-{name}")
        states: dict[str, int] = {}
        for edit in found.edits().values():
            states[edit.state] = states.get(edit.state, 0) + 1
            if edit.state != "done" and states[edit.state] == 1:
                print(edit.reason, flush=True)
        return states


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--work", default="/tmp/gpu_idle", help="for datasets, pipelines and runs; emptied")
    parser.add_argument("--times", type=int, default=12, help="copies of each sample")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--bare", type=int, default=40, help="calls of the bare loop")
    parser.add_argument("--pipelines", default=",".join(PIPELINES))
    parser.add_argument("--tiny", action="store_true")
    options = parser.parse_args()
    if not options.tiny and not torch.cuda.is_available():
        print("skipped: no CUDA device (--tiny runs tiny pipelines on the CPU)")
        return
    bench = Bench(options)
    dataset = copies(options.dataset, bench.work / "dataset", options.times)
    few = copies(options.dataset, bench.work / "few", 1)
    for name in options.pipelines.split(","):
        try:
            bench.pipeline(name, dataset, few)
        except Exception as error:  # one pipeline must not cost the other
            traceback.print_exc()
            bench.add({"pipeline": name, "skipped": f"{type(error).__name__}: {str(error)[:300]}"})


if __name__ == "__main__":
    main()
