"""Which modules a gateway process must not import."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOADED = """
import sys
sys.path[:0] = [{root!r}, {root!r} + "/platform"]
from gateway.planes.inference import Parts, application
application(Parts.configured())
from django.apps import apps
assert not apps.ready
print(*sorted(sys.modules), sep="\\n")
"""
FORBIDDEN = (
    "allauth", "django.contrib", "frontend.pages", "frontend.views",
    "rest_framework", "tenants.adapters.checks", "tenants.adapters.store",
    "tenants.adapters.uploads", "tenants.api", "tenants.models", "tenants.permissions",
)  # fmt: skip


def test_a_gateway_loads_no_view_no_model_and_no_parser_of_files() -> None:
    environment = {"DJANGO_SETTINGS_MODULE": "gateway.settings"}
    program = [sys.executable, "-c", LOADED.format(root=str(ROOT))]
    done = subprocess.run(program, env=os.environ | environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = done.stdout.split()
    assert "inference.gateway.fleet.hub" in loaded
    wrong = [one for one in loaded if any(f"{one}.".startswith(f"{name}.") for name in FORBIDDEN)]
    assert wrong == []
