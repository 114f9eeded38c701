"""Owns the strict reading of http(s) URLs and the list of hosts that may be named in them.

Knows nothing of addresses or of fetching. Parsers differ in what they make of odd spellings, and the difference is how
a check is passed by; so a URL is either spelled in the one way that all of them read alike, or it is refused.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urljoin

Address = ipaddress.IPv4Address | ipaddress.IPv6Address

MAX_URL_CHARS = 8192
MAX_HOST_CHARS = 253
DEFAULT_PORTS = {"http": 80, "https": 443}
_URL = re.compile(r"(https?)://([^/?#]*)([^#]*)(#.*)?", re.IGNORECASE)
_AUTHORITY = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?", re.IGNORECASE)
_LABEL = re.compile(r"[a-z0-9_]([a-z0-9_-]{0,61}[a-z0-9_])?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class MediaUrlError(ValueError):
    """The URL is not one we would fetch; the message says why and never repeats it."""


@dataclass(frozen=True, kw_only=True)
class MediaUrl:
    """A URL as it will be asked for. `host` is a lower-case name, or an address as its own text."""

    scheme: Literal["http", "https"]
    host: str
    port: int
    target: str
    address: Address | None = None

    @property
    def authority(self) -> str:
        """What the Host header says."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == DEFAULT_PORTS[self.scheme] else f"{host}:{self.port}"


def parse_media_url(url: str) -> MediaUrl:
    if len(url) > MAX_URL_CHARS:
        raise MediaUrlError(f"the url is longer than {MAX_URL_CHARS} characters")
    if "\\" in url or not all("!" <= char <= "~" for char in url):
        raise MediaUrlError("the url holds a space, a backslash, a control or a non-ASCII character; percent-encode it")
    match = _URL.fullmatch(url)
    if match is None:
        raise MediaUrlError("the url must begin with http:// or https:// and a host")
    scheme, authority, target, fragment = match.groups()
    if fragment is not None:
        raise MediaUrlError("a url's fragment (#...) means nothing here; a span of a video is video.start_s and end_s")
    if "@" in authority:
        raise MediaUrlError("the url must not hold a user name or password")
    place = _AUTHORITY.fullmatch(authority)
    if place is None:
        raise MediaUrlError("the url's host is malformed; write it in lower-case ASCII, without escapes")
    known: Literal["http", "https"] = "https" if scheme.lower() == "https" else "http"
    port = DEFAULT_PORTS[known] if place[2] is None else int(place[2])
    if not 1 <= port <= 65535:
        raise MediaUrlError("the url's port must be between 1 and 65535")
    host, address = _read_host(place[1].lower())
    target = target if target.startswith("/") else "/" + target
    return MediaUrl(scheme=known, host=host, port=port, target=target, address=address)


def join_location(base: MediaUrl, location: str) -> MediaUrl:
    """Where a redirect leads; a relative one is read against `base`, and the result as strictly as any URL."""
    if "\\" in location or not all("!" <= char <= "~" for char in location):
        raise MediaUrlError("the redirect's location is malformed")
    joined = parse_media_url(urljoin(f"{base.scheme}://{base.authority}{base.target}", location))
    if base.scheme == "https" and joined.scheme == "http":
        raise MediaUrlError("the url redirects from https to http")
    return joined


def _read_host(host: str) -> tuple[str, Address | None]:
    if host.startswith("["):
        return _read_address(host[1:-1])
    labels = host.split(".")
    if _NUMBER.fullmatch(labels[-1]):  # by which everybody but strict parsers takes it for an address
        return _read_address(host)
    if len(host) > MAX_HOST_CHARS or not all(_LABEL.fullmatch(label) for label in labels):
        raise MediaUrlError("the url's host is malformed; write it without a final dot, empty or over-long labels")
    return host, None


def _read_address(text: str) -> tuple[str, Address]:
    try:
        address = ipaddress.ip_address(text)
    except ValueError:
        address = None
    if address is None or str(address) != text:
        raise MediaUrlError("the url's host is an address in an unusual spelling; write it in its usual one")
    return text, address


# ------------------------------------------------------------------------------------------------- the allowed hosts


@dataclass(frozen=True, kw_only=True)
class HostRule:
    """`example.com` is that host alone, `.example.com` every host below it but not itself.

    Without a port the rule holds for the scheme's own port only: a web server's neighbours on other ports are not it.
    """

    host: str
    port: int | None = None

    def allows(self, url: MediaUrl) -> bool:
        if url.port != (DEFAULT_PORTS[url.scheme] if self.port is None else self.port):
            return False
        if self.host.startswith("."):
            return url.address is None and url.host.endswith(self.host)
        return url.host == self.host


def parse_host_rule(text: str) -> HostRule:
    name = text.removeprefix(".")
    place = _AUTHORITY.fullmatch(name)
    try:
        if place is None:
            raise MediaUrlError("not a host")
        host, address = _read_host(place[1].lower())
        if address is not None and name != text:
            raise MediaUrlError("nothing is below an address")
    except MediaUrlError:
        raise ValueError(f"{text!r} is not a host; write example.com, .example.com or example.com:8443") from None
    return HostRule(host="." + host if name != text else host, port=None if place[2] is None else int(place[2]))


def is_allowed(url: MediaUrl, rules: Sequence[HostRule]) -> bool:
    return any(rule.allows(url) for rule in rules)
