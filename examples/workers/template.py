"""A worker for `mie`: a model in an environment of its own, loaded once, asked by JSON lines.

    mie run DATASET -e 'command:/path/to/env/bin/python template.py,jsonl=true' -o RUN

Replace `load` and `edit`: as they stand, the input comes back.
The contract is docs/reference/worker-protocol.md.
"""

import json
import sys

from PIL import Image


def load():
    """Return the model. This runs once, and may take long (`startup=` in seconds, 600 by default)."""
    return "no model yet"


def edit(model, image, instruction, seed, history, references):
    """Return the edited image. `history` has (instruction, image) of earlier turns, `references` images."""
    return image


def opened(path):
    with Image.open(path) as file:
        return file.convert("RGB")


replies, sys.stdout = sys.stdout, sys.stderr  # what libraries print must not mix with replies
model = load()
print(json.dumps({"ready": True}), file=replies, flush=True)
for line in sys.stdin:
    request = json.loads(line)
    reply = {"id": request["id"]}
    try:
        history = [(turn["instruction"], opened(turn["image"])) for turn in request.get("history", [])]
        references = [opened(path) for path in request.get("references", [])]
        image = opened(request["input"])
        edited = edit(model, image, request["instruction"], request["seed"], history, references)
        edited.save(request["output"])
        reply["output"] = request["output"]
    except Exception as error:  # this edit fails, the worker lives on
        reply["error"] = f"{type(error).__name__}: {error}"
    print(json.dumps(reply), file=replies, flush=True)
