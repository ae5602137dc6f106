"""The agent's links to all gateways: dialled, left, and told the same."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from zlib import crc32

from inference.agent.link import AgentLink, LinkOwner
from inference.link.wire import Frame


class Links:
    """One link per gateway, by the gateway's base URL."""

    def __init__(self, owner: LinkOwner, engine_id: str, credential: str) -> None:
        self._owner, self._engine_id, self._credential = owner, engine_id, credential
        self._links: dict[str, tuple[AgentLink, asyncio.Task[None]]] = {}
        self._bootstrap: frozenset[str] = frozenset()
        self._draining = False

    def __iter__(self) -> Iterator[AgentLink]:
        return iter([link for link, _ in self._links.values()])

    def start(self, gateways: Iterable[str]) -> None:
        """Dial these gateways, whatever others are listed later."""
        self._bootstrap = frozenset(gateways)
        self.follow([])

    def follow(self, gateways: Iterable[str]) -> None:
        """Dial gateways that are new; leave those that are neither listed nor connected."""
        wanted = self._bootstrap | set(gateways)
        for url in wanted - self._links.keys():
            link = AgentLink(self._owner, url, self._credential)
            link.draining = self._draining
            self._links[url] = (link, asyncio.create_task(link.run(), name=f"link {url}"))
        for url in self._links.keys() - wanted:
            link, task = self._links[url]
            if not link.open:
                task.cancel()
                del self._links[url]

    def post(self, frame: Frame) -> None:
        """Send a frame to every gateway."""
        for link in self:
            link.post(frame)

    def drain(self) -> None:
        """Tell every gateway, and those dialled later, to send no new work."""
        self._draining = True
        for link in self:
            link.drain()

    async def flushed(self) -> None:
        """Wait until all frames have been sent."""
        for link in self:
            await link.flushed()

    def cancel(self) -> None:
        """End all links."""
        for _, task in self._links.values():
            task.cancel()

    def source(self) -> AgentLink | None:
        """The one gateway that is asked what other engines served; from two it would count twice.
        It is one that sees most engines; each engine prefers a different one of these."""
        connected = [link for link in self if link.open]
        return max(connected, key=lambda one: (one.engine_count, self._rank(one)), default=None)

    def _rank(self, link: AgentLink) -> int:
        return crc32(f"{self._engine_id}\0{link.url}".encode())
