"""The gate: every image that leaves this machine goes through `Gate.release`.

Two things must hold. Somebody says that the images are de-identified: the recipe's sources, or the user
(`--deidentified`). And nothing identifying is found in the image itself; `--redact` blacks it out in what is
sent, `--allow-phi` sends it as it is. Before all that comes the user's consent to send anything to another
machine (`--allow-remote`), whether an editor or a judge is there. What was sent, redacted or allowed is
appended to a log.
"""

from __future__ import annotations

import getpass
import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from mie.core.environment import install_hint
from mie.core.journal import Journal
from mie.errors import MieError
from mie.images.hashes import pixel_digest
from mie.privacy import faces
from mie.privacy.text import Box, can_look, text_boxes
from mie.records import Pixels

LOG: Final = "privacy.jsonl"
_SHOWN: Final = 10  # findings in an error


class PrivacyError(MieError):
    """Something would leave this machine that must not."""


@dataclass(frozen=True, slots=True)
class Finding:
    """What was found: in which image or file, what kind of identifier, where in it, and why."""

    where: str
    kind: str  # "text", "face", "dicom", "profile", "header", "name", "unread"
    reason: str
    box: Box | None = None  # left, top, right, bottom in pixels

    def __str__(self) -> str:
        place = "" if self.box is None else f" at {self.box[0]},{self.box[1]} to {self.box[2]},{self.box[3]}"
        return f"{self.where}: {self.kind}{place}: {self.reason}"


@dataclass(frozen=True, slots=True)
class Policy:
    """What the user says: by options of the command, never by a file from elsewhere."""

    deidentified: bool = False  # the user vouches that no patient can be identified
    redact: bool = False  # black out what is found, in what is sent
    allow_phi: bool = False  # send it as it is; logged
    allow_remote: bool = False  # an editor or a judge may be on another machine


class Gate:
    """What one destination may get. Thread-safe; the same pixels are looked at once."""

    def __init__(self, policy: Policy, destination: str, log: Path | None = None) -> None:
        self.policy = policy
        self.destination = destination
        self.counts = {"images": 0, "redacted": 0, "allowed": 0}
        self._path = log
        self._log: Journal | None = None
        self._lock = threading.Lock()
        self._seen: dict[bytes, list[tuple[str, str, Box | None]]] = {}

    def check_consent(self, what: str = "images") -> None:
        """Raise unless the user allows that images, or only words, are sent to another machine."""
        if not self.policy.allow_remote:
            raise PrivacyError(
                f"{what} would be sent to another machine",
                where=f"to {self.destination}",
                expected="--allow-remote (in Python allow_remote=True)",
                found="no consent",
                fix="a dry run (--dry-run; mie build: --rephrase-dry-run) says what would be sent; then give "
                "--allow-remote, or use an editor, a judge or a storage on this machine",
            )

    def check_statement(self, dataset: Mapping[str, Any] | None) -> None:
        """Raise unless somebody says that the images are de-identified.

        `dataset` is the content of `dataset.json`, None for images that are in no dataset. What an imported
        folder says of itself does not count: it is a stranger's word.
        """
        policy, info = self.policy, dataset or {}
        if policy.deidentified or policy.allow_phi:
            return
        imported = (info.get("recipe") or {}).get("import")
        strange = imported is not None and imported.get("vouched") is not True
        if info.get("deidentified") is True and not strange:
            return
        reasons = info.get("deidentification") or {}
        found = "; ".join(f"{source}: {reason}" for source, reason in reasons.items())
        raise PrivacyError(
            "images would leave this machine, and nobody says that they are de-identified",
            where=f"to {self.destination}",
            expected="--deidentified, or `deidentified: true` in dataset.json or questions.json by a recipe "
            "of yours",
            found=found or "no statement",
            fix="look at the images and the provider's terms; then confirm with --deidentified, or with "
            "`deidentified: true` at the source in the recipe and a new build; or use a server on this "
            "machine (http://127.0.0.1:PORT, or local:FOLDER for a judge)",
        )

    def look(self, pixels: Pixels, where: str) -> list[Finding]:
        """What identifies somebody in an image. Raises where nobody can look, unless the user vouches."""
        if not (can_look() or self.policy.deidentified or self.policy.allow_phi):
            raise PrivacyError(
                "images would leave this machine, and they cannot be searched for text",
                where=f"{where}, to {self.destination}",
                expected="PyTorch, which the text detector needs",
                found="not installed",
                fix=f"{install_hint('models')}, or look at the images and confirm with --deidentified",
            )
        digest = pixel_digest(pixels)
        with self._lock:
            seen = self._seen.get(digest)
        if seen is None:
            seen = self._search(pixels)
            with self._lock:
                self._seen[digest] = seen
        return [Finding(where, kind, reason, box) for kind, reason, box in seen]

    def _search(self, pixels: Pixels) -> list[tuple[str, str, Box | None]]:
        """(kind, reason, box) of what is found: text, and faces in what may be a photograph."""
        boxes = text_boxes(pixels) if can_look() else []
        found: list[tuple[str, str, Box | None]] = [
            ("text", "text burned into the image", box) for box in boxes
        ]
        if not faces.is_colour(pixels):
            return found
        if faces.can_look():
            return found + [("face", "a face in a photograph", box) for box in faces.face_boxes(pixels)]
        if not self.policy.deidentified:
            reason = f"a colour image, and faces are not looked for: {install_hint('faces')}"
            found.append(("face", reason, None))
        return found

    def check(self, findings: Sequence[Finding]) -> None:
        """Raise for findings that the policy does not pass."""
        if left := self._left(findings):
            raise refusal(left, self.destination)

    def _left(self, findings: Sequence[Finding]) -> list[Finding]:
        """The findings that may not leave: what has no place in the image cannot be blacked out."""
        if self.policy.allow_phi:
            return []
        return [one for one in findings if not (self.policy.redact and one.box is not None)]

    def release(self, pixels: Pixels, where: str) -> Pixels:
        """The pixels to send: as they are, or redacted. `PrivacyError` where they must not leave."""
        findings = self.look(pixels, where)
        if left := self._left(findings):
            self._write({"event": "refused", "where": where, "findings": _lines(left)})
            raise refusal(left, self.destination)
        if findings:
            done = "redacted" if self.policy.redact else "allowed"
            self._write({"event": done, "where": where, "findings": _lines(findings)})
            with self._lock:
                self.counts[done] += 1
        elif not self.counts["images"]:
            self._write({"event": "opened"})
        with self._lock:
            self.counts["images"] += 1
        return redacted(pixels, findings) if self.policy.redact else pixels

    def release_files(self, findings: Sequence[Finding], files: int) -> None:
        """Log that so many files are about to be uploaded as they are; raise for what must not leave."""
        if left := self._left(findings):
            self._write({"event": "refused", "files": files, "findings": _lines(left)})
            raise refusal(left, self.destination)
        self._write({"event": "uploaded", "files": files, "findings": _lines(findings)})

    def close(self) -> None:
        """Log how many images have left."""
        if self.counts["images"]:
            self._write({"event": "closed", **self.counts})
        if self._log is not None:
            self._log.close()
            self._log = None

    def _write(self, line: Mapping[str, Any]) -> None:
        """Append a line before anything leaves: when, who, where to, under which policy."""
        if self._path is None:
            return
        body = {
            "time": datetime.now(UTC).isoformat(timespec="seconds"),
            "user": _user(),
            "destination": self.destination,
            "policy": asdict(self.policy),
            "searched_for_text": can_look(),
            "searched_for_faces": faces.can_look(),  # in colour images
            **line,
        }
        with self._lock:
            if self._log is None:
                self._log = Journal(self._path)
            self._log.append(json.dumps(body, ensure_ascii=True).encode() + b"\n")


def redacted(pixels: Pixels, findings: Iterable[Finding]) -> Pixels:
    """A copy with each finding's box black: the same bytes each time."""
    out = pixels.copy()
    for finding in findings:
        if finding.box is not None:
            left, top, right, bottom = finding.box
            out[top:bottom, left:right] = 0
    return out


def refusal(findings: Sequence[Finding], destination: str) -> PrivacyError:
    """The error that lists what was found."""
    indent = "\n" + " " * 12
    more = len(findings) - _SHOWN
    shown = [str(finding) for finding in findings[:_SHOWN]] + ([f"and {more} more"] if more > 0 else [])
    return PrivacyError(
        "something that may identify a patient would leave this machine",
        where=f"to {destination}",
        found=indent.join(shown),
        fix="`mie privacy` lists everything; --redact blacks out text and faces in what is sent; "
        "--allow-phi sends it as it is, and is logged",
    )


def _lines(findings: Iterable[Finding]) -> list[dict[str, Any]]:
    return [{"kind": one.kind, "box": one.box, "reason": one.reason} for one in findings]


def _user() -> str:
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container without a user of that number
        return "unknown"
