"""A model behind a URL of the user's own.

The editor sends a POST request with JSON, `{"instruction": text, "seed": number, "image": base64 of a PNG}`;
in a conversation also `"history": [{"instruction": text, "image": base64}]`, and with further images
`"references": [base64]`. The server answers with a picture file, or with JSON: `{"image": base64 or data:
URL}`, `{"error": text}`, or `{"refused": text}` where its model declines.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Sequence
from typing import Any

from mie.editors.base import Edited, EditError, Editor, RefusedError, Request, Turn
from mie.editors.outputs import decode_output
from mie.editors.remote import Server, picture_bytes
from mie.errors import ConfigError
from mie.images.png import encode_png
from mie.images.raster import raster_format
from mie.records import Pixels


class Http(Editor):
    """Sends image and instruction to a server and takes the image that it returns.

    `timeout` (seconds) is for one whole request, `max_mb` for one answer; `token_env` names the environment
    variable with a bearer token.
    """

    takes_references = True
    thread_safe = True
    tuning = frozenset({"timeout", "retries", "max_mb", "token_env"})

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 300.0,
        retries: int = 4,
        max_mb: float = 64.0,
        token_env: str | None = None,
    ) -> None:
        token = None if token_env is None else os.environ.get(token_env)
        if token_env is not None and not token:
            raise ConfigError("no token", where=f"environment variable {token_env}", found="not set")
        headers = {"Accept": "image/png, application/json"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        self._server = Server(
            url, headers, timeout=timeout, retries=retries, max_mb=max_mb, secret=token or None
        )
        self.destination = self._server.destination

    def edit(self, image: Pixels, instruction: str, *, seed: int, history: Sequence[Turn]) -> Edited:
        return self.edit_request(Request(image, instruction, seed, history=history))

    def edit_request(self, request: Request) -> Edited:
        reply = self._server.post(_body(request), "application/json")
        if not reply.good:
            raise EditError("the server refused the edit", found=self._server.error_text(reply))
        return decode_output(_picture(reply.body), like=request.image.shape, where=self._server.shown)

    def sends(self, request: Request) -> tuple[int, int]:
        return 1 + len(request.history) + len(request.references), len(_body(request))

    def close(self) -> None:
        self._server.close()


def _body(request: Request) -> bytes:
    body: dict[str, Any] = {
        "instruction": request.instruction,
        "seed": request.seed,
        "image": _base64(request.image),
    }
    if request.history:
        body["history"] = [
            {"instruction": turn.instruction, "image": _base64(turn.image)} for turn in request.history
        ]
    if request.references:
        body["references"] = [_base64(image) for image in request.references]
    return json.dumps(body).encode()


def _base64(image: Pixels) -> str:
    return base64.b64encode(encode_png(image)).decode()


def _picture(body: bytes) -> bytes:
    """The picture file in an answer: the body itself, or what its JSON holds."""
    if raster_format(body[:12]) is not None:
        return body
    try:
        answer = json.loads(body)
        if isinstance(answer, dict) and answer.get("error") is not None:
            raise EditError("the server reports an error", found=str(answer["error"])[:2000])
        if isinstance(answer, dict) and answer.get("refused") is not None:
            raise RefusedError("the model declined", found=str(answer["refused"])[:2000])
        return picture_bytes(answer["image"])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise EditError(
            "the server's answer is not a picture",
            expected='a picture file, or {"image": base64}',
            found=f"{len(body)} bytes that begin with {body[:60]!r}",
        ) from None
