"""Only addresses of the public internet are public, whatever dress a private one wears."""

from __future__ import annotations

import ipaddress

import pytest

from app.addresses import is_public, resolve


@pytest.mark.parametrize("text", ["8.8.8.8", "1.1.1.1", "93.184.216.34", "2606:2800:21f:cb07::1", "2a00:1450:4001::66"])
def test_public(text: str) -> None:
    assert is_public(ipaddress.ip_address(text))


@pytest.mark.parametrize(
    "text",
    [
        "127.0.0.1", "127.255.255.254", "0.0.0.0", "0.1.2.3", "10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1",
        "169.254.169.254", "100.64.0.1", "100.127.255.255", "192.0.0.1", "192.0.2.1", "198.18.0.1", "198.51.100.1",
        "203.0.113.1", "224.0.0.1", "239.255.255.250", "240.0.0.1", "255.255.255.255", "192.88.99.1",
        "::", "::1", "fe80::1", "fe80::1%eth0", "fec0::1", "fc00::1", "fd00:ec2::254", "ff02::1", "2001:db8::1",
        "::ffff:127.0.0.1", "::ffff:8.8.8.8", "::127.0.0.1", "::ffff:0:127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1",
        "64:ff9b::8.8.8.8", "2002:7f00:1::", "2002:808:808::1", "2001::7f00:1", "2001:0:4136:e378:8000:63bf:3fff:fdd2",
        "2001:20::1", "100::1", "3fff::1", "5f00::1", "2606:2800::5efe:127.0.0.1", "2606:2800::200:5efe:10.0.0.1",
    ],
)  # fmt: skip
def test_not_public(text: str) -> None:
    """Private, shared, documented, reserved, many-to-many, and IPv4 addresses inside IPv6 ones, public or not."""
    assert not is_public(ipaddress.ip_address(text))


async def test_the_systems_names_of_this_machine_are_not_public() -> None:
    found = await resolve("localhost", 80)
    assert found and not any(is_public(address) for address in found)
