"""Whether a URL leads off this machine, and by which proxy. The loopback address is never proxied."""

from __future__ import annotations

import ipaddress
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass


def is_loopback(host: str) -> bool:
    """Whether the host is this machine.

    >>> is_loopback("127.0.0.1"), is_loopback("localhost"), is_loopback("10.0.0.1")
    (True, True, False)
    """
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def proxy_of(url: str) -> str | None:
    """The proxy that our own requests take to this URL; never one for the loopback address."""
    return None if is_loopback(urlsplit(url).hostname or "") else environment_proxy(url)


def environment_proxy(url: str) -> str | None:
    """The proxy that the environment names for this URL; clients of others take it for loopback too."""
    parts = urlsplit(url)
    if proxy_bypass(parts.hostname or ""):
        return None
    proxies = getproxies()
    proxy = proxies.get(parts.scheme) or proxies.get("all")
    return proxy if not proxy or "://" in proxy else f"http://{proxy}"
