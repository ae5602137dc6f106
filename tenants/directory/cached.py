"""Who is calling and what a model name means, from memory: the token path's side of `auth`.

The token path asks here for every request. Answers come from memory, without ORM, thread or
database, once seen (`fresh` has the rules); otherwise one small query fetches them, once for all
who ask at the same time. A key is known by its HMAC: its text is kept nowhere.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import structlog

from inference.errors import (
    ApiKeyRevoked,
    InferenceError,
    InvalidApiKey,
    PermissionDenied,
    RequestError,
    Unavailable,
)
from inference.grants import Grant, ModelCard, Target
from inference.link.wire import AdapterRef
from tenants.directory import catalogue
from tenants.directory.catalogue import BaseRow, Catalogue
from tenants.directory.invalidating_cache import FRESH_S, InvalidatingCache, Tag
from tenants.directory.notices import Notice
from tenants.directory.outage import Outage
from tenants.directory.reader import KeyRow, Reader
from tenants.naming import INFERENCE, TOUCH_INTERVAL, hmac_of, playground_prefix, prefix_of

log = structlog.get_logger(__name__)
K = TypeVar("K", bound=Hashable)
V = TypeVar("V")

MAX_KEYS = 50_000
MAX_UNKNOWN = 10_000
"""Apart from the known ones, which a flood of bad keys must not push out."""
MAX_CATALOGUES = 2_000
UNKNOWN_S = 1.0
"""How long an unknown key is remembered as such."""
READ_ATTEMPTS = 3
RETRY_S = 0.5
TICK_S = 1.0
EXPIRY_HORIZON_S = 3600.0
"""Keys that expire within it are watched, so that their open streams end on time."""
PINS_S = 0.5
"""Adapters change all the time, pinned ones hardly ever: they are looked at no more often."""
BASES = "bases"
Pins = dict[str, list[AdapterRef]]
"""The adapters to keep loaded, by base model; one without any is left out."""


@dataclass(slots=True)
class KnownKey:
    """A key whose text was seen: its grant, or why it has none. `touched_at` is monotonic."""

    id: int
    tenant_id: int
    verdict: Grant | InvalidApiKey
    touched_at: float = float("-inf")

    def tags(self) -> list[Tag]:
        tags: list[Tag] = [("key", self.id), ("tenant", self.tenant_id)]
        if isinstance(self.verdict, Grant) and INFERENCE in self.verdict.scopes:
            tags.append(("infers", self.id))
        return tags


def admit(verdict: Grant | InvalidApiKey, now: float) -> Grant:
    """The grant, if it holds at this unix time.

    Raises:
        InvalidApiKey: it does not.
    """
    if isinstance(verdict, InvalidApiKey):
        raise InvalidApiKey(verdict.message)
    if verdict.expires_at is not None and verdict.expires_at <= now:
        raise InvalidApiKey("This API key has expired.")
    return verdict


def require_inference(grant: Grant) -> None:
    """Management keys cannot infer.

    Raises:
        PermissionDenied: the key lacks the scope.
    """
    if INFERENCE not in grant.scopes:
        raise PermissionDenied("This API key lacks the scope `inference`.")


def revocation(row: KeyRow | None, now: float) -> ApiKeyRevoked | None:
    """Why this key can no longer infer, None where it still can; a missing row was deleted."""
    if row is None:
        return ApiKeyRevoked("This API key was deleted.")
    try:
        require_inference(admit(row.verdict(), now))
    except RequestError as error:
        return ApiKeyRevoked(error.message)
    return None


class CachedDirectory:
    """Answers from memory and reads what is missing.

    Whoever owns it tells it what the database says of changes (`heard`, `reconnected`, `changed`)
    and runs `check_due` and `tick`.
    """

    def __init__(self, reader: Reader, *, without_database_s: float = 0.0) -> None:
        """While the database is away what is in memory goes on to count for `without_database_s`
        after it was last heard of."""
        self._without_database_s = without_database_s
        self._outage = Outage()
        self._keys: InvalidatingCache[bytes, KnownKey] = InvalidatingCache(MAX_KEYS)
        self._unknown: InvalidatingCache[bytes, bool] = InvalidatingCache(MAX_UNKNOWN)
        self._names: InvalidatingCache[int, Catalogue] = InvalidatingCache(MAX_CATALOGUES)
        self._bases: InvalidatingCache[str, Mapping[str, BaseRow]] = InvalidatingCache(1)
        self._caches = (self._keys, self._unknown, self._names, self._bases)
        self._flights: dict[Hashable, asyncio.Task[Any]] = {}
        self._reader = reader
        self._on_revoked: list[Callable[[int, InferenceError], None]] = []
        self._on_archived: list[Callable[[str], None]] = []
        self._on_pinned: list[Callable[[Pins], None]] = []
        self._on_people: list[Callable[[Notice | None], None]] = []
        self._on_tenant: list[Callable[[int | None], None]] = []
        self._pins: Pins | None = None
        self._pins_due = asyncio.Event()
        self._pins_due.set()
        self._due = asyncio.Event()
        self._due_keys: set[int] = set()
        self._due_tenants: set[int] = set()
        self._seen: OrderedDict[int, None] = OrderedDict()
        self._expiring: dict[int, float] = {}
        self._used: set[int] = set()

    # --- What the token path asks ----------------------------------------------------------------

    async def authenticate(self, secret: str) -> Grant:
        """The grant of this key; see `inference.grants.Directory`."""
        prefix = prefix_of(secret)
        if prefix is None:
            raise InvalidApiKey
        digest = hmac_of(secret)
        if self._unknown.get(digest, time.monotonic()):
            raise InvalidApiKey
        known = await self._get(
            self._keys,
            digest,
            load=lambda: self._find_key(prefix, digest),
            tags=KnownKey.tags,
        )
        grant = admit(known.verdict, time.time())
        self._note_use(known, grant)
        return grant

    async def playground(self, tenant_id: int) -> Grant:
        """What a tenant's people may do in the playground; whoever asks has checked who they are.

        Raises:
            InvalidApiKey: nobody opened it yet, it was switched off, or the tenant is suspended.
            Unavailable: as `authenticate`.
        """
        prefix = playground_prefix(tenant_id)
        known = await self._get(
            self._keys,
            prefix.encode(),
            load=lambda: self._find_playground(prefix),
            tags=KnownKey.tags,
        )
        grant = admit(known.verdict, time.time())
        self._note_use(known, grant)
        return grant

    async def resolve(self, grant: Grant, name: str) -> Target:
        """What the model name means; see `inference.grants.Directory`.

        Raises:
            InvalidApiKey: the key was revoked since it was authenticated.
            PermissionDenied: the key lacks the scope for inference.
        """
        bases, own = await self._names_of(grant)
        # Last, so that nothing awaited lies between this check and the caller's submit: what is
        # revoked after it is told to `on_revoked` when the stream is there.
        await self._require_current(grant)
        return catalogue.resolve(grant, name, bases, own, now=time.time())

    async def models(self, grant: Grant) -> list[ModelCard]:
        """Every model this key may use; see `inference.grants.Directory`.

        Raises:
            PermissionDenied: the key lacks the scope for inference.
        """
        require_inference(grant)
        return catalogue.cards(grant, *await self._names_of(grant))

    def serves(self) -> bool:
        """Whether keys that were seen lately are good: the database was heard of, if not now, then
        not too long ago."""
        longest_s = max(FRESH_S, self._without_database_s)
        return self._keys.heard_within(longest_s, time.monotonic())

    def on_revoked(self, callback: Callable[[int, InferenceError], None]) -> None:
        """Call `callback(key_id, error)` when a key can no longer infer."""
        self._on_revoked.append(callback)

    def on_archived(self, callback: Callable[[str], None]) -> None:
        """Call `callback(digest)` when an adapter version left service."""
        self._on_archived.append(callback)

    def on_pinned(self, callback: Callable[[Pins], None]) -> None:
        """Call `callback(adapters by base model)` at the start and when what is pinned changes."""
        self._on_pinned.append(callback)

    def on_people(self, callback: Callable[[Notice | None], None]) -> None:
        """Call `callback(notice)` when a session, an account or a membership ended or changed;
        with None when that was perhaps missed."""
        self._on_people.append(callback)

    def on_tenant(self, callback: Callable[[int | None], None]) -> None:
        """Call `callback(tenant_id)` when something of a tenant has changed; with None where it is
        everybody's, or was perhaps missed."""
        self._on_tenant.append(callback)

    # --- Reading through the caches --------------------------------------------------------------

    async def _find_key(self, prefix: str, digest: bytes) -> KnownKey:
        with self._unknown.reading() as reading:
            row = await self._reader.key(prefix)
            if row is not None and hmac.compare_digest(row.secret_hmac, digest):
                return KnownKey(row.id, row.tenant_id, row.verdict())
            self._unknown.put(reading, digest, True, until=time.monotonic() + UNKNOWN_S)
        raise InvalidApiKey

    async def _find_playground(self, prefix: str) -> KnownKey:
        row = await self._reader.key(prefix)
        if row is None:
            raise InvalidApiKey("The playground of this tenant was not opened yet.")
        return KnownKey(row.id, row.tenant_id, row.verdict())

    async def _require_current(self, grant: Grant) -> None:
        require_inference(grant)
        if self._keys.has(("infers", grant.key_id), time.monotonic()):
            return
        tag = ("infers", grant.key_id)
        if self._had(tag) and self._outage.spares(time.monotonic()):
            return
        try:
            rows = await self._reader.keys([grant.key_id], [])
        except Unavailable:
            self._outage.found(time.monotonic())
            if not self._had(tag):
                raise
            return
        ended = revocation(rows[0] if rows else None, time.time())
        if ended is not None:
            raise ended

    def _had(self, tag: Tag) -> bool:
        return self._keys.had(tag, time.monotonic(), within_s=self._without_database_s)

    async def _names_of(self, grant: Grant) -> tuple[Mapping[str, BaseRow], Catalogue]:
        async def read_bases() -> Mapping[str, BaseRow]:
            return {row.name: row for row in await self._reader.base_models()}

        async def read_catalogue() -> Catalogue:
            return Catalogue(await self._reader.ready_versions(grant.tenant_id))

        tags: list[Tag] = [("tenant", grant.tenant_id)]
        bases = await self._get(self._bases, BASES, load=read_bases, tags=lambda _: [BASES])
        own = await self._get(
            self._names, grant.tenant_id, load=read_catalogue, tags=lambda _: tags
        )
        return bases, own

    async def _get(
        self,
        cache: InvalidatingCache[K, V],
        key: K,
        *,
        load: Callable[[], Awaitable[V]],
        tags: Callable[[V], Collection[Tag]],
    ) -> V:
        """The value from memory, else read; all who ask at the same time share one read.

        While the database is away the last value goes on to count for a stated time.
        """
        value = cache.get(key, time.monotonic())
        if value is not None:
            return value
        last = partial(cache.last, key, within_s=self._without_database_s)
        known = last(time.monotonic())
        if known is not None and self._outage.spares(time.monotonic()):
            return known
        try:
            value = await self._read_shared(cache, key, load, tags)
        except Unavailable:
            self._outage.found(time.monotonic())
            if (known := last(time.monotonic())) is None:
                raise
            return known
        self._outage.over()
        return value

    async def _read_shared(
        self,
        cache: InvalidatingCache[K, V],
        key: K,
        load: Callable[[], Awaitable[V]],
        tags: Callable[[V], Collection[Tag]],
    ) -> V:
        flight = self._flights.get((id(cache), key))
        if flight is None:
            flight = asyncio.create_task(_read(cache, key, load, tags))
            self._flights[id(cache), key] = flight
            flight.add_done_callback(lambda done: self._landed((id(cache), key), done))
        value: V = await asyncio.shield(flight)  # one's disconnect is not the others' end
        return value

    def _landed(self, key: Hashable, flight: asyncio.Task[Any]) -> None:
        self._flights.pop(key, None)
        if not flight.cancelled():
            flight.exception()  # seen, also where every caller has gone

    # --- What the listener tells -----------------------------------------------------------------

    def heard(self, now: float) -> None:
        """Each change committed before the monotonic time `now` has been told."""
        for cache in self._caches:
            cache.heard(now)

    def reconnected(self) -> None:
        """Changes may have been missed: forget all, ask again for every key that was used."""
        self._due_keys.update(self._seen)
        for cache in self._caches:
            cache.clear()
        self._due.set()
        self._pins_due.set()
        self._tell_people(None)
        self._tell_tenant(None)

    def changed(self, notice: Notice | None) -> None:
        """Something changed; None where it was not understood."""
        self._forget(notice)
        match notice:
            case Notice(kind="member" | "user" | "session" | "archived"):
                pass  # nothing that pages of a tenant show; of an archived version is told twice
            case _:
                self._tell_tenant(notice.tenant_id if notice else None)

    def _forget(self, notice: Notice | None) -> None:
        match notice:
            case Notice(kind="key", key_id=int(key_id)):
                self._keys.drop(("key", key_id))
                self._due_keys.add(key_id)
            case Notice(kind="tenant", tenant_id=int(tenant_id)):
                self._keys.drop(("tenant", tenant_id))
                self._names.drop(("tenant", tenant_id))
                self._due_tenants.add(tenant_id)
                self._pins_due.set()
            case Notice(kind="adapters", tenant_id=int(tenant_id)):
                self._names.drop(("tenant", tenant_id))
                self._pins_due.set()
            # No stream ends by a new limit, so no key is due for a check.
            case Notice(kind="limits", tenant_id=int(tenant_id)):
                self._keys.drop(("tenant", tenant_id))
                self._names.drop(("tenant", tenant_id))
            case Notice(kind="limits"):
                self._keys.clear()
            case Notice(kind="base_models"):
                self._bases.drop(BASES)
            case Notice(kind="archived", digest=str(digest)):
                for archived in self._on_archived:
                    archived(digest)
            case Notice(kind="member" | "user" | "session"):
                return self._tell_people(notice)
            case _:
                log.error("notice_not_understood", notice=notice)
                self.reconnected()
        self._due.set()

    def _tell_tenant(self, tenant_id: int | None) -> None:
        for told in self._on_tenant:
            told(tenant_id)

    def _tell_people(self, notice: Notice | None) -> None:
        for told in self._on_people:
            told(notice)

    # --- In the background -----------------------------------------------------------------------

    async def check_due(self) -> None:
        """Ask again for keys that may have ended and report those that did, until cancelled."""
        while True:
            await self._due.wait()
            self._due.clear()
            keys, self._due_keys = self._due_keys, set()
            tenants, self._due_tenants = self._due_tenants, set()
            try:
                await self._check(keys, tenants)
            except Exception as error:  # nobody else would end these streams: try until it works
                log.error("revocation_check_failed", error=str(error))
                self._due_keys |= keys
                self._due_tenants |= tenants
                await asyncio.sleep(RETRY_S)
                self._due.set()

    async def _check(self, keys: set[int], tenants: set[int]) -> None:
        if not keys and not tenants:
            return
        rows = {row.id: row for row in await self._reader.keys(keys, tenants)}
        now = time.time()
        for key_id in keys | rows.keys():
            ended = revocation(rows.get(key_id), now)
            if ended is not None:
                for revoked in self._on_revoked:
                    revoked(key_id, ended)

    async def tick(self) -> None:
        """Watch for keys that expire and write when keys were last used, until cancelled."""
        while True:
            await asyncio.sleep(TICK_S)
            now = time.time()
            expired = [key for key, expires_at in self._expiring.items() if expires_at <= now]
            for key in expired:
                del self._expiring[key]
            if expired:
                self._due_keys.update(expired)
                self._due.set()
            await self.write_used()

    async def tell_pins(self) -> None:
        """Tell `on_pinned` what is pinned, at first and after changes, until cancelled."""
        while True:
            await self._pins_due.wait()
            self._pins_due.clear()
            try:
                self._tell(catalogue.pins(await self._reader.pinned()))
            except Exception as error:  # no notice may follow that would bring it up again
                log.error("pins_not_told", error=str(error))
                self._pins_due.set()
            await asyncio.sleep(PINS_S)

    def _tell(self, pins: Pins) -> None:
        if pins == self._pins:
            return
        for pinned in self._on_pinned:
            pinned(pins)
        self._pins = pins

    def _note_use(self, known: KnownKey, grant: Grant) -> None:
        # Not the cache's entries: those of keys with open streams may have been dropped meanwhile.
        self._seen[known.id] = None
        self._seen.move_to_end(known.id)
        if len(self._seen) > MAX_KEYS:
            self._seen.popitem(last=False)
        now = time.monotonic()
        if now - known.touched_at >= TOUCH_INTERVAL.total_seconds():
            known.touched_at = now
            self._used.add(known.id)
        if grant.expires_at is not None and grant.expires_at - time.time() < EXPIRY_HORIZON_S:
            self._expiring[known.id] = grant.expires_at

    async def write_used(self) -> None:
        """Write which keys were used since the last call."""
        used, self._used = self._used, set()
        try:
            if used:
                await self._reader.touch(used)
        except Unavailable:
            self._used |= used


async def _read(
    cache: InvalidatingCache[K, V],
    key: K,
    load: Callable[[], Awaitable[V]],
    tags: Callable[[V], Collection[Tag]],
) -> V:
    for _ in range(READ_ATTEMPTS):
        with cache.reading() as reading:
            value = await load()
            if cache.put(reading, key, value, tags(value)):
                return value
    # It changes faster than it can be read; an answer from before a change must not be used.
    raise Unavailable(retry_after_s=1.0)
