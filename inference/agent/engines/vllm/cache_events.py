"""vLLM's events about its prefix cache, which it publishes on a socket of this machine.

They carry tokens, salts and adapter names in clear text. So the socket is in a folder that no other
user may enter, and of each event only the blocks' hashes, the request and the block size are read.

vLLM numbers its messages. After one that is missing or unreadable, nothing is known of the cache
until it is used again.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from shutil import rmtree
from typing import Any

import msgspec
import zmq

from inference.agent.engines.cache_news import Cleared, News, NewsLog, Removed, Stored

MAX_MESSAGES = 10_000
"""That may wait to be taken; one is of one step of the engine."""
AT_ONCE = 500
"""Messages read by one `take`: a few milliseconds of the agent's loop."""

Hash = bytes | int


class _Stored(msgspec.Struct, tag="BlockStored"):
    block_hashes: list[Hash]
    parent_block_hash: Hash | None
    block_size: int
    group_idx: int | None = None
    session_id: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[Hash]
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, array_like=True):
    at: float
    events: list[_Stored | _Removed | _Cleared]


_decode = msgspec.msgpack.Decoder(_Batch).decode


class CacheEvents:
    """The listening end of the socket. Give `settings` to vLLM, call `listen` once it has started,
    and then `take` for what it published."""

    def __init__(self) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="lorikeet-kv-"))
        endpoint = f"ipc://{self._folder}/events"
        self.settings: dict[str, Any] = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": endpoint,
        }
        """Arguments of vLLM's `KVEventsConfig`."""
        self._endpoint = endpoint
        self._socket: zmq.Socket[bytes] | None = None
        self._next = 0
        self._log = NewsLog()

    def listen(self) -> None:
        """Start listening. Call once vLLM's core runs: on a CPU it is a fork of this process."""
        self._socket = zmq.Context.instance().socket(zmq.SUB)
        self._socket.set_hwm(MAX_MESSAGES)
        self._socket.subscribe(b"")
        self._socket.connect(self._endpoint)

    def take(self) -> list[News]:
        """What vLLM published since the last call, of up to AT_ONCE steps."""
        if self._socket is None:
            return []
        for _ in range(AT_ONCE):
            try:
                _, number, batch = self._socket.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                break
            self._log_batch(int.from_bytes(number, "big"), batch)
        return self._log.take()

    def close(self) -> None:
        """Stop listening."""
        if self._socket is not None:
            self._socket.close(linger=0)
            self._socket = None
        rmtree(self._folder, ignore_errors=True)

    def _log_batch(self, number: int, batch: bytes) -> None:
        if number != self._next:
            self._log.add(Cleared())
        self._next = number + 1
        try:
            decoded = _decode(batch)
        except msgspec.DecodeError:
            decoded = _Batch(0.0, [_Cleared()])
        for event in decoded.events:
            if (news := _news(event)) is not None:
                self._log.add(news)


def reporting(params: Any) -> Any:
    """Have vLLM publish also the blocks that a prompt finds in the cache, not only those that it
    adds. Mutates and returns the sampling parameters."""
    params.extra_args = (params.extra_args or {}) | {"kv_cache_report_mode": "full"}
    return params


def _news(event: _Stored | _Removed | _Cleared) -> News | None:
    """The event as news. None if it is of no request of ours, or of a group of layers other than
    the first: that one holds all of a prompt and stands for the others."""
    if isinstance(event, _Cleared):
        return Cleared()
    if event.group_idx:
        return None
    if isinstance(event, _Removed):
        return Removed(event.block_hashes)
    if event.session_id is None:
        return None
    return Stored(event.session_id, event.parent_block_hash, event.block_hashes, event.block_size)
