"""Which modules a gateway process and a console process must not import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
GATEWAY = """
from gateway.planes.inference import InferenceParts, application
application(InferenceParts.configured())
from django.apps import apps
assert not apps.ready
"""
CONSOLE = """
import django, warnings
warnings.simplefilter("ignore")  # static files are missing
django.setup()
from gateway.management.commands.console import Command
from gateway.planes.control import ControlParts, application
application(ControlParts.configured())
import gateway.urls
"""
FORBIDDEN = (
    "allauth", "django.contrib", "frontend.pages", "frontend.views",
    "rest_framework", "tenants.adapters.checks", "tenants.adapters.store",
    "tenants.adapters.uploads", "tenants.api", "tenants.models", "tenants.permissions",
)  # fmt: skip
SHARED = {
    "inference.gateway",
    "inference.gateway.exchanges",
    "inference.gateway.exchanges.exchange",
    "inference.gateway.health",
    "inference.gateway.idempotency",
    "inference.gateway.lines",
    "inference.gateway.lines.frames",
    "inference.gateway.lines.seals",
    "inference.gateway.measuring",
    "inference.gateway.measuring.busiest",
    "inference.gateway.measuring.content",
    "inference.gateway.measuring.histogram",
    "inference.gateway.measuring.history",
    "inference.gateway.measuring.measures",
    "inference.gateway.measuring.outcomes",
    "inference.gateway.measuring.start_failures",
    "inference.gateway.measuring.sums",
    "inference.gateway.measuring.traffic",
}
"""What a console shares with gateways: HTTP, messages, and the form of what is counted."""


def loaded_by(wiring: str) -> list[str]:
    """The modules that a process has imported after this."""
    path = f"import sys; sys.path[:0] = [{str(ROOT)!r}, {str(ROOT / 'platform')!r}]"
    program = f"{path}{wiring}print(*sorted(sys.modules), sep='\\n')"
    environment = os.environ | {"DJANGO_SETTINGS_MODULE": "gateway.settings"}
    done = subprocess.run(
        [sys.executable, "-c", program], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def within(loaded: list[str], *packages: str) -> list[str]:
    return [one for one in loaded if any(f"{one}.".startswith(f"{name}.") for name in packages)]


def test_a_gateway_loads_no_view_no_model_and_no_parser_of_files() -> None:
    loaded = loaded_by(GATEWAY)
    assert "inference.gateway.hub" in loaded
    assert within(loaded, *FORBIDDEN) == []


def test_a_console_loads_nothing_that_holds_routes_or_runs_a_request() -> None:
    """Django finds middleware and context processors by name, which import contracts don't see."""
    loaded = loaded_by(CONSOLE)
    assert {"gateway.middleware", "frontend.views.home"} <= {*loaded}
    assert {*within(loaded, "inference.gateway")} <= SHARED
    assert within(loaded, "inference.agent", "inference.scheduler", "torch", "vllm") == []
