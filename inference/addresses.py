"""Addresses of clients, as the edge found them, and whose they are."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address


def parse(text: str) -> Address:
    """An address; of an IPv4 address in the guise of an IPv6 one, that.

    Raises:
        ValueError: it is none.
    """
    if "%" in text:
        raise ValueError(f"{text!r} has a zone")
    address = ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """Whose address it is, as far as one can tell: the /64 of an IPv6 address, which is what the
    smallest customer gets; any other is alone."""
    try:
        parsed = parse(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return str(IPv6Network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)
