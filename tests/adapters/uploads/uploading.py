"""Helpers for uploads through Django's whole ASGI handler, behind the guard."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx
from asgiref.sync import async_to_sync
from django.core.asgi import get_asgi_application
from django.urls import path
from rest_framework.parsers import MultiPartParser
from rest_framework.request import Request
from rest_framework.response import Response
from rest_framework.views import APIView

from inference.content import CONFIG, WEIGHTS
from tenants.adapters.uploads.guard import BodyGuard
from tenants.api.endpoints.adapters.uploads import take_in
from tenants.models import Tenant
from tenants.models.audit import Actor
from tests.adapters.checks.builder import config_bytes, lora

KEY = {"Authorization": "Bearer lk_" + "a" * 12 + "_" + "b" * 43}


ACTOR = Actor("key", 1, "a key")


class Versions(APIView):
    """The upload endpoint alone, without the API's checks of keys and members."""

    authentication_classes = ()
    parser_classes = (MultiPartParser,)
    permission_classes = ()

    def post(self, request: Request, name: str) -> Response:
        session = take_in(request, Tenant.objects.get(slug="acme"), name, ACTOR)
        if (version := session.version) is None:
            return Response({"id": str(session.pk)}, 202)
        return Response({"id": version.pk, "state": version.state}, 200 if session.known else 201)


urlpatterns = [path("api/v1/adapters/<str:name>/versions", Versions.as_view())]

Files = list[tuple[str, tuple[str, bytes]]]


def sound(**changes: Any) -> Files:
    """The two files of a valid adapter."""
    return files((CONFIG, config_bytes(**changes)), (WEIGHTS, lora().bytes()))


def files(*named: tuple[str, bytes]) -> Files:
    return [("file", (name, data)) for name, data in named]


def upload(
    sent: Files | None = None, name: str = "pirate", **options: Any
) -> tuple[int, dict[str, Any]]:
    """Status and JSON of the answer."""
    options = {"headers": KEY} | options
    if sent is not None:
        options["files"] = sent

    return ask("POST", f"/api/v1/adapters/{name}/versions", **options)


def ask(method: str, address: str, **options: Any) -> tuple[int, dict[str, Any]]:
    """Status and JSON of the answer to any request."""

    async def send() -> httpx.Response:
        transport = httpx.ASGITransport(BodyGuard(get_asgi_application()))  # type: ignore[arg-type]
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            return await client.request(method, address, **options)

    answer = async_to_sync(send)()
    return answer.status_code, answer.json() if "json" in answer.headers["content-type"] else {}


async def chunked(body: bytes, size: int = 1000) -> AsyncIterator[bytes]:
    """The body in chunks, so that its length is not announced."""
    for start in range(0, len(body), size):
        yield body[start : start + size]
