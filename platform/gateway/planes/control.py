"""The control plane: one console process. Pages, management API, uploads, sign-in.

Django, behind applications that keep large bodies from it. It queries engines and limits through
the gateways (`tenants.fleet`); no generated token passes through it.
"""

from __future__ import annotations

import os
from contextlib import AsyncExitStack
from typing import Any

from django.core.asgi import get_asgi_application

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "gateway.settings")
django_app: Any = get_asgi_application()

from channels.routing import ProtocolTypeRouter, URLRouter  # noqa: E402
from django.conf import settings  # noqa: E402
from django.urls import URLPattern, re_path  # noqa: E402
from servestatic import ServeStaticASGI  # noqa: E402

from gateway.edge.cors import Cors  # noqa: E402
from gateway.edge.refusals import SlowRefusals  # noqa: E402
from gateway.planes.headers import HeaderLimit  # noqa: E402
from gateway.planes.lifespan import Lifespan  # noqa: E402
from inference.errors import Unavailable  # noqa: E402
from inference.gateway.health import Health  # noqa: E402
from tenants.adapters.uploads.guard import BodyGuard  # noqa: E402
from tenants.adapters.uploads.intake import Intake  # noqa: E402
from tenants.adapters.uploads.room import Room  # noqa: E402
from tenants.directory.auth import PostgresDirectory  # noqa: E402
from tenants.directory.reader import Reader  # noqa: E402
from tenants.files.intake import FileIntake  # noqa: E402
from tenants.hub.bodies import BODIES, Bodies  # noqa: E402

REFUSALS = (401, 429)
"""Statuses that answer guesses of keys and passwords."""
directory = PostgresDirectory()
"""Authenticates uploads before their bodies are read."""
_reader = Reader()


async def _database_answers() -> bool:
    try:
        await _reader.base_models()
    except Unavailable:
        return False
    return True


class Listening(Lifespan):
    """Opens the database, and listens to its notifications."""

    async def start(self, stack: AsyncExitStack) -> None:
        await _reader.open()
        stack.push_async_callback(_reader.close)
        await stack.enter_async_context(directory)


def _route(pattern: str, app: Any) -> URLPattern:
    """Channels' router takes ASGI applications where Django's types expect views."""
    route: URLPattern = re_path(pattern, app)
    return route


_pages = ServeStaticASGI(django_app, root=str(settings.STATIC_ROOT), prefix="static")

_routes = ProtocolTypeRouter(
    {
        "http": URLRouter(
            [
                _route(r"^v1/", Cors(FileIntake(django_app, directory), settings.CORS_ORIGINS)),
                _route(r"^(healthz|health|readyz)$", Health({"database": _database_answers})),
                _route(f"^{BODIES.pattern[1:]}$", Bodies(django_app)),
                _route(r"", BodyGuard(Room(Intake(_pages)), directory)),
            ]
        ),
        "lifespan": Listening(),
    }
)
application = HeaderLimit(SlowRefusals(_routes, REFUSALS))
