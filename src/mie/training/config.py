"""The training file: YAML read into strict models, and the proof of the datasets that it names."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
)

from mie.core.registry import nearest_name, unknown_name
from mie.core.yaml_files import expanded, read_mapping
from mie.errors import ConfigError, MieError

# What may differ when a run resumes: it changes what is recorded, never the weights of a step.
_FREE: Final = {"name", "checkpoint", "validate", "log_every"}

_FEW: Final = 256
_VERIFIED: Final[set[tuple[Path, str]]] = set()

# `preset: NAME` in a training file stands for these keys.
# MieDB-100k's fine-tune of OmniGen2: all parameters, 8 GPUs of 8 images.
PRESETS: Final[Mapping[str, Mapping[str, Any]]] = {
    "miedb": {
        "trainee": "omnigen2",
        "seed": 2233,
        "steps": 20_000,
        "batch": 64,
        "optimizer": {
            "lr": 1e-4,
            "warmup": 500,
            "schedule": "constant",
            "betas": [0.9, 0.95],
            "weight_decay": 0.01,
            "clip": 1.0,
        },
        "ema": 0,
        "precision": "bf16",
        "channels_last": False,
        "gradient_checkpointing": True,
        "data": {"bins": [128, 256, 512], "caption_drop": 1e-4, "reference_drop": 0.5},
        "model": {"micro_batch": 8},
    },
}

M = TypeVar("M", bound=BaseModel)


class Strict(BaseModel):
    """Accepts no unknown keys; trainees read `data` and `model` into subclasses."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class OptimizerConfig(Strict):
    """AdamW with linear warm-up, then a cosine from `lr` down to `floor * lr`, or `lr` to the end."""

    lr: float = Field(7e-4, gt=0)
    weight_decay: float = Field(0.02, ge=0)
    warmup: int = Field(300, ge=0, description="steps")
    clip: float = Field(1.0, gt=0, description="largest norm of the gradient")
    floor: float = Field(0.02, ge=0, le=1)
    schedule: Literal["cosine", "constant"] = "cosine"
    betas: tuple[float, float] = Field((0.9, 0.99), description="of AdamW")
    bits: Literal[8, 32] = Field(32, description="of AdamW's moments; 8 needs bitsandbytes and a GPU")

    @field_validator("betas")
    @classmethod
    def _below_one(cls, value: tuple[float, float]) -> tuple[float, float]:
        if not all(0 <= beta < 1 for beta in value):
            raise ValueError("betas from 0 to below 1")
        return value

    @model_serializer(mode="wrap")
    def _without_later_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        """As written before these keys existed: a run that was started without them is the same run."""
        body: dict[str, Any] = handler(self)
        for key in ("schedule", "betas", "bits"):
            if getattr(self, key) == type(self).model_fields[key].default:
                del body[key]
        return body


class CheckpointConfig(Strict):
    every: int = Field(500, ge=1)
    keep: int = Field(2, ge=1, description="the newest ones; the best is kept besides")


class ValidateConfig(Strict):
    every: int = Field(1000, ge=1)


class TrainConfig(Strict):
    """A whole training file."""

    name: str = Field(min_length=1, max_length=96)
    trainee: str = Field(description="a known name, or module:Class")
    seed: int = Field(0, ge=0, lt=2**31)
    steps: int = Field(ge=1)
    batch: int = Field(ge=1, description="images per step, over all processes")
    optimizer: OptimizerConfig = OptimizerConfig()
    ema: float = Field(0.998, ge=0, lt=1)
    precision: Literal["bf16", "fp32"] = "bf16"
    compile: bool = False
    channels_last: bool = True
    gradient_checkpointing: bool = False
    checkpoint: CheckpointConfig = CheckpointConfig()
    # Not named `validate`: that is a method of every pydantic model.
    validation: ValidateConfig = Field(ValidateConfig(), alias="validate")
    log_every: int = Field(20, ge=1)
    data: dict[str, Any] = {}
    model: dict[str, Any] = {}

    _base: Path = PrivateAttr(default_factory=Path)

    @field_validator("name")
    @classmethod
    def _safe_name(cls, value: str) -> str:
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*", value):
            raise ValueError("a name has letters, digits, '.', '_' and '-' only")
        return value

    def path(self, text: str | Path) -> Path:
        """Return a path of the file: relative ones start at the file's folder."""
        return self._base / Path(text).expanduser()

    def trunk_file(self, text: str | Path) -> Path:
        """Return the file of `model.trunk`; `ConfigError` where there is none."""
        path = self.path(text)
        if not path.is_file():
            raise ConfigError(
                "no such file of pretrained weights",
                where=path,
                fix="examples/compact/README.md says where it comes from; or leave out model.trunk",
            )
        return path

    def document(self) -> dict[str, Any]:
        """Return the file with every default, as `train.json` keeps it."""
        return self.model_dump(mode="json", by_alias=True)

    def decisive(self) -> dict[str, Any]:
        """Return what the weights depend on: a run resumes only where all of this is the same."""
        return {key: value for key, value in self.document().items() if key not in _FREE}


def read_config(path: Path) -> TrainConfig:
    """Read the training file at `path`. `${NAME}` in a string comes from the environment."""
    body = read_mapping(path, "training file", expected="name:, trainee:, ...")
    return parse_config(body, where=str(path), base=path.parent)


def parse_config(body: Mapping[str, Any], *, where: str = "config", base: Path | str = ".") -> TrainConfig:
    """Parse a training file's content; `base` is where relative paths in it start."""
    config = parse_section(TrainConfig, with_preset(expanded(dict(body), where), where), where=where)
    config._base = Path(base)
    return config


def parse_section(model: type[M], body: Mapping[str, Any], *, where: str) -> M:
    """Parse `body` as a `model`; an unknown key is an error that suggests the nearest known one."""
    try:
        return model.model_validate(body)
    except ValidationError as error:
        raise _explained(error, model, where) from None


def _explained(error: ValidationError, model: type[BaseModel], where: str) -> ConfigError:
    first = error.errors()[0]
    place = f"{where}: {'.'.join(map(str, first['loc']))}"
    if first["type"] == "extra_forbidden":
        key = str(first["loc"][-1])
        near = nearest_name(key, _keys(model) - {key})
        fix = f"did you mean {near!r}?" if near else "see docs/how-to/train.md for the keys"
        return ConfigError(f"unknown key {key!r}", where=place, fix=fix)
    value = first.get("input")
    return ConfigError(
        first["msg"], where=place, found=None if isinstance(value, dict) else repr(value)[:120]
    )


def _keys(model: type[BaseModel]) -> set[str]:
    keys = set()
    for name, field in model.model_fields.items():
        keys.add(field.alias or name)
        for kind in (field.annotation, *get_args(field.annotation)):  # also of lists and of what may be None
            if isinstance(kind, type) and issubclass(kind, BaseModel):
                keys |= _keys(kind)
    return keys


def dataset_folders(config: TrainConfig) -> dict[str, Path]:
    """Return every string below `data` that is the path of a dataset's folder, as the file has it."""
    paths = {text: config.path(text) for text in sorted(set(_strings(config.data)))}
    return {text: path for text, path in paths.items() if (path / "dataset.json").is_file()}


def check_datasets(
    config: TrainConfig, known: Mapping[str, Any], show: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Return name, digest and count of each dataset; raise for one that fails `mie verify`.

    No GPU has been touched yet. `known` is an earlier result: a dataset whose files are unchanged since then
    is not decoded again.
    """
    facts = {}
    for text, folder in dataset_folders(config).items():
        from mie.datasets.dataset import Dataset

        dataset = Dataset(folder)
        files = [(p.name, p.stat().st_size, p.stat().st_mtime_ns) for p in dataset.shards()]
        fact = {
            "name": dataset.name,
            "digest": dataset.digest,
            "samples": len(dataset),
            "files": hashlib.sha256(repr(files).encode()).hexdigest(),
        }
        # What this process has verified stays so while the files are the same: experiments train many times.
        if known.get(text) != fact and (folder.resolve(), fact["files"]) not in _VERIFIED:
            show(f"verifying {folder}")
            _verify(folder, len(dataset))
            _VERIFIED.add((folder.resolve(), str(fact["files"])))
        facts[text] = fact
    return facts


def _verify(folder: Path, samples: int) -> None:
    from mie.datasets.verify import verify

    # To start workers takes longer than to check a few samples.
    result = verify(folder, workers=1 if samples <= _FEW else None)
    if not result.ok:
        first = result.problems[0]
        raise MieError(
            "the dataset fails `mie verify`",
            where=folder,
            found=f"{len(result.problems)} problems, the first: {first.check}, {first.where}: {first.reason}",
            fix=f"run `mie verify {folder}` to see all of them, and build the dataset again",
        )


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _strings(item)


def with_preset(body: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The training file with its preset's keys below its own. A list or number of the file replaces."""
    body = dict(body)
    name = body.pop("preset", None)
    if name is None:
        return body
    if not isinstance(name, str):
        raise ConfigError("not a preset", where=f"{where}: preset", expected=", ".join(PRESETS), found=name)
    if name not in PRESETS:
        raise unknown_name("preset", name, tuple(PRESETS))
    return _merged(PRESETS[name], body)


def _merged(below: Mapping[str, Any], above: Mapping[str, Any]) -> dict[str, Any]:
    whole = dict(below)
    for key, value in above.items():
        both = isinstance(value, Mapping) and isinstance(whole.get(key), Mapping)
        whole[key] = _merged(whole[key], value) if both else value
    return whole
