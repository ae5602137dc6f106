"""The adapters that a llama.cpp server was started with, as files named by their digests.

It loads none while it runs, and a request names them by their places in the server's list. After a
restart a place may hold another adapter, so an answer counts only if the list is still the same
once the answer has begun: if the server is started anew before that, the answer breaks off.

Its caches of prompts do not tell adapters apart: the one in RAM (`--cache-ram`) gives the keys and
values of one adapter to requests of another. So each request computes its prompt from the
beginning. A request without an adapter gives the first one a weight of 0, because an empty list
stands for the server's defaults, which may be all of them, and keeps what its slot had cached.
"""

from __future__ import annotations

import re
import time
from pathlib import PurePosixPath
from typing import Any

import httpx
import msgspec

from inference.agent.engines.engine import EngineNotStarted, LoadReport, LocalAdapter
from inference.agent.engines.upstream.connection import beginning, root_of
from inference.content import CONFIG, WEIGHTS
from inference.errors import AdapterLoadFailed, EngineFailed

FILE = re.compile(r"([0-9a-f]{64})\.gguf")
UNCONVERTED = ("use_rslora", "alpha_pattern")
"""Fields of an adapter's configuration that llama.cpp's converter passes over: its weights would be
scaled wrongly."""
MAX_LIST = 4 << 20
"""Bytes of the server's list, with some hundred for each adapter."""


class _Listed(msgspec.Struct):
    id: int
    path: str


class StartedAdapters:
    """Those of the server's adapters that lie in `folder`; it has the methods of
    `UpstreamAdapters`."""

    def __init__(self, client: httpx.AsyncClient, folder: PurePosixPath) -> None:
        """`folder` is the path with which the server was started."""
        self._client, self._folder = client, folder
        self._address = f"{root_of(client)}/lora-adapters"
        self._places: dict[str, int] = {}
        """By digest."""

    @property
    def only(self) -> list[str]:
        """Digests of the adapters that it has."""
        return sorted(self._places)

    async def take_over(self, model: str, listed: list[str]) -> None:
        """Ask which adapters the server has.

        Raises:
            EngineNotStarted: it has none in the folder.
            EngineFailed: it does not say.
        """
        self._places = await self._listed()
        if not self._places:
            raise EngineNotStarted(
                f"{self._address} lists no adapter of --upstream-adapters {self._folder}: the "
                f"server must be started with --lora {self._folder}/DIGEST.gguf"
            )

    def fields_of(self, adapter: LocalAdapter | None) -> dict[str, Any]:
        """What names the adapter in a request, or that there is none.

        Raises:
            AdapterLoadFailed: the server does not have it.
        """
        place, scale = (0, 0.0) if adapter is None else (self._place(adapter), 1.0)
        return {"lora": [{"id": place, "scale": scale}], "cache_prompt": False}

    async def load(self, adapter: LocalAdapter) -> LoadReport:
        """As `Engine.load` says: nothing is loaded, the server must have it."""
        began = time.monotonic()
        self._place(adapter)
        config = msgspec.json.decode((adapter.path / CONFIG).read_bytes(), type=dict[str, Any])
        if passed_over := [name for name in UNCONVERTED if config.get(name)]:
            raise AdapterLoadFailed(
                f"The adapter {adapter.ref.name} has {' and '.join(passed_over)}, which "
                "llama.cpp's converter ignores: the server would not answer as PEFT does."
            )
        return LoadReport(time.monotonic() - began, (adapter.path / WEIGHTS).stat().st_size)

    async def reload(self, adapter: LocalAdapter) -> None:
        """As `load`."""
        self._place(adapter)

    async def unload(self, adapter: LocalAdapter) -> None:
        """It stays on the server, where requests without it do not use it."""

    async def is_unchanged(self) -> bool:
        """Whether the places are still those of the same adapters.

        Raises:
            EngineFailed: the server does not say.
        """
        return await self._listed() == self._places

    def _place(self, adapter: LocalAdapter) -> int:
        place = self._places.get(adapter.ref.digest)
        if place is None:
            raise AdapterLoadFailed(
                f"The server was not started with {adapter.ref.digest}.gguf, the adapter "
                f"{adapter.ref.name}."
            )
        return place

    async def _listed(self) -> dict[str, int]:
        try:
            async with self._client.stream("GET", self._address) as answer:
                body = await beginning(answer, MAX_LIST)
        except httpx.HTTPError as error:
            raise EngineFailed("The upstream does not answer.") from error
        try:
            rows = msgspec.json.decode(body, type=list[_Listed])
        except (msgspec.MsgspecError, RecursionError) as error:
            raise EngineFailed("The upstream does not list its adapters.") from error
        paths = [(PurePosixPath(row.path), row.id) for row in rows]
        found = [
            (FILE.fullmatch(path.name), at) for path, at in paths if path.parent == self._folder
        ]
        return {match[1]: at for match, at in found if match is not None}
