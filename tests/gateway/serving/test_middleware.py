"""Django's middleware: request ids, security headers, caching and compression."""

from __future__ import annotations

import gzip
import resource
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from itertools import pairwise

import pytest
import structlog
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory
from pytest_django import Settings

from gateway.middleware import CompressedPages, NotStored, PreallocatedFrames, RequestId

View = Callable[[HttpRequest], HttpResponse]


def test_the_id_is_on_the_answer_and_on_every_line_between() -> None:
    bound: dict[str, object] = {}

    def view(request: HttpRequest) -> HttpResponse:
        bound.update(structlog.contextvars.get_contextvars())
        return HttpResponse(status=204)

    response = RequestId(view)(HttpRequest())
    assert response["x-request-id"] == f"req_{bound['request_id']}"
    assert "request_id" not in structlog.contextvars.get_contextvars()


def test_no_depth_of_calls_maps_memory_for_each_of_them() -> None:
    assert _most_faults(lambda view: view) > CALLS, "CPython does without PreallocatedFrames"
    assert _most_faults(PreallocatedFrames) < CALLS / 2


CALLS = 2_000
DEEPEST = 400


def _most_faults(around: Callable[[View], View]) -> int:
    """The most page faults of CALLS calls at any depth of the stack."""

    def leaf() -> None: ...

    leaf.__code__ = leaf.__code__.replace(co_stacksize=64)  # larger than one of `at`

    def at(depth: int, request: HttpRequest) -> HttpResponse:
        if depth:
            return at(depth - 1, request)
        for _ in range(CALLS):
            leaf()
        return HttpResponse()

    def most() -> int:
        found = [_own_faults()]
        for depth in range(DEEPEST):
            around(partial(at, depth))(HttpRequest())
            found.append(_own_faults())
        return max(after - before for before, after in pairwise(found))

    with ThreadPoolExecutor(1) as thread:
        return thread.submit(most).result()


def _own_faults() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_minflt


@pytest.mark.django_db
def test_the_console_redirects_to_a_login() -> None:
    response = Client().get("/")
    assert response.status_code == 302
    assert response["x-request-id"].startswith("req_")


@pytest.mark.usefixtures("plain_files")
@pytest.mark.parametrize("path", ["/account/login/", "/api/v1/keys", "/nowhere"])
def test_the_page_for_a_wrong_host_has_the_policy_too(path: str) -> None:
    """A middleware answers with it, so those that set the policy must be outside of that one."""
    answer = Client(HTTP_HOST="evil.example").get(path)
    assert answer.status_code == 400
    assert "default-src 'none'" in answer["Content-Security-Policy"]
    assert answer["X-Frame-Options"] == "DENY"


@pytest.mark.django_db
@pytest.mark.parametrize("host", ["localhost", "evil.example"])
def test_browsers_come_by_https_alone_where_it_is_served_by_it(
    settings: Settings, host: str
) -> None:
    client = Client(HTTP_HOST=host)
    assert "Strict-Transport-Security" not in client.get("/api/v1/keys")
    settings.SESSION_COOKIE_SECURE = True
    answer = client.get("/api/v1/keys")
    assert answer["Strict-Transport-Security"] == "max-age=31536000"


def test_answers_are_not_stored_unless_they_say_otherwise() -> None:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(headers=dict(request.GET.items()))

    factory = RequestFactory()
    assert NotStored(view)(factory.get("/"))["Cache-Control"] == "no-store"
    said = {"Cache-Control": "public, max-age=60"}
    assert NotStored(view)(factory.get("/", said))["Cache-Control"] == "public, max-age=60"


def compressed(response: HttpResponse) -> HttpResponse:
    request = RequestFactory(headers={"accept-encoding": "gzip"}).get("/")
    answer = CompressedPages(lambda _: response)(request)
    assert isinstance(answer, HttpResponse)
    return answer


def test_pages_travel_compressed() -> None:
    page = "<p>all of the adapters</p>" * 1000
    answer = compressed(HttpResponse(page))
    assert answer["Content-Encoding"] == "gzip"
    assert "Accept-Encoding" in answer["Vary"]
    assert len(answer.content) < len(page) // 8
    assert gzip.decompress(answer.content).decode() == page


@pytest.mark.parametrize("kind", ["application/json", "text/csv", "application/jsonl"])
def test_downloads_are_not_compressed(kind: str) -> None:
    answer = compressed(HttpResponse("1,2,3\n" * 1000, content_type=kind))
    assert "Content-Encoding" not in answer
