"""The control plane: the parts of one console process, and the addresses that it serves.

Pages, management API, uploads, sign-in: Django, behind applications that keep large bodies from it.
It queries engines and limits through the gateways (`tenants.fleet`); no generated token passes
through it.
"""

from __future__ import annotations

from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from channels.routing import ProtocolTypeRouter, URLRouter
from django.conf import settings
from django.core.asgi import get_asgi_application
from servestatic import ServeStaticASGI

from gateway.edge.cors import Cors
from gateway.edge.refusals import SlowRefusals
from gateway.planes.asgi import Lifespan, route
from gateway.planes.headers import HeaderLimit
from inference.errors import Unavailable
from inference.gateway.health import Health
from tenants.adapters.uploads.guard import BodyGuard
from tenants.adapters.uploads.intake import UploadIntake
from tenants.adapters.uploads.reservations import UploadReservation
from tenants.directory.auth import PostgresDirectory
from tenants.directory.reader import Reader
from tenants.files.intake import FORMS, FileIntake
from tenants.hub.bodies import BODIES, HubBodies

REFUSALS = (401, 429)
"""Statuses that answer guesses of keys and passwords."""


@dataclass(frozen=True)
class ControlParts:
    """Everything that lives as long as a console process, passed to the code that needs it."""

    django: Any
    """Django's ASGI application."""
    directory: PostgresDirectory
    """Authenticates uploads before their bodies are read."""
    reader: Reader
    """Used to check whether the database answers."""

    @classmethod
    def configured(cls) -> ControlParts:
        """The parts, as configured in the settings."""
        return cls(get_asgi_application(), PostgresDirectory(), Reader())


class Listening(Lifespan):
    """Opens the database, and listens to its notifications."""

    def __init__(self, parts: ControlParts) -> None:
        self._parts = parts

    async def start(self, stack: AsyncExitStack) -> None:
        await self._parts.reader.open()
        stack.push_async_callback(self._parts.reader.close)
        await stack.enter_async_context(self._parts.directory)


def _health(parts: ControlParts) -> Health:
    async def database() -> bool:
        try:
            await parts.reader.base_models()
        except Unavailable:
            return False
        return True

    return Health({"database": database})


def application(parts: ControlParts) -> Any:
    """The ASGI application."""
    django, directory = parts.django, parts.directory
    pages = ServeStaticASGI(django, root=str(settings.STATIC_ROOT), prefix="static")
    files = FileIntake(django, directory)
    http = [
        route(r"^v1/", Cors(files, settings.CORS_ORIGINS)),
        route(f"^{FORMS.pattern[1:]}$", files),
        route(r"^(healthz|health|readyz)$", _health(parts)),
        route(f"^{BODIES.pattern[1:]}$", HubBodies(django)),
        route(r"", BodyGuard(UploadReservation(UploadIntake(pages)), directory)),
    ]
    routes = ProtocolTypeRouter({"http": URLRouter(http), "lifespan": Listening(parts)})
    return HeaderLimit(SlowRefusals(routes, REFUSALS))
