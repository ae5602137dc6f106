"""Adapters that a server was started with, known by their digests. It loads none while it runs.

After a restart it may have others, so an answer counts only if its list is still the same once the
answer has begun: if the server is started anew before that, the answer breaks off.

llama.cpp has files named by digests, and a request names one by its place in the server's list. Its
caches of prompts do not tell adapters apart: the one in RAM (`--cache-ram`) gives the keys and
values of one adapter to requests of another. So each request computes its prompt from the
beginning. A request without an adapter gives the first one a weight of 0, because an empty list
stands for the server's defaults, which may be all of them, and keeps what its slot had cached.

ms-swift lists adapters among its models, under the names that it was started with. Those that
contain a digest, as `name_of` makes them, are served.
"""

from __future__ import annotations

import re
import time
from abc import ABC, abstractmethod
from pathlib import PurePosixPath
from typing import Any, TypeVar

import httpx
import msgspec

from inference.agent.engines.engine import EngineNotStarted, LoadReport, LocalAdapter
from inference.agent.engines.upstream.adapters import PREFIX, name_of
from inference.agent.engines.upstream.connection import beginning, root_of
from inference.content import CONFIG, WEIGHTS
from inference.errors import AdapterLoadFailed, EngineFailed

FILE = re.compile(r"([0-9a-f]{64})\.gguf")
NAME = re.compile(rf"{PREFIX}([0-9a-f]{{64}})")
LISTED = PurePosixPath("listed")
"""Stands for the adapters that the server lists, where others have a folder."""
UNCONVERTED = ("use_rslora", "alpha_pattern")
"""Fields of an adapter's configuration that llama.cpp's converter passes over: its weights would be
scaled wrongly."""
MAX_LIST = 4 << 20
"""Bytes of the server's list, with some hundred for each adapter."""
Rows = TypeVar("Rows")


class _File(msgspec.Struct):
    id: int
    path: str


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class StartedAdapters(ABC):
    """Those of the server's adapters that are known by their digests; it has the methods of
    `UpstreamAdapters`."""

    def __init__(self, client: httpx.AsyncClient, address: str, needs: str) -> None:
        """`address` lists the adapters, `needs` says how the server must have been started."""
        self._client, self._address, self._needs = client, address, needs
        self._places: dict[str, int] = {}
        """By digest."""

    @property
    def only(self) -> list[str]:
        """Digests of the adapters that it has."""
        return sorted(self._places)

    async def take_over(self, model: str, listed: list[str]) -> None:
        """Ask which adapters the server has.

        Raises:
            EngineNotStarted: it has none that is named by a digest.
            EngineFailed: it does not say.
        """
        self._places = await self._listed()
        if not self._places:
            raise EngineNotStarted(
                f"{self._address} lists no adapter that can be served: the server must be started "
                f"with {self._needs}"
            )

    @abstractmethod
    def fields_of(self, adapter: LocalAdapter | None) -> dict[str, Any]:
        """What names the adapter in a request, or that there is none.

        Raises:
            AdapterLoadFailed: the server does not have it.
        """

    async def load(self, adapter: LocalAdapter) -> LoadReport:
        """As `Engine.load` says: nothing is loaded, the server must have it."""
        began = time.monotonic()
        self._place(adapter)
        return LoadReport(time.monotonic() - began, (adapter.path / WEIGHTS).stat().st_size)

    async def reload(self, adapter: LocalAdapter) -> None:
        """As `load`."""
        self._place(adapter)

    async def unload(self, adapter: LocalAdapter) -> None:  # noqa: B027
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
                f"The server was not started with {adapter.ref.digest}, the adapter "
                f"{adapter.ref.name}."
            )
        return place

    @abstractmethod
    async def _listed(self) -> dict[str, int]:
        """The places of adapters by their digests, as the server says now.

        Raises:
            EngineFailed: it does not say.
        """

    async def _rows(self, shape: type[Rows]) -> Rows:
        try:
            async with self._client.stream("GET", self._address) as answer:
                body = await beginning(answer, MAX_LIST)
        except httpx.HTTPError as error:
            raise EngineFailed("The upstream does not answer.") from error
        try:
            return msgspec.json.decode(body, type=shape)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise EngineFailed("The upstream does not list its adapters.") from error


class FileAdapters(StartedAdapters):
    """llama.cpp's: files in `folder`."""

    def __init__(self, client: httpx.AsyncClient, folder: PurePosixPath) -> None:
        """`folder` is the path with which the server was started."""
        needs = f"--lora {folder}/DIGEST.gguf, as --upstream-adapters says"
        super().__init__(client, f"{root_of(client)}/lora-adapters", needs)
        self._folder = folder

    def fields_of(self, adapter: LocalAdapter | None) -> dict[str, Any]:
        """As `StartedAdapters.fields_of` says."""
        place, scale = (0, 0.0) if adapter is None else (self._place(adapter), 1.0)
        return {"lora": [{"id": place, "scale": scale}], "cache_prompt": False}

    async def load(self, adapter: LocalAdapter) -> LoadReport:
        """As `StartedAdapters.load` says."""
        report = await super().load(adapter)
        config = msgspec.json.decode((adapter.path / CONFIG).read_bytes(), type=dict[str, Any])
        if passed_over := [name for name in UNCONVERTED if config.get(name)]:
            raise AdapterLoadFailed(
                f"The adapter {adapter.ref.name} has {' and '.join(passed_over)}, which "
                "llama.cpp's converter ignores: the server would not answer as PEFT does."
            )
        return report

    async def _listed(self) -> dict[str, int]:
        rows = await self._rows(list[_File])
        paths = [(PurePosixPath(row.path), row.id) for row in rows]
        found = [
            (FILE.fullmatch(path.name), at) for path, at in paths if path.parent == self._folder
        ]
        return {match[1]: at for match, at in found if match is not None}


class ListedAdapters(StartedAdapters):
    """ms-swift's: models whose names contain a digest."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        needs = f"--adapters {PREFIX}DIGEST=FOLDER"
        super().__init__(client, f"{client.base_url!s}models", needs)

    def fields_of(self, adapter: LocalAdapter | None) -> dict[str, Any]:
        """As `StartedAdapters.fields_of` says."""
        if adapter is None:
            return {}
        self._place(adapter)
        return {"model": name_of(adapter)}

    async def _listed(self) -> dict[str, int]:
        found = [NAME.fullmatch(one.id) for one in (await self._rows(_Models)).data]
        return {match[1]: 0 for match in found if match is not None}
