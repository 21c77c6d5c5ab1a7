"""Layouts that keep conversations together: ShareGPT's list, and OmniGen2's with several input images."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from typing import Final

from mie.core.hashing import file_stem
from mie.datasets.exports.target import ExportFolder, Row, json_line
from mie.errors import MieError

_MOST_IMAGES: Final = 5  # that OmniGen2 takes


def write_sharegpt(rows: Iterable[Row], out: ExportFolder) -> None:
    """`{split}.jsonl`, a line for each conversation, and `images/`. Paths are relative to the folder.

    A line has `conversations`, in which person and model take turns, and `images`, one for each `<image>` in
    them: the first image, then the truth of every turn. A sample without turns is a conversation of one.
    """
    for split, group in groupby(rows, key=lambda row: str(row["split"])):
        with out.text(f"{split}.jsonl") as lines:
            for talk in _talks(group):
                images = _images(talk, out)
                said = []
                for at, turn in enumerate(talk):
                    shown = "" if at else "<image>\n"
                    said.append({"from": "human", "value": f"{shown}{turn['prompt']}"})
                    said.append({"from": "gpt", "value": "<image>"})
                name = talk[0]["group"] if talk[0]["turn"] is not None else talk[0]["id"]
                lines.write(json_line({"id": name, "conversations": said, "images": images}))


def write_omnigen2_turns(rows: Iterable[Row], out: ExportFolder) -> None:
    """`{split}.jsonl`, a line for each turn, and `images/`, with absolute paths, as the trainer wants them.

    The input images of a turn are the first image and the truths of the turns before, the latest last; of
    more than five, the first and the four latest. The instruction tells the turns before, too.
    """
    root = out.root.resolve()
    for split, group in groupby(rows, key=lambda row: str(row["split"])):
        with out.text(f"{split}.jsonl") as lines:
            for talk in _talks(group):
                images = _images(talk, out)
                for at, turn in enumerate(talk):
                    before = images[: at + 1]
                    if len(before) > _MOST_IMAGES:
                        before = [before[0], *before[1 - _MOST_IMAGES :]]
                    told = [f"Turn {n}: {one['prompt']}" for n, one in enumerate(talk[:at], start=1)]
                    line = {
                        "input_images": [str(root / image) for image in before],
                        "output_image": str(root / images[at + 1]),
                        "instruction": "\n".join([*told, f"Turn {at + 1}: {turn['prompt']}"])
                        if told
                        else turn["prompt"],
                        "task_type": "edit",
                    }
                    lines.write(json_line(line))


def _talks(rows: Iterable[Row]) -> Iterator[list[Row]]:
    """Conversations by turn; one is in memory. A sample without turns stands alone."""
    seen: set[str] = set()
    for key, found in groupby(rows, key=lambda row: row["id"] if row["turn"] is None else row["group"]):
        talk = sorted(found, key=lambda row: row["turn"] or 0)
        if key in seen:
            raise MieError(
                "the turns of a conversation do not stand together",
                where=key,
                fix="build or import the dataset again: both write conversations as a whole",
            )
        seen.add(key)
        yield talk


def _images(talk: Sequence[Row], out: ExportFolder) -> list[str]:
    """The first image and the truth of every turn."""
    names = [f"images/{file_stem(talk[0]['id'])}_start.png"]
    out.put(names[0], talk[0]["input"]["bytes"])
    for turn in talk:
        names.append(f"images/{file_stem(turn['id'])}.png")
        out.put(names[-1], turn["target_image"]["bytes"])
    return names
