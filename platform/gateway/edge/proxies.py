"""The client's address and scheme, from the headers of trusted proxies.

Any client can send `X-Forwarded-For`. Each proxy appends the address of its own peer, so the header
is read from the right, hop by hop, while the hops are trusted: the first one that is not trusted is
the client. Only this module reads these headers; all other code reads the ASGI scope's `client` and
`scheme`, or Django's REMOTE_ADDR and `is_secure()`, which are derived from them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import ip_network

from inference.addresses import parse
from inference.process.environ import BadSetting

MAX_HOPS = 16
FOR, PROTO = b"x-forwarded-for", b"x-forwarded-proto"
Headers = Iterable[tuple[bytes, bytes]]


class Proxies:
    """The proxies that are trusted."""

    def __init__(self, networks: Sequence[str]) -> None:
        """`networks` are addresses and networks.

        Raises:
            BadSetting: one of them is neither.
        """
        try:
            self._networks = [ip_network(one) for one in networks]
        except ValueError as error:
            raise BadSetting(
                f"LORIKEET_TRUSTED_PROXIES is not allowed: {error}; it must be addresses and "
                "networks such as 10.0.0.7,10.1.0.0/16"
            ) from None

    def trust(self, address: str) -> bool:
        if not self._networks:
            return False
        try:
            parsed = parse(address)
        except ValueError:
            return False
        return any(parsed in network for network in self._networks)

    def client(self, peer: str, headers: Headers) -> str:
        """The address of the client whose request with these headers comes from a trusted `peer`;
        the last known hop if the header is missing, incomplete or invalid."""
        rest = b",".join(value for name, value in headers if name == FOR).decode("latin-1")
        nearest = peer
        for _ in range(MAX_HOPS):
            rest, _, hop = rest.rpartition(",")
            try:
                nearest = str(parse(_without_port(hop.strip())))
            except ValueError:
                return nearest
            if not self.trust(nearest):
                return nearest
        return nearest

    def is_https(self, headers: Headers) -> bool | None:
        """The scheme that the nearest proxy reports; None if it reports none."""
        schemes = [value for name, value in headers if name == PROTO]
        if not schemes:
            return None
        return schemes[-1].rpartition(b",")[2].strip().lower() in (b"https", b"wss")


def _without_port(hop: str) -> str:
    """Some proxies append a port."""
    if hop.startswith("["):
        return hop[1:].partition("]")[0]
    return hop.partition(":")[0] if hop.count(":") == 1 else hop


@lru_cache(maxsize=4096)
def plain(address: str) -> str:
    """An address in its canonical notation."""
    try:
        return str(parse(address))
    except ValueError:
        return address
