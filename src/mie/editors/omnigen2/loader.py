"""OmniGen2 from a folder as it was published: checked by its headers first, then loaded strictly by name.

FOLDER/transformer/   config.json, diffusion_pytorch_model*.safetensors (one file, or shards with an index)
FOLDER/vae/           diffusers' AutoencoderKL
FOLDER/mllm/          transformers' Qwen2.5-VL (or text_encoder/)
FOLDER/processor/     its tokenizer (or tokenizer/, or beside the weights)
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from mie.editors.diffusers.loader import transformers_model, unfit
from mie.errors import ConfigError
from mie.networks.pretrained import model_folder, need_packages, quiet, refuse_pickles

if TYPE_CHECKING:
    from torch import Tensor, dtype, nn

    from mie.networks.omnigen2 import OmniGen2Config, OmniGen2Transformer

EXAMPLE: Final = "OmniGen2/OmniGen2"
_STEM: Final = "diffusion_pytorch_model"
_TEXT: Final = ("mllm", "text_encoder")
_TOKENIZER: Final = ("processor", "tokenizer", *_TEXT)
_SHOWN: Final = 3
_ADAPTER: Final = "adapter_config.json"
_PREFIXES: Final = ("base_model.model.", "transformer.")


@dataclass(frozen=True, slots=True)
class Model:
    """Where the parts lie, after they were checked."""

    folder: Path
    config: OmniGen2Config
    weights: tuple[Path, ...]  # of the transformer
    text: Path
    tokenizer: Path

    @property
    def vae(self) -> Path:
        """The autoencoder's folder."""
        return self.folder / "vae"


def find_model(text: str) -> Model:
    """Check every part of a folder or of a hub id in the local cache. Reads configs and headers alone."""
    need_packages("the editor omnigen2")
    folder = model_folder(text, EXAMPLE)
    mllm = next((folder / name for name in _TEXT if (folder / name).is_dir()), folder / _TEXT[0])
    for part in (folder / "transformer", folder / "vae", mllm):
        _check_part(part)
    config, weights = _check_transformer(folder / "transformer")
    vae, language = _json(folder / "vae" / "config.json"), _json(mllm / "config.json")
    width = language.get("hidden_size", language.get("text_config", {}).get("hidden_size"))
    for name, noun, expected, found in (
        ("vae", "_class_name", "AutoencoderKL", vae.get("_class_name")),
        ("vae", "latent_channels", config.in_channels, vae.get("latent_channels")),
        (mllm.name, "model_type", "qwen2_5_vl", language.get("model_type")),
        (mllm.name, "hidden_size", config.text_feat_dim, width),
    ):
        if found != expected:
            raise ConfigError(
                f"the {name} is not the one that this transformer works with",
                where=folder / name / "config.json",
                expected=f"{noun} {expected}",
                found=found,
            )
    return Model(folder, config, weights, mllm, _find_tokenizer(folder))


def load_transformer(model: Model, kind: dtype, device: str, lora: Path | None = None) -> OmniGen2Transformer:
    """The transformer with its weights, strictly by name, and a LoRA merged into it."""
    import torch
    from safetensors.torch import load_file

    from mie.networks.omnigen2 import OmniGen2Transformer

    with torch.device("meta"):
        net = OmniGen2Transformer(model.config)
    state: dict[str, Tensor] = {}
    for path in model.weights:
        state |= {name: tensor.to(kind) for name, tensor in load_file(path, device=device).items()}
    net.load_state_dict(state, strict=True, assign=True)
    if lora is not None:
        merge_lora(net, lora)
    return net.requires_grad_(False).eval()


def load_vae(model: Model, kind: dtype) -> Any:
    """The autoencoder."""
    from diffusers import AutoencoderKL

    with _readable(model.vae), quiet():
        vae = AutoencoderKL.from_pretrained(  # type: ignore[no-untyped-call]
            model.vae, torch_dtype=kind, local_files_only=True, use_safetensors=True
        )
    missing = [name for name, tensor in vae.named_parameters() if tensor.is_meta]
    if missing:
        raise unfit(model.vae, [], missing)
    return vae.requires_grad_(False).eval()


def load_text(model: Model, kind: dtype) -> tuple[Any, Any]:
    """The language model without its eyes, and the tokenizer, which pads on the right."""
    from transformers import (
        Qwen2Tokenizer,
    )  # by its name: an automatic choice could ask to run a folder's code

    options = {"torch_dtype": kind, "local_files_only": True, "use_safetensors": True}
    with _readable(model.text), quiet():
        whole = transformers_model(model.text, "Qwen2_5_VLForConditionalGeneration", options)
    with _readable(model.tokenizer), quiet():
        tokenizer = Qwen2Tokenizer.from_pretrained(
            model.tokenizer, local_files_only=True, padding_side="right"
        )
    return whole.model.language_model.requires_grad_(False).eval(), tokenizer


def find_lora(text: str) -> Path:
    """The folder of a LoRA as peft writes it."""
    folder = Path(text).expanduser()
    weights = sorted(folder.glob("*.safetensors"))
    if (folder / _ADAPTER).is_file() and len(weights) == 1:
        return folder
    raise ConfigError(
        "no LoRA here",
        where=folder,
        expected=f"a folder with {_ADAPTER} and one safetensors file, as peft writes it",
        found=", ".join(sorted(p.name for p in folder.glob("*"))[:6]) or "nothing",
    )


def merge_lora(net: nn.Module, folder: Path) -> None:
    """Add a LoRA to the weights it belongs to: W + alpha / rank · B A. Every tensor must have a place."""
    import torch
    from safetensors.torch import load_file

    (path,) = folder.glob("*.safetensors")
    settings = _json(folder / _ADAPTER)
    tensors = {_plain(name): tensor for name, tensor in load_file(path).items()}
    linear = {name: m for name, m in net.named_modules() if isinstance(m, torch.nn.Linear)}
    wrong = [name for name in tensors if name.partition(".lora_")[0] not in linear]
    layers = {name.partition(".lora_")[0] for name in tensors} & linear.keys()
    for layer in sorted(layers):
        a, b = tensors.get(f"{layer}.lora_A.weight"), tensors.get(f"{layer}.lora_B.weight")
        weight = linear[layer].weight
        if a is None or b is None or (b.shape[0], a.shape[1]) != weight.shape or a.shape[0] != b.shape[1]:
            wrong.append(layer)
    if wrong or not layers:
        raise ConfigError(
            "the LoRA does not fit the transformer",
            where=path,
            expected="lora_A and lora_B of its linear layers",
            found=_listed(wrong) or "no tensors",
            fix="give the model that the LoRA was trained on",
        )
    for layer in layers:
        a, b, weight = (
            tensors[f"{layer}.lora_A.weight"],
            tensors[f"{layer}.lora_B.weight"],
            linear[layer].weight,
        )
        rank = a.shape[0]
        scale = float(settings.get("lora_alpha", rank)) / (rank**0.5 if settings.get("use_rslora") else rank)
        delta = scale * (b.to(weight.device, torch.float32) @ a.to(weight.device, torch.float32))
        linear[layer].weight = torch.nn.Parameter(
            (weight.float() + delta).to(weight.dtype), requires_grad=False
        )


def _plain(name: str) -> str:
    for prefix in _PREFIXES:
        name = name.removeprefix(prefix)
    return name.replace(".default.", ".")


def _check_part(folder: Path) -> None:
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    if "config.json" not in names:
        raise ConfigError(
            f"the model's {folder.name} is missing",
            where=folder,
            expected="config.json and the weights",
            found=", ".join(names[:6]) or "no such folder",
            fix="give the folder that was downloaded or saved as a whole",
        )
    if any(name.endswith(".safetensors") for name in names):
        return
    refuse_pickles(folder, names)
    raise ConfigError(f"the weights of the {folder.name} are missing", where=folder, expected="*.safetensors")


def _check_transformer(folder: Path) -> tuple[OmniGen2Config, tuple[Path, ...]]:
    """The config, and the files that hold exactly the tensors that it asks for."""
    import torch

    from mie.networks.omnigen2 import OmniGen2Config, OmniGen2Transformer

    paths = _weights(folder)
    shapes = dict(_headers(paths))
    path = folder / "config.json"
    try:
        config = OmniGen2Config.from_mapping(_json(path))
        # A few bytes of config could ask for a billion layers.
        if max(config.num_layers, config.num_refiner_layers) > len(shapes):
            raise ValueError(f"num_layers is {config.num_layers}, the weights have {len(shapes)} tensors")
        with torch.device("meta"):
            known = {name: tuple(t.shape) for name, t in OmniGen2Transformer(config).state_dict().items()}
    except (TypeError, ValueError, ArithmeticError, RuntimeError) as error:
        raise ConfigError("not a config of OmniGen2's transformer", where=path, found=error) from None
    differing = [
        f"{name}: {known.get(name, 'nothing')} here, {shapes.get(name, 'nothing')} in the files"
        for name in sorted({*known, *shapes})
        if known.get(name) != shapes.get(name)
    ]
    if differing:
        raise ConfigError(
            "the weights are not those of OmniGen2's transformer",
            where=folder,
            expected="the tensors that config.json describes, by name and shape",
            found=_listed(differing),
            fix="download the whole folder again; config and weights must belong to the same model",
        )
    return config, paths


def _weights(folder: Path) -> tuple[Path, ...]:
    index = folder / f"{_STEM}.safetensors.index.json"
    if index.is_file():
        names = sorted({Path(str(name)).name for name in _json(index).get("weight_map", {}).values()})
        paths = tuple(folder / name for name in names)
    elif (folder / f"{_STEM}.safetensors").is_file():
        paths = (folder / f"{_STEM}.safetensors",)
    else:
        paths = tuple(sorted(folder.glob("*.safetensors")))
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise ConfigError(
            "weights of the transformer are missing",
            where=folder,
            expected=", ".join(path.name for path in paths),
            found=f"no {_listed(missing)}",
            fix="download the whole folder again",
        )
    return paths


def _headers(paths: Sequence[Path]) -> Iterator[tuple[str, tuple[int, ...]]]:
    from safetensors import SafetensorError, safe_open

    for path in paths:
        try:
            with safe_open(path, framework="pt") as file:
                for name in file.keys():  # noqa: SIM118 (no mapping)
                    yield name, tuple(file.get_slice(name).get_shape())
        except (OSError, SafetensorError) as error:
            raise ConfigError(
                "weights that cannot be read", where=path, found=error, fix="download the file again"
            ) from None


def _find_tokenizer(folder: Path) -> Path:
    for name in _TOKENIZER:
        files = {path.name for path in (folder / name).glob("*")}
        if "tokenizer.json" in files or {"vocab.json", "merges.txt"} <= files:
            return folder / name
    raise ConfigError(
        "the tokenizer is missing",
        where=folder,
        expected=f"tokenizer.json, or vocab.json and merges.txt, in {' or '.join(_TOKENIZER[:2])}",
        fix="download the whole folder again",
    )


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:  # the libraries raise what they like
        raise ConfigError(
            f"the model's {folder.name} cannot be loaded",
            where=folder,
            expected="weights of the shapes that the config describes, and every file",
            found=f"{type(error).__name__}: {' '.join(str(error).split())[:400]}",
            fix="download the whole folder again",
        ) from error


def _json(path: Path) -> Mapping[str, Any]:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError("not a JSON file", where=path, found=error) from None
    if not isinstance(body, dict):
        raise ConfigError("not a JSON object", where=path, found=type(body).__name__)
    return body


def _listed(names: Sequence[str]) -> str:
    more = f"; and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return "; ".join(names[:_SHOWN]) + more
