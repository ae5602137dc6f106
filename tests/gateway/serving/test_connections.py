"""The console's connections to PostgreSQL outlive requests, but no state of a request does."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest
from django.db import connection
from django.http import HttpRequest, HttpResponse

from gateway.connections import kept_connections
from gateway.middleware import ConnectionReturned
from tenants.database import conninfo
from tenants.models.audit import Actor, act_as

pytestmark = pytest.mark.django_db(transaction=True)


@pytest.fixture
def kept() -> Iterator[None]:
    with kept_connections(1):
        yield


def in_a_request(view: Callable[[], Any]) -> Any:
    """Run `view` in a thread of its own, at whose end Django closes the thread's connection."""

    def answered() -> Any:
        try:
            return view()
        finally:
            connection.close()

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(answered).result()


def asked(query: str) -> Any:
    with connection.cursor() as cursor:
        cursor.execute(query)
        return cursor.fetchone()[0]


def process() -> Any:
    return asked("SELECT pg_backend_pid()")


@pytest.mark.usefixtures("kept")
def test_the_next_request_has_the_connection_of_the_last() -> None:
    assert in_a_request(process) == in_a_request(process)


def test_without_pooling_each_request_has_its_own_connection() -> None:
    assert in_a_request(process) != in_a_request(process)


@pytest.mark.usefixtures("kept")
def test_a_pages_queries_are_neither_compiled_nor_shared_out() -> None:
    assert in_a_request(lambda: asked("SHOW jit")) == "off"
    assert in_a_request(lambda: asked("SHOW max_parallel_workers_per_gather")) == "0"


@pytest.mark.usefixtures("kept")
def test_the_actor_of_a_request_is_not_that_of_the_next() -> None:
    def act() -> Any:
        act_as(Actor("key", 7, "mallory"))
        return process()

    def actor() -> tuple[Any, Any]:
        return process(), asked("SELECT current_setting('lorikeet.actor', true)")

    acted_on = in_a_request(act)
    assert in_a_request(actor) == (acted_on, "")


@pytest.mark.usefixtures("kept")
def test_a_connection_that_was_lost_is_replaced() -> None:
    lost = in_a_request(process)
    with psycopg.connect(conninfo("tests")) as other:
        other.execute("SELECT pg_terminate_backend(%s, 10000)", [lost])
    assert in_a_request(process) != lost


@pytest.mark.usefixtures("kept")
def test_a_client_that_reads_slowly_keeps_no_connection() -> None:
    """There is one connection, and the next request gets it while this answer is being sent."""

    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(str(process()))

    def slowly_read() -> tuple[bytes, Any]:
        answer = ConnectionReturned(view)(HttpRequest())
        return answer.content, in_a_request(process)

    used, next_used = in_a_request(slowly_read)
    assert int(used) == next_used
