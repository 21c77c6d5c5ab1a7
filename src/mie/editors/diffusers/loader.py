"""A pipeline from a folder: checked before anything is loaded, from safetensors alone, without foreign code.

`model_index.json` names the classes of the parts. Only classes of diffusers and transformers are accepted, so
nothing that a folder brings along is ever executed, and pickled weights are rejected by name.
"""

from __future__ import annotations

import importlib.util
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from mie.core.registry import unknown_name
from mie.editors.diffusers.compiling import check_compiler, compile_blocks
from mie.editors.diffusers.dialects import EDITING_CLASS
from mie.errors import ConfigError
from mie.networks.pretrained import model_folder, need_packages, put_lora, quiet, refuse_pickles

INDEX: Final = "model_index.json"
DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "fp32": "float32"}
OFFLOADS: Final = ("none", "model", "sequential")
QUANTIZE: Final = ("none", "8bit", "4bit")
_EXAMPLE: Final = "timbrooks/instruct-pix2pix"
_LIBRARIES: Final = ("diffusers", "transformers")
_VARIANT: Final = "fp16"
_LARGE: Final = re.compile(r"(transformer|unet|text_encoder)(_\d)?")  # parts worth fewer bits
# Not loaded: it blacks out what it takes for nudity, among it skin and operations.
_CHECKER: Final = "safety_checker"
_QWEN: Final = "Qwen2VLProcessor"
_SPEAKS: Final = re.compile(r"Tokenizer(Fast)?$|(?<!Image)Processor$")  # classes that have a vocabulary
_VOCABULARIES: Final = ("tokenizer.json", "vocab", "spiece", "tokenizer.model", "tekken")
_DEVICE: Final = re.compile(r"cpu|mps|cuda(:\d+)?")
_HEAD: Final = "lm_head."  # makes words, which no pipeline asks for: some publish encoders without it
_SHOWN: Final = 3


@dataclass(frozen=True, slots=True)
class Machine:
    """Where and how precisely a pipeline computes."""

    dtype: str = "auto"
    device: str = "auto"
    offload: str = "none"
    tiling: bool = False
    quantize: str = "none"
    compile: bool = False

    def __post_init__(self) -> None:
        for noun, value, known in (
            ("dtype", self.dtype, ("auto", *DTYPES)),
            ("offload", self.offload, OFFLOADS),
            ("quantize", self.quantize, QUANTIZE),
        ):
            if value not in known:
                raise unknown_name(noun, value, known)
        if self.compile and self.offload == "sequential":
            raise ConfigError(
                "compile does not go with offload=sequential, which moves every layer by itself",
                expected="compile=true with offload=none or offload=model",
                found=f"offload={self.offload}",
            )

    def checked(self) -> Machine:
        """The same with `auto` replaced. `ConfigError` for what this computer does not have."""
        import torch

        gpu = torch.cuda.is_available()
        device = ("cuda" if gpu else "cpu") if self.device == "auto" else self.device
        if not _DEVICE.fullmatch(device):
            raise ConfigError("no such device", expected="auto, cpu, cuda or cuda:1", found=device)
        if device.startswith("cuda") and not gpu:
            raise ConfigError("no GPU that torch can use", found=f"device={device}", fix="use device=cpu")
        if device.startswith("cuda:") and int(device[5:]) >= torch.cuda.device_count():
            raise ConfigError("no such GPU", expected=f"{torch.cuda.device_count()} in all", found=device)
        if not device.startswith("cuda"):
            for option, value in (("offload", self.offload), ("quantize", self.quantize)):
                if value != "none":
                    raise ConfigError(
                        f"{option} needs a GPU",
                        found=f"{option}={value} on {device}",
                        fix=f"leave out {option}",
                    )
        if self.quantize != "none" and importlib.util.find_spec("bitsandbytes") is None:
            raise ConfigError(
                "quantize needs the package bitsandbytes",
                found=f"quantize={self.quantize}",
                fix="run `pip install bitsandbytes`",
            )
        if self.compile:
            check_compiler(device)
        half = device.startswith("cuda") and torch.cuda.is_bf16_supported()
        dtype = ("bf16" if half else "fp32") if self.dtype == "auto" else self.dtype
        return replace(self, dtype=dtype, device=device)


@dataclass(frozen=True, slots=True)
class Pipeline:
    """What a folder says about itself."""

    folder: Path
    name: str  # the class that edits
    parts: Mapping[str, tuple[str, str]]  # part -> (library, class)

    @property
    def index(self) -> Path:
        """The file that names the parts."""
        return self.folder / INDEX


def find_pipeline(text: str) -> Pipeline:
    """Read and check `model_index.json` of a folder or of a hub id in the local cache. Loads nothing."""
    need_packages("the editor diffusers")
    folder = model_folder(text, _EXAMPLE)
    index = folder / INDEX
    try:
        body = json.loads(index.read_text(encoding="utf-8"))
        name = body["_class_name"]
        parts = {part: value for part, value in body.items() if isinstance(value, list)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ConfigError(
            "no pipeline of diffusers here",
            where=index,
            expected=f"{INDEX}, which names the class and its parts",
            found=f"{type(error).__name__}: {error}",
            fix="give the folder that was downloaded or saved as a whole",
        ) from None
    foreign = [] if isinstance(name, str) else [repr(name)]
    for part, value in parts.items():
        if part != _CHECKER and value != [None, None] and not _is_known(value):
            foreign.append(f"{part} {value}")
    if foreign:
        raise ConfigError(
            "this pipeline needs code of its own, which is not executed",
            where=index,
            expected=f"classes of {' and '.join(_LIBRARIES)}",
            found=", ".join(foreign),
        )
    real = {part: (value[0], value[1]) for part, value in parts.items() if value[0] and part != _CHECKER}
    return Pipeline(folder, EDITING_CLASS.get(name, name), real)


def _is_known(value: list[Any]) -> bool:
    """Whether this is a class of the libraries, and none that lets a file choose another class."""
    if len(value) != 2 or value[0] not in _LIBRARIES or not isinstance(value[1], str):
        return False
    return not (value[0] == "transformers" and value[1].startswith("Auto"))


def check_files(pipeline: Pipeline) -> str | None:
    """Raise where a part is missing or pickled. Returns the variant of the weights (`fp16`), if any."""
    variant: str | None = None
    for part, (library, kind) in pipeline.parts.items():
        folder = pipeline.folder / part
        files = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        if not files:
            raise ConfigError(
                f"the pipeline's {part} is missing",
                where=folder,
                expected=f"the files of {library}.{kind}",
                fix="download the whole folder again",
            )
        if _SPEAKS.search(kind) and not any(name.startswith(_VOCABULARIES) for name in files):
            raise ConfigError(
                f"the vocabulary of the {part} is missing",
                where=folder,
                expected=" or ".join(_VOCABULARIES),
                found=", ".join(sorted(files)),
                fix="download the whole folder again",
            )
        safe = [name for name in files if name.endswith(".safetensors")]
        if not safe:
            refuse_pickles(folder, files)
        variant = variant or _variant(folder)
    return variant


def _variant(folder: Path) -> str | None:
    """`fp16` where the part's weights exist only under that name."""
    safe = [path.name for path in folder.glob("*.safetensors")]
    return _VARIANT if safe and all(f".{_VARIANT}" in name for name in safe) else None


def load_pipeline(pipeline: Pipeline, machine: Machine, lora: Path | None = None) -> Any:
    """The pipeline itself, on its device. `machine` is `checked`."""
    import diffusers
    import torch

    try:
        with quiet():
            kind = getattr(diffusers, pipeline.name, None)
            if kind is None:
                raise ConfigError(
                    f"this version of diffusers has no {pipeline.name}",
                    where=pipeline.index,
                    found=f"diffusers {diffusers.__version__}",
                    fix="run `pip install --upgrade diffusers`",
                )
            options = {
                "torch_dtype": getattr(torch, DTYPES[machine.dtype]),
                "local_files_only": True,
                "use_safetensors": True,
                "variant": check_files(pipeline),
            }
            pipe = kind.from_pretrained(pipeline.folder, **options, **_parts(pipeline, machine, options))
            _refuse_holes(pipe, pipeline)
    except (ConfigError, torch.OutOfMemoryError):
        raise
    except ImportError as error:
        raise ConfigError(
            "the pipeline needs a package that is not installed",
            where=pipeline.folder,
            found=_line(error),
            fix="install the package that is named",
        ) from error
    except Exception as error:  # the libraries raise what they like
        raise ConfigError(
            "the pipeline cannot be loaded",
            where=pipeline.folder,
            expected="weights of the shapes that the configs describe, and every file of the parts",
            found=_line(error),
            fix="download the whole folder again; its parts must belong to the same model",
        ) from error
    if lora is not None:
        put_lora(pipe, lora)
    if machine.tiling:
        pipe.vae.enable_tiling()
    if machine.compile:
        network: Any = getattr(pipe, "transformer", None) or pipe.unet
        compile_blocks(network, getattr(network, "_repeated_blocks", None) or ())
    if machine.offload == "model":
        pipe.enable_model_cpu_offload(device=machine.device)
    elif machine.offload == "sequential":
        pipe.enable_sequential_cpu_offload(device=machine.device)
    elif machine.quantize == "none":
        pipe.to(machine.device)
    else:  # the quantized parts are there already
        for part in pipeline.parts:
            if not _LARGE.fullmatch(part) and hasattr(getattr(pipe, part), "parameters"):
                getattr(pipe, part).to(machine.device)
    return pipe


def _parts(pipeline: Pipeline, machine: Machine, options: Mapping[str, Any]) -> dict[str, Any]:
    """What the pipeline is given instead of reading it itself."""
    parts: dict[str, Any] = {}
    if _CHECKER in json.loads(pipeline.index.read_text(encoding="utf-8")):
        parts = {_CHECKER: None, "feature_extractor": None, "requires_safety_checker": False}
    for part, (library, kind) in pipeline.parts.items():
        if kind == _QWEN:
            parts[part] = _qwen_processor(pipeline.folder / part)
        elif library == "transformers" and machine.quantize == "none":
            model = transformers_model(pipeline.folder / part, kind, options)
            parts |= {} if model is None else {part: model}
    if machine.quantize != "none":
        parts["quantization_config"] = _quantized(pipeline, machine)
    return parts


def transformers_model(folder: Path, kind: str, options: Mapping[str, Any]) -> Any:
    """A text encoder, every tensor from its files: transformers would fill what is missing at random.

    None where the class is no model.
    """
    import transformers

    model_class: Any = getattr(transformers, kind, None)
    if not (isinstance(model_class, type) and issubclass(model_class, transformers.PreTrainedModel)):
        return None
    read: Any = model_class.from_pretrained
    options = {**options, "variant": _variant(folder)}
    model, found = read(folder, **options, output_loading_info=True, ignore_mismatched_sizes=True)
    shapes = [f"{name} {tuple(file)}, expected {tuple(own)}" for name, file, own in found["mismatched_keys"]]
    missing = sorted(name for name in set(found["missing_keys"]) if not name.startswith(_HEAD))
    if shapes or missing:
        raise unfit(folder, shapes, missing)
    return model


def _refuse_holes(pipe: Any, pipeline: Pipeline) -> None:
    """Raise where diffusers left a tensor without values because the files do not have it."""
    for part in pipeline.parts:
        module: Any = getattr(pipe, part, None)
        if hasattr(module, "named_parameters"):
            missing = [name for name, tensor in module.named_parameters() if tensor.is_meta]
            if missing:
                raise unfit(pipeline.folder / part, [], missing)


def unfit(folder: Path, shapes: list[str], missing: list[str]) -> ConfigError:
    names = shapes or [f"{name} is missing" for name in missing]
    more = f"; and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ConfigError(
        f"the weights of the {folder.name} do not fit its config",
        where=folder,
        expected="every tensor that config.json describes, in its shape",
        found="; ".join(names[:_SHOWN]) + more,
        fix="download the whole folder again; its parts must belong to the same model",
    )


def _line(error: Exception) -> str:
    """The first sentence of what a library says; the next ones are advice about its own options."""
    text = re.split(r"\.\s+(?=[A-Z])", " ".join(str(error).split()))[0]
    return f"{type(error).__name__}: {text[:300]}"


def find_lora(text: str) -> Path:
    """A LoRA's file: `text` itself, or the one safetensors file of a folder."""
    path = Path(text).expanduser()
    files = sorted(path.glob("*.safetensors")) if path.is_dir() else [path]
    if len(files) == 1 and files[0].suffix == ".safetensors" and files[0].is_file():
        return files[0]
    raise ConfigError(
        "no LoRA here",
        where=path,
        expected="a safetensors file, or a folder with exactly one",
        found=", ".join(file.name for file in files) or "none" if path.exists() else "no such path",
    )


def _qwen_processor(folder: Path) -> Any:
    """Qwen's processor of texts and images without its part for videos, which needs torchvision."""
    from transformers import Qwen2Tokenizer, Qwen2VLImageProcessorPil, Qwen2VLProcessor

    class Processor(Qwen2VLProcessor):
        def check_argument_for_proper_class(self, name: str, value: Any) -> None:
            pass  # it would object to the missing part

    make: Any = Processor
    return make(Qwen2VLImageProcessorPil.from_pretrained(folder), Qwen2Tokenizer.from_pretrained(folder))


def _quantized(pipeline: Pipeline, machine: Machine) -> Any:
    import torch
    from diffusers.quantizers.pipe_quant_config import PipelineQuantizationConfig

    options: dict[str, Any] = {"load_in_8bit": True}
    if machine.quantize == "4bit":
        compute = getattr(torch, DTYPES[machine.dtype])
        options = {
            "load_in_4bit": True,
            "bnb_4bit_quant_type": "nf4",
            "bnb_4bit_compute_dtype": compute,
        }
    return PipelineQuantizationConfig(
        quant_backend=f"bitsandbytes_{machine.quantize}",
        quant_kwargs=options,
        components_to_quantize=[part for part in pipeline.parts if _LARGE.fullmatch(part)],
    )
