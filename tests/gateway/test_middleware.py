"""The request's id on what Django answers."""

from __future__ import annotations

import pytest
import structlog
from django.http import HttpRequest, HttpResponse
from django.test import Client, RequestFactory

from gateway.middleware import NotStored, RequestId


def test_the_id_is_on_the_answer_and_on_every_line_between() -> None:
    bound: dict[str, object] = {}

    def view(request: HttpRequest) -> HttpResponse:
        bound.update(structlog.contextvars.get_contextvars())
        return HttpResponse(status=204)

    response = RequestId(view)(HttpRequest())
    assert response["x-request-id"] == f"req_{bound['request_id']}"
    assert "request_id" not in structlog.contextvars.get_contextvars()


@pytest.mark.django_db
def test_the_console_redirects_to_a_login() -> None:
    response = Client().get("/")
    assert response.status_code == 302
    assert response["x-request-id"].startswith("req_")


def test_answers_are_not_stored_unless_they_say_otherwise() -> None:
    def view(request: HttpRequest) -> HttpResponse:
        return HttpResponse(headers=dict(request.GET.items()))

    factory = RequestFactory()
    assert NotStored(view)(factory.get("/"))["Cache-Control"] == "no-store"
    said = {"Cache-Control": "public, max-age=60"}
    assert NotStored(view)(factory.get("/", said))["Cache-Control"] == "public, max-age=60"
