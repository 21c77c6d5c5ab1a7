"""Judges by name, and the two that need no server: a local model, and recorded replies.

`openai:MODEL`, `gemini:MODEL`, `anthropic:MODEL`, `local:FOLDER`, `replay:FILE`. Other packages add theirs in
the entry-point group `mie.judges`: a class with the attributes and methods of `contracts.Client`.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, Final, cast

from PIL import Image as PilImage

from mie.core.environment import install_hint
from mie.core.files import digest
from mie.core.registry import Registry
from mie.core.spec import Spec, construct, parse_spec
from mie.errors import ConfigError, MieError
from mie.judges.contracts import CallError, CallLimits, Client, Image, Reply, Request, Usage

JUDGES: Final[Registry[type[Any]]] = Registry(
    "judge",
    {
        "openai": "mie.judges.openai:OpenAI",
        "gemini": "mie.judges.openai:Gemini",
        "anthropic": "mie.judges.openai:Anthropic",
        "replay": "mie.judges.clients:Replay",
        "local": "mie.judges.clients:Local",
    },
    group="mie.judges",
    hint="write openai:MODEL for a model behind an API",
)


def open_client(spec: str | Spec) -> Client:
    """The client of a spec such as `openai:gpt-4o,base_url=http://127.0.0.1:8000/v1`."""
    spec = parse_spec(spec, noun="judge") if isinstance(spec, str) else spec
    return cast(Client, construct(JUDGES[spec.name], spec, noun="judge"))


class Local:
    """A vision-language model of `transformers` in a folder on this machine.

    Nothing is downloaded, and no code of the folder runs. One call at a time, greedy decoding. `device` is
    `cpu`, `cuda`, `cuda:1`, ...; by default the first GPU. `adapter` is a LoRA that `mie train` has made.
    """

    provider = "local"
    remote = False
    free = True
    at_once: int | None = 1

    def __init__(
        self,
        folder: str,
        *,
        device: str | None = None,
        max_tokens: int = 2048,
        timeout: float = 600.0,
        adapter: str | None = None,
    ) -> None:
        if not (Path(folder) / "config.json").is_file():
            raise ConfigError(
                "no model here", where=folder, expected="a folder with config.json, as transformers saves one"
            )
        self.model = Path(folder).resolve().name
        self.parameters: Mapping[str, Any] = {"do_sample": False, "max_new_tokens": max_tokens}
        self._options = dict(self.parameters)
        self._adapter = None if adapter is None else Path(adapter)
        if self._adapter is not None:
            if not self._adapter.is_file():
                raise ConfigError("no LoRA here", where=adapter, expected="weights of `mie train`")
            self.parameters = {**self.parameters, "adapter": digest(self._adapter)[:16]}
        self.limits = CallLimits(timeout, retries=0, total=timeout)
        self._folder = folder
        self._device = device
        self._loaded: tuple[Any, Any] = (None, None)  # processor and model

    def ready(self) -> None:
        self._loaded = self._load()

    async def ask(self, request: Request) -> Reply:
        # A thread cannot be stopped: after a time-out the next call waits for it.
        return await asyncio.to_thread(self._ask, request)

    async def close(self) -> None:
        self._loaded = (None, None)

    def _ask(self, request: Request) -> Reply:
        torch: Any = import_module("torch")
        processor, model = self._loaded
        messages = [
            {"role": message.role, "content": [_part(part) for part in message.parts]}
            for message in request.messages
        ]
        text = processor.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        images = [_picture(p) for message in request.messages for p in message.parts if isinstance(p, Image)]
        inputs = processor(text=[text], images=images or None, return_tensors="pt").to(model.device)
        length = int(inputs["input_ids"].shape[1])
        with torch.inference_mode():
            tokens = model.generate(**inputs, **self._options)[0, length:]
        limit = int(self.parameters["max_new_tokens"])
        ended = len(tokens) < limit or int(tokens[-1]) in _end_tokens(model)
        reply = processor.decode(tokens, skip_special_tokens=True)
        return Reply(reply, "stop" if ended else "length", None, self.model, Usage(length, len(tokens)))

    def _load(self) -> tuple[Any, Any]:
        try:
            torch: Any = import_module("torch")
            transformers: Any = import_module("transformers")
        except ImportError as error:
            raise ConfigError(
                "a local judge needs torch and transformers", found=error, fix=install_hint("models")
            ) from None
        device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
        options: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            processor = transformers.AutoProcessor.from_pretrained(self._folder, **options)
            model = transformers.AutoModelForImageTextToText.from_pretrained(
                self._folder, use_safetensors=True, dtype="auto", **options
            )
        except (OSError, ValueError, ImportError) as error:
            raise MieError("cannot load the judge's model", where=self._folder, found=error) from error
        if self._adapter is not None:
            from mie.judges.adapters import attach_adapter

            attach_adapter(model, self._adapter)
        return processor, model.to(device).eval()


def _part(part: str | Image) -> dict[str, str]:
    return {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}


def _picture(image: Image) -> PilImage.Image:
    return PilImage.fromarray(image.pixels).convert("RGB")


def _end_tokens(model: Any) -> set[int]:
    tokens = model.generation_config.eos_token_id
    return set(tokens if isinstance(tokens, list) else [tokens])


class Replay:
    """Recorded replies: the journal of another judge, or lines written by hand.

    A line is `{"key": ..., "reply": text}`, optionally with `repeat`, `repair`, `finish`, `refusal`, `model`
    and `usage`. The last of two lines for one question counts.
    """

    provider = "replay"
    parameters: Mapping[str, Any] = {}
    remote = False
    free = True
    at_once: int | None = None
    limits = CallLimits(retries=0)

    def __init__(self, file: str) -> None:
        path = Path(file)
        self._lines: dict[tuple[str, int, bool], Mapping[str, Any]] = {}
        models = set()
        try:
            with path.open(encoding="utf-8") as lines:
                for number, line in enumerate(lines, start=1):
                    body = _recorded(line, f"{path}:{number}")
                    self._lines[body["key"], int(body.get("repeat", 0)), bool(body.get("repair"))] = body
                    models.add(str(body.get("model") or "recorded"))
        except OSError as error:
            raise ConfigError("cannot read the recorded replies", where=path, found=error.strerror) from None
        self.model = "+".join(sorted(models)) or "recorded"

    def ready(self) -> None:
        pass

    async def ask(self, request: Request) -> Reply:
        repair = len(request.messages) > 2
        body = self._lines.get((request.key, request.repeat, repair))
        if body is None:
            raise CallError("failed", f"no recorded reply for {request.key}", retry=False)
        usage = body.get("usage") or {}
        return Reply(
            body["reply"],
            body.get("finish", "stop"),
            body.get("refusal"),
            str(body.get("model") or "recorded"),
            Usage(int(usage.get("input", 0)), int(usage.get("output", 0))),
        )

    async def close(self) -> None:
        pass


def _recorded(line: str, where: str) -> Mapping[str, Any]:
    try:
        body = json.loads(line)
        if isinstance(body["key"], str) and isinstance(body["reply"], str):
            return dict(body)
    except (ValueError, KeyError, TypeError):
        pass
    raise ConfigError(
        "not a recorded reply", where=where, expected='{"key": ..., "reply": ...}', found=repr(line[:120])
    )
