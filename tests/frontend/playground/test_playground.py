"""The playground: who may use it, and its socket with a real gateway, agent and database."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from asgiref.testing import ApplicationCommunicator
from channels.db import database_sync_to_async
from channels.routing import URLRouter
from django.db import IntegrityError, transaction
from django.test import Client
from django.urls import re_path
from django.utils import timezone
from structlog.testing import capture_logs

from frontend.playground import messages
from frontend.playground.answers import (
    MAX_RUNNING,
    AnswerNews,
    AnswerView,
    Playground,
    PlaygroundAnswer,
    read,
)
from frontend.playground.messages import Alternative, CallPart, PanePhase, PaneTurn, Token, decode
from frontend.playground.socket import PlaygroundSocket
from frontend.sockets.gate import GONE, Gate
from inference.agent.engines.synthetic.engine import Behaviour, SyntheticEngine
from inference.agent.engines.synthetic.tokens import TOKEN_CHARS
from inference.errors import EngineLost, InvalidRequest
from inference.gateway.dispatcher import Dispatcher
from inference.gateway.hub import Hub
from inference.link.wire import Delta
from tenants.models import ApiKey, AuditEntry, Membership, Tenant, User
from tests.fleet.fake import FakeGateways
from tests.frontend.clients import client_of
from tests.frontend.live.sockets import Tab, asked, connected, doorway, ticket_of, turned_away
from tests.inference.rig import Rig, agent_on, gateway, rig, until
from tests.inference.samples import MODEL
from tests.tenants.making import (
    make_adapter,
    make_base,
    make_key,
    make_member,
    make_tenant,
    make_version,
)
from tests.tenants.spending import spend

SLOW = Behaviour(tokens_per_second=40.0)
"""Slow enough that a long answer runs until a test ends it, fast enough to have text at once."""
LONG = "x" * 4000
"""A prompt that the synthetic engine repeats: an answer of 1,000 tokens, 25 s with SLOW."""


# --- The page ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("role", "status"),
    [
        ("owner", 200),
        ("admin", 200),
        ("developer", 200),
        ("operator", 200),
        ("viewer", 403),
        ("outsider", 404),
        ("nobody", 302),
    ],
)
def test_the_page_is_for_developers_and_above(tenant: Tenant, role: str, status: int) -> None:
    make_base()
    assert client_of(tenant, role).get(f"/t/{tenant.slug}/playground").status_code == status


def test_it_suggests_live_adapters_bases_and_versions_of_the_tenant_alone(
    tenant: Tenant, django_assert_max_num_queries: Any
) -> None:
    adapter = make_adapter(tenant, "support")
    adapter.promote(version := make_version(adapter))
    adapter.promote(version, "canary")
    make_version(make_adapter(tenant, "waiting"))
    client = client_of(tenant, "developer")
    with django_assert_max_num_queries(12):
        page = client.get(f"/t/{tenant.slug}/playground?model=waiting@1")
    assert page.context["models"] == [
        ("Base models", [("base", "base")]),
        ("Adapters", [("support", "@1 live")]),
        ("Aliases", [("support@canary", "@1")]),
        ("Versions", [("waiting@1", "@1"), ("support@1", "@1 live")]),
    ]
    assert page.context["model"] == "waiting@1"
    unasked = client.get(f"/t/{tenant.slug}/playground").context
    assert [unasked[name] for name in ("model", "base", "adapter")] == ["", "base", "support"]


def test_a_base_model_with_an_engine_is_the_first(tenant: Tenant, gateways: FakeGateways) -> None:
    make_base("another")
    make_base("base")
    gateways.engines = [{"id": "e1", "base_model": "base"}]
    context = client_of(tenant, "developer").get(f"/t/{tenant.slug}/playground").context
    assert context["base"] == "base"
    assert context["models"] == [("Base models", [("base", "base"), ("another", "base")])]


def test_without_any_model_it_says_so(tenant: Tenant) -> None:
    page = client_of(tenant, "developer").get(f"/t/{tenant.slug}/playground").content.decode()
    assert "No models yet" in page and "lora-playground" not in page


def test_its_key_can_be_neither_held_nor_ended(tenant: Tenant) -> None:
    shared = ApiKey.objects.open_playground(tenant)
    assert ApiKey.objects.open_playground(tenant) == shared
    key = ApiKey.objects.playground_of(make_member(tenant, "developer"), tenant)
    assert ApiKey.objects.find(f"lk_{key.prefix}_{'s' * 43}") is None
    client = client_of(tenant, "owner")
    for verb in ("revoke", "rotate"):
        assert client.post(f"/t/{tenant.slug}/keys/{key.pk}/{verb}").status_code == 404
    _, admin = make_key(tenant, "admin")
    asked = {"authorization": f"Bearer {admin}"}
    assert client.delete(f"/api/v1/keys/{shared.pk}", headers=asked).status_code == 403
    assert client.delete(f"/api/v1/keys/{key.pk}", headers=asked).status_code == 404
    key.refresh_from_db()
    assert key.revoked_at is None


def test_each_member_has_a_key_of_his_own_there(tenant: Tenant) -> None:
    ada, bo = make_member(tenant, "developer"), make_member(tenant, "developer")
    key = ApiKey.objects.playground_of(ada, tenant)
    assert ApiKey.objects.playground_of(ada, tenant) == key
    assert ApiKey.objects.playground_of(bo, tenant).pk != key.pk
    assert (key.created_by, key.origin) == (ada, ApiKey.objects.open_playground(tenant))
    with pytest.raises(IntegrityError), transaction.atomic():
        twice = {"prefix": "play-another", "secret_hmac": b"", "scopes": ["inference"]}
        ApiKey.objects.create(tenant=tenant, created_by=ada, name="x", **twice)


def test_what_members_use_there_is_told_as_theirs(tenant: Tenant) -> None:
    ada, bo = make_member(tenant, "developer"), make_member(tenant, "developer")
    for member, times in ((ada, 2), (bo, 1)):
        for _ in range(times):
            spend(ApiKey.objects.playground_of(member, tenant), timezone.now())
    where = f"/t/{tenant.slug}/usage"
    page = client_of(tenant, "owner").get(where, {"by": "member"})
    told = {name: row["requests"] for name, row in page.context["rows"]}
    assert told == {ada.username: 2, bo.username: 1}
    own = Client()
    own.force_login(bo)
    assert [row["requests"] for _, row in own.get(where).context["rows"]] == [1]
    listed = own.get(f"/t/{tenant.slug}/requests")
    assert [row.event.key_id for row in listed.context["rows"]] == [
        ApiKey.objects.playground_of(bo, tenant).pk
    ]
    limited = client_of(tenant, "owner").get(f"/t/{tenant.slug}/limits")
    assert [key.name for key in limited.context["keys"]] == ["Playground"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nonsense",
        "[]",
        '{"type":"start"}',
        '{"type":"stop","id":""}',
        '{"type":"nap","id":"a"}',
    ],
)
def test_malformed_messages_are_refused(text: str) -> None:
    with pytest.raises(InvalidRequest):
        decode(text)


def test_a_start_becomes_the_request_that_the_api_would_get() -> None:
    start = decode(
        json.dumps(
            start_message("a", "hi")
            | {"parameters": {"system": "Be short.", "top_p": 0.5, "schema": {"type": "object"}}}
        )
    )
    body = json.loads(start.body())  # type: ignore[union-attr]
    assert body["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "hi"},
    ]
    assert (body["top_p"], body["stream"], "seed" in body) == (0.5, True, False)
    assert body["response_format"]["json_schema"]["schema"] == {"type": "object"}
    assert start.messages == [PaneTurn("user", "hi")]  # type: ignore[union-attr]


def test_what_an_engine_sends_in_whole_chunks_is_read_as_text() -> None:
    chunks = [
        b'{"choices":[{"index":0,"delta":{"role":"assistant","content":""}}]}',
        b'{"choices":[{"index":0,"delta":{"content":"{\\"a\\":"}}]}',
        b'{"choices":[{"index":0,"delta":{"content":"1}"},"finish_reason":"stop"}]}',
        b'{"choices":[],"usage":{}}',
    ]
    assert read(Delta("a", chunks=chunks)) == AnswerNews('{"a":1}', [], "stop")
    assert read(Delta("a", text="plain")) == AnswerNews("plain", [], "")


def test_probabilities_are_asked_for_and_read_as_the_api_has_them() -> None:
    asked = {"parameters": {"logprobs": True}}
    body = json.loads(decode(json.dumps(start_message("a") | asked)).body())  # type: ignore[union-attr]
    assert (body["logprobs"], body["top_logprobs"]) == (True, 5)
    top = {"token": "Hi", "logprob": -0.1, "bytes": [72, 105]}
    other = {"token": "Ho", "logprob": -2.5, "bytes": [72, 111]}
    content = [top | {"top_logprobs": [top, other]}]
    choice = {"index": 0, "delta": {"content": "Hi"}, "logprobs": {"content": content}}
    plain = {"index": 0, "delta": {"content": ""}, "logprobs": None}
    chunks = [json.dumps({"choices": [one]}).encode() for one in (choice, plain)]
    best = [Alternative("Hi", -0.1, [72, 105]), Alternative("Ho", -2.5, [72, 111])]
    token = Token("Hi", -0.1, [72, 105], best)
    assert read(Delta("a", chunks=chunks)) == AnswerNews("Hi", [token], "")


def test_tools_are_offered_and_their_calls_read_as_the_api_has_them() -> None:
    tool = {"type": "function", "function": {"name": "weather"}}
    call = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
    turns = [
        {"role": "user", "content": "Sunny?"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "yes", "tool_call_id": "c1"},
    ]
    asked = start_message("a") | {"messages": turns, "parameters": {"tools": [tool]}}
    body = json.loads(decode(json.dumps(asked)).body())  # type: ignore[union-attr]
    assert body["tools"] == [tool] and body["messages"] == turns
    first = {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": ""}}
    more = {"index": 0, "function": {"arguments": "{}"}}
    chunks = [
        json.dumps({"choices": [{"delta": {"tool_calls": [part]}}]}).encode()
        for part in (first, more)
    ]
    news = read(Delta("a", chunks=chunks))
    parts = [CallPart(0, "c1", "weather"), CallPart(0, "", "", "{}")]
    assert news == AnswerNews("", [], "", parts)
    answer = PlaygroundAnswer((1, 1), "a")
    answer.add(news)
    view = AnswerView(answer, 0, 0, 1)  # of a page that has had the first part
    _, told = view.news()
    assert isinstance(told, messages.PaneDelta) and (told.calls, told.call_seq) == (parts[1:], 2)


def test_a_reconnecting_view_gets_the_text_and_tokens_that_it_lacks() -> None:
    answer = PlaygroundAnswer((1, 1), "a")
    answer.enter("queued", 2)
    first = AnswerView(answer)
    assert [one.place for one in first.news() if isinstance(one, PanePhase)] == [2]
    answer.enter("queued", 1)
    assert [one.place for one in first.news() if isinstance(one, PanePhase)] == [1]
    assert list(first.news()) == []
    for text in ("One", " two"):
        answer.add(AnswerNews(text, [Token(text, -0.5)], ""))
    _, delta = AnswerView(answer, 3, 1).news()
    assert delta == messages.PaneDelta("a", 7, " two", [Token(" two", -0.5)], 2)


# --- The socket ----------------------------------------------------------------------------------


def start_message(id: str, content: str = "Hello", **fields: Any) -> dict[str, Any]:
    turns = [{"role": "user", "content": content}]
    return {"type": "start", "id": id, "model": MODEL.name, "messages": turns} | fields


class Page(Tab):
    """A browser's end of a socket, with the text and phases that it received."""

    def __init__(self, socket: ApplicationCommunicator) -> None:
        super().__init__(socket)
        self.text, self.seq = "", 0
        self.phases: list[str] = []

    async def hear(self) -> dict[str, Any]:
        message = await super().hear()
        if message["type"] == "phase":
            self.phases.append(message["phase"])
        if message["type"] == "delta":
            self.text += message["text"]
            self.seq = message["seq"]
        return message

    async def until(self, *kinds: str) -> dict[str, Any]:
        """Read messages up to one of these types, and return that one."""
        while (message := await self.hear())["type"] not in kinds:
            pass
        return message


@dataclass
class Stage:
    """A gateway with the playground and one engine."""

    rig: Rig
    tenant: Tenant
    playground: Playground
    app: Any

    @property
    def path(self) -> str:
        return f"ws/playground/{self.tenant.slug}"

    @asynccontextmanager
    async def page(self, client: Client) -> AsyncIterator[Page]:
        ticket = await database_sync_to_async(ticket_of)(client, "playground", self.tenant.slug)
        async with connected(self.app, self.path, ticket) as socket:
            yield Page(socket)


@asynccontextmanager
async def stage(
    root: Path,
    tenant: Tenant,
    *,
    behaviour: Behaviour | None = None,
    grace_s: float = 30.0,
    **options: Any,
) -> AsyncIterator[Stage]:
    engine = SyntheticEngine(MODEL, behaviour)
    async with rig(root, engine=engine, **options) as made, doorway() as (gate, directory):
        hub, limits = made.gateway.hub, made.gateway.limits
        directory.on_revoked(hub.end_streams)
        dispatcher = Dispatcher(hub, directory, limits, timeout_s=60.0)
        playground = Playground(
            dispatcher, directory, max_body_bytes=20_000, grace_s=grace_s, adopted_within_s=0.05
        )
        yield Stage(made, tenant, playground, app_of(gate, playground, hub))
        await until(lambda: not hub.in_flight)
    await engine.close()


def app_of(gate: Gate, playground: Playground, hub: Hub) -> Any:
    socket: Any = gate.guarded("playground", PlaygroundSocket(playground, hub.closed))
    route: Any = re_path(r"^ws/playground/(?P<slug>[a-z0-9-]+)$", socket)
    return URLRouter([route])


@asynccontextmanager
async def two_stages(root: Path, tenant: Tenant) -> AsyncIterator[tuple[Stage, Stage]]:
    """Two gateways with one engine, which stalls in the middle of an answer until it is changed."""
    engine = SyntheticEngine(MODEL, Behaviour(stall_after_tokens=20))
    async with (
        gateway() as one,
        gateway() as other,
        doorway() as (gate, directory),
    ):
        one.hub.gateways = [one.url, other.url]
        async with agent_on(engine, root, [one, other]) as made:
            stages = []
            for at in (one, other):
                dispatcher = Dispatcher(at.hub, directory, at.limits, timeout_s=60.0, grace_s=60.0)
                playground = Playground(dispatcher, directory, max_body_bytes=20_000)
                stages.append(Stage(made, tenant, playground, app_of(gate, playground, at.hub)))
            yield stages[0], stages[1]
    await engine.close()


@asynccontextmanager
async def writing(
    root: Path, tenant: Tenant, client: Client, **options: Any
) -> AsyncIterator[tuple[Stage, Page]]:
    """A gateway and its page, on which the long answer `a` has begun."""
    async with (
        stage(root, tenant, behaviour=SLOW, **options) as here,
        here.page(client) as page,
    ):
        await page.say(**start_message("a", LONG))
        await page.until("delta")
        yield here, page


@pytest.fixture
def acme(transactional_db: None) -> Tenant:
    make_base(MODEL.name)
    return make_tenant("acme")


@pytest.fixture
def developer(acme: Tenant) -> Client:
    return client_of(acme, "developer")


async def test_an_answer_with_true_figures(tmp_path: Path, acme: Tenant, developer: Client) -> None:
    async with stage(tmp_path, acme) as here, here.page(developer) as page:
        await page.say(**start_message("a", "Good morning"))
        done = await page.until("done", "error")
        assert page.text == "base: Good morning"
        (entry,) = await here.rig.gateway.ledger.settled()
        assert done["request_id"] == f"req_{entry.id}"
        assert done["usage"]["completion_tokens"] == entry.usage.completion_tokens == 5
        assert done["usage"]["prompt_tokens"] == entry.usage.prompt_tokens
        assert done["finish_reason"] == "stop" and done["ttft_ms"] >= 0
        key = await database_sync_to_async(ApiKey.objects.get)(created_by__isnull=False)
        assert (entry.account.tenant_id, entry.account.key_id) == (acme.pk, key.pk)
        assert key.of_playground and here.rig.gateway.limits.settled.keys() == {entry.id}


async def test_answers_are_logged_as_requests_of_the_api_are(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    with capture_logs() as lines:
        async with stage(tmp_path, acme) as here, here.page(developer) as page:
            for id, model in (("a", MODEL.name), ("b", "nothing")):
                await page.say(**start_message(id, "Good morning") | {"model": model})
                await page.until("done", "error")
            await until(lambda: sum("surface" in line for line in lines) == 2)
    first, second = (line for line in lines if "surface" in line)
    key = await database_sync_to_async(ApiKey.objects.get)(created_by__isnull=False)
    for line in (first, second):
        assert (line["surface"], line["tenant"], line["key"]) == ("playground", "acme", key.prefix)
    assert (first["outcome"], first["engine"], first["output_tokens"]) == (
        "completed", "engine-1", 5,
    )  # fmt: skip
    assert (second["outcome"], second["error"]) == ("refused", "model_not_found")
    assert "Good morning" not in str([first, second])


@pytest.mark.parametrize(
    ("role", "code"),
    [("viewer", 403), ("outsider", 403), ("nobody", 401)],
)
def test_those_who_may_not_get_no_ticket(acme: Tenant, role: str, code: int) -> None:
    assert asked(client_of(acme, role), "playground", acme.slug).status_code == code
    assert not ApiKey.objects.exists()


async def test_a_ticket_opens_the_socket_of_its_tenant_alone(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    ticket = await database_sync_to_async(ticket_of)(developer, "playground", acme.slug)
    async with (
        stage(tmp_path, acme) as here,
        connected(here.app, "ws/playground/other", ticket) as socket,
    ):
        assert await Page(socket).closed() == 4403


@pytest.mark.parametrize("role", ["owner", "admin", "operator"])
async def test_others_may_and_an_operator_is_noted(tmp_path: Path, acme: Tenant, role: str) -> None:
    client = await database_sync_to_async(client_of)(acme, role)
    async with stage(tmp_path, acme) as here, here.page(client) as page:
        await page.say(**start_message("a"))
        assert (await page.until("done", "error"))["type"] == "done"
    noted = AuditEntry.objects.filter(tenant=acme, action="used playground")
    assert await database_sync_to_async(noted.exists)() == (role == "operator")


async def test_a_strange_origin_is_turned_away(tmp_path: Path, acme: Tenant) -> None:
    async with stage(tmp_path, acme) as here:
        assert await turned_away(here.app, here.path, origin="https://evil.example")


async def test_who_lost_his_membership_starts_nothing_more(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    async with stage(tmp_path, acme) as here, here.page(developer) as page:
        await page.say(type="ping")
        assert await page.hear() == {"type": "pong"}
        await database_sync_to_async(Membership.objects.all().delete)()
        assert await page.closed() == 4403
        assert not here.rig.gateway.ledger.entries


async def test_who_signed_out_starts_nothing_more(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    async with stage(tmp_path, acme) as here, here.page(developer) as page:
        await page.say(type="ping")
        await page.hear()
        await database_sync_to_async(developer.logout)()
        assert await page.closed() == 4401


async def test_a_session_that_ends_is_noticed_while_an_answer_is_written(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    async with writing(tmp_path, acme, developer) as (here, page):
        await database_sync_to_async(developer.logout)()
        assert await page.ended() == 4401
        user = await database_sync_to_async(User.objects.get)()
        answer = here.playground.find((user.pk, acme.pk), "a")
        assert answer is not None and answer.outcome is None
        answer.stop()


async def test_an_answer_that_waits_for_others_is_told_its_place(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    async with writing(tmp_path, acme, developer, max_running=1) as (_, page):
        await page.say(**start_message("b", LONG))
        while (waits := await page.hear()).get("phase") != "queued":
            pass
        assert (waits["id"], waits["place"]) == ("b", 1)
        await page.say(type="stop", id="a")
        told: set[tuple[str, str]] = set()
        while not told >= {("a", "done"), ("b", "generating")}:
            message = await page.hear()
            told.add((message["id"], message.get("phase", message["type"])))
        await page.say(type="stop", id="b")
        assert (await page.until("done"))["id"] == "b"


async def test_a_suspended_tenants_answers_end_and_none_begin(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    async with writing(tmp_path, acme, developer) as (_, page):
        suspended = Tenant.objects.filter(pk=acme.pk).update
        await database_sync_to_async(suspended)(status=Tenant.Status.SUSPENDED)
        assert (await page.until("error"))["code"] == "api_key_revoked"
        await page.say(**start_message("b"))
        refused = await page.until("error")
        assert (refused["id"], "suspended" in refused["message"]) == ("b", True)


async def test_stop_aborts_and_says_what_is_billed(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    async with writing(tmp_path, acme, developer) as (here, page):
        assert page.phases[-1] == "generating"
        assert set(page.phases) <= {"waiting", "prefill", "generating"}  # without a queue
        await page.say(type="stop", id="a")
        done = await page.until("done", "error")
        (entry,) = await here.rig.gateway.ledger.settled()
        assert done["finish_reason"] == entry.finish_reason == "cancelled"
        billed = done["usage"]["completion_tokens"]
        assert billed == entry.usage.completion_tokens
        assert len(page.text) / 4 <= billed < 1000


async def test_a_dropped_socket_goes_on_where_it_was(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    said = "0123456789é" * 80
    async with stage(tmp_path, acme) as here:
        text, seq = "", 0
        for most in (20, 100, None):  # tokens that are generated before the socket drops
            here.rig.engine.behaviour = Behaviour(stall_after_tokens=most)  # type: ignore[attr-defined]
            async with here.page(developer) as page:
                page.text, page.seq = text, seq
                resumed = {"type": "resume", "id": "a", "after": seq}
                await page.say(**(resumed if seq else start_message("a", said)))
                while most is not None and len(page.text) < most * TOKEN_CHARS:
                    await page.hear()
                if most is None:
                    await page.until("done")
                text, seq = page.text, page.seq
        assert text == f"base: {said}" and seq == len(text)
        assert len(await here.rig.gateway.ledger.settled()) == 1


SAID = "0123456789é" * 30


async def half_way(page: Page) -> None:
    while len(page.text) < 20 * TOKEN_CHARS:
        await page.hear()


async def goes_on(there: Stage, client: Client, seq: int, text: str) -> str:
    """The pane's final text, after its page has reconnected to another gateway."""
    async with there.page(client) as page:
        page.text, page.seq = text, seq
        await page.say(type="resume", id="a", after=seq)
        await page.until("phase")
        there.rig.engine.behaviour = Behaviour()  # type: ignore[attr-defined]
        done = await page.until("done", "error")
        assert done["type"] == "done", done
        assert done["usage"]["completion_tokens"] == there.rig.engine.stats().completion_tokens
        return page.text


async def test_an_answer_goes_on_at_another_gateway_when_its_own_one_is_lost(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    async with two_stages(tmp_path, acme) as (here, there):
        lost = here.rig.gateways[0]
        async with here.page(developer) as page:
            await page.say(**start_message("a", SAID))
            await half_way(page)
            lost.engines.known = {}
            for link in list(lost.hub._open):
                link.break_off(EngineLost("cut off"))
            text = await goes_on(there, developer, page.seq, page.text)
        assert text == f"base: {SAID}"
        heir = here.rig.gateways[1]
        (id,) = heir.limits.taken
        await until(lambda: heir.ledger.entries[id].attempt == 1001)
        assert heir.ledger.entries.keys() | lost.ledger.entries.keys() == {id}


async def test_a_gateway_that_ends_sends_pages_to_another_one(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    async with two_stages(tmp_path, acme) as (here, there):
        ends = here.rig.gateways[0].hub
        async with here.page(developer) as idle, here.page(developer) as page:
            await idle.say(type="ping")
            await idle.hear()
            await page.say(**start_message("a", SAID))
            await half_way(page)
            ends.close()
            assert await idle.ended() == GONE
            await page.say(type="ping")
            assert await page.until("pong"), "it may finish"
            ends.leave()
            assert await page.ended() == GONE
        assert await goes_on(there, developer, page.seq, page.text) == f"base: {SAID}"
        assert not ends.in_flight


async def test_nobody_else_resumes_an_answer_whose_gateway_is_lost(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    other = await database_sync_to_async(client_of)(acme, "owner")
    async with two_stages(tmp_path, acme) as (here, there):
        there.playground._adopted_within_s = 0.5
        async with here.page(developer) as page:
            await page.say(**start_message("a", SAID))
            await half_way(page)
            here.rig.gateways[0].hub.close()
            here.rig.gateways[0].hub.leave()
            await page.ended()
        async with there.page(other) as stranger:
            await stranger.say(type="resume", id="a", after=0)
            assert (await stranger.until("error", "delta"))["code"] == "not_found"
        assert await goes_on(there, developer, page.seq, page.text) == f"base: {SAID}"


async def test_a_page_that_begins_an_answer_again_gets_the_one_that_runs(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    """As a page does that was reloaded before it got any of the answer."""
    async with two_stages(tmp_path, acme) as (here, there):
        async with here.page(developer) as page:
            await page.say(**start_message("a", SAID))
            await half_way(page)
            here.rig.gateways[0].hub.close()
            here.rig.gateways[0].hub.leave()
            await page.ended()
        heir = here.rig.gateways[1]
        await until(lambda: any(heir.hub.orphans._by_link.values()))
        async with there.page(developer) as page:
            await page.say(**start_message("a", SAID))
            await half_way(page)
            there.rig.engine.behaviour = Behaviour()  # type: ignore[attr-defined]
            await page.until("done")
        assert page.text == f"base: {SAID}" and len(heir.limits.taken) == 1


async def test_an_ended_answer_is_had_once_more_and_only_by_its_owner(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    other = await database_sync_to_async(client_of)(acme, "owner")
    async with stage(tmp_path, acme) as here:
        async with here.page(developer) as page:
            await page.say(**start_message("a"))
            first = await page.until("done")
        async with here.page(developer) as page:
            await page.say(type="resume", id="a", after=0)
            assert await page.until("done") == first
            assert page.text == "base: Hello"
            await page.say(**start_message("a"))  # the same id again is the same answer
            assert await page.until("done") == first
        async with here.page(other) as page:
            await page.say(type="resume", id="a", after=0)
            assert (await page.until("error"))["code"] == "not_found"
        assert len(await here.rig.gateway.ledger.settled()) == 1


async def test_an_answer_that_nobody_reads_is_aborted_and_forgotten(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    async with stage(tmp_path, acme, behaviour=SLOW, grace_s=0.0) as here:
        async with here.page(developer) as page:
            await page.say(**start_message("a", LONG))
            await page.until("delta")
        (entry,) = await here.rig.gateway.ledger.settled()
        assert entry.finish_reason == "cancelled" and entry.usage.completion_tokens < 1000
        async with here.page(developer) as page:
            await page.say(type="resume", id="a", after=0)
            assert (await page.until("error", "done"))["type"] in ("error", "done")


async def test_refusals_come_to_their_pane(tmp_path: Path, acme: Tenant, developer: Client) -> None:
    async with stage(tmp_path, acme) as here, here.page(developer) as page:
        here.rig.gateway.limits.tokens_left = 0
        await page.say(**start_message("limited"))
        refused = await page.until("error", "done")
        assert (refused["id"], refused["code"]) == ("limited", "rate_limit_exceeded")
        assert refused["retry_after_s"] == 3 and refused["request_id"].startswith("req_")
        here.rig.gateway.limits.tokens_left = None
        await page.say(**start_message("unknown", model="nobody"))
        assert (await page.until("error"))["code"] == "model_not_found"
        await page.say(**start_message("large", "y" * 20_001))
        assert (await page.until("error"))["code"] == "payload_too_large"
        await page.say(**start_message("wrong", parameters={"temperature": "hot"}))
        refused = await page.until("error")
        assert (refused["id"], refused["code"]) == ("wrong", "invalid_request")
        await page.say(**start_message("right"))
        assert (await page.until("error", "done"))["type"] == "done"
        assert not here.rig.gateway.limits.open


async def test_a_limit_that_ends_an_answer_is_told(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    async with stage(tmp_path, acme) as here, here.page(developer) as page:
        here.rig.gateway.limits.tokens_left = 20
        await page.say(**start_message("a", LONG))
        done = await page.until("done", "error")
        assert (done["finish_reason"], "Rate limit" in done["limited"]) == ("length", True)


async def test_one_person_has_so_many_answers_at_a_time(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    async with (
        stage(tmp_path, acme, behaviour=SLOW) as here,
        here.page(developer) as page,
    ):
        for number in range(MAX_RUNNING):
            await page.say(**start_message(f"a{number}", LONG))
        await page.say(**start_message("more"))
        refused = await page.until("error")
        assert (refused["id"], refused["code"]) == ("more", "server_is_overloaded")
        for number in range(MAX_RUNNING):
            await page.say(type="stop", id=f"a{number}")
        for _ in range(MAX_RUNNING):
            await page.until("done")


async def test_a_lost_engine_is_an_error_in_the_pane(
    tmp_path: Path, acme: Tenant, developer: Client
) -> None:
    async with writing(tmp_path, acme, developer) as (here, page):
        here.rig.engine.die()  # type: ignore[attr-defined]
        assert (await page.until("error"))["code"] == "engine_failed"
