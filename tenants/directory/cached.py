"""Resolves API keys and model names from memory, for the token path.

Called for every request. Answers come from caches, without ORM, thread or database
(`invalidating_cache` has the rules); on a miss, one small query fetches the value, shared by all
concurrent callers. Keys are cached by their HMAC; their text is stored nowhere.
"""

from __future__ import annotations

import asyncio
import hmac
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping

import structlog
from msgspec.structs import replace

from inference.errors import InferenceError, InvalidApiKey, Unavailable
from inference.interfaces.directory import (
    INFERENCE,
    Grant,
    ModelCard,
    ResolvedTarget,
    TrafficRoute,
)
from inference.link.engine_info import AdapterRef
from inference.pools import Pool, Revisions
from inference.routes import RouteFit
from tenants.directory import catalogue
from tenants.directory.catalogue import BaseRow, Catalogue, RouteRow
from tenants.directory.invalidating_cache import FRESH_S, InvalidatingCache, Tag
from tenants.directory.known_keys import KnownKey, UnknownKey, admit, attributed, revocation
from tenants.directory.notices import Notice
from tenants.directory.reader import EngineRow, Reader
from tenants.directory.shared_reads import SharedReads
from tenants.naming import PLAYGROUND, TOUCH_INTERVAL, hmac_of, prefix_of

log = structlog.get_logger(__name__)

MAX_KEYS = 50_000
MAX_UNKNOWN = 10_000
"""Cached separately, so that a flood of bad keys cannot evict known ones."""
MAX_CATALOGUES = 2_000
MAX_FITS = 500
UNKNOWN_S = 1.0
"""How long a key is cached as unknown."""
RETRY_S = 0.5
TICK_S = 1.0
EXPIRY_HORIZON_S = 3600.0
"""Keys that expire within this time are watched, so that their open streams end on time."""
PINS_S = 0.5
"""Shortest interval between reads of pinned adapters: adapters change often, pins rarely."""
BASES = "bases"
Pins = dict[str, list[AdapterRef]]
"""The adapters to keep loaded, by base model; base models without any are left out."""
Tried = dict[str, Revisions]
"""The revisions on which each adapter may be loaded, by the adapter's digest."""


class CachedDirectory:
    """Answers from caches and reads what they lack.

    The owner passes on change notices of the database (`note_alive`, `reconnected`, `changed`) and
    runs `check_due` and `tick`.
    """

    def __init__(self, reader: Reader, *, without_database_s: float = 0.0) -> None:
        """While the database is down, cached values remain valid until `without_database_s` after
        it was last heard from."""
        self._without_database_s = without_database_s
        self._reads = SharedReads(without_database_s)
        self._keys: InvalidatingCache[bytes, KnownKey] = InvalidatingCache(MAX_KEYS)
        self._unknown: InvalidatingCache[bytes, UnknownKey] = InvalidatingCache(MAX_UNKNOWN)
        self._names: InvalidatingCache[int, Catalogue] = InvalidatingCache(MAX_CATALOGUES)
        self._bases: InvalidatingCache[str, Mapping[str, BaseRow]] = InvalidatingCache(1)
        # Never changed: a route that is fitted again has another number. Each is 64 KiB.
        self._fits: InvalidatingCache[tuple[int, int], tuple[RouteFit | None]]
        self._fits = InvalidatingCache(MAX_FITS)
        self._caches = (self._keys, self._unknown, self._names, self._bases, self._fits)
        self._reader = reader
        self._on_revoked: list[Callable[[int, InferenceError], None]] = []
        self._on_archived: list[Callable[[str], None]] = []
        self._on_pinned: list[Callable[[Pins, Tried], None]] = []
        self._on_pools: list[Callable[[dict[str, Pool]], None]] = []
        self._on_people: list[Callable[[Notice | None], None]] = []
        self._on_tenant: list[Callable[[int | None], None]] = []
        self._on_engines: list[Callable[[list[EngineRow]], None]] = []
        self._pins: tuple[Pins, Tried] | None = None
        self._pools_due = asyncio.Event()
        self._pools_due.set()
        self._engines_due = asyncio.Event()
        self._engines_due.set()
        self._pins_due = asyncio.Event()
        self._pins_due.set()
        self._due = asyncio.Event()
        self._due_keys: set[int] = set()
        self._due_tenants: set[int] = set()
        self._in_use: OrderedDict[int, None] = OrderedDict()
        self._expiring: dict[int, float] = {}
        self._used: set[int] = set()

    # --- For the token path ----------------------------------------------------------------------

    async def authenticate(self, secret: str) -> Grant:
        """The grant of this key; see `interfaces.directory.Directory`."""
        prefix = prefix_of(secret)
        if prefix is None:
            raise InvalidApiKey
        digest = hmac_of(secret)
        unknown = self._unknown.get(digest, time.monotonic())
        if unknown is not None:
            raise unknown.error()
        known = await self._reads.get(
            self._keys,
            digest,
            load=lambda: self._find_key(prefix, digest),
            tags=KnownKey.tags,
        )
        try:
            grant = admit(known.verdict, time.time())
        except InvalidApiKey as error:
            raise attributed(error, known.tenant_id, known.id) from None
        self._note_use(known, grant)
        return grant

    async def playground(self, tenant_id: int, user_id: int) -> Grant:
        """The grant of a user in a tenant's playground; the caller has authenticated the user.

        Raises:
            InvalidApiKey: the user has not opened it yet, it was revoked, or the tenant is
                suspended.
            Unavailable: as `authenticate`.
        """
        return await self._granted(
            f"{PLAYGROUND}{tenant_id}/{user_id}", lambda: self._find_playground(tenant_id, user_id)
        )

    async def grant_of(self, key_id: int) -> Grant:
        """The grant of the key with this id, or of the latest one that it was rotated into, for
        work that was requested with it earlier.

        Raises:
            InvalidApiKey: the key was revoked or deleted, or the tenant is suspended.
            Unavailable: as `authenticate`.
        """
        return await self._granted(f"id {key_id}", lambda: self._find_successor(key_id))

    async def resolve(self, grant: Grant, name: str) -> ResolvedTarget:
        """Resolve a model name; see `interfaces.directory.Directory`.

        Raises:
            InvalidApiKey: the key was revoked since it was authenticated.
            PermissionDenied: the key lacks the scope for inference.
        """
        bases, own = await self._names_of(grant)
        route = None if name in bases else own.routes.get(name)
        fit = None if route is None else await self._fit_of(route)
        # Last, so that nothing is awaited between this check and the caller's submit: for a key
        # revoked after it, `on_revoked` finds the stream.
        await self._require_current(grant)
        target = catalogue.resolve(grant, name, bases, own, now=time.time())
        if target.route is None or fit is None:
            return target
        return replace(target, route=replace(target.route, fit=fit))

    async def cascade(self, grant: Grant, name: str) -> TrafficRoute | None:
        """The cascade of this name; see `interfaces.directory.Directory`."""
        bases, own = await self._names_of(grant)
        row = None if name in bases else own.routes.get(name)
        if row is None or row.sure_from is None:
            return None
        return catalogue.resolve(grant, name, bases, own, now=time.time()).route

    async def models(self, grant: Grant) -> list[ModelCard]:
        """All models that this key may use; see `interfaces.directory.Directory`.

        Raises:
            PermissionDenied: the key lacks the scope for inference.
        """
        grant.require(INFERENCE)
        return catalogue.cards(grant, *await self._names_of(grant), now=time.time())

    def serves(self) -> bool:
        """Whether keys that were seen lately are accepted: the database was heard from recently
        enough."""
        longest_s = max(FRESH_S, self._without_database_s)
        return self._keys.alive_within(longest_s, time.monotonic())

    def on_revoked(self, callback: Callable[[int, InferenceError], None]) -> None:
        """Call `callback(key_id, error)` when a key can no longer run inference."""
        self._on_revoked.append(callback)

    def on_archived(self, callback: Callable[[str], None]) -> None:
        """Call `callback(digest)` when an adapter version was archived or deleted."""
        self._on_archived.append(callback)

    def on_pinned(self, callback: Callable[[Pins, Tried], None]) -> None:
        """Call `callback(adapters by base model, revisions by adapter)` at the start and whenever
        pins change."""
        self._on_pinned.append(callback)

    def on_pools(self, callback: Callable[[dict[str, Pool]], None]) -> None:
        """Call `callback(pools by base model)` at the start and whenever a revision is added or its
        role changes."""
        self._on_pools.append(callback)

    def on_engines(self, callback: Callable[[list[EngineRow]], None]) -> None:
        """Call `callback(credentials)` with the valid credentials of engines, at the start and
        whenever one is created, changed or revoked."""
        self._on_engines.append(callback)

    def on_people(self, callback: Callable[[Notice | None], None]) -> None:
        """Call `callback(notice)` when a session, an account or a membership ended or changed;
        with None if such notices may have been missed."""
        self._on_people.append(callback)

    def on_tenant(self, callback: Callable[[int | None], None]) -> None:
        """Call `callback(tenant_id)` when a tenant's data has changed; with None if it concerns all
        tenants, or notices may have been missed."""
        self._on_tenant.append(callback)

    # --- Reading through the caches --------------------------------------------------------------

    async def _granted(self, name: str, load: Callable[[], Awaitable[KnownKey]]) -> Grant:
        """The grant of a key that is cached under a name instead of the HMAC of its text."""
        known = await self._reads.get(self._keys, name.encode(), load=load, tags=KnownKey.tags)
        grant = admit(known.verdict, time.time())
        self._note_use(known, grant)
        return grant

    async def _find_key(self, prefix: str, digest: bytes) -> KnownKey:
        with self._unknown.reading() as reading:
            row = await self._reader.key(prefix)
            if row is not None and hmac.compare_digest(row.secret_hmac, digest):
                return KnownKey(row.id, row.tenant_id, row.verdict())
            unknown = UnknownKey(row.tenant_id, row.id) if row is not None else UnknownKey()
            self._unknown.put(reading, digest, unknown, until=time.monotonic() + UNKNOWN_S)
        raise unknown.error()

    async def _find_playground(self, tenant_id: int, user_id: int) -> KnownKey:
        row = await self._reader.playground_key(tenant_id, user_id)
        if row is None:
            raise InvalidApiKey("You have not yet opened the playground of this tenant.")
        return KnownKey(row.id, row.tenant_id, row.verdict(), limited_by=row.origin_id)

    async def _find_successor(self, key_id: int) -> KnownKey:
        row = await self._reader.successor(key_id)
        if row is None:
            raise InvalidApiKey("This API key was deleted.")
        limited_by = row.origin_id if row.prefix.startswith(PLAYGROUND) else None
        return KnownKey(row.id, row.tenant_id, row.verdict(), limited_by=limited_by)

    async def _require_current(self, grant: Grant) -> None:
        grant.require(INFERENCE)
        if self._keys.has(("infers", grant.key_id), time.monotonic()):
            return
        tag = ("infers", grant.key_id)
        if self._had(tag) and self._reads.outage.spares(time.monotonic()):
            return
        try:
            rows = await self._reader.keys([grant.key_id], [])
        except Unavailable:
            self._reads.outage.found(time.monotonic())
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
            versions = await self._reader.ready_versions(grant.tenant_id)
            return Catalogue(versions, await self._reader.routes(grant.tenant_id))

        tags: list[Tag] = [("tenant", grant.tenant_id)]
        bases = await self._reads.get(self._bases, BASES, load=read_bases, tags=lambda _: [BASES])
        own = await self._reads.get(
            self._names, grant.tenant_id, load=read_catalogue, tags=lambda _: tags
        )
        return bases, own

    async def _fit_of(self, route: RouteRow) -> RouteFit | None:
        """What chooses between the route's options; None if it is off, or was fitted again since it
        was read."""
        if (number := route.fit) is None:
            return None

        async def read() -> tuple[RouteFit | None]:
            return (await self._reader.route_fit(route.id, number),)

        key = route.id, number
        (fit,) = await self._reads.get(self._fits, key, load=read, tags=lambda _: [("fit", *key)])
        return fit

    # --- For the listener ------------------------------------------------------------------------

    def note_alive(self, now: float) -> None:
        """All changes committed before the monotonic time `now` have been received."""
        for cache in self._caches:
            cache.note_alive(now)

    def reconnected(self) -> None:
        """Changes may have been missed: drop all entries and re-check every key in use."""
        self._due_keys.update(self._in_use)
        for cache in self._caches:
            cache.clear()
        self._due.set()
        self._pins_due.set()
        self._engines_due.set()
        self._pools_due.set()
        self._tell_people(None)
        self._tell_tenant(None)

    def changed(self, notice: Notice | None) -> None:
        """Handle a change notice; None for one that was not understood."""
        if notice is not None and notice.kind == "engine":
            self._engines_due.set()
            return
        self._forget(notice)
        match notice:
            case Notice(kind="member" | "user" | "session" | "archived"):
                pass  # no page of a tenant shows these; archived versions are announced twice
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
            # New limits end no stream, so no key has to be checked.
            case Notice(kind="limits", tenant_id=int(tenant_id)):
                self._keys.drop(("tenant", tenant_id))
                self._names.drop(("tenant", tenant_id))
            case Notice(kind="limits"):
                self._keys.clear()
            case Notice(kind="base_models"):
                self._bases.drop(BASES)
                self._pools_due.set()
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
        for listener in self._on_tenant:
            listener(tenant_id)

    def _tell_people(self, notice: Notice | None) -> None:
        for listener in self._on_people:
            listener(notice)

    # --- In the background -----------------------------------------------------------------------

    async def check_due(self) -> None:
        """Re-check keys that may have ended and report those that have, until cancelled."""
        await _whenever(self._due, self._check_due, "revocation_check_failed")

    async def _check_due(self) -> None:
        keys, self._due_keys = self._due_keys, set()
        tenants, self._due_tenants = self._due_tenants, set()
        try:
            await self._check(keys, tenants)
        except Exception:
            self._due_keys |= keys
            self._due_tenants |= tenants
            raise

    async def _check(self, keys: set[int], tenants: set[int]) -> None:
        if not keys and not tenants:
            return
        rows = {row.id: row for row in await self._reader.keys(keys, tenants)}
        now = time.time()
        for key_id in keys | rows.keys():
            ended = revocation(rows.get(key_id), now)
            if ended is not None:
                self._keys.drop(("key", key_id))  # this read may precede the notice of its end
                for revoked in self._on_revoked:
                    revoked(key_id, ended)

    async def tick(self) -> None:
        """Watch for expiring keys and store when keys were last used, until cancelled."""
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
        """Report pinned adapters to `on_pinned`, at first and after changes, until cancelled."""
        await _whenever(self._pins_due, self._tell_pins, "pins_not_told")

    async def _tell_pins(self) -> None:
        rows = await self._reader.pinned()
        pins = catalogue.pins(rows), catalogue.tried(rows)
        if pins != self._pins:
            for listener in self._on_pinned:
                listener(*pins)
            self._pins = pins
        await asyncio.sleep(PINS_S)

    async def tell_engines(self) -> None:
        """Report valid credentials to `on_engines`, at first and after changes, until cancelled."""
        await _whenever(self._engines_due, self._tell_engines, "engines_not_told")

    async def _tell_engines(self) -> None:
        rows = await self._reader.engine_credentials()
        for listener in self._on_engines:
            listener(rows)

    async def tell_pools(self) -> None:
        """Report the pools to `on_pools`, at first and after changes, until cancelled."""
        await _whenever(self._pools_due, self._tell_pools, "pools_not_told")

    async def _tell_pools(self) -> None:
        pools = catalogue.pools(await self._reader.pools())
        for listener in self._on_pools:
            listener(pools)

    def _note_use(self, known: KnownKey, grant: Grant) -> None:
        # Not from the cache, which may have dropped entries of keys with open streams.
        self._in_use[known.id] = None
        self._in_use.move_to_end(known.id)
        if len(self._in_use) > MAX_KEYS:
            self._in_use.popitem(last=False)
        now = time.monotonic()
        if now - known.touched_at >= TOUCH_INTERVAL.total_seconds():
            known.touched_at = now
            self._used.add(known.id)
        if grant.expires_at is not None and grant.expires_at - time.time() < EXPIRY_HORIZON_S:
            self._expiring[known.id] = grant.expires_at

    async def write_used(self) -> None:
        """Store which keys were used since the last call."""
        used, self._used = self._used, set()
        try:
            if used:
                await self._reader.touch(used)
        except Unavailable:
            self._used |= used


async def _whenever(due: asyncio.Event, work: Callable[[], Awaitable[None]], failed: str) -> None:
    """Do the work whenever it is due, until cancelled. A failure is logged as the event `failed`
    and the work repeated until it succeeds, because there may be no further notice."""
    while True:
        await due.wait()
        due.clear()
        try:
            await work()
        except Exception as error:
            log.error(failed, error=str(error))
            await asyncio.sleep(RETRY_S)
            due.set()
