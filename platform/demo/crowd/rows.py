"""The crowd's tenants with everything that belongs to them, except usage."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime, timedelta
from random import Random
from typing import Any
from uuid import UUID

from django.db import connection, models

from demo.crowd import HOURS, Size
from frontend.playground.messages import Parameters
from frontend.playground.saved import Draft, Node, Pane
from tenants.adapters.checks.findings import Code, Finding
from tenants.models import (
    LIVE,
    Adapter,
    AdapterVersion,
    Alias,
    ApiKey,
    BaseModel,
    Conversation,
    Invitation,
    Lane,
    LimitSet,
    Membership,
    Price,
    Role,
    Scope,
    State,
    Tenant,
    User,
)
from tenants.models.keys import ALPHABET
from tenants.naming import PREFIX_LENGTH
from tenants.utc import month_start

BASES = ("crowd/llama-3.1-8b-instruct", "crowd/qwen3-14b")
BIG_ADAPTERS, BIG_KEYS, BIG_MEMBERS = 0.2, 300, 60
"""The first tenant's share of all adapters, and its keys and members in an installation of BIG_OF
tenants."""
BIG_OF = 1_000
NAMES = ("Brightwater", "Harbour", "Northwind", "Kestrel", "Lumen", "Orchard", "Pinnacle", "Quarry")
TRADES = ("Logistics", "Analytics", "Insurance", "Robotics", "Health", "Travel", "Foods", "Energy")
LONG_NAME = "The International Society for Perfectly Ordinary Widgets Ltd"
"""Name of the second tenant: 60 characters, like the names of its adapters and keys."""
USES = ("support", "billing", "search", "triage", "summaries", "sales", "legal", "onboarding")
STATES = (
    (State.READY, 88),
    (State.REJECTED, 7),
    (State.ARCHIVED, 2),
    (State.VALIDATING, 1),
    (State.PROBING, 1),
    (State.UPLOADING, 1),
)
"""State of the newest version of an adapter, in percent; older ones are ready or archived."""
ROLES = (Role.VIEWER, Role.DEVELOPER, Role.DEVELOPER, Role.ADMIN)
MODULES = {"q_proj": (4096, 4096), "k_proj": (1024, 4096), "v_proj": (1024, 4096)}
LAYERS = 32
BATCH = 2_000


class Rows:
    """Makes the rows in the order of their dependencies, with few statements of many rows."""

    def __init__(self, size: Size) -> None:
        self._size, self._random = size, Random(size.seed)
        self._start = size.until - timedelta(hours=HOURS)

    def make(self) -> list[Tenant]:
        """Make everything. Returns the tenants, the big one first."""
        bases = self._bases()
        tenants = self._tenants()
        users = self._users(tenants)
        keys = self._keys(tenants, users)
        adapters = self._adapters(tenants, bases, users)
        self._versions(adapters)
        self._limits(tenants, keys, adapters)
        self._prices(bases, adapters)
        self._history(tenants)
        return tenants

    def _bases(self) -> list[BaseModel]:
        modules = {
            f"model.layers.{layer}.self_attn.{name}": list(shape)
            for layer in range(LAYERS)
            for name, shape in MODULES.items()
        }
        fields = {"max_model_len": 32_768, "max_lora_rank": 64, "engine": "vllm"}
        return _write([BaseModel(name=name, modules=modules, **fields) for name in BASES])

    def _tenants(self) -> list[Tenant]:
        made = [
            Tenant(
                slug=f"crowd-{number:04d}",
                name=self._name(number),
                status="suspended" if number % 50 == 49 else "active",
                weight=self._random.choice((0.5, 1.0, 1.0, 1.0, 2.0, 4.0)),
            )
            for number in range(self._size.tenants)
        ]
        return self._dated(_write(made))

    def _name(self, number: int) -> str:
        if number == 1:
            return LONG_NAME
        return f"{self._random.choice(NAMES)} {self._random.choice(TRADES)} {number}"

    def _users(self, tenants: Sequence[Tenant]) -> dict[int, list[User]]:
        """Users by tenant: an owner and some others, a tenth of whom belong to two tenants."""
        made: list[tuple[Tenant, User, Role]] = []
        for number, tenant in enumerate(tenants):
            count = self._of_big(BIG_MEMBERS) if number == 0 else self._random.randint(1, 5)
            for one in range(count):
                user = User(username=_padded(f"{tenant.slug}-member-{one:02d}", number == 1))
                user.email = f"{user.username}@example.com"
                user.set_unusable_password()
                role = Role.OWNER if one == 0 else self._random.choice(ROLES)
                made.append((tenant, user, role))
        _write([user for _, user, _ in made])
        belonging = [Membership(tenant=tenant, user=user, role=role) for tenant, user, role in made]
        for before, (tenant, _, _) in zip(made[::10], made[5::10], strict=False):
            if before[0] != tenant:
                belonging.append(Membership(tenant=tenant, user=before[1], role=Role.VIEWER))
        _write(belonging)
        self._invitations(made)
        self._conversations(belonging)
        users: dict[int, list[User]] = {}
        for membership in belonging:
            users.setdefault(membership.tenant_id, []).append(membership.user)
        return users

    def _invitations(self, members: Sequence[tuple[Tenant, User, Role]]) -> None:
        expires = self._size.until + timedelta(days=7)
        _write(
            Invitation(
                tenant=tenant,
                role=Role.DEVELOPER,
                note=f"{self._random.choice(NAMES)} of {self._random.choice(TRADES)}",
                token_digest=self._random.randbytes(32),
                created_by=user,
                expires_at=expires if self._random.random() < 0.5 else self._moment(),
            )
            for tenant, user, role in members
            if role == Role.OWNER
        )

    def _conversations(self, members: Sequence[Membership]) -> None:
        """Make conversations for every third member, a third of them shared."""
        panes = Draft([_talk(BASES[0])]).encoded()
        _write(
            Conversation(
                member=member,
                title=f"{self._random.choice(USES).capitalize()}, attempt {number}",
                panes=panes,
                shared_as=UUID(int=self._random.getrandbits(128)) if number % 3 == 0 else None,
            )
            for member in members[::3]
            for number in range(self._random.randint(1, 20))
        )

    def _keys(
        self, tenants: Sequence[Tenant], users: dict[int, list[User]]
    ) -> dict[int, list[ApiKey]]:
        """Keys by tenant. One in ten is revoked, one in ten expires, some of them soon."""
        keys: dict[int, list[ApiKey]] = {}
        for number, tenant in enumerate(tenants):
            count = self._of_big(BIG_KEYS) if number == 0 else self._random.randint(1, 6)
            keys[tenant.pk] = [
                ApiKey(
                    tenant=tenant,
                    name=_padded(f"{self._random.choice(USES)} service {one}", number == 1),
                    prefix="".join(self._random.choices(ALPHABET, k=PREFIX_LENGTH)),
                    secret_hmac=self._random.randbytes(32),
                    scopes=[Scope.INFERENCE] if one % 4 else [Scope.INFERENCE, Scope.READ_USAGE],
                    lane=Lane.BATCH if one % 7 == 6 else Lane.INTERACTIVE,
                    created_by=self._random.choice(users[tenant.pk]),
                    last_used_at=self._moment(),
                    revoked_at=self._moment() if one % 10 == 9 else None,
                    expires_at=self._expiry() if one % 10 == 4 else None,
                )
                for one in range(count)
            ]
        self._dated(_write(_all(keys)))
        return keys

    def _expiry(self) -> datetime:
        return self._size.until + timedelta(days=self._random.randint(-30, 90))

    def _adapters(
        self,
        tenants: Sequence[Tenant],
        bases: Sequence[BaseModel],
        users: dict[int, list[User]],
    ) -> list[Adapter]:
        made = []
        for number, (tenant, count) in enumerate(self._shared_out(tenants)):
            base = bases[0] if self._random.random() < 0.8 else bases[1]
            made += [
                Adapter(
                    tenant=tenant,
                    name=_padded(f"{USES[one % len(USES)]}-{one:04d}", number == 1),
                    base_model=base,
                    pinned=self._random.random() < 0.01,
                    created_by=self._random.choice(users[tenant.pk]),
                )
                for one in range(count)
            ]
        return self._dated(_write(made))

    def _shared_out(self, tenants: Sequence[Tenant]) -> Iterator[tuple[Tenant, int]]:
        """The number of adapters of each tenant: a long tail behind the big one."""
        big = int(self._size.adapters * BIG_ADAPTERS)
        shares = [1 / (rank + 10) for rank in range(len(tenants) - 1)]
        left, total = self._size.adapters - big, sum(shares) or 1.0
        counts, owed = [big], 0.0
        for share in shares:
            owed += left * share / total
            counts.append(int(owed))
            owed -= int(owed)
        return zip(tenants, counts, strict=True)

    def _versions(self, adapters: Sequence[Adapter]) -> None:
        """Make one to four versions of each adapter; `live` points at the newest ready one."""
        versions: list[AdapterVersion] = []
        for adapter in adapters:
            count = self._random.randint(1, 4)
            versions += [
                self._version(adapter, number, newest=number == count)
                for number in range(1, count + 1)
            ]
        self._dated(_write(versions))
        live = {one.adapter_id: one for one in versions if one.state == State.READY}
        _write(Alias(adapter_id=adapter, name=LIVE, version=one) for adapter, one in live.items())

    def _version(self, adapter: Adapter, number: int, *, newest: bool) -> AdapterVersion:
        states, weights = zip(*STATES, strict=True)
        older = State.READY if self._random.random() < 0.7 else State.ARCHIVED
        state = self._random.choices(states, weights)[0] if newest else older
        rank = self._random.choice((8, 16, 16, 32, 64))
        return AdapterVersion(
            adapter=adapter,
            number=number,
            digest=hashlib.sha256(f"{adapter.pk}@{number}".encode()).hexdigest(),
            state=state,
            size_bytes=rank * 2_621_440,
            config=_config(rank) if state in (State.READY, State.ARCHIVED, State.PROBING) else {},
            report=self._report(state, rank),
            created_by=adapter.created_by,
        )

    def _report(self, state: State, rank: int) -> dict[str, Any]:
        """A report as `tenants.adapters.jobs` writes it."""
        if state in (State.UPLOADING, State.VALIDATING):
            return {}
        report: dict[str, Any] = {
            "findings": [],
            "findings_omitted": 0,
            "tensors": 2 * LAYERS * len(MODULES),
            "parameters": rank * LAYERS * sum(map(sum, MODULES.values())),
        }
        if state == State.REJECTED:
            message = f"Rank {2 * rank + 64} is above this pool's 64."
            return report | {"findings": [Finding(Code.RANK_TOO_LARGE, message).as_json()]}
        if state == State.PROBING:
            return report
        probe = {
            "load_s": round(self._random.uniform(0.05, 0.9), 3),
            "weight_bytes": rank * 2_621_440,
            "finite": True,
            "max_logprob_delta": round(self._random.uniform(0.2, 9.0), 3),
            "base_text": "I am a helpful assistant.",
            "adapter_text": "Good morning! How may our team help you today?",
        }
        return report | {"probe": probe}

    def _limits(
        self,
        tenants: Sequence[Tenant],
        keys: dict[int, list[ApiKey]],
        adapters: Sequence[Adapter],
    ) -> None:
        """Make a ceiling for every tenant, and tenants' own limits on half of the tenants and on
        some keys and adapters."""
        sets = [
            LimitSet(
                tenant=tenant,
                author=LimitSet.Author.OPERATOR,
                requests_per_minute=6_000,
                tokens_per_minute=2_000_000,
                concurrent_streams=200,
                cost_per_month=self._random.randint(1, 50) * 1_000_000_000,
            )
            for tenant in tenants
        ]
        sets += [self._own(tenant=tenant) for tenant in tenants[::2]]
        sets += [self._own(tenant=key.tenant, key=key) for key in _all(keys)[::5]]
        sets += [self._own(tenant=one.tenant, adapter=one) for one in adapters[::20]]
        _write(sets)

    def _own(self, **scope: Any) -> LimitSet:
        limit = self._random.randint(1, 100) * 10
        fields = {"requests_per_minute": limit, "tokens_per_day": limit * 1_000_000}
        return LimitSet(author=LimitSet.Author.TENANT, **scope, **fields)

    def _prices(self, bases: Sequence[BaseModel], adapters: Sequence[Adapter]) -> None:
        """Make two consecutive prices for each base model, and one for some adapters. They begin
        with a month, because `demo.crowd.usage` prices a month's usage as at its beginning."""
        first = month_start(self._start - timedelta(days=31))
        later = month_start(self._size.until - timedelta(days=100))
        of_bases = [
            Price(
                base_model=base,
                starts_at=at,
                prompt=prompt,
                cached_prompt=prompt // 4,
                output=4 * prompt,
            )
            for base, prompt in zip(bases, (150_000, 300_000), strict=True)
            for at, prompt in ((first, prompt), (later, prompt * 9 // 10))
        ]
        of_adapters = [
            Price(adapter=one, starts_at=later, prompt=400_000, cached_prompt=100_000, output=10**6)
            for one in adapters[::25]
        ]
        _write(of_bases + of_adapters)

    def _history(self, tenants: Sequence[Tenant]) -> None:
        """Make older entries of the audit log; creating the rows above has logged itself."""
        with connection.cursor() as cursor:
            cursor.execute(
                _HISTORY,
                {
                    "entries": self._size.audit_entries,
                    "start": self._start,
                    "until": self._size.until,
                    "tenants": [tenant.pk for tenant in tenants],
                    "count": len(tenants),
                },
            )

    def _of_big(self, count: int) -> int:
        """Scale the big tenant's count to an installation of this size."""
        return max(3, count * min(self._size.tenants, BIG_OF) // BIG_OF)

    def _moment(self) -> datetime:
        return self._start + self._random.random() * (self._size.until - self._start)

    def _dated(self, rows: list[Any]) -> list[Any]:
        """Spread the rows' creation times over the whole span, in the order of their ids; Django
        sets them to now."""
        if not rows:
            return rows
        values = {"start": self._start, "until": self._size.until}
        values |= {"first": rows[0].pk, "last": rows[-1].pk}
        with connection.cursor() as cursor:
            cursor.execute(_DATE.format(table=rows[0]._meta.db_table), values)
        return rows


_DATE = """
UPDATE {table} SET created_at = %(start)s::timestamptz
    + (id - %(first)s) * (%(until)s::timestamptz - %(start)s) / (%(last)s - %(first)s + 1)
WHERE id BETWEEN %(first)s AND %(last)s
"""
# A few tenants have most of the changes. The hash makes the same entries every time.
_HISTORY = """
INSERT INTO tenants_auditentry (at, tenant_id, actor_kind, actor_id, actor_name, address,
    request_id, action, kind, name, object_id, before, after)
SELECT %(start)s::timestamptz + n * (%(until)s::timestamptz - %(start)s) / %(entries)s,
       (%(tenants)s::bigint[])[1 + floor(%(count)s * share ^ 2)::int],
       CASE WHEN n %% 9 = 0 THEN 'key' WHEN n %% 31 = 0 THEN 'system' ELSE 'user' END,
       CASE WHEN n %% 31 = 0 THEN NULL ELSE n %% 3000 END,
       CASE WHEN n %% 31 = 0 THEN '' ELSE 'member-' || n %% 3000 END,
       '198.51.100.' || n %% 250, lpad(to_hex(n), 32, '0'),
       (ARRAY['created', 'changed', 'changed', 'deleted'])[1 + n %% 4],
       (ARRAY['key', 'adapter', 'version', 'alias', 'member'])[1 + n %% 5],
       (ARRAY['support', 'billing', 'search', 'triage'])[1 + n %% 4] || '-' || n %% 500, n,
       CASE WHEN n %% 4 > 0 THEN jsonb_build_object('version_id', n, 'name', 'before') END,
       CASE WHEN n %% 4 < 3 THEN jsonb_build_object('version_id', n + 1, 'name', 'after') END
FROM (
    SELECT n, abs(hashint8(n)::bigint) / 2147483649.0::float8 AS share
    FROM generate_series(0, %(entries)s - 1) AS n
) AS entry ORDER BY n
"""


def _talk(model: str) -> Pane:
    """A pane with four questions and answers."""
    nodes = []
    for number in range(0, 8, 2):
        before = number - 1 if number else None
        nodes += [
            Node(number, before, "user", "How may I return what I ordered last week?"),
            Node(number + 1, number, "assistant", "Pack it up and bring it to any shop. " * 8),
        ]
    return Pane(model, Parameters(), nodes, leaf=7)


def _write(rows: Iterable[Any]) -> list[Any]:
    """Write rows of one model. Returns them with their ids."""
    made = list(rows)
    if made:
        model: type[models.Model] = type(made[0])
        model._default_manager.bulk_create(made, batch_size=BATCH)
    return made


def _all(grouped: dict[int, list[ApiKey]]) -> list[ApiKey]:
    return [one for some in grouped.values() for one in some]


def _padded(name: str, long: bool) -> str:
    """The name, padded to 60 characters if `long`."""
    return f"{name}-".ljust(60, "x") if long else name


def _config(rank: int) -> dict[str, Any]:
    """A configuration in the form of `tenants.adapters.checks.config.LoraConfig.as_json`."""
    return {
        "r": rank,
        "lora_alpha": 2.0 * rank,
        "use_rslora": rank > 32,
        "target_modules": sorted(MODULES),
    }
