"""Where a webhook may lead: to hosts of the public Internet, unless a setting says otherwise.

A name is resolved here, all of its addresses are checked, and the connection goes to one of them,
so a name that resolves differently a moment later has no effect. Unknown names and names in private
networks are refused with the same message, so that nobody can find out which names exist.
"""

from __future__ import annotations

import asyncio
import ipaddress
import re
import socket
from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit, urlunsplit

MAX_URL = 500
MAX_NAME = 253
LABEL = re.compile(r"[a-zA-Z0-9_-]{1,63}")
"""One label of a host's name."""
NOWHERE = "The host is unknown or in a private network, to which webhooks are not sent."
PUBLIC = ipaddress.IPv6Network("2000::/3")
"""Global unicast addresses; all other IPv6 addresses are local to a host or site, or unassigned."""
NOT_PUBLIC = [ipaddress.ip_network(one) for one in ("192.0.0.0/24", "192.88.99.0/24", "3fff::/20")]
"""Networks of https://www.iana.org/assignments/iana-ipv4-special-registry and its counterpart for
IPv6 that Python's `is_global` lets through."""
NAT64 = ipaddress.IPv6Network("64:ff9b::/96")


class Forbidden(Exception):
    """A webhook must not lead there; the message says why."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """A URL with its host replaced by an IP address, the value of the `Host` header (`authority`),
    and the host's name for the certificate (`host`)."""

    url: str
    authority: str
    host: str


def check_form(url: str, *, private: bool) -> tuple[str, int]:
    """The host and the port of a webhook's URL.

    Raises:
        Forbidden: it is not an acceptable URL for a webhook.
    """
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise Forbidden("This is not a URL.") from None
    if len(url) > MAX_URL or not url.isascii() or not url.isprintable() or " " in url:
        raise Forbidden(f"The URL must have at most {MAX_URL} characters, all ASCII.")
    if parts.scheme != "https" and not (private and parts.scheme == "http"):
        raise Forbidden("The URL must begin with https://.")
    if not parts.hostname or parts.username is not None or parts.password is not None:
        raise Forbidden("The URL must have a host, but no user and no password.")
    if not _is_host(parts.hostname, in_brackets="[" in parts.netloc):
        raise Forbidden("The URL's host is not a valid name or address.")
    if port == 0:
        raise Forbidden("The port must not be 0.")
    return parts.hostname, port or (443 if parts.scheme == "https" else 80)


def _is_host(host: str, *, in_brackets: bool) -> bool:
    if not in_brackets:
        labels = host.removesuffix(".").split(".")
        return len(host) <= MAX_NAME and all(map(LABEL.fullmatch, labels))
    try:
        return bool(ipaddress.IPv6Address(host))
    except ValueError:
        return False


def check_address(address: str, *, private: bool) -> None:
    """Raises Forbidden unless this IP address belongs to the public Internet."""
    if private:
        return
    found = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(found, ipaddress.IPv6Address) and found not in PUBLIC and found not in NAT64:
        raise Forbidden(NOWHERE)
    for one in (found, *_embedded(found)):
        if not one.is_global or one.is_multicast or any(one in known for known in NOT_PUBLIC):
            raise Forbidden(NOWHERE)


def _embedded(
    address: ipaddress.IPv4Address | ipaddress.IPv6Address,
) -> Iterator[ipaddress.IPv4Address]:
    """The IPv4 addresses to which routers translate this one."""
    if isinstance(address, ipaddress.IPv6Address):
        yield from filter(None, (address.ipv4_mapped, address.sixtofour))
        if address in NAT64:
            yield ipaddress.IPv4Address(int(address) & 0xFFFF_FFFF)


async def pin(url: str, *, private: bool, threads: Executor | None = None) -> Pinned:
    """Where to connect for this URL; its name is resolved in one of `threads`.

    Raises:
        Forbidden: the webhook must not lead there.
    """
    host, port = check_form(url, private=private)
    resolve = partial(socket.getaddrinfo, host, port, type=socket.SOCK_STREAM)
    try:
        found = await asyncio.get_running_loop().run_in_executor(threads, resolve)
    except OSError:
        raise Forbidden(NOWHERE) from None
    addresses = [str(one[4][0]) for one in found]
    for address in addresses:
        check_address(address, private=private)
    parts = urlsplit(url)
    shown = f"[{addresses[0]}]" if ":" in addresses[0] else addresses[0]
    authority = parts.netloc
    pinned = urlunsplit((parts.scheme, f"{shown}:{port}", parts.path or "/", parts.query, ""))
    return Pinned(pinned, authority, host)
