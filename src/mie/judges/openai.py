"""Judges behind any endpoint that speaks OpenAI's chat completions, over HTTP and without its package.

The key is read from the environment and stored nowhere. The executor retries and limits the time of a call;
redirects are not followed, so an image goes to the host that the user named and to no other.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
from collections import OrderedDict
from collections.abc import AsyncIterator, Mapping
from typing import Any, ClassVar, Final
from urllib.parse import unquote_to_bytes, urlsplit

import cv2
import httpx
import numpy as np

from mie.core.retry import retry_after
from mie.core.spec import mask_secrets
from mie.errors import ConfigError, MieError
from mie.images.png import encode_png
from mie.judges.connections import open_transport
from mie.judges.contracts import CallError, CallLimits, Image, Message, Reply, Request, Usage
from mie.privacy.endpoints import is_loopback
from mie.records import Pixels

_MEMORY: Final = 64 * 2**20  # characters of base64 that are kept
_MOST_BYTES: Final = 16 * 2**20  # of a reply
_FILTER_WORDS: Final = ("content_filter", "content_policy", "responsible_ai", "safety system")
_SHOWN: Final = 300


class OpenAI:
    """A model behind OpenAI's own endpoint, or `base_url`.

    `max_tokens` limits the reply; `temperature=none` is for models that accept none; `structured` sends a
    JSON schema where a question has one; `stream` receives the reply piece by piece; `timeout` is for one
    call, `patience` for all calls of one question.
    """

    base_url: ClassVar[str] = "https://api.openai.com/v1"
    key_env: ClassVar[str] = "OPENAI_API_KEY"
    token_field: ClassVar[str] = "max_completion_tokens"  # noqa: S105 (tokens of text)
    at_once: int | None = None
    free = False

    def __init__(
        self,
        model: str,
        *,
        base_url: str | None = None,
        key_env: str | None = None,
        temperature: str = "0",
        max_tokens: int = 2048,
        structured: bool = True,
        stream: bool = False,
        timeout: float = 120.0,
        retries: int = 6,
        patience: float = 900.0,
    ) -> None:
        if max_tokens < 1 or timeout <= 0 or retries < 0 or patience <= 0:
            raise ConfigError("a limit of the judge is out of range", expected="numbers above 0")
        url = base_url or self.base_url
        parts = urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError("not a URL", where=mask_secrets(url), expected="https://host/v1")
        self.model = model
        self.provider = parts.hostname
        self.remote = not is_loopback(parts.hostname)
        self.limits = CallLimits(timeout, retries, patience)
        self.parameters: Mapping[str, Any] = {
            **({} if temperature == "none" else {"temperature": _temperature(temperature)}),
            # Other servers only know the older name.
            (self.token_field if base_url is None else "max_tokens"): max_tokens,
        }
        self._structured = structured
        self._stream = stream
        self._url = url
        self._target = httpx.URL(f"{url.rstrip('/')}/chat/completions")
        self._key_variable = key_env or self.key_env
        self._key: str | None = None
        self._headers: Mapping[str, str] = {}
        self._urls = DataUrls()
        self._transport: httpx.AsyncBaseTransport | None = None

    def ready(self) -> None:
        self._key = _key(self._key_variable, needed=self.remote)
        password = self._target.userinfo  # in the URL
        basic = f"Basic {base64.b64encode(unquote_to_bytes(password)).decode()}" if password else None
        login = basic or (self._key and f"Bearer {self._key}")
        self._headers = {
            **({"Authorization": login} if login else {}),
            "Host": self._target.netloc.decode("ascii"),
            "Content-Type": "application/json",
            "Accept": "application/json, text/event-stream",
            "Accept-Encoding": "identity",
            "User-Agent": "mie",
        }
        self._transport = open_transport(self._url)

    async def ask(self, request: Request) -> Reply:
        settings: dict[str, Any] = {"model": self.model, **self.parameters}
        if request.schema is not None and self._structured:
            named = {"name": "reply", "strict": True, "schema": dict(request.schema)}
            settings["response_format"] = {"type": "json_schema", "json_schema": named}
        if self._stream:
            settings |= {"stream": True, "stream_options": {"include_usage": True}}
        # By hand: base64 needs no escaping, and scanning it would take longer than all the rest.
        messages = b",".join([await self._message(message) for message in request.messages])
        body = b"".join((b'{"messages":[', messages, b"],", _json(settings)[1:]))
        try:
            response = await self._post(body)
            try:
                if response.status_code != 200:
                    await response.aread()
                    return self._status_error(response, schema="response_format" in settings)
                return await (self._streamed(response) if self._stream else self._whole(response))
            finally:
                await response.aclose()
        except httpx.TimeoutException:
            raise CallError("timed_out", f"no reply within {self.limits.call:g} s") from None
        except (httpx.TransportError, httpx.StreamError, httpx.DecodingError) as error:
            raise CallError("failed", self._shown(f"{type(error).__name__}: {error}")) from None

    async def close(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()

    async def _message(self, message: Message) -> bytes:
        parts = []
        for part in message.parts:
            if isinstance(part, str):
                parts.append(_json({"type": "text", "text": part}))
            else:
                url = await self._urls.of(part)
                parts.append(b"".join((b'{"type":"image_url","image_url":{"url":"', url, b'"}}')))
        if len(parts) == 1 and isinstance(message.parts[0], str):
            return _json({"role": message.role, "content": message.parts[0]})
        return b"".join((b'{"role":', _json(message.role), b',"content":[', b",".join(parts), b"]}"))

    async def _post(self, body: bytes) -> httpx.Response:
        assert self._transport is not None  # noqa: S101 (`ready` was called)
        request = httpx.Request("POST", self._target, headers=self._headers, content=body)
        response = await self._transport.handle_async_request(request)
        response.stream = _Limited(response.stream)
        return response

    async def _whole(self, response: httpx.Response) -> Reply:
        reply = self._json(await response.aread())
        try:
            choice = reply["choices"][0]
            message = choice["message"]
            text, refusal = message.get("content") or "", message.get("refusal")
            finish = choice.get("finish_reason") or "stop"
            usage = reply.get("usage") or {}
            if not (isinstance(text, str) and isinstance(finish, str)):
                raise TypeError("the content is not text")
            return Reply(text, finish, refusal, str(reply.get("model") or self.model), _usage(usage))
        except (KeyError, IndexError, TypeError, AttributeError, ValueError):
            raise CallError("failed", self._shown(f"not a chat completion: {reply!r}")) from None

    async def _streamed(self, response: httpx.Response) -> Reply:
        """The pieces of server-sent events, up to `[DONE]`, as one reply."""
        pieces: list[str] = []
        refusal: list[str] = []
        finish, model, usage = None, self.model, Usage()
        async for line in response.aiter_lines():
            name, _, data = line.partition(":")
            if name != "data" or not data.strip():
                continue
            if data.strip() == "[DONE]":
                break
            chunk = self._json(data)
            try:
                if chunk.get("error"):
                    raise CallError("failed", self._shown(chunk["error"]))
                model = str(chunk.get("model") or model)
                if chunk.get("usage"):
                    usage = _usage(chunk["usage"])
                for choice in (chunk.get("choices") or ())[:1]:
                    delta = choice.get("delta") or {}
                    pieces.append(delta.get("content") or "")
                    refusal.append(delta.get("refusal") or "")
                    finish = choice.get("finish_reason") or finish
            except (KeyError, IndexError, TypeError, AttributeError, ValueError):
                raise CallError("failed", self._shown(f"not a piece of a reply: {data}")) from None
        if finish is None:
            raise CallError("failed", "the stream ended early")
        return Reply("".join(pieces), finish, "".join(refusal) or None, model, usage)

    def _json(self, data: str | bytes) -> Any:
        try:
            return json.loads(data)
        except ValueError:
            raise CallError("failed", self._shown(f"not JSON: {_text(data)}")) from None

    def _status_error(self, response: httpx.Response, *, schema: bool) -> Reply:
        """For a status that is not 200: stop, try again, or take it for the answer."""
        status, code = response.status_code, _error_code(response.content)
        text = self._shown(f"HTTP {status}: {_text(response.content)}")
        message = _text(response.content).lower()
        if status in (401, 403, 404) or 300 <= status < 400 or code == "insufficient_quota":
            raise MieError(
                "the judge's endpoint refuses the request",
                where=f"{self.provider}, model {self.model}",
                found=text,
                fix=f"check the model's name, base_url, your quota, and the key in ${self._key_variable}",
            ) from None
        if status == 429:
            raise CallError("rate_limited", text, retry_after=retry_after(response.headers)) from None
        if status in (408, 409, 425) or status >= 500:
            raise CallError("failed", text, retry_after=retry_after(response.headers)) from None
        if any(word in message for word in _FILTER_WORDS):
            return Reply("", "content_filter", None, self.model)
        if status in (400, 422) and schema and _about_format(message):
            self._structured = (
                False  # this endpoint has no schemas: from now on the prompt alone asks for the form
            )
            raise CallError("failed", text, at_once=True) from None
        raise CallError("failed", text, retry=False) from None

    def _shown(self, error: object) -> str:
        text = str(error)
        if self._key is not None:
            text = text.replace(self._key, "***")
        return mask_secrets(text)[:_SHOWN]


class Gemini(OpenAI):
    """A Gemini model behind Google's endpoint."""

    base_url = "https://generativelanguage.googleapis.com/v1beta/openai/"
    key_env = "GEMINI_API_KEY"
    token_field = "max_tokens"  # noqa: S105


class Anthropic(OpenAI):
    """A Claude model behind Anthropic's endpoint."""

    base_url = "https://api.anthropic.com/v1/"
    key_env = "ANTHROPIC_API_KEY"
    token_field = "max_tokens"  # noqa: S105


class _Limited(httpx.AsyncByteStream):
    """The body of a response; `CallError` where it does not end."""

    def __init__(self, stream: Any) -> None:
        self._stream = stream

    async def __aiter__(self) -> AsyncIterator[bytes]:
        left = _MOST_BYTES
        async for piece in self._stream:
            left -= len(piece)
            if left < 0:
                raise CallError("failed", f"the reply is larger than {_MOST_BYTES // 2**20} MiB")
            yield piece

    async def aclose(self) -> None:
        await self._stream.aclose()


def _key(variable: str, *, needed: bool) -> str | None:
    key = os.environ.get(variable)
    if not key and needed:
        raise ConfigError(
            "no key for the judge",
            where=f"environment variable {variable}",
            found="not set",
            fix=f"export {variable}=..., or name another variable with key_env=",
        )
    return key or None


def _json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def _temperature(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 2:
        raise ConfigError("not a temperature", expected="0 to 2, or none", found=repr(text))
    return value


def _usage(usage: Mapping[str, Any]) -> Usage:
    return Usage(int(usage.get("prompt_tokens") or 0), int(usage.get("completion_tokens") or 0))


def _text(data: str | bytes) -> str:
    return data.decode(errors="replace") if isinstance(data, bytes) else data


def _error_code(data: bytes) -> Any:
    """`error.code` of an error's body, None without one."""
    try:
        body = json.loads(data)
        error = body.get("error", body)
        return error.get("code")
    except (ValueError, AttributeError):
        return None


def _about_format(message: str) -> bool:
    return any(word in message for word in ("response_format", "json_schema", "structured", "schema"))


class DataUrls:
    """Images as `data:` URLs. Encodes in threads and keeps the last 64 MiB. For one event loop."""

    def __init__(self, memory: int = _MEMORY) -> None:
        self._memory = memory
        self._used = 0
        self._urls: OrderedDict[str, asyncio.Future[bytes]] = OrderedDict()
        self.encoded = 0

    async def of(self, image: Image) -> bytes:
        """`data:image/png;base64,...`; a second call for the same pixels waits for the first."""
        url = self._urls.get(image.digest)
        if url is not None:
            self._urls.move_to_end(image.digest)
            return await asyncio.shield(url)
        task = self._urls[image.digest] = asyncio.ensure_future(asyncio.to_thread(data_url, image))
        self.encoded += 1
        try:
            text = await asyncio.shield(task)
        except BaseException:
            self._urls.pop(image.digest, None)
            raise
        self._used += len(text)
        while self._used > self._memory and len(self._urls) > 1:
            self._forget_oldest()
        return text

    def _forget_oldest(self) -> None:
        digest, url = next(iter(self._urls.items()))
        if not url.done():
            self._urls.move_to_end(digest)
            return
        del self._urls[digest]
        self._used -= len(url.result())


def data_url(image: Image) -> bytes:
    return b"data:image/png;base64," + base64.b64encode(encode_png(_one_channel(image.pixels)))


def _one_channel(pixels: Pixels) -> Pixels:
    """Three equal channels as one: the same picture in half the bytes, and faster to encode."""
    if pixels.ndim == 2 or not (pixels[0] == pixels[0, :, :1]).all():  # most colour shows in the first row
        return pixels
    first, *others = cv2.split(pixels)
    return first if all(np.array_equal(first, other) for other in others) else pixels
