"""Background responses on a whole Lorikeet, through OpenAI's unmodified SDK, while the processes
that run them are killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import openai
import psycopg
import pytest
from openai.types.responses import Response

from tenants.content import sealing
from tests.stack.asking import recovered
from tests.stack.running import Stack
from tests.stack.test_batches import END_S

pytestmark = pytest.mark.stack
TENANT = "brightwater"
LIVE = ("queued", "in_progress")
LONG = 160
"""Tokens of an answer that takes four seconds."""
ENDLESS = 3000


class Billed(NamedTuple):
    """An event in the ledger."""

    id: str
    output_tokens: int
    finish_reason: str


@pytest.fixture(scope="module", autouse=True)
def content(stack: Stack) -> None:
    """The first tenant stores content, as its admin can decide."""
    master = stack.children("gateway")[0].environ()["LORIKEET_CONTENT_KEY"]
    with psycopg.connect(stack.database_url) as connection:
        found = connection.execute("SELECT id FROM tenants_tenant WHERE slug = %s", [TENANT])
        (id,) = found.fetchone() or (0,)
        key = sealing.new_key(master, id)
        connection.execute(
            "INSERT INTO tenants_contentkey (tenant_id, password) VALUES (%s, %s)", [id, key]
        )
        connection.execute("UPDATE tenants_tenant SET content_days = 7 WHERE id = %s", [id])


@pytest.fixture
def client(stack: Stack) -> openai.OpenAI:
    key = stack.key(TENANT)
    return openai.OpenAI(base_url=f"{stack.url}/v1", api_key=key, max_retries=8)


def begin(client: openai.OpenAI, number: int, **fields: Any) -> Response:
    """Create a background response; the call returns as soon as it is stored."""
    given = {"model": "lorikeet-demo", "input": f"hello {number}", "max_output_tokens": 8}
    end = time.monotonic() + END_S
    while True:
        try:
            return client.responses.create(background=True, **(given | fields))  # type: ignore[no-any-return, call-overload]
        except openai.BadRequestError:  # gateways learn of the tenant's choice later
            assert time.monotonic() < end
            time.sleep(0.1)


def until(client: openai.OpenAI, response: Response, *statuses: str) -> Response:
    end = time.monotonic() + END_S
    while response.status not in statuses:
        assert response.status in LIVE and time.monotonic() < end, response
        time.sleep(0.1)
        response = client.responses.retrieve(response.id)
    return response


def billed(stack: Stack, responses: Sequence[Response]) -> list[Billed]:
    """The responses' rows in the ledger, once each has one."""
    ids = [one.id.removeprefix("resp_") for one in responses]
    url = stack.children("console")[0].environ()["LORIKEET_DATABASE_URL"]  # workers are killed here
    end = time.monotonic() + END_S
    while True:
        with psycopg.connect(url) as connection:
            rows = connection.execute(
                "SELECT id, completion_tokens, finish_reason FROM tenants_usageevent"
                " WHERE id = ANY(%s) ORDER BY id",
                [ids],
            ).fetchall()
        if {row[0] for row in rows} == {*ids}:
            return [Billed(*row) for row in rows]
        assert time.monotonic() < end, rows
        time.sleep(0.2)


def kill(stack: Stack, role: str) -> None:
    """Kill a process of this role, as soon as there is one again."""
    end = time.monotonic() + END_S
    while not (children := stack.children(role)):
        assert time.monotonic() < end
        time.sleep(0.1)
    os.kill(children[-1].pid, signal.SIGKILL)


def agrees(responses: Sequence[Response], found: Sequence[Billed]) -> bool:
    """Whether each was billed once, with the usage that it reports."""
    said = {one.id.removeprefix("resp_"): one.usage.output_tokens for one in responses if one.usage}
    return len(found) == len(said) and {one.id: one.output_tokens for one in found} == said


def test_each_is_answered_and_billed_once(stack: Stack, client: openai.OpenAI) -> None:
    made = [begin(client, number) for number in range(10)]
    assert {one.status for one in made} == {"queued"}
    ended = [until(client, one, "completed", "incomplete") for one in made]
    assert all(one.output_text and one.background for one in ended)
    assert agrees(ended, billed(stack, ended))
    after = client.responses.create(
        model="lorikeet-demo", input="And then?", previous_response_id=ended[0].id
    )
    assert after.previous_response_id == ended[0].id


def test_what_is_killed_changes_no_answer_and_no_bill(stack: Stack, client: openai.OpenAI) -> None:
    long = {"max_output_tokens": LONG, "extra_body": {"ignore_eos": True}}
    made = [begin(client, number, **long) for number in range(24)]
    for number, role in enumerate(("worker", "gateway", "engine", "worker", "gateway")):
        until(client, made[number], "in_progress", "completed", "incomplete")
        kill(stack, role)
    ended = [until(client, one, "completed", "incomplete") for one in made]
    assert {one.usage.output_tokens for one in ended if one.usage} == {LONG}
    assert agrees(ended, billed(stack, ended))
    recovered(stack.urls)


def test_the_engine_stops_with_one_that_is_cancelled(stack: Stack, client: openai.OpenAI) -> None:
    endless = {"max_output_tokens": ENDLESS, "extra_body": {"ignore_eos": True}}
    made = begin(client, 1, **endless)
    until(client, made, "in_progress")
    assert client.responses.cancel(made.id).status == "cancelled"
    (found,) = billed(stack, [made])
    assert found.finish_reason == "cancelled" and found.output_tokens < ENDLESS
    assert client.responses.cancel(made.id).status == "cancelled"
    assert client.responses.retrieve(made.id).output == []


def test_an_idempotency_key_makes_one(client: openai.OpenAI) -> None:
    headers = {"Idempotency-Key": "one of the background"}
    first = begin(client, 1, extra_headers=headers)
    assert begin(client, 1, extra_headers=headers).id == first.id


def test_nobody_elses_exists(stack: Stack, client: openai.OpenAI) -> None:
    made = begin(client, 1)
    other = client.with_options(api_key=stack.key("saltbeard"))
    for each in (other.responses.retrieve, other.responses.cancel, other.responses.delete):
        with pytest.raises(openai.NotFoundError):
            each(made.id)
    with pytest.raises(openai.BadRequestError, match="Stored prompts"):
        other.responses.create(model="lorikeet-demo", input="hello", background=True)
