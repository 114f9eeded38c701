"""Owns which network addresses may be dialled, and how a host's name becomes addresses.

Knows nothing of URLs or HTTP. An address is public when it is global unicast and holds no other address inside: the
ways of writing an IPv4 address into an IPv6 one (mapped, compatible, 6to4, Teredo, NAT64, ISATAP) would let a stranger
name a private host by a public-looking number.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
import ssl
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field

from httpcore2 import default_ssl_context

from app.media_url import Address

Resolver = Callable[[str, int], Awaitable[tuple[Address, ...]]]
AddressRule = Callable[[Address], bool]

# What older Pythons, or the registries behind is_global, count as global and nobody should fetch from.
NEVER = tuple(
    ipaddress.ip_network(network)
    for network in (
        "192.88.99.0/24",  # 6to4 relays
        "192.0.0.0/24",  # protocol assignments
        "2001::/23",  # protocol assignments, Teredo among them
        "2002::/16",  # 6to4: an IPv4 address in bits 16 to 48
        "3fff::/20",  # documentation
    )
)
GLOBAL_UNICAST = ipaddress.IPv6Network("2000::/3")  # leaves out ::/96, ::ffff:0:0/96, 64:ff9b::/32, fc00::/7, fe80::/9
ISATAP_MARKS = (0x0000_5EFE, 0x0200_5EFE)  # the upper half of an interface id that ends in an IPv4 address


def is_public(address: Address) -> bool:
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if any(address in network for network in NEVER if network.version == address.version):
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return True
    holds_ipv4 = int(address) >> 32 & 0xFFFF_FFFF in ISATAP_MARKS
    return address in GLOBAL_UNICAST and address.scope_id is None and not holds_ipv4


async def resolve(host: str, port: int) -> tuple[Address, ...]:
    """All addresses of a name, each once, in the order in which the system prefers them."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return tuple(dict.fromkeys(ipaddress.ip_address(entry[4][0]) for entry in found))


@dataclass(frozen=True, kw_only=True, eq=False)
class Network:
    """What fetching needs of the world outside; tests give one that ends at their own loopback servers."""

    resolve: Resolver = resolve
    allows: AddressRule = is_public
    ssl_context: ssl.SSLContext = field(default_factory=default_ssl_context)
