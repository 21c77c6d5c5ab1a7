"""What the editors of providers share: options, the key, money, and the way of an image there and back.

Pixels and instructions are sent, and nothing else: no name of a sample, a file or a patient. `remote` asks,
`answers` keeps what was paid for, and the output comes back to the image's own grid.
"""

from __future__ import annotations

import base64
import json
import os
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Final

import numpy as np

from mie.editors.answers import Answers, ImagePrice, answer_name, find_image_price
from mie.editors.base import Edited, EditError, Editor, RefusedError, Request, StopRunError, Turn
from mie.editors.outputs import decode_output
from mie.editors.remote import Reply, Server, picture_bytes
from mie.editors.sizes import AUTO, NATIVE, Placement, SizeRule, check_size, place
from mie.errors import ConfigError
from mie.images.png import encode_png
from mie.judges.contracts import Usage
from mie.records import Pixels

JSON: Final = "application/json"
_MODEL: Final = re.compile(r"[A-Za-z0-9][\w.@:-]*(/[A-Za-z0-9][\w.@:-]*)*", re.ASCII)
_ANY_SIZE: Final = SizeRule(multiple=1, least=1, most=2**26)
_LEAST_SIDE: Final = 512  # pixels that a side counts at least, where an output's size has a limit
_TEXT: Final = 500  # characters of a refusal
_STOP: Final = (401, 402, 403, 404)  # what is wrong with one request is wrong with all of them


class Api(Editor):
    """A model behind a provider's interface. `size` and the options in `extras` go into the request."""

    takes_references = True
    thread_safe = True
    workers = 4
    tuning = frozenset({"timeout", "retries", "max_mb", "key_env", "budget", "price", "prices"})

    model: str
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

    def images(self, request: Request) -> int:
        """How many images a request holds."""
        return len(images_of(request))

    # What is shared.

    def about(self) -> dict[str, Any]:
        price = self._answers.price
        noted = {} if price is None else {"price_usd": price.image, "price_noted": price.noted}
        return {"model": self.model, "host": self._connection(None).host, **noted}

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        return self.edit_request(Request(image, instruction, seed, history=history))

    def edit_request(self, request: Request) -> Edited:
        if self.most_images is not None and self.images(request) > self.most_images:
            raise EditError(
                "too many images for one edit",
                expected=f"at most {self.most_images}",
                found=self.images(request),
            )
        body, kind, placement = self._encoded(request)
        name = answer_name(request, self._url, body)
        answer = self._answers.find(name)
        if answer is None:
            answer = self._ask(name, body, kind)
        picture, about = self._read(answer)
        height, width = placement.given
        like = (max(_LEAST_SIDE, height), max(_LEAST_SIDE, width))
        edited = decode_output(picture, like=like, where=self._server.host)
        pixels, steps = placement.back(edited.image)
        done = [*placement.steps, *edited.meta.get("steps", ()), *steps]
        return Edited(pixels, {**edited.meta, **about, **({"steps": done} if done else {})})

    def sends(self, request: Request) -> tuple[int, int]:
        return self.images(request), len(self._encoded(request)[0])

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

    def _encoded(self, request: Request) -> tuple[bytes, str, Placement]:
        """The request's body, its content type, and where the image lies in what is sent."""
        image, placement = place(request.image, self.size if self._asks_numbers else AUTO, _ANY_SIZE)
        asks = self._asks_numbers or self.size == NATIVE
        body, kind = self.body(request, image, (image.shape[1], image.shape[0]) if asks else None)
        return body, kind, placement

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
                fix=f"check the model's name, base_url, your quota and the key in ${self._key_variable}, and "
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
            return Usage(*(max(0, int(count)) for count in tokens))
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


def images_of(request: Request, image: Pixels | None = None) -> list[Pixels]:
    """The image (or what it was scaled to), the outputs of earlier turns, and the references.

    The output of the last turn is left out where it is the image itself.
    """
    earlier = [turn.image for turn in request.history]
    if earlier and np.array_equal(earlier[-1], request.image):
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


def as_json(body: Mapping[str, Any]) -> tuple[bytes, str]:
    return json.dumps(body).encode(), JSON


def _without_money(reply: Reply) -> bool:
    """Whether an account is empty: OpenAI says so with the status of a busy server."""
    return not reply.good and b"insufficient_quota" in reply.body
