"""A forged engine against a real ledger: its reports are kept, shown, and billed to no tenant until
an operator decides so."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from io import StringIO
from typing import Any

import msgspec
import pytest
from asgiref.sync import sync_to_async
from django.core.management import CommandError, call_command

from inference.errors import InvalidApiKey
from inference.gateway.fleet.dispatches import Dispatches
from inference.gateway.hub import Hub
from inference.gateway.requests.admitted import AdmittedRequest
from inference.interfaces.directory import Grant, ResolvedTarget, TokenPrice
from inference.interfaces.ledger import Source
from inference.interfaces.limiter import Reservation
from inference.link import wire
from inference.link.accounts import Account, LedgerEntry, Totals, Usage
from inference.link.engine_info import EngineStats
from inference.link.wire import UsageAck, UsageReport
from inference.link.workload import Workload
from tenants.billing import decisions, quarantine
from tenants.billing.ledger import Ledger, connect
from tenants.billing.quarantine import SuspectEntry, keep
from tenants.billing.reconciliation import drifts
from tenants.directory.auth import PostgresDirectory
from tenants.directory.engines import KnownEngines
from tenants.errors import AlreadyDecided, NotBillable
from tenants.models import (
    AuditEntry,
    EngineCredential,
    EngineJournal,
    QuarantinedEntry,
    UsageEvent,
    UsageRollup,
    User,
)
from tenants.models.audit import Actor
from tests.inference.limits import Counted
from tests.inference.played import Played
from tests.inference.rig import until
from tests.inference.samples import MODEL, REF
from tests.tenants.making import make_key, make_tenant, make_user
from tests.tenants.spending import patient_ledger

HONEST = Usage(5, 0, 2)
PRICE = TokenPrice(3, 2, 7)


@dataclass
class Forge:
    """A gateway with a real ledger and real credentials, whose engines are played by the test."""

    hub: Hub
    engines: KnownEngines
    grant: Grant
    others: Grant

    @asynccontextmanager
    async def engine(self, secret: str, id: str) -> AsyncIterator[Played]:
        played = Played()
        credential = self.engines.identify(secret)
        link = asyncio.create_task(self.hub.serve(played, credential))
        played.say(wire.Hello(1, wire.PROTOCOL_VERSION, id, MODEL))
        assert isinstance(await played.hear(), wire.Welcome)
        yield played
        link.cancel()
        await asyncio.gather(link, return_exceptions=True)

    async def dispatch(
        self, engine: Played, id: str, target: ResolvedTarget | None = None
    ) -> wire.Submit:
        """Submit a request of at most 16 tokens. Returns the frame that the engine receives."""
        target = target or ResolvedTarget("base", "base", price=PRICE)
        order = AdmittedRequest(
            self.grant,
            target,
            Reservation(id, 16),
            "chat",
            b"{}",
            "batch",
            9,
            Workload(max_tokens=16),
        )
        self.hub.submit(order)
        submit = await engine.hear()
        assert isinstance(submit, wire.Submit)
        return submit


def _grant(slug: str) -> Grant:
    tenant = make_tenant(slug)
    key = make_key(tenant)[0]
    return Grant(key.pk, tenant.pk, slug, frozenset({"inference"}), None, 1.0, "salt")


@sync_to_async
def _issue(name: str) -> str:
    return EngineCredential.objects.issue(name=name)[1]


@pytest.fixture
async def forge(async_db: None) -> AsyncIterator[Forge]:
    grants = [await sync_to_async(_grant)(slug) for slug in ("acme", "globex")]
    engines, ledger, limits = KnownEngines(), patient_ledger(report_s=0.05), Counted()
    hub = Hub("http://gateway", ledger, limits, engines=engines, dispatches=Dispatches("d" * 40))
    directory = PostgresDirectory()
    directory.on_engines(engines.learn)
    engines.on_change(hub.check_credentials)
    async with directory, ledger:
        yield Forge(hub, engines, *grants)


async def joined(forge: Forge, name: str) -> str:
    """The secret of a new credential, once the gateway knows of it."""
    secret = await _issue(name)
    await until(lambda: any(one.name == name for one in forge.engines._known.values()))
    return secret


def said(submit: wire.Submit, usage: Usage = HONEST, **fields: Any) -> LedgerEntry:
    entry = LedgerEntry(submit.id, submit.account, submit.model, usage, "stop", submit.attempt)
    return msgspec.structs.replace(entry, **fields)


async def told(engine: Played, *entries: LedgerEntry) -> None:
    """Report the entries, and wait until the gateway has put all into the ledger or quarantine."""
    engine.say(UsageReport("j" * 32, list(entries)))
    expected = {(entry.id, entry.attempt) for entry in entries}
    while expected:
        if isinstance(frame := await engine.hear(), UsageAck):
            expected -= {tuple(attempt) for attempt in frame.attempts}


@sync_to_async
def billed() -> list[tuple[str, int, int, int]]:
    """Request, tenant, output tokens and cost of every event."""
    found = UsageEvent.objects.order_by("id")
    return [(one.id, one.tenant_id, one.completion_tokens, one.cost) for one in found]


@sync_to_async
def kept() -> list[tuple[str, str]]:
    """Request and reason of every entry in quarantine."""
    found = QuarantinedEntry.objects.order_by("id")
    return [(one.request_id, one.reason) for one in found]


def of_another(forge: Forge, submit: wire.Submit) -> Account:
    others = {"tenant_id": forge.others.tenant_id, "key_id": forge.others.key_id}
    return msgspec.structs.replace(submit.account, **others)


async def test_a_forged_engine_bills_what_it_was_given_and_nothing_else(forge: Forge) -> None:
    secret = await joined(forge, "forger")
    async with forge.engine(secret, "forger") as engine:
        submit = await forge.dispatch(engine, "r1")
        adapter = await forge.dispatch(engine, "r2", ResolvedTarget("support", "base", REF, 4, 3))
        theirs = msgspec.structs.replace(submit.account, key_id=forge.others.key_id)
        dearer = msgspec.structs.replace(adapter.account, adapter_id=99, version_id=98)
        await told(
            engine,
            said(submit, Usage(5, 0, 10**9)),
            said(adapter, Usage(5, 0, -1000)),
            said(submit, id="r3", account=theirs),
            said(submit, id="r4", account=of_another(forge, submit)),
            said(adapter, id="r5", account=dearer),
            said(submit, id="r6"),
            said(submit, attempt=2),
            LedgerEntry("r7", Account(1, 1, 1.7e9, "base"), "base", HONEST, "stop"),
        )
        assert await billed() == [] and not await UsageRollup.objects.aexists()
        assert sorted(await kept()) == [
            ("r1", "not_dispatched"),
            ("r1", "over_bounds"),
            ("r2", "malformed"),
            ("r3", "not_dispatched"),
            ("r4", "not_dispatched"),
            ("r5", "not_dispatched"),
            ("r6", "not_dispatched"),
            ("r7", "unsigned"),
        ]
        await told(engine, said(submit))
    assert await billed() == [("r1", forge.grant.tenant_id, 2, 5 * 3 + 2 * 7)]


async def test_the_same_entries_again_change_nothing(forge: Forge) -> None:
    secret = await joined(forge, "forger")
    async with forge.engine(secret, "forger") as engine:
        submit = await forge.dispatch(engine, "r1")
        for _ in range(3):
            await told(engine, said(submit), said(submit, id="r2"))
        await told(engine, said(submit, Usage(5, 0, 3)))
    assert [event[0] for event in await billed()] == ["r1"]
    assert [event[2] for event in await billed()] == [2], "what was billed first counts"
    assert await kept() == [("r2", "not_dispatched")]


async def test_requests_dispatched_by_a_dead_gateway_are_billed(forge: Forge) -> None:
    """This gateway does not know the request: the signature is enough."""
    secret = await joined(forge, "honest")
    credential = forge.engines.identify(secret)
    dead = Hub(
        "http://dead", Ledger(), Counted(), engines=forge.engines, dispatches=Dispatches("d" * 40)
    )
    there = Played()
    link = asyncio.create_task(dead.serve(there, credential))
    there.say(wire.Hello(1, wire.PROTOCOL_VERSION, "honest", MODEL))
    assert isinstance(await there.hear(), wire.Welcome)
    theirs = Forge(dead, forge.engines, forge.grant, forge.others)
    submit = await theirs.dispatch(there, "r1")
    link.cancel()
    await asyncio.gather(link, return_exceptions=True)
    async with forge.engine(secret, "honest-again") as engine:
        await told(engine, said(submit))
    assert [event[0] for event in await billed()] == ["r1"]
    assert await kept() == []


async def test_an_engine_that_is_revoked_is_cut_off_and_known_no_more(forge: Forge) -> None:
    secret = await joined(forge, "forger")
    async with forge.engine(secret, "forger") as engine:
        credential = await EngineCredential.objects.aget(name="forger")
        await sync_to_async(credential.revoke)()
        error = await engine.hear()
        assert isinstance(error, wire.Error) and error.fault.code == "engine_refused"
    with pytest.raises(InvalidApiKey):
        forge.engines.identify(secret)


async def test_a_rotated_credential_can_still_bill_what_was_dispatched_to_it(forge: Forge) -> None:
    secret = await joined(forge, "honest")
    async with forge.engine(secret, "honest") as engine:
        submit = await forge.dispatch(engine, "r1")
        credential = await EngineCredential.objects.aget()
        text = await sync_to_async(credential.rotate)()
        assert isinstance(await engine.hear(), wire.Error)
    await until(lambda: credential.prefix in (forge.engines._rows or {}))
    async with forge.engine(text, "honest") as engine:
        await told(engine, said(submit))
    assert [event[0] for event in await billed()] == ["r1"]


async def test_drift_knows_what_is_quarantined(forge: Forge) -> None:
    secret = await joined(forge, "honest")
    async with forge.engine(secret, "honest") as engine:
        submit = await forge.dispatch(engine, "r1")
        await told(engine, said(submit), said(submit, id="r2"))
        stats = EngineStats(journal="j" * 32, journaled=Totals(2, 10, 0, 4))
        engine.say(wire.Stats(stats))

        async def reported() -> EngineJournal | None:
            return await EngineJournal.objects.filter(counted_requests=2).afirst()

        while await reported() is None:
            pass
    (drift,) = await sync_to_async(drifts)()
    assert not drift
    assert (drift.journal.quarantined_requests, drift.journal.quarantined_tokens) == (1, 7)
    row = await QuarantinedEntry.objects.aget()
    assert (row.journal, row.engine_id, row.status) == ("j" * 32, "honest", "open")
    assert row.credential_id is not None


# --- Keeping -------------------------------------------------------------------------------------


def suspects(*ids: str, credential: int = 5, **fields: Any) -> list[SuspectEntry]:
    source = Source("e1", credential, "j1")
    account = Account(1, 1, 1.7e9, "base")
    entries = [LedgerEntry(id, account, "base", HONEST, "stop", **fields) for id in ids]
    return [SuspectEntry(source, entry, "unsigned") for entry in entries]


async def test_no_more_wait_than_somebody_could_look_at(
    async_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Further entries stay in their engine's journal until there is room."""
    monkeypatch.setattr(quarantine, "MAX_OPEN", 2)
    async with await connect() as pg:
        assert await keep(pg, suspects("a", "b")) == {("a", 1), ("b", 1)}
        assert await keep(pg, suspects("c")) == set()
        assert await keep(pg, suspects("a", "c")) == {("a", 1)}, "this one is kept already"
        assert await keep(pg, suspects("d", credential=6)) == {("d", 1)}
        await QuarantinedEntry.objects.filter(request_id="a").aupdate(
            status="dismissed", decided_at=datetime.now(UTC)
        )
        assert await keep(pg, suspects("c")) == {("c", 1)}


async def test_entries_beyond_the_quarantines_capacity_are_not_acknowledged(
    async_db: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quarantine, "MAX_OPEN", 0)
    written: list[tuple[str, int]] = []
    async with patient_ledger() as ledger:
        source = Source("e1", 5, "j1")
        pairs = [(suspect.entry, suspect.reason) for suspect in suspects("a", "b")]
        ledger.quarantine(source, pairs, written.extend)
    assert (written, ledger.waiting, ledger.written) == ([], 0, 0)


STRANGE: list[dict[str, Any]] = [
    {"id": "a\0b"},
    {"id": "x" * 10_000},
    {"id": "", "model": "\ud800"},
    {"model": "m" * 100_000},
    {"finish_reason": "\x1b[31m\0"},
    {"usage": Usage(-(1 << 63), 1 << 63, (1 << 64) - 1)},
    {"usage": Usage(1, 0, 1, 0, float("nan"), float("inf"))},
    {"attempt": -(1 << 63)},
    {"attempt": (1 << 64) - 1},
    {"account": Account(1 << 63, -1, float("nan"), "b\0", price=((1 << 64) - 1, 0, 0))},
]


async def test_whatever_an_engine_says_is_kept(async_db: None) -> None:
    entry = suspects("a")[0].entry
    entries = [msgspec.structs.replace(entry, **fields) for fields in STRANGE]
    source = Source("e" * 300, 0, "j" * 100)
    written: list[tuple[str, int]] = []
    async with patient_ledger() as ledger:
        ledger.quarantine(source, [(one, "malformed") for one in entries], written.extend)
    assert len(written) == len(STRANGE)
    assert await QuarantinedEntry.objects.acount() == len(STRANGE)
    assert {len(one.engine_id) async for one in QuarantinedEntry.objects.all()} == {255}


# --- Deciding ------------------------------------------------------------------------------------


@dataclass
class Waiting:
    """An entry that waits for an operator's decision."""

    row: QuarantinedEntry
    operator: User
    tenant_id: int

    def decided(self) -> tuple[str, User | None]:
        self.row.refresh_from_db()
        return self.row.status, self.row.decided_by


@pytest.fixture
def waiting(transactional_db: None) -> Waiting:
    tenant = make_tenant("acme")
    account = Account(
        tenant.pk, make_key(tenant)[0].pk, datetime(2033, 3, 3, tzinfo=UTC).timestamp(), "base",
        price=(3, 2, 7),
    )  # fmt: skip
    return Waiting(
        make_row(LedgerEntry("r1", account, "base", HONEST, "stop")),
        make_user("operator", is_staff=True),
        tenant.pk,
    )


def make_row(said: LedgerEntry, **fields: Any) -> QuarantinedEntry:
    text = msgspec.json.encode(said).decode()
    given = {
        "engine_id": "e1", "journal": "j1", "key": hashlib.sha256(text.encode()).hexdigest(),
        "request_id": said.id, "attempt": said.attempt, "reason": "another_engine",
        "prompt_tokens": max(0, said.usage.prompt_tokens),
        "completion_tokens": max(0, said.usage.completion_tokens), "entry": text,
    }  # fmt: skip
    return QuarantinedEntry.objects.create(**given | fields)


def acting_as(user: User) -> Actor:
    return Actor("user", user.pk, user.username, "10.0.0.1")


def test_an_operator_bills_an_entry_after_all(waiting: Waiting) -> None:
    """The entry is also the first of its month."""
    decisions.bill(waiting.row, waiting.operator, acting_as(waiting.operator))
    (event,) = UsageEvent.objects.all()
    assert (event.id, event.tenant_id, event.journal) == ("r1", waiting.tenant_id, "j1")
    assert event.cost == 5 * 3 + 2 * 7
    assert UsageRollup.objects.get().cost == event.cost
    assert EngineJournal.objects.get().ledger_requests == 1
    assert waiting.decided() == ("billed", waiting.operator)
    audited = AuditEntry.objects.get(kind="quarantined")
    assert (audited.actor_name, audited.address, audited.name) == ("operator", "10.0.0.1", "r1")
    assert audited.after is not None and audited.after["status"] == "billed"


def test_an_operator_dismisses_an_entry(waiting: Waiting) -> None:
    decisions.dismiss(waiting.row, waiting.operator)
    assert waiting.decided() == ("dismissed", waiting.operator)
    assert not UsageEvent.objects.exists()
    assert AuditEntry.objects.filter(kind="quarantined", action="changed").count() == 1


def test_a_quarantined_entry_is_decided_once(waiting: Waiting) -> None:
    decisions.bill(waiting.row, waiting.operator, None)
    with pytest.raises(AlreadyDecided):
        decisions.bill(waiting.row, waiting.operator, None)
    with pytest.raises(AlreadyDecided):
        decisions.dismiss(waiting.row, waiting.operator)
    assert UsageEvent.objects.count() == 1 and waiting.decided()[0] == "billed"


def test_a_quarantined_entry_that_is_in_the_ledger_is_not_billed_again(waiting: Waiting) -> None:
    decisions.bill(waiting.row, waiting.operator, None)
    entry = decisions.reported_entry(waiting.row)
    assert entry is not None
    other = make_row(msgspec.structs.replace(entry, usage=Usage(5, 0, 9)))
    with pytest.raises(NotBillable, match="already"):
        decisions.bill(other, waiting.operator, None)
    other.refresh_from_db()
    assert other.status == "open" and UsageEvent.objects.get().completion_tokens == 2


def _altered(waiting: Waiting) -> Sequence[QuarantinedEntry]:
    entry = decisions.reported_entry(waiting.row)
    assert entry is not None
    account = entry.account
    return [
        make_row(entry, entry="", key="0"),
        make_row(entry, entry="[1,2]", key="1"),
        make_row(msgspec.structs.replace(entry, usage=Usage(5, 0, -1))),
        make_row(msgspec.structs.replace(entry, usage=Usage(5, 6, 1))),
        make_row(msgspec.structs.replace(entry, usage=Usage(1 << 62, 0, 1 << 62))),
        make_row(
            msgspec.structs.replace(
                entry, account=msgspec.structs.replace(account, tenant_id=1 << 40)
            )
        ),
        make_row(
            msgspec.structs.replace(entry, account=msgspec.structs.replace(account, started_at=0.0))
        ),
    ]


def test_an_unbillable_entry_stays_undecided(waiting: Waiting) -> None:
    for row in _altered(waiting):
        with pytest.raises(NotBillable):
            decisions.bill(row, waiting.operator, None)
        row.refresh_from_db()
        assert row.status == "open"
    assert not UsageEvent.objects.exists()


def quarantine_command(*arguments: str) -> str:
    out = StringIO()
    call_command("quarantine", *arguments, stdout=out, stderr=out)
    return out.getvalue()


def test_many_are_decided_by_command(waiting: Waiting) -> None:
    entry = decisions.reported_entry(waiting.row)
    assert entry is not None
    make_row(msgspec.structs.replace(entry, id="r2"), engine_id="e2")
    make_row(msgspec.structs.replace(entry, id="r3"), engine_id="e2", reason="unsigned")
    assert "r1, attempt 1" in quarantine_command("list")
    assert "Open: 1." in quarantine_command("list", "--reason", "unsigned")
    with pytest.raises(CommandError, match="select entries with"):
        quarantine_command("bill")
    assert "Billed: 1." in quarantine_command("bill", "--engine", "e1")
    assert "Dismissed: 1." in quarantine_command("dismiss", "--reason", "unsigned")
    assert "Billed: 1." in quarantine_command("bill", "--all")
    assert sorted(UsageEvent.objects.values_list("id", flat=True)) == ["r1", "r2"]
    make_row(msgspec.structs.replace(entry, usage=Usage(5, 0, 9)))
    with pytest.raises(CommandError, match="Entries refused: 1"):
        quarantine_command("bill", "--all")
