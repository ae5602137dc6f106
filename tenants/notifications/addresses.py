"""Where a webhook may lead: to hosts of the public Internet, unless a setting says otherwise.

A name is resolved here, all of its addresses are looked at, and the connection goes to one of them:
a name that resolves to something else a moment later leads nowhere else.
"""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

MAX_URL = 500
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class Forbidden(Exception):
    """A webhook must not lead there; the message says why."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """A URL with the address that its host has, and the host as `Host` and certificates have it."""

    url: str
    authority: str
    host: str


def check_form(url: str, *, private: bool) -> tuple[str, int]:
    """The host and the port of a webhook's URL.

    Raises:
        Forbidden: it cannot be one's.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Forbidden("This is not a URL.") from None
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise Forbidden(f"A URL of at most {MAX_URL} ASCII characters.")
    if parts.scheme != "https" and not (private and parts.scheme == "http"):
        raise Forbidden("The URL must begin with https://.")
    if not parts.hostname or parts.username is not None or parts.password is not None:
        raise Forbidden("The URL must have a host, and neither a user nor a password.")
    return parts.hostname, port or (443 if parts.scheme == "https" else 80)


def check_address(address: str, *, private: bool) -> None:
    """Raises Forbidden unless this IP address is one of the public Internet."""
    found = ipaddress.ip_address(address.partition("%")[0])
    for one in (found, *_embedded(found)):
        if not private and (not one.is_global or one.is_multicast):
            raise Forbidden("The host is in a private network, where webhooks do not lead.")


def _embedded(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> Iterator[ipaddress.IPv4Address]:
    """The IPv4 addresses to which gateways translate this one."""
    if isinstance(address, ipaddress.IPv6Address):
        yield from filter(None, (address.ipv4_mapped, address.sixtofour))
        if address in NAT64:
            yield ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)


async def pin(url: str, *, private: bool) -> Pinned:
    """Where to connect for this URL.

    Raises:
        Forbidden: nowhere.
        OSError: its name cannot be resolved.
    """
    host, port = check_form(url, private=private)
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    addresses = [str(one[4][0]) for one in found]
    for address in addresses:
        check_address(address, private=private)
    parts = urlsplit(url)
    shown = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    authority = parts.netloc
    pinned = urlunsplit((parts.scheme, f"{shown}:{port}", parts.path or "/", parts.query, ""))
    return Pinned(pinned, authority, host)
