"""Content Credentials (C2PA): a signed manifest in a PNG that says which model made it.

Signing needs the extra `marks` (c2pa-python) and the user's own certificate. Nothing is fetched: no time
stamp, no remote manifest, no revocation list. A certificate that no trust list knows is reported as such.
"""

from __future__ import annotations

import importlib.util
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import mie
from mie.core.environment import install_hint
from mie.errors import ConfigError, MieError
from mie.images.provenance import SOURCE_TYPE

_LABEL: Final = "org.mie.mark"
_OFFLINE: Final = {
    "verify": {"remote_manifest_fetch": False, "ocsp_fetch": False},
    "builder": {"thumbnail": {"enabled": False}},
}
_ALGORITHMS: Final = ("es256", "es384", "es512", "ps256", "ed25519")


def can_read_credentials() -> bool:
    """Whether the extra is installed."""
    return importlib.util.find_spec("c2pa") is not None


def sign_png(data: bytes, mark: Mapping[str, Any], certificate: Path, key: Path) -> bytes:
    """The PNG with a manifest that holds the mark, signed.

    Args:
        data: A PNG.
        mark: What it says; see `mie.images.provenance`.
        certificate: A PEM file with the signer's certificate, then those that it rests on.
        key: A PEM file with the signer's private key (PKCS #8).

    """
    if not can_read_credentials():
        raise ConfigError("Content Credentials need c2pa-python", fix=install_hint("marks"))
    import c2pa

    manifest = {
        "claim_generator_info": [{"name": "mie", "version": mie.__version__}],
        "title": "edited image",
        "assertions": [
            {
                "label": "c2pa.actions.v2",
                "data": {"actions": [{"action": "c2pa.created", "digitalSourceType": SOURCE_TYPE}]},
            },
            {"label": _LABEL, "data": dict(mark)},
        ],
    }
    pems = [_pem(path) for path in (certificate, key)]
    reasons = []
    for algorithm in _ALGORITHMS:  # the key's kind is not in its name: take the one that fits
        info = c2pa.C2paSignerInfo(algorithm.encode(), pems[0], pems[1], None)
        signed = io.BytesIO()
        try:
            with (
                c2pa.Context(c2pa.Settings.from_dict(_OFFLINE)) as context,
                c2pa.Signer.from_info(info) as signer,
                c2pa.Builder(json.dumps(manifest), context) as builder,
            ):
                builder.sign(signer, "image/png", io.BytesIO(data), signed)
        except c2pa.C2paError as error:
            reasons.append(f"{algorithm}: {error}")
        else:
            return signed.getvalue()
    raise MieError(
        "the image cannot be signed",
        where=certificate,
        expected="a certificate for signing (not self-signed) and its private key, both PEM",
        found=reasons[0][:300],
    )


def read_credentials(path: Path) -> dict[str, Any] | None:
    """Who signed a file, whether the signature holds, and the mark in it; None without a manifest."""
    import c2pa

    try:
        with c2pa.Context(c2pa.Settings.from_dict(_OFFLINE)) as context:
            reader = c2pa.Reader.try_create("image/png", io.BytesIO(path.read_bytes()), context=context)
            if reader is None:
                return None
            with reader:
                document = json.loads(reader.json())
                state = str(reader.get_validation_state())
    except c2pa.C2paError as error:
        return {"state": "Invalid", "reason": str(error)[:300]}
    active = document.get("manifests", {}).get(document.get("active_manifest"), {})
    marks = [one.get("data") for one in active.get("assertions", []) if one.get("label") == _LABEL]
    signature = active.get("signature_info", {})
    return {
        "state": state,
        "signer": signature.get("common_name"),
        "issuer": signature.get("issuer"),
        "problems": [str(one.get("code")) for one in document.get("validation_status") or ()],
        "mark": marks[0] if marks else None,
    }


def _pem(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ConfigError("cannot read this PEM file", where=path, found=error.strerror) from None
