"""The adapters of a server that loads them while it runs (`AdapterDialect`).

Their files are in a folder that the server can read, where the agent fetches them. On the server an
adapter is named by its digest: no text of a tenant is in the name, and one name has one content for
ever, so a prefix cache that is keyed on the name never holds another adapter's keys and values.

A server that was started anew has lost them. It refuses a request for one by naming it, and then
the adapter is loaded again.
"""

from __future__ import annotations

import re
import time
from pathlib import PurePosixPath
from typing import Any

import httpx
import structlog

from inference.agent.engines.engine import EngineNotStarted, LoadReport, LocalAdapter
from inference.agent.engines.upstream.connection import beginning, root_of
from inference.agent.engines.upstream.dialects import AdapterDialect
from inference.agent.engines.upstream.reading import message_in
from inference.content import WEIGHTS
from inference.errors import AdapterLoadFailed, EngineFailed

log = structlog.get_logger(__name__)

PREFIX = "lorikeet-"
"""Of the names of adapters on the server."""
NOBODY = f"{PREFIX}none"
"""The name of no adapter."""
LOADED_ALREADY = re.compile(r"already (?:been loaded|loaded|exists)")
"""How vLLM and SGLang refuse to load a name again."""
NAME = re.compile(rf"{PREFIX}[0-9a-f]+")
NAMES = re.compile(NAME.pattern.encode())
MAX_REASON = 300
"""Characters of a server's message in an error."""


class UpstreamAdapters:
    """The adapters that this engine has loaded on the server, at most `slots`."""

    def __init__(
        self, client: httpx.AsyncClient, dialect: AdapterDialect, folder: PurePosixPath, slots: int
    ) -> None:
        """`folder` is the agent's folder of adapters as the server sees it."""
        self._client, self._dialect, self._folder, self._slots = client, dialect, folder, slots
        self._address = f"{root_of(client)}{dialect.below}"
        self._loaded: set[int] = set()

    @property
    def only(self) -> list[str]:
        """None: it loads any that fits."""
        return []

    async def take_over(self, model: str, listed: list[str]) -> None:
        """Unload what an earlier process left among the listed models of the server. `model` is
        the base model.

        Raises:
            EngineNotStarted: the server can't load adapters while it runs, or would answer as the
                base model for one that it has lost.
        """
        refusal = await self._refusal("unload", NOBODY)
        if refusal is None or NOBODY not in refusal:
            raise EngineNotStarted(
                f"{self._address}/unload_lora_adapter does not work: for --upstream-adapters the "
                f"server must be started with {self._dialect.flags}"
            )
        body = {"prompt": "x", "max_tokens": 1, "model": model} | {self._dialect.field: NOBODY}
        if await self._sent(f"{self._client.base_url}completions", body) is None:
            raise EngineNotStarted(
                f"{self._client.base_url} answers for adapters that it does not have: "
                "VLLM_SKIP_MODEL_NAME_VALIDATION must not be set there"
            )
        for name in listed:
            if name.startswith(PREFIX):
                await self._unload(name)

    def fields_of(self, adapter: LocalAdapter | None) -> dict[str, Any]:
        """What names the adapter in a request.

        Raises:
            AdapterLoadFailed: it is not loaded.
        """
        if adapter is None:
            return {}
        if adapter.int_id not in self._loaded:
            raise AdapterLoadFailed(f"The adapter {adapter.ref.name} is not loaded.")
        return {self._dialect.field: name_of(adapter)}

    async def load(self, adapter: LocalAdapter) -> LoadReport:
        """As `Engine.load` says."""
        began = time.monotonic()
        if adapter.int_id not in self._loaded:
            if len(self._loaded) >= self._slots:
                raise AdapterLoadFailed(
                    f"{len(self._loaded)} adapters are loaded: the engine can load no more."
                )
            await self.reload(adapter)
            self._loaded.add(adapter.int_id)
        weight_bytes = (adapter.path / WEIGHTS).stat().st_size
        return LoadReport(time.monotonic() - began, weight_bytes)

    async def reload(self, adapter: LocalAdapter) -> None:
        """Load the adapter on the server, if that does not have it.

        Raises:
            AdapterLoadFailed: the server refuses it.
            EngineFailed: the server does not answer.
        """
        path = str(self._folder / adapter.path.name)
        refusal = await self._refusal("load", name_of(adapter), lora_path=path)
        if refusal is not None and not LOADED_ALREADY.search(refusal):
            lines = refusal.strip().splitlines() or ["unknown cause"]
            reason = NAME.sub("<adapter>", lines[-1])  # SGLang lists those of others
            raise AdapterLoadFailed(
                f"The adapter {adapter.ref.name} could not be loaded: {reason[:MAX_REASON]}"
            )

    async def unload(self, adapter: LocalAdapter) -> None:
        """As `Engine.unload` says."""
        if adapter.int_id in self._loaded:
            self._loaded.remove(adapter.int_id)
            await self._unload(name_of(adapter))

    async def is_unchanged(self) -> bool:
        """Whether a request's fields still mean the same adapter: a name does for ever."""
        return True

    async def _unload(self, name: str) -> None:
        refusal = await self._refusal("unload", name)
        if refusal is not None:  # a server that was started anew does not have it
            log.warning("upstream_adapter_not_unloaded", name=name, reason=refusal[:MAX_REASON])

    async def _refusal(self, what: str, name: str, **more: str) -> str | None:
        """Load or unload; returns the server's message if it refuses, and raises as `_sent`."""
        return await self._sent(f"{self._address}/{what}_lora_adapter", {"lora_name": name, **more})

    async def _sent(self, address: str, body: dict[str, Any]) -> str | None:
        """The server's message if it refuses this, else None.

        Raises:
            EngineFailed: it does not answer.
        """
        try:
            async with self._client.stream("POST", address, json=body) as answer:
                return None if answer.is_success else message_in(await beginning(answer))
        except httpx.HTTPError as error:
            raise EngineFailed("The upstream does not answer.") from error


def name_of(adapter: LocalAdapter) -> str:
    """The adapter's name on the server."""
    return f"{PREFIX}{adapter.ref.digest}"


def is_missing(adapter: LocalAdapter, refusal: bytes) -> bool:
    """Whether the server refused a request because it does not have the adapter."""
    return name_of(adapter).encode() in refusal


def without_names(refusal: bytes) -> bytes:
    """A refusal that does not name the adapters of others: ms-swift lists all of its own."""
    return NAMES.sub(b"<adapter>", refusal)
