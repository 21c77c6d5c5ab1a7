"""Editors that providers offer: `openai:MODEL`, `gemini:MODEL`, `ark:MODEL`, `fal:MODEL`.

A class here says what differs between the four: the URL, the headers, the body, where an answer holds its
picture, and how it says that the model declines. The rest is shared (`provider`).
"""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote

import httpx

from mie.editors.base import Request
from mie.editors.provider import Api, as_json, base64_png, data_url, images_of
from mie.editors.sizes import AUTO, NATIVE
from mie.images.png import encode_png
from mie.records import Pixels


class OpenAI(Api):
    """GPT-Image by OpenAI's interface for image edits: `openai:gpt-image-1,size=1024x1024,quality=low`.

    `quality` is low, medium or high; `fidelity=high` keeps more of the input. There is no seed.
    """

    name = "openai"
    base_url = "https://api.openai.com/v1"
    key_env = "OPENAI_API_KEY"
    extras = frozenset({"quality", "fidelity"})
    most_images = 16

    def path(self) -> str:
        return "/images/edits"

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def body(self, request: Request, image: Pixels, size: tuple[int, int] | None) -> tuple[bytes, str]:
        fields = {
            "model": self.model,
            "prompt": request.instruction,
            "n": "1",
            "size": AUTO if size is None else f"{size[0]}x{size[1]}",
            "output_format": "png",
        }
        if "quality" in self.options:
            fields["quality"] = self.options["quality"]
        if "fidelity" in self.options:
            fields["input_fidelity"] = self.options["fidelity"]
        files = [encode_png(one) for one in images_of(request, image)]
        field = "image" if len(files) == 1 else "image[]"
        # From the content: the same request has the same bytes, and no part can hold it by chance.
        mark = hashlib.sha256(b"".join((json.dumps(fields).encode(), *files))).hexdigest()
        kind = f"multipart/form-data; boundary={mark}"
        parts = [(field, (f"image{at}.png", data, "image/png")) for at, data in enumerate(files)]
        encoded = httpx.Request("POST", self._url, data=fields, files=parts, headers={"Content-Type": kind})
        return encoded.read(), kind

    def picture(self, answer: Any) -> Any:
        first = answer["data"][0]
        return first["b64_json"] if first.get("b64_json") is not None else first["url"]

    def refusal(self, answer: Any) -> str | None:
        error = answer["error"]
        declined = error.get("code") in ("moderation_blocked", "content_policy_violation")
        return f"{error['code']}: {error.get('message')}" if declined else None

    def usage(self, answer: Any) -> tuple[Any, Any]:
        return answer["usage"]["input_tokens"], answer["usage"]["output_tokens"]


class Gemini(Api):
    """Gemini's image models (Nano Banana): `gemini:gemini-3-pro-image-preview`.

    `size` is 1K, 2K or 4K and `aspect` such as 1:1; by default the model chooses both.
    """

    name = "gemini"
    base_url = "https://generativelanguage.googleapis.com/v1beta"
    key_env = "GEMINI_API_KEY"
    extras = frozenset({"aspect"})
    words = (AUTO, "1K", "2K", "4K")
    numbers = False

    def path(self) -> str:
        return f"/models/{quote(self.model, safe='')}:generateContent"

    def headers(self, key: str) -> dict[str, str]:
        return {"x-goog-api-key": key}

    def body(self, request: Request, image: Pixels, size: tuple[int, int] | None) -> tuple[bytes, str]:
        contents: list[dict[str, Any]] = []
        for turn in request.history:
            contents.append({"role": "user", "parts": [{"text": turn.instruction}]})
            contents.append({"role": "model", "parts": [_inline(turn.image)]})
        images = [_inline(one) for one in (image, *request.references)]
        contents.append({"role": "user", "parts": [{"text": request.instruction}, *images]})
        picture = {"aspectRatio": self.options["aspect"]} if "aspect" in self.options else {}
        if self.size != AUTO:
            picture["imageSize"] = self.size
        settings = {"responseModalities": ["IMAGE"], "seed": request.seed}
        if picture:
            settings["imageConfig"] = picture
        return as_json({"contents": contents, "generationConfig": settings})

    def images(self, request: Request) -> int:
        return 1 + len(request.history) + len(request.references)

    def picture(self, answer: Any) -> Any:
        parts = answer["candidates"][0]["content"]["parts"]
        return next((part["inlineData"]["data"] for part in parts if _is_picture(part)), None)

    def refusal(self, answer: Any) -> str | None:
        reason = (answer.get("promptFeedback") or {}).get("blockReason")
        if reason is not None:
            return f"blocked: {reason}"
        candidate = answer["candidates"][0]
        reason = candidate.get("finishReason")
        parts = (candidate.get("content") or {}).get("parts") or ()
        # MAX_TOKENS is no refusal: the answer broke off.
        if reason in (None, "STOP", "MAX_TOKENS") or any(_is_picture(part) for part in parts):
            return None
        words = candidate.get("finishMessage") or ""
        return f"{reason}: {words}" if words else str(reason)

    def usage(self, answer: Any) -> tuple[Any, Any]:
        counts = answer["usageMetadata"]
        return counts["promptTokenCount"], counts["totalTokenCount"] - counts["promptTokenCount"]


def _inline(image: Pixels) -> dict[str, Any]:
    return {"inlineData": {"mimeType": "image/png", "data": base64_png(image)}}


def _is_picture(part: Any) -> bool:
    return "inlineData" in part and not part.get("thought")


class Ark(Api):
    """SeedEdit and Seedream by ByteDance's Ark (BytePlus, Volcengine): `ark:seedream-4-0-250828`.

    `size` is 1K, 2K, 4K, adaptive, WIDTHxHEIGHT, or native for the input's own; `guidance` is guidance_scale.
    """

    name = "ark"
    base_url = "https://ark.ap-southeast.bytepluses.com/api/v3"
    key_env = "ARK_API_KEY"
    extras = frozenset({"guidance"})
    words = (AUTO, NATIVE, "1K", "2K", "4K", "adaptive")

    def path(self) -> str:
        return "/images/generations"

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Bearer {key}"}

    def body(self, request: Request, image: Pixels, size: tuple[int, int] | None) -> tuple[bytes, str]:
        urls = [data_url(one) for one in images_of(request, image)]
        body: dict[str, Any] = {
            "model": self.model,
            "prompt": request.instruction,
            "image": urls[0] if len(urls) == 1 else urls,
            "seed": request.seed,
            "response_format": "b64_json",
            "watermark": False,
            "sequential_image_generation": "disabled",
        }
        if size is not None:
            body["size"] = f"{size[0]}x{size[1]}"
        elif self.size != AUTO:
            body["size"] = self.size
        if "guidance" in self.options:
            body["guidance_scale"] = self.options["guidance"]
        return as_json(body)

    def picture(self, answer: Any) -> Any:
        first = answer["data"][0]
        return first["b64_json"] if first.get("b64_json") is not None else first["url"]

    def refusal(self, answer: Any) -> str | None:
        # The whole request declined, or the one picture of an answer.
        error = answer["error"] if answer.get("error") else answer["data"][0]["error"]
        declined = any(word in error["code"] for word in ("SensitiveContent", "RiskDetection"))
        return f"{error['code']}: {error.get('message')}" if declined else None

    def usage(self, answer: Any) -> tuple[Any, Any]:
        counts = answer["usage"]
        return counts["total_tokens"] - counts["output_tokens"], counts["output_tokens"]


class Fal(Api):
    """Models that fal hosts, such as Seedream: `fal:fal-ai/bytedance/seedream/v4/edit`.

    `size` is WIDTHxHEIGHT, or native for the input's own; by default the model chooses.
    """

    name = "fal"
    base_url = "https://fal.run"
    key_env = "FAL_KEY"
    words = (AUTO, NATIVE)

    def path(self) -> str:
        return "/" + quote(self.model)

    def headers(self, key: str) -> dict[str, str]:
        return {"Authorization": f"Key {key}"}

    def body(self, request: Request, image: Pixels, size: tuple[int, int] | None) -> tuple[bytes, str]:
        body: dict[str, Any] = {
            "prompt": request.instruction,
            "image_urls": [data_url(one) for one in images_of(request, image)],
            "num_images": 1,
            "seed": request.seed,
            "sync_mode": True,  # the picture itself comes back, not a link to it
        }
        if size is not None:
            body["image_size"] = {"width": size[0], "height": size[1]}
        return as_json(body)

    def picture(self, answer: Any) -> Any:
        return answer["images"][0]["url"]

    def refusal(self, answer: Any) -> str | None:
        if any(answer.get("has_nsfw_concepts") or ()):
            return "flagged as unsafe by the provider"
        detail = answer["detail"][0]
        return (
            f"{detail['type']}: {detail.get('msg')}" if detail["type"] == "content_policy_violation" else None
        )

    def usage(self, answer: Any) -> tuple[Any, Any]:
        raise LookupError("fal counts no tokens")
