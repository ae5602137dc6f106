"""The server's end of a page's websockets, played by the test."""

from __future__ import annotations

import json
import time
from typing import Any

from playwright.sync_api import Page, WebSocketRoute

PATIENCE_S = 90.0


class Sockets:
    """All sockets that the page opens at a path, and the messages that it sends on each."""

    def __init__(self, page: Page, path: str) -> None:
        self.page = page
        self.all: list[WebSocketRoute] = []
        self.received: list[list[dict[str, Any]]] = []
        """The messages of each socket."""
        page.route_web_socket(f"**{path}", self._accept)

    def until(self, sockets: int, messages: int) -> list[dict[str, Any]]:
        """Wait until the page has opened `sockets` and sent `messages` on the last one. Returns its
        messages."""
        end = time.monotonic() + PATIENCE_S
        while len(self.all) < sockets or len(self.received[-1]) < messages:
            assert time.monotonic() < end, (len(self.all), self.received)
            self.page.wait_for_timeout(10)  # lets Playwright handle the browser's events
        return self.received[-1]

    def of_type(self, type: str, count: int) -> list[dict[str, Any]]:
        """Wait until the page has sent so many messages of this type, on all its sockets. Returns
        them."""
        end = time.monotonic() + PATIENCE_S
        while (
            len(
                found := [
                    one for messages in self.received for one in messages if one["type"] == type
                ]
            )
            < count
        ):
            assert time.monotonic() < end, (count, self.received)
            self.page.wait_for_timeout(10)
        return found

    def say(self, **message: Any) -> None:
        self.all[-1].send(json.dumps(message))

    def _accept(self, socket: WebSocketRoute) -> None:
        messages: list[dict[str, Any]] = []
        self.all.append(socket)
        self.received.append(messages)
        socket.on_message(lambda text: messages.append(json.loads(text)))
