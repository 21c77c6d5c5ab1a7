"""Marks on synthetic images: what made them, in a form that other programs read too.

A mark is an XMP packet: the IPTC's term for pictures that a trained model made or changed, which photo tools
show, and our own facts as JSON. It stands in a PNG as a text chunk and in a WebP file as its XMP chunk; no
pixel is touched, so metrics do not see it. The name of a file or of a patient never enters a mark.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from PIL import Image, UnidentifiedImageError

import mie
from mie.errors import ImageError
from mie.images.png import insert_text

SOURCE_TYPE: Final = "http://cv.iptc.org/newscodes/digitalsourcetype/compositeWithTrainedAlgorithmicMedia"
MARK: Final = "mark"  # in an edit's `meta`: what its file said already, and goes on saying
_KEYWORD: Final = "XML:com.adobe.xmp"  # of the text chunk, as the XMP specification has it
_PACKET: Final = (
    '<?xpacket begin="\ufeff" id="W5M0MpCehiHzreSzNTczkc9d"?>'
    '<x:xmpmeta xmlns:x="adobe:ns:meta/"><rdf:RDF xmlns:rdf="http://www.w3.org/1999/02/22-rdf-syntax-ns#">'
    '<rdf:Description rdf:about="" xmlns:xmp="http://ns.adobe.com/xap/1.0/"'
    ' xmlns:Iptc4xmpExt="http://iptc.org/std/Iptc4xmpExt/2008-02-29/" xmlns:mie="urn:mie:mark:1"'
    ' xmp:CreatorTool="{software}" Iptc4xmpExt:DigitalSourceType="{source}" mie:mark="{mark}"/>'
    '</rdf:RDF></x:xmpmeta><?xpacket end="r"?>'
)
_MARK: Final = re.compile(r'\bmie:mark="([^"]{2,4000})"')
_SOURCE: Final = re.compile(r'DigitalSourceType="([^"]{1,200})"|DigitalSourceType>([^<]{1,200})<')


def edit_mark(
    editor: str, *, synthetic: bool, seed: int, sample: str | None = None, attempt: int | None = None
) -> dict[str, Any]:
    """What is said about an image that an editor made; `synthetic` where a model made its pixels."""
    facts = {"synthetic": synthetic, "editor": editor, "software": f"mie {mie.__version__}", "seed": seed}
    return {**facts, **({} if sample is None else {"sample": sample, "attempt": attempt or 0})}


def mark_png(data: bytes, mark: Mapping[str, Any]) -> bytes:
    """A PNG with the mark in it."""
    return insert_text(data, _KEYWORD, packet(mark))


def packet(mark: Mapping[str, Any]) -> str:
    """The mark as an XMP packet."""
    facts = json.dumps(mark, sort_keys=True)  # ASCII: a text chunk and XML take it as it is
    software = html.escape(str(mark.get("software", "")))
    return _PACKET.format(software=software, source=SOURCE_TYPE, mark=html.escape(facts))


def read_mark(path: Path) -> dict[str, Any]:
    """What `edit_mark` put into a PNG or WebP file; {} where nothing did."""
    return _facts(_xmp(path))


def read_source_type(path: Path) -> str | None:
    """The IPTC's digital source type, also in files of other programs; None without one."""
    found = _SOURCE.search(_xmp(path))
    return (found[1] or found[2]).strip() if found else None


def _xmp(path: Path) -> str:
    try:
        with Image.open(path) as image:  # reads only the header
            found = image.info.get("xmp") or image.info.get(_KEYWORD) or b""
    except Image.DecompressionBombError:  # Pillow's limit is lower than ours: such a file has no mark
        return ""
    except (UnidentifiedImageError, OSError, ValueError, SyntaxError) as error:
        raise ImageError("not a picture that can be read", where=path, found=str(error)[:200]) from None
    return found.decode(errors="replace") if isinstance(found, bytes) else str(found)


def _facts(text: str) -> dict[str, Any]:
    mark = _MARK.search(text)
    try:
        facts = json.loads(html.unescape(mark[1])) if mark else {}
    except (ValueError, RecursionError):
        facts = {}
    return facts if isinstance(facts, dict) else {}


def copied_xmp(path: Path) -> bytes:
    """The mark of a file as a packet for a copy in another format; b"" where it has none of ours."""
    mark = read_mark(path)
    return packet(mark).encode() if mark else b""
