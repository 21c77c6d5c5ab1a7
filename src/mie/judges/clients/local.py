"""A vision-language model of `transformers` in a folder on this machine: nothing is fetched or run of it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from PIL import Image as PilImage

from mie.errors import ConfigError, MieError
from mie.judges.contracts import Image, Patience, Reply, Request, Usage


class Local:
    """One call at a time, greedy. `device` is `cpu`, `cuda`, `cuda:1`, ...; by default the first GPU."""

    provider = "local"
    remote = False
    free = True
    at_once: int | None = 1

    def __init__(
        self, folder: str, *, device: str | None = None, max_tokens: int = 2048, timeout: float = 600.0
    ) -> None:
        if not (Path(folder) / "config.json").is_file():
            raise ConfigError(
                "no model here", where=folder, expected="a folder with config.json, as transformers saves one"
            )
        self.model = Path(folder).resolve().name
        self.parameters: Mapping[str, Any] = {"do_sample": False, "max_new_tokens": max_tokens}
        self.patience = Patience(timeout, retries=0, total=timeout)
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
        asked = int(inputs["input_ids"].shape[1])
        with torch.inference_mode():
            made = model.generate(**inputs, **self.parameters)[0, asked:]
        limit = int(self.parameters["max_new_tokens"])
        ended = len(made) < limit or int(made[-1]) in _ends(model)
        reply = processor.decode(made, skip_special_tokens=True)
        return Reply(reply, "stop" if ended else "length", None, self.model, Usage(asked, len(made)))

    def _load(self) -> tuple[Any, Any]:
        try:
            torch: Any = import_module("torch")
            transformers: Any = import_module("transformers")
        except ImportError as error:
            raise ConfigError(
                "a local judge needs torch and transformers", found=error, fix="pip install 'mie[models]'"
            ) from None
        device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
        kept: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
        try:
            processor = transformers.AutoProcessor.from_pretrained(self._folder, **kept)
            model = transformers.AutoModelForImageTextToText.from_pretrained(
                self._folder, use_safetensors=True, dtype="auto", **kept
            )
        except (OSError, ValueError, ImportError) as error:
            raise MieError("cannot load the judge's model", where=self._folder, found=error) from error
        return processor, model.to(device).eval()


def _part(part: str | Image) -> dict[str, str]:
    return {"type": "text", "text": part} if isinstance(part, str) else {"type": "image"}


def _picture(image: Image) -> PilImage.Image:
    return PilImage.fromarray(image.pixels).convert("RGB")


def _ends(model: Any) -> set[int]:
    found = model.generation_config.eos_token_id
    return set(found if isinstance(found, list) else [found])
