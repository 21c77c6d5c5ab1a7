"""A server on this machine that speaks chat completions, to try out `mie score` without a model or a bill.

    python examples/loopback_judge.py --log requests.jsonl

It is no judge of quality: each reply is drawn from a hash of the request's texts and images, in the form that
the prompt asks for. Equal requests have equal replies. A share of them (`--trouble`) is refused, stopped by a
filter, cut off or unreadable, as happens with real ones. Every reply names its request by the first digits of
the hash, and the log has a line for each request that arrived.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

MODEL = "loopback-judge-1"


def name_of(body: dict[str, Any]) -> str:
    """Of the messages alone: which request this is."""
    return hashlib.sha256(json.dumps(body["messages"], sort_keys=True).encode()).hexdigest()


def reply_to(body: dict[str, Any], trouble: float) -> tuple[str, str, str | None]:
    """(text, how it finished, refusal)."""
    name = name_of(body)
    draw = [int(name[at : at + 4], 16) for at in range(0, 64, 4)]  # sixteen numbers below 65,536
    said = f"request {name[:16]}"
    if draw[15] < trouble * 65536:
        return [
            ("", "stop", f"I would rather not, {said}."),
            ("", "content_filter", None),
            (f"{said}: this goes on and", "length", None),
            (f"{said}: fine work!", "stop", None),
        ][draw[14] % 4]
    return _in_form(texts_of(body), said, draw), "stop", None


def _in_form(texts: list[str], said: str, draw: list[int]) -> str:
    """In the form that the system prompt, the first of the texts, asks for."""
    prompt, asked = texts[0], "\n".join(texts[1:])
    if '"score_list"' in prompt:
        return json.dumps({"conclusion": said, "score_list": [1 + number % 5 for number in draw[:8]]})
    if "Editing Accuracy: x/10" in prompt:
        return f"{said}\nEditing Accuracy: {draw[0] % 11}/10\nVisual Quality: {draw[1] % 11}/10"
    if "Instruction adherence: n" in prompt:
        names = ("Instruction adherence", "Editing quality", "Detail preservation")
        lines = [f"{name}: {1 + number % 5}" for name, number in zip(names, draw, strict=False)]
        return "\n".join([said, *lines])
    if "Score: n" in prompt:
        return f"{said}\nScore: {1 + draw[0] % 5}"
    if '[{"question"' in prompt:
        return json.dumps([{"question": f"Is the change to be seen ({said})?", "answer": "yes"}])
    if "unclear where" in prompt:
        lines = [line for line in asked.splitlines() if "Right answer:" in line]
        return "\n".join(f"{_word(number)}, {said}" for _, number in zip(lines, draw, strict=False))
    if "beginning with yes or no" in prompt:
        questions = asked.rpartition("Questions: ")[2].splitlines()[0].split(", ")
        return "\n".join(f"{'yes' if n % 3 else 'no'}, {said}" for _, n in zip(questions, draw, strict=False))
    return f"Change what the instruction names, as {said} shows, and leave the rest as it is."


def _word(number: int) -> str:
    return ("yes", "yes", "yes", "no", "unclear")[number % 5]


def texts_of(body: dict[str, Any]) -> list[str]:
    found = []
    for message in body["messages"]:
        content = message["content"]
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else content
        found += [part["text"] for part in parts if part["type"] == "text"]
    return found


class JudgeHandler(BaseHTTPRequestHandler):
    """Answers `POST /v1/chat/completions`."""

    protocol_version = "HTTP/1.1"
    log: Path
    delay: float
    trouble: float
    lock = threading.Lock()

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock, self.log.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"request": name_of(body)[:16], "at": time.time()}) + "\n")
        time.sleep(self.delay)
        text, finish, refusal = reply_to(body, self.trouble)
        message = {"role": "assistant", "content": text, "refusal": refusal}
        usage = {"prompt_tokens": 1000, "completion_tokens": 50, "total_tokens": 1050}
        choice = {"index": 0, "message": message, "finish_reason": finish}
        found = {"id": "x", "object": "chat.completion", "created": 0, "model": MODEL}
        data = json.dumps({**found, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


class JudgeServer(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A client that went away is no error of the server."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="any that is free by default")
    parser.add_argument("--log", type=Path, required=True, help="a line for each request is appended here")
    parser.add_argument("--delay", type=float, default=0.05, help="seconds before each reply (0.05)")
    parser.add_argument("--trouble", type=float, default=0.1, help="share that is no answer (0.1)")
    options = parser.parse_args()
    JudgeHandler.log, JudgeHandler.delay, JudgeHandler.trouble = options.log, options.delay, options.trouble
    options.log.touch()
    with JudgeServer(("127.0.0.1", options.port), JudgeHandler) as server:
        print(f"http://127.0.0.1:{server.server_address[1]}/v1", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
