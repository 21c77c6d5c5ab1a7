"""Conversations: samples with a group and a turn, each of which goes on from the turn before.

`free`: a model is given its own output of the turn before, so that errors add up. `forced`: it is given the
sample's own input, which is the reference of the turn before. Turns are made in waves, first turns first; an
edit remembers the digest of the output that it began with, so that a turn whose past was made again is too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from mie.editors.base import Request, Turn
from mie.images.png import decode_png
from mie.records import Edit
from mie.running.requests import Unreadable
from mie.store.dataset import Dataset
from mie.store.runs import output_name

FREE: Final = "free"
TURNS: Final = (FREE, "forced")
BEFORE: Final = "turn_before"  # in an edit's `meta`
NO_PAST: Final = "the turn before has no output"
Key = tuple[str, int]  # sample id, attempt


@dataclass(frozen=True, slots=True)
class Conversations:
    """Which sample goes on from which, and what each was asked."""

    before: Mapping[str, str]
    prompts: Mapping[str, str]

    @classmethod
    def of(cls, dataset: Dataset, split: str | None, ids: Iterable[str]) -> Conversations:
        """Those among the samples of a run. A turn that is not in it is skipped."""
        chosen = set(ids)
        table = dataset.table(["id", "group", "turn", "prompt"], split)
        talks: dict[str, dict[int, str]] = {}
        prompts = {}
        for name, group, turn, prompt in zip(*table.values(), strict=True):
            if group is not None and turn is not None and name in chosen:
                talks.setdefault(group, {}).setdefault(turn, name)
                prompts[name] = prompt
        before: dict[str, str] = {}
        for turns in talks.values():
            order = [turns[turn] for turn in sorted(turns)]
            before.update(zip(order[1:], order, strict=False))
        return cls(before, prompts)

    def past(self, sample: str) -> list[str]:
        """The samples of the turns before, first turn first."""
        found: list[str] = []
        while (earlier := self.before.get(sample)) is not None:
            found.insert(0, earlier)
            sample = earlier
        return found

    def left(self, wanted: Iterable[Key], edits: Mapping[Key, Edit], left: set[Key]) -> set[Key]:
        """What is to be made again beside `left`, because the turn before is or was since."""
        found: set[Key] = set()
        for name, k in sorted(wanted, key=lambda key: len(self.past(key[0]))):
            earlier = self.before.get(name)
            if earlier is None or (name, k) in left:
                continue
            edit, past = edits.get((name, k)), edits.get((earlier, k))
            again = (earlier, k) in left or (earlier, k) in found
            if edit is not None and past is not None and past.state == "done":
                stale = edit.meta.get(BEFORE) != past.sha256
                again |= stale if edit.state == "done" else str(edit.reason).startswith(NO_PAST)
            if again:
                found.add((name, k))
        return found

    def waves(self, left: Iterable[Key]) -> list[list[Key]]:
        """What can be made at the same time: first turns and single samples, then second turns, ..."""
        found: dict[int, list[Key]] = {}
        for key in left:
            found.setdefault(len(self.past(key[0])), []).append(key)
        return [found[depth] for depth in sorted(found)]


def going_on(
    requests: Iterable[Request | Unreadable],
    talks: Conversations,
    folder: Path,
    edits: Mapping[Key, Edit],
) -> Iterator[Request | Unreadable]:
    """The requests with the model's own outputs: the image of the turn before, and all turns as history."""
    for request in requests:
        if isinstance(request, Unreadable) or request.sample is None:
            yield request
            continue
        name, k = request.sample.id, request.attempt
        past = talks.past(name)
        if not past:
            yield request
            continue
        last = edits.get((past[-1], k))
        if last is None or last.state != "done":
            yield Unreadable(name, k, NO_PAST)
            continue
        images = [decode_png((folder / output_name(earlier, k)).read_bytes()) for earlier in past]
        turns = [Turn(talks.prompts[earlier], image) for earlier, image in zip(past, images, strict=True)]
        # A copy: the editor may work in place, and the image is in its history too.
        yield replace(request, image=images[-1].copy(), history=tuple(turns), origin=last.sha256)
