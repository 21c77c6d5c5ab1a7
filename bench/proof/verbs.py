"""The rest of the command line: which commands and options there are, and what the smaller ones give."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from bench.proof.commands import CommandLine
from bench.proof.material import RECIPES, Material


def record(mie: CommandLine, material: Material) -> dict[str, Any]:
    return {
        "options": options(mie),
        "sources": {entry.pop("name"): entry for entry in mie.json("sources", "list")},
        "check": [mie.json("sources", "check", name) for name in ("sample_brain_mri", "sample_nuclei")],
        "weights": mie.json("weights", "list"),
        "edit": edits(mie, material),
        "sample": sheet(mie, material),
        "rephrase": rephrased(mie),
    }


def options(mie: CommandLine) -> dict[str, list[str]]:
    """Command -> its options. The wording of the help is free to change."""
    found: dict[str, list[str]] = {}
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        words = waiting.pop()
        text = mie(*words, "--help")
        named = text.partition("Options:")[2]
        found[" ".join(("mie", *words))] = sorted(set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", named)))
        _, _, listed = text.partition("Commands:")
        waiting += [(*words, name) for name in re.findall(r"^  ([a-z][a-z-]*)", listed, re.MULTILINE)]
    return dict(sorted(found.items()))


def edits(mie: CommandLine, material: Material) -> dict[str, Any]:
    """One image, edited."""
    first = {name: mie.rows(material.dataset(name))[0] for name in RECIPES}
    found = {}
    for editor, name in (("otsu", "perception"), ("nlm", "transformation"), ("compact", "perception")):
        row = first[name]
        mie.write("edit/input.png", row["input"]["bytes"])
        asked = ("edit/input.png", row["prompt"], "-e", editor, "-o", "edit/output.png", "--overwrite")
        document = mie.json("edit", *asked)
        found[editor] = {"printed": document, "sha256": mie.sha256(mie.folder / "edit/output.png")}
    return found


def sheet(mie: CommandLine, material: Material) -> dict[str, Any]:
    """A blind sheet, and what its answers say."""
    dataset = material.dataset("perception")
    found: dict[str, Any] = {}
    for allocation in ("proportional", "equal"):
        out = f"sheet-{allocation}"
        mie.remove(out)
        drawn = mie.json("sample", dataset, "-n", 9, "--allocation", allocation, "--seed", 3, "-o", out)
        rows = range(1, drawn["asked"] + 1)
        said = [f"{drawn['sheet']},{row},{'bad' if row % 4 == 0 else 'good'},artefact" for row in rows]
        mie.write(f"{out}.csv", "\n".join(["sheet,row,answer,reason", *said]) + "\n")
        found[allocation] = {
            "drawn": drawn,
            "key": mie.document(f"{out}/key.json"),
            "answered": mie.json("sample", out, "--answers", f"{out}.csv"),
        }
    return found


def rephrased(mie: CommandLine) -> dict[str, Any]:
    """A build whose instructions the judge on this machine puts in other words."""
    body = {"name": "rephrased", "seed": 284, **RECIPES["perception"]}
    body["sources"] = body["sources"][:2]
    mie.write("recipes/rephrased.yaml", body)
    mie.remove("datasets/rephrased")
    with rephraser() as judge:
        words = ("build", "recipes/rephrased.yaml", "-o", "datasets/rephrased", "--no-stats")
        dry = mie.json(*words, "--rephrase", judge, "--rephrase-dry-run")
        built = mie.json(*words, "--rephrase", judge)
    return {
        "dry": dry,
        "built": built,
        "dataset": mie.dataset("datasets/rephrased"),
        "prompts": [row["prompt"] for row in mie.rows("datasets/rephrased")],
    }


class _Rephraser(BaseHTTPRequestHandler):
    """Replies with two faithful rephrasings and one that says less."""

    def do_POST(self) -> None:
        asked = self.rfile.read(int(self.headers["Content-Length"])).decode()
        found = re.search(r"Instruction: (.*?)\\n", asked)
        sentence = json.loads(f'"{found[1]}"') if found else "-"
        lower = sentence[0].lower() + sentence[1:]
        texts = [f"Kindly {lower}", f"Could you do this: {lower}", "Make it better."]
        message = {"role": "assistant", "content": json.dumps({"rephrasings": texts})}
        usage = {"prompt_tokens": 100, "completion_tokens": 50, "total_tokens": 150}
        body = {"id": "x", "object": "chat.completion", "created": 0, "model": "rephraser-1", "usage": usage}
        body["choices"] = [{"index": 0, "message": message, "finish_reason": "stop"}]
        data = json.dumps(body).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def rephraser() -> Iterator[str]:
    """The specification of a judge on this machine that rephrases."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Rephraser) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"openai:rephraser,base_url=http://127.0.0.1:{server.server_address[1]}/v1"
        server.shutdown()
