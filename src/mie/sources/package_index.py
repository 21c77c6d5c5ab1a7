"""Package indexes (PEP 503 HTML, PEP 691 JSON): the ones `pip` is set up for, read over checked addresses."""

from __future__ import annotations

import ast
import base64
import json
import os
import re
import ssl
import subprocess
import sys
import urllib.error
import urllib.request
from html.parser import HTMLParser
from typing import IO, Any, Final
from urllib.parse import unquote, urldefrag, urljoin, urlsplit, urlunsplit

_TIMEOUT: Final = 60  # seconds without a byte
_PAGE_LIMIT: Final = 64 << 20
_ACCEPT: Final = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"


def indexes() -> list[Index]:
    """The simple indexes that `pip` would ask, in its order.

    Environment, then configuration files, then pip's own default.
    """
    settings = _pip_settings()
    if _setting("no-index", settings).lower() in ("1", "true", "yes", "on"):
        return []
    first = _setting("index-url", settings) or _pip_default()
    urls = [*first.split()[:1], *_setting("extra-index-url", settings).split()]
    certificates = _setting("cert", settings) or os.environ.get("REQUESTS_CA_BUNDLE") or None
    return [Index(url, certificates) for url in dict.fromkeys(urls)]


def _setting(key: str, settings: dict[str, str]) -> str:
    from_environment = os.environ.get("PIP_" + key.upper().replace("-", "_"))
    if from_environment is not None:
        return from_environment
    for section in ("download", "install", "global"):
        if f"{section}.{key}" in settings:
            return settings[f"{section}.{key}"]
    return ""


def _pip_settings() -> dict[str, str]:
    """`global.index-url` and its like from pip's configuration files; nothing where there is no pip."""
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    settings = {}
    for line in done.stdout.splitlines():
        key, separator, value = line.partition("=")
        if separator and value[:1] in ("'", '"'):
            settings[key.strip()] = str(ast.literal_eval(value))  # pip prints repr() of the string
    return settings


def _pip_default() -> str:
    try:
        from pip._internal.models.index import PyPI
    except ImportError:
        return ""
    return str(PyPI.simple_url)


def shown(url: str) -> str:
    """The URL without a user name or password."""
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


class Index:
    """One simple index. Reads over https, or over the index's own scheme where that is http or file."""

    def __init__(self, url: str, certificates: str | None = None) -> None:
        parts = urlsplit(url)
        self.url = shown(url).rstrip("/")
        self._schemes = {"https", parts.scheme} & {"https", "http", "file"}
        self._host = parts.netloc.rpartition("@")[2]
        self._login = unquote(parts.netloc.rpartition("@")[0])
        self._certificates = certificates

    def __str__(self) -> str:
        return self.url

    def find(self, project: str, filename: str) -> str | None:
        """The file's address, or None where the index does not know the project or the file."""
        page = f"{self.url}/{re.sub(r'[-_.]+', '-', project).lower()}/"
        if page.startswith("file:"):
            page += "index.html"
        try:
            with self.open(page, accept=_ACCEPT) as response:
                body = response.read(_PAGE_LIMIT + 1)
                base, kind = response.url, response.headers.get_content_type()
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise
        if len(body) > _PAGE_LIMIT:
            raise ValueError(f"{page} is larger than {_PAGE_LIMIT} bytes")
        links = _json_links(body) if kind.endswith("json") else _html_links(body)
        href = links.get(filename)
        return None if href is None else urldefrag(urljoin(base, href)).url

    def open(self, url: str, *, accept: str = "*/*") -> Any:
        """An open response (`read`, `url`, `headers`). Proxies are taken from the environment."""
        self._check(url)
        # "identity": the checksum is of the file as published, not of a compressed transfer.
        headers = {"Accept": accept, "Accept-Encoding": "identity", "User-Agent": "mie"}
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - scheme checked above
        if self._login and urlsplit(url).netloc == self._host:
            login = base64.b64encode(self._login.encode()).decode()
            request.add_unredirected_header("Authorization", f"Basic {login}")  # stays with this host
        context = ssl.create_default_context(cafile=self._certificates)  # SSL_CERT_FILE is OpenSSL's own
        opener = urllib.request.build_opener(
            urllib.request.HTTPSHandler(context=context), _CheckedRedirects(self)
        )
        return opener.open(request, timeout=_TIMEOUT)

    def _check(self, url: str) -> None:
        if urlsplit(url).scheme not in self._schemes:
            raise ValueError(f"refused to read {shown(url)}: only {' or '.join(sorted(self._schemes))}")


class _CheckedRedirects(urllib.request.HTTPRedirectHandler):
    """An https index may not send us to http."""

    def __init__(self, index: Index) -> None:
        self._index = index

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        self._index._check(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _json_links(body: bytes) -> dict[str, str]:
    try:
        return {file["filename"]: file["url"] for file in json.loads(body)["files"]}
    except (KeyError, TypeError) as error:
        raise ValueError(f"not a package index page: {error!r}") from error


def _html_links(body: bytes) -> dict[str, str]:
    parser = _Anchors()
    parser.feed(body.decode("utf-8", "replace"))
    return parser.links


class _Anchors(HTMLParser):
    """File name (the last part of the address, as pip reads it) -> address."""

    def __init__(self) -> None:
        super().__init__()
        self.links: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        href = dict(attrs).get("href")
        if tag == "a" and href:
            self.links[unquote(urlsplit(href).path.rpartition("/")[2])] = href
