"""The server of `lorikeet loop` in this process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import httpx

from lorikeet.api import Api
from lorikeet.loop import LoopServer


@contextmanager
def looping(api: Api, model: str = "") -> Iterator[httpx.Client]:
    """A client of the server that stands in for vLLM."""
    with LoopServer(api, 0, model) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            with httpx.Client(
                base_url=f"http://127.0.0.1:{server.server_port}", timeout=120
            ) as client:
                yield client
        finally:
            server.shutdown()
            thread.join()
