"""A loopback server that speaks the four providers' interfaces, strictly: what they do not know is an error.

It takes the first image that it was sent, inverts it, and returns it at the size that was asked for. `seen`
has every request as (path, headers, fields), with images as arrays; `fault` may answer in its place.
"""

from __future__ import annotations

import base64
import contextlib
import email
import email.policy
import json
import re
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import cv2
import numpy as np

from mie.images.png import decode_png, encode_png

KEYS = {"openai": "OPENAI_API_KEY", "gemini": "GEMINI_API_KEY", "ark": "ARK_API_KEY", "fal": "FAL_KEY"}
MODELS = {
    "openai": "gpt-image-1",
    "gemini": "gemini-3-pro-image-preview",
    "ark": "seedream-4-0-250828",
    "fal": "fal-ai/bytedance/seedream/v4/edit",
}
PATHS = {
    "openai": "/v1/images/edits",
    "gemini": "/v1/models/gemini-3-pro-image-preview:generateContent",
    "ark": "/v1/images/generations",
    "fal": "/v1/fal-ai/bytedance/seedream/v4/edit",
}
KEY = "secret-key-0123456789"


def authorised(name: str, headers: dict[str, str]) -> bool:
    return {
        "openai": headers.get("authorization") == f"Bearer {KEY}",
        "gemini": headers.get("x-goog-api-key") == KEY and "authorization" not in headers,
        "ark": headers.get("authorization") == f"Bearer {KEY}",
        "fal": headers.get("authorization") == f"Key {KEY}",
    }[name]


def multipart(headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """The fields by Python's own reader of messages."""
    head = f"Content-Type: {headers['content-type']}\r\n\r\n".encode()
    message = email.message_from_bytes(head + body, policy=email.policy.HTTP)
    fields: dict[str, Any] = {"images": [], "names": []}
    for part in message.iter_parts():
        name = part.get_param("name", header="content-disposition")
        data = part.get_payload(decode=True)
        if part.get_filename() is None:
            assert name not in fields
            fields[name] = data.decode()
        else:
            assert part.get_content_type() == "image/png"
            fields["names"].append((name, part.get_filename()))
            fields["images"].append(decode_png(data))
    return fields


def from_url(url: str) -> np.ndarray:
    head, _, text = url.partition(",")
    assert head == "data:image/png;base64"
    return decode_png(base64.b64decode(text, validate=True))


def parse(name: str, headers: dict[str, str], body: bytes) -> dict[str, Any]:
    """What was asked; an AssertionError for a key that the provider does not know."""
    if name == "openai":
        fields = multipart(headers, body)
        known = {"images", "names", "model", "prompt", "n", "size", "quality", "input_fidelity"}
        assert fields.keys() <= known | {"output_format"}
        assert re.fullmatch(r"auto|\d+x\d+", fields["size"])
        return fields
    assert headers["content-type"] == "application/json"
    fields = json.loads(body)
    if name == "gemini":
        assert fields.keys() == {"contents", "generationConfig"}
        settings = fields["generationConfig"]
        assert settings.keys() <= {"responseModalities", "imageConfig", "seed"}
        assert settings["responseModalities"] == ["IMAGE"]
        assert [turn["role"] for turn in fields["contents"]][::2] == ["user"] * (
            len(fields["contents"]) // 2 + 1
        )
        parts = [part for turn in fields["contents"] for part in turn["parts"]]
        images = [part["inlineData"] for part in parts if "inlineData" in part]
        assert all(image["mimeType"] == "image/png" for image in images)
        fields["images"] = [decode_png(base64.b64decode(image["data"])) for image in images]
        fields["prompt"] = fields["contents"][-1]["parts"][0]["text"]
    elif name == "ark":
        known = {"model", "prompt", "image", "size", "seed", "guidance_scale", "response_format", "watermark"}
        assert fields.keys() <= known | {"sequential_image_generation"}
        assert (fields["response_format"], fields["watermark"]) == ("b64_json", False)
        urls = fields.pop("image")
        fields["images"] = [from_url(url) for url in ([urls] if isinstance(urls, str) else urls)]
    else:
        assert fields.keys() <= {"prompt", "image_urls", "image_size", "num_images", "seed", "sync_mode"}
        assert fields["sync_mode"] is True
        fields["images"] = [from_url(url) for url in fields.pop("image_urls")]
    return fields


def asked_size(name: str, fields: dict[str, Any]) -> tuple[int, int]:
    """(width, height) of the answer: as asked, else that of the provider's own choice."""
    text = str(fields.get("size", ""))
    if re.fullmatch(r"\d+x\d+", text):
        width, height = text.split("x")
        return int(width), int(height)
    if name == "fal" and "image_size" in fields:
        return fields["image_size"]["width"], fields["image_size"]["height"]
    return 1024, 768


def answer(name: str, picture: bytes) -> dict[str, Any]:
    """A good answer as the provider words it."""
    text = base64.b64encode(picture).decode()
    if name == "openai":
        return {
            "created": 1,
            "data": [{"b64_json": text}],
            "usage": {"input_tokens": 300, "output_tokens": 272},
        }
    if name == "gemini":
        thought = {"thought": True, "inlineData": {"mimeType": "image/png", "data": "AAAA"}}
        parts = [thought, {"text": "Here it is."}, {"inlineData": {"mimeType": "image/png", "data": text}}]
        return {
            "candidates": [{"content": {"role": "model", "parts": parts}, "finishReason": "STOP"}],
            "usageMetadata": {"promptTokenCount": 300, "candidatesTokenCount": 1120, "totalTokenCount": 1500},
        }
    if name == "ark":
        usage = {"generated_images": 1, "output_tokens": 4096, "total_tokens": 4096}
        return {
            "model": "seedream",
            "created": 1,
            "data": [{"b64_json": text, "size": "1x1"}],
            "usage": usage,
        }
    return {"images": [{"url": f"data:image/png;base64,{text}", "content_type": "image/png"}], "seed": 1}


REFUSALS: dict[str, tuple[int, dict[str, Any]]] = {
    "openai": (400, {"error": {"code": "moderation_blocked", "message": "rejected by the safety system"}}),
    "gemini": (200, {"promptFeedback": {"blockReason": "PROHIBITED_CONTENT"}, "usageMetadata": {}}),
    "ark": (400, {"error": {"code": "InputImageSensitiveContentDetected", "message": "sensitive"}}),
    "fal": (422, {"detail": [{"type": "content_policy_violation", "msg": "flagged", "loc": ["body"]}]}),
}


class Providers(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self.server_port}/v1"
        self.seen: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.raw: list[bytes] = []
        self.wrong: list[str] = []
        self.lock = threading.Lock()
        self.open = False  # takes requests without a key
        self.fault: Any = lambda handler, number, fields: False

    def handle_error(self, request: Any, client_address: Any) -> None:
        pass  # clients hang up on purpose here

    def spec(self, name: str, options: str = "") -> str:
        return f"{name}:{MODELS[name]},base_url={self.url}{options}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Providers

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        body = self.rfile.read(length)
        if len(body) < length:  # the client was killed while it was sending
            self.close_connection = True
            return None
        headers = {name.lower(): value for name, value in self.headers.items()}
        name = next((name for name, path in PATHS.items() if path == self.path), None)
        if name is None:
            return self.reply({"error": {"message": "no such model"}}, 404)
        try:
            fields = parse(name, headers, body)
        except Exception as error:
            self.server.wrong.append(f"{type(error).__name__}: {error}")
            return self.reply({"error": {"message": "bad request"}}, 400)
        with self.server.lock:
            self.server.raw.append(body)
            self.server.seen.append((self.path, headers, fields))
            number = len(self.server.seen)
        if self.server.fault(self, number, fields):
            return None
        if not (self.server.open or authorised(name, headers)):
            key = headers.get("authorization") or headers.get("x-goog-api-key")
            return self.reply({"error": {"code": "invalid_api_key", "message": f"wrong key: {key}"}}, 401)
        size = asked_size(name, fields)
        edited = cv2.resize(255 - fields["images"][0], size, interpolation=cv2.INTER_AREA)
        return self.reply(answer(name, encode_png(edited)))

    def reply(self, body: Any, status: int = 200, **headers: str) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def providers() -> Iterator[Providers]:
    running = Providers()
    thread = threading.Thread(target=running.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield running
    finally:
        running.shutdown()
        running.server_close()
