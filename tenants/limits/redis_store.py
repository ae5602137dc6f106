"""Counters on Redis, shared by all gateways.

Commands from all requests of this process are sent on one connection. Those that accumulated since
the last exchange form one pipeline, in order: one round trip per exchange.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import msgspec
from redis.asyncio import ConnectionPool
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import NoScriptError, RedisError, ResponseError
from redis.maint_notifications import MaintNotificationsConfig

from tenants.limits.budget import REFRESH_MS
from tenants.limits.commands import AnyAnswer, AnyCommand, StoreDown
from tenants.limits.kinds import KINDS, PERIODS, Kinds
from tenants.limits.state import LEASE_MS, RECLAIMED_AT_ONCE, STREAM_WAIT_MS, WITHDRAWN_MS
from tenants.limits.window import GONE_S, WINDOW_S

TIMEOUT_S = 0.25
"""Time limit of one exchange, including connecting: beyond it Redis counts as down."""
MAX_BATCH = 256
"""At most how many commands one exchange has: about 10 ms of Redis's time."""
MAX_WAITING = 10_000
"""Calls waiting for the connection; beyond this number Redis counts as down as well."""

_LUA = Path(__file__).with_name("lua")
_FILES = ("base", "windows", "budgets", "endings", "commands", "charge")
_CONSTANTS = {
    "WINDOW_S": WINDOW_S,
    "GONE_S": GONE_S,
    "LEASE_MS": LEASE_MS,
    "RECLAIMED_AT_ONCE": RECLAIMED_AT_ONCE,
    "WITHDRAWN_MS": WITHDRAWN_MS,
    "STREAM_WAIT_MS": STREAM_WAIT_MS,
    "REFRESH_MS": REFRESH_MS,
}

Reply = bytes | ResponseError
_encode = msgspec.msgpack.Encoder().encode
_answers: msgspec.msgpack.Decoder[AnyAnswer] = msgspec.msgpack.Decoder(AnyAnswer)


def script(kinds: Kinds) -> str:
    """The script in `lua/` for these kinds of limits. Different sets of kinds have different
    scripts, which share the same keys, because everything in these is stored by name."""

    def within(window: str) -> list[str]:
        return [kind.name for kind in kinds.values() if kind.window == window]

    for_all = _CONSTANTS | {
        "MEASURE_OF": {kind.name: kind.measure for kind in kinds.values()},
        "IN_MINUTE": within("minute"),
        "CONCURRENT": within("concurrent"),
        "BUDGETS": {period: within(period) for period in PERIODS},
    }
    for_charges = {  # Lua builds these tables in every run; ending commands return before them
        "KINDS": list(kinds),
        "WINDOW_OF": {kind.name: kind.window for kind in kinds.values()},
        "SHOWN": [kind.name for kind in kinds.values() if kind.header],
    }
    files = {name: _LUA.joinpath(f"{name}.lua").read_text() for name in _FILES}
    files["base"] = _locals(for_all) + files["base"]
    files["commands"] = _locals(for_charges) + files["commands"]
    return "\n".join(files.values())


def _locals(constants: Mapping[str, object]) -> str:
    return "".join(f"local {name} = {_literal(value)}\n" for name, value in constants.items())


def _literal(value: object) -> str:
    """A constant as a Lua literal. Names of kinds need no quoting."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {_literal(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list):
        return "{" + ", ".join(map(_literal, value)) + "}"
    return f"'{value}'" if isinstance(value, str) else str(value)


@dataclass(slots=True)
class _Call:
    """Commands of one caller that wait for their answers."""

    commands: Sequence[bytes]
    answers: asyncio.Future[list[AnyAnswer]]

    def resolve(self, replies: Sequence[Reply]) -> None:
        """Set the answers. An error from the script, or from a read-only Redis, counts as Redis
        being down."""
        try:
            answers = [_answer(reply) for reply in replies]
        except (RedisError, msgspec.MsgspecError) as error:
            self.fail(error)
        else:
            if not self.answers.done():
                self.answers.set_result(answers)

    def fail(self, error: Exception) -> None:
        if not self.answers.done():
            self.answers.set_exception(StoreDown(str(error) or type(error).__name__))


def _expire(limit: asyncio.Timeout, timeout_s: float) -> asyncio.TimerHandle:
    """Make `limit` expire after `timeout_s`, in two halves. The second half starts from the event
    loop, so that time in which the loop was blocked, with replies unread, does not count as Redis
    being silent. The caller must cancel the returned handle."""
    loop = asyncio.get_running_loop()
    return loop.call_later(timeout_s / 2, lambda: limit.reschedule(loop.time() + timeout_s / 2))


def _answer(reply: Reply) -> AnyAnswer:
    """Decode a reply.

    Raises:
        ResponseError: the reply is one.
        MsgspecError: the reply is not a known answer.
    """
    if isinstance(reply, Exception):
        raise reply
    return _answers.decode(reply)


class RedisStore:
    """`commands.Store` on one Redis (no cluster) that evicts nothing."""

    def __init__(
        self,
        url: str,
        *,
        timeout_s: float = TIMEOUT_S,
        clock: Callable[[], int] | None = None,
        kinds: Kinds = KINDS,
    ) -> None:
        """`clock` gives unix time in milliseconds instead of Redis's own clock, for tests.

        Raises:
            ValueError: the URL is not a valid Redis URL.
        """
        pool = ConnectionPool.from_url(
            url,
            retry=Retry(NoBackoff(), 0),  # a Charge must not be sent twice
            socket_timeout=None,  # `_exchange` has one timeout for everything
            maint_notifications_config=MaintNotificationsConfig(enabled=False),
        )
        self._connection = pool.make_connection()  # type: ignore[no-untyped-call]
        self.timeout_s = timeout_s
        self._clock = clock
        self._script = script(kinds)
        sha = hashlib.sha1(self._script.encode(), usedforsecurity=False).hexdigest()
        self._call = b"*5\r\n$7\r\nEVALSHA\r\n$40\r\n%b\r\n$1\r\n0\r\n" % sha.encode()
        self._call += b"$%d\r\n%b\r\n$%d\r\n%b\r\n"
        """A call in Redis's protocol, to be formatted with the lengths and values of its two
        arguments."""
        self._waiting: deque[_Call] = deque()
        self._sender: asyncio.Task[None] | None = None

    async def run(self, *commands: AnyCommand) -> list[AnyAnswer]:
        """As `commands.Store`. The commands of a cancelled caller may still be executed."""
        if len(self._waiting) >= MAX_WAITING:
            raise StoreDown("too many calls are waiting for Redis")
        call = _Call([_encode(c) for c in commands], asyncio.get_running_loop().create_future())
        self._waiting.append(call)
        if self._sender is None or self._sender.done():
            self._sender = asyncio.create_task(self._send(), name="redis-limits")
        return await call.answers

    async def close(self) -> None:
        """Finish waiting calls, then disconnect."""
        if self._sender is not None:
            await self._sender
        with suppress(RedisError, OSError):
            await self._connection.disconnect()

    async def _send(self) -> None:
        while batch := self._next_batch():
            commands = [command for call in batch for command in call.commands]
            try:
                replies = iter(await self._exchange(commands))
            except Exception as error:  # any error, as no caller may wait for ever
                for call in (*batch, *self._waiting):
                    call.fail(error)
                self._waiting.clear()
                continue
            for call in batch:
                call.resolve(list(islice(replies, len(call.commands))))

    def _next_batch(self) -> list[_Call]:
        batch: list[_Call] = []
        size = 0
        while self._waiting and size < MAX_BATCH:
            call = self._waiting.popleft()
            if not call.answers.done():  # else its caller was cancelled
                batch.append(call)
                size += len(call.commands)
        return batch

    async def _exchange(self, commands: Sequence[bytes]) -> list[Reply]:
        # The library closes a connection that is abandoned in the middle of an exchange.
        async with asyncio.timeout(None) as limit:
            expiring = _expire(limit, self.timeout_s)
            try:
                await self._connect()
                return await self._replies(commands)
            finally:
                expiring.cancel()

    async def _replies(self, commands: Sequence[bytes]) -> list[Reply]:
        replies = await self._evaluate(commands)
        unknown = [i for i, reply in enumerate(replies) if isinstance(reply, NoScriptError)]
        if unknown:  # Redis has just started; it did not execute these commands
            await self._connection.send_command("SCRIPT LOAD", self._script)
            await self._connection.read_response()
            again = await self._evaluate([commands[i] for i in unknown])
            for i, reply in zip(unknown, again, strict=True):
                replies[i] = reply
        if any(isinstance(reply, ResponseError) for reply in replies):
            # After a failover this connection may lead to a replica, its address to the primary.
            await self._connection.disconnect(nowait=True)
        return replies

    async def _connect(self) -> None:
        """Connect, again if Redis has closed the connection since the last exchange."""
        if self._connection.is_connected and await self._connection.can_read():
            await self._connection.disconnect(nowait=True)
        await self._connection.connect()

    async def _evaluate(self, commands: Sequence[bytes]) -> list[Reply]:
        # Bypasses the library's pipelines and packing, which take more time than all the rest.
        now_ms = b"%d" % self._clock() if self._clock else b""
        pipeline = b"".join(self._call % (len(c), c, len(now_ms), now_ms) for c in commands)
        await self._connection.send_packed_command(pipeline)
        return [await self._reply() for _ in commands]

    async def _reply(self) -> Reply:
        try:
            reply: bytes = await self._connection.read_response()
        except ResponseError as error:
            return error
        return reply
