"""Editors that providers offer: `openai:MODEL`, `gemini:MODEL`, `ark:MODEL`, `fal:MODEL`.

A class here says what differs between the four: the URL, the headers, the body, where an answer holds its
picture, and how it says that the model declines. The rest is shared: `remote` asks, `answers` keeps what was paid
for and counts it, and the output comes back to the image's own grid.

Pixels and instructions are sent, and nothing else: no name of a sample, a file or a patient.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final
from urllib.parse import quote

import httpx

from mie.editors.answers import Answers, ImagePrice, answer_name, find_image_price
from mie.editors.base import Edited, EditError, Editor, RefusedError, Request, StopRunError, Turn
from mie.editors.outputs import decode_output
from mie.editors.remote import Reply, Server, picture_bytes
from mie.editors.sizes import AUTO, NATIVE, SizeRule, check_size, place
from mie.errors import ConfigError
from mie.images.png import encode_png
from mie.judges.contracts import Usage
from mie.records import Pixels

JSON: Final = "application/json"
_MODEL: Final = re.compile(r"[A-Za-z0-9][\w.@:-]*(/[A-Za-z0-9][\w.@:-]*)*", re.ASCII)
_ANY_SIZE: Final = SizeRule(multiple=1, least=1, most=2**26)
_LEAST_SIDE: Final = (
    512  # an answer may be large even where the image is small: a side is counted as this much
)
_STOP: Final = (401, 402, 403, 404)  # what is wrong with one request is wrong with all of them


class Api(Editor):
    """What the four share. `size` and the options in `extras` go into the request."""

    thread_safe = True
    workers = 4
    tuning = frozenset({"timeout", "retries", "max_mb", "key_env", "budget", "price", "prices"})

    name: ClassVar[str]
    base_url: ClassVar[str]
    key_env: ClassVar[str]
    extras: ClassVar[frozenset[str]] = frozenset()
    words: ClassVar[tuple[str, ...]] = (AUTO,)  # sizes that are no numbers
    numbers: ClassVar[bool] = True  # whether a size may be WIDTHxHEIGHT
    most_images: ClassVar[int | None] = None

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        key_env: str | None = None,
        size: str = AUTO,
        quality: str | None = None,
        fidelity: str | None = None,
        aspect: str | None = None,
        guidance: float | None = None,
        timeout: float = 300.0,
        retries: int = 4,
        max_mb: float = 64.0,
        budget: float | None = None,
        price: float | None = None,
        prices: str | None = None,
    ) -> None:
        if not _MODEL.fullmatch(model):
            raise ConfigError(
                "not a model's name", where=f"{self.name}:{model[:80]}", expected="letters, digits, . - and /"
            )
        self.model = model
        self.size = size if size in self.words else self._numbers(size)
        options = {"quality": quality, "fidelity": fidelity, "aspect": aspect, "guidance": guidance}
        for option, value in options.items():
            if value is not None and option not in self.extras:
                raise ConfigError(f"editor {self.name!r} has no option {option!r}", found=value)
        self.options: Mapping[str, Any] = {key: value for key, value in options.items() if value is not None}
        self._key_variable = key_env or self.key_env
        self._url = (base_url or self.base_url).rstrip("/") + self.path()
        self._limits = {"timeout": timeout, "max_mb": max_mb}, retries
        self.destination = self._connection(None).destination
        found = find_image_price(model, self.size, quality, prices) if price is None else ImagePrice(price)
        if (budget is not None and budget < 0) or (price is not None and price < 0):
            raise ConfigError("a price or a budget is below 0", where=f"{self.name}:{model}")
        if budget is not None and found is None:
            raise ConfigError(
                "a budget needs a price",
                where=f"{self.name}:{model}",
                expected="price=, in US dollars per image, or prices=FILE",
                found="no price is known for this model, size and quality",
                fix="look at your provider's price page and add for example price=0.04",
            )
        self._answers = Answers(found, budget, self._usage)

    # What differs.

    @abstractmethod
    def path(self) -> str:
        """What follows the base URL."""

    @abstractmethod
    def headers(self, key: str) -> dict[str, str]:
        """The headers that carry the key."""

    @abstractmethod
    def body(self, request: Request, image: Pixels, size: tuple[int, int] | None) -> tuple[bytes, str]:
        """The request's body and its content type. `size` is the (width, height) to ask for, if any."""

    @abstractmethod
    def picture(self, answer: Any) -> Any:
        """Where an answer holds its picture; LookupError or TypeError where it has none."""

    @abstractmethod
    def refusal(self, answer: Any) -> str | None:
        """Why the model declines, if it does. LookupError, TypeError and AttributeError mean: it does not."""

    @abstractmethod
    def usage(self, answer: Any) -> tuple[Any, Any]:
        """Tokens in and out, as the answer counts them."""

    # What is shared.

    def about(self) -> dict[str, Any]:
        price = self._answers.price
        noted = {} if price is None else {"price_usd": price.image, "price_noted": price.noted}
        return {"model": self.model, "host": self._connection(None).host, **noted}

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        return self.edit_request(Request(image, instruction, seed, history=history))

    def edit_request(self, request: Request) -> Edited:
        image, placement = place(request.image, self.size if self._asks_numbers else AUTO, _ANY_SIZE)
        body, kind = self._body(request, image)
        name = answer_name(request, self._url, body)
        answer = self._answers.find(name)
        if answer is None:
            answer = self._ask(name, body, kind)
        picture, about = self._read(answer)
        like = (max(_LEAST_SIDE, image.shape[0]), max(_LEAST_SIDE, image.shape[1]))
        edited = decode_output(picture, like=like, where=self._server.host)
        pixels, steps = placement.back(edited.image)
        done = [*placement.steps, *edited.meta.get("steps", ()), *steps]
        return Edited(pixels, {**edited.meta, **about, **({"steps": done} if done else {})})

    def sends(self, request: Request) -> tuple[int, int]:
        image, _ = place(request.image, self.size if self._asks_numbers else AUTO, _ANY_SIZE)
        return len(images_of(request)), len(self._body(request, image)[0])

    def cost(self, edits: int) -> float | None:
        return None if self._answers.price is None else edits * self._answers.price.image

    @property
    def spent(self) -> float | None:  # type: ignore[override]
        return self._answers.spent

    def keep_in(self, folder: Path) -> None:
        self._server  # noqa: B018 (a missing key is told before the first edit)
        self._answers.keep_in(folder)

    def recorded(self, sample_id: str, attempt: int) -> None:
        self._answers.drop(sample_id, attempt)

    def close(self) -> None:
        if "_server" in self.__dict__:
            self._server.close()
        self._answers.close()

    @cached_property
    def _server(self) -> Server:
        key = os.environ.get(self._key_variable)
        if not key and self.destination is not None:
            raise StopRunError(
                "no key for the editor",
                where=f"environment variable {self._key_variable}",
                found="not set",
                fix=f"export {self._key_variable}=..., or name another variable with key_env=",
            )
        return self._connection(key)

    def _connection(self, key: str | None) -> Server:
        limits, retries = self._limits
        headers = {"Accept": JSON, **(self.headers(key) if key else {})}
        return Server(self._url, headers, **limits, retries=retries, secret=key)

    @property
    def _asks_numbers(self) -> bool:
        return self.size not in self.words

    def _numbers(self, size: str) -> str:
        if not self.numbers or (size in (AUTO, NATIVE) and size not in self.words):
            raise ConfigError(
                "not a size", where=f"{self.name}, size", expected=", ".join(self.words), found=size
            )
        return check_size(size)

    def _body(self, request: Request, image: Pixels) -> tuple[bytes, str]:
        if self.most_images is not None and len(images_of(request)) > self.most_images:
            raise EditError(
                "too many images for one edit",
                expected=f"at most {self.most_images}",
                found=len(images_of(request)),
            )
        asks = self._asks_numbers or self.size == NATIVE
        return self.body(request, image, (image.shape[1], image.shape[0]) if asks else None)

    def _ask(self, name: str, body: bytes, kind: str) -> bytes:
        """A good answer, on disk. One that declines or fails costs nothing and is asked for again."""
        with self._answers.reserved():
            reply = self._server.post(body, kind, lost=lambda: self._answers.lost(name), final=_without_money)
            if not reply.good:
                raise self._error(reply)
            self._answers.keep(name, reply.body)
        return reply.body

    def _error(self, reply: Reply) -> EditError | StopRunError:
        text = self._server.error_text(reply)
        refusal = self._refusal(_json(reply.body))
        if refusal is not None:
            return RefusedError("the model declined", found=refusal)
        if reply.status in _STOP or _without_money(reply) or b"API_KEY_INVALID" in reply.body:
            return StopRunError(
                "the provider rejects every request",
                where=f"{self._server.host}, model {self.model}",
                found=text,
                fix=f"check the model's name, base_url, your quota and the key in ${self._key_variable}; then "
                "run the same command again: it resumes",
            )
        return EditError("the provider rejected the edit", found=text)

    def _refusal(self, answer: Any) -> str | None:
        try:
            found = self.refusal(answer)
        except (LookupError, TypeError, AttributeError):
            return None
        return None if found is None else str(found)[:_TEXT]

    def _usage(self, body: bytes) -> Usage | None:
        try:
            tokens = self.usage(_json(body))
            return Usage(*(int(count) for count in tokens))
        except (LookupError, TypeError, AttributeError, ValueError, OverflowError):
            return None

    def _read(self, body: bytes) -> tuple[bytes, dict[str, Any]]:
        """The picture file in an answer, and what its edit's `meta` should say."""
        answer = _json(body)
        refusal = self._refusal(answer)
        try:
            if refusal is not None:
                raise RefusedError("the model declined", found=refusal)
            picture = picture_bytes(self.picture(answer))
        except (LookupError, TypeError, AttributeError, ValueError):
            raise EditError(
                "the provider's answer holds no picture",
                found=f"{len(body)} bytes that begin with {body[:200]!r}",
            ) from None
        usage = self._usage(body)
        price = self._answers.price
        return picture, {
            "model": self.model,
            **({} if usage is None else {"tokens": {"input": usage.input, "output": usage.output}}),
            **({} if price is None else {"usd": round(price.of(usage), 6)}),
        }


_TEXT: Final = 500  # characters of a refusal


def images_of(request: Request, image: Pixels | None = None) -> list[Pixels]:
    """The image (or what it was scaled to), the outputs of earlier turns, and the references.

    The output of the last turn is left out where it is the image itself.
    """
    earlier = [turn.image for turn in request.history]
    if earlier and request.origin is not None:
        earlier.pop()
    return [request.image if image is None else image, *earlier, *request.references]


def data_url(image: Pixels) -> str:
    return f"data:image/png;base64,{base64_png(image)}"


def base64_png(image: Pixels) -> str:
    return base64.b64encode(encode_png(image)).decode()


def _json(body: bytes) -> Any:
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        return None


def _as_json(body: Mapping[str, Any]) -> tuple[bytes, str]:
    return json.dumps(body).encode(), JSON


def _without_money(reply: Reply) -> bool:
    """Whether an account is empty: OpenAI says so with the status of a busy server."""
    return not reply.good and b"insufficient_quota" in reply.body


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
        return _as_json({"contents": contents, "generationConfig": settings})

    def picture(self, answer: Any) -> Any:
        parts = answer["candidates"][0]["content"]["parts"]
        return next(part["inlineData"]["data"] for part in parts if _is_picture(part))

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
        return _as_json(body)

    def picture(self, answer: Any) -> Any:
        first = answer["data"][0]
        return first["b64_json"] if first.get("b64_json") is not None else first["url"]

    def refusal(self, answer: Any) -> str | None:
        # The whole request declined, or the one picture of an answer.
        error = answer["error"] if answer.get("error") else answer["data"][0]["error"]
        declined = "SensitiveContent" in error["code"]
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
        return _as_json(body)

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
