"""IP addresses of clients, as seen by the edge, and the networks they are in."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, IPv6Network, ip_address

Address = IPv4Address | IPv6Address


def parse(text: str) -> Address:
    """Parse an address; an IPv4-mapped IPv6 address becomes the IPv4 address.

    Raises:
        ValueError: it is not an address, or has a zone.
    """
    if "%" in text:
        raise ValueError(f"{text!r} has a zone")
    address = ip_address(text)
    if isinstance(address, IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """The network that stands for an address's owner: the /64 of an IPv6 address, the smallest
    network that providers assign to a customer; any other address stands for itself."""
    try:
        parsed = parse(address)
    except ValueError:
        return address
    if isinstance(parsed, IPv6Address):
        return str(IPv6Network((int(parsed) >> 64 << 64, 64)))
    return str(parsed)
