"""What all gateways would tell the console, told by the test."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest
from django.apps import apps

from inference.gateway.history import Point
from inference.grants import Limits
from tenants.fleet.reports import Fleet

ENGINE: dict[str, Any] = {
    "id": "engine-1",
    "kind": "synthetic",
    "base_model": "base",
    "max_model_len": 512,
    "max_loras": 4,
    "max_lora_rank": 16,
    "kv_tokens": 65_536,
    "connected_at": "2026-01-02T03:04:05+00:00",
    "draining": False,
    "running": 3,
    "waiting": 1,
    "queued": 2,
    "kv_usage": 0.25,
    "resident_adapters": ["acme/support@" + "a" * 64, "globex/secret@" + "b" * 64],
    "prompt_tokens": 1000,
    "cached_tokens": 400,
    "completion_tokens": 500,
}


@dataclass
class Told:
    """`tenants.fleet.gateways.Gateways`."""

    engines: list[dict[str, Any]] = field(default_factory=lambda: [dict(ENGINE)])
    points: Sequence[Point] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    drained: list[str] = field(default_factory=list)

    def fleet(self) -> Fleet:
        return Fleet(self.engines)

    def history(self) -> Sequence[Point]:
        return self.points

    def used(self, limits: Limits) -> Mapping[str, int]:
        return self.counts

    def drain(self, engine_id: str) -> bool:
        self.drained.append(engine_id)
        return True


def told(monkeypatch: pytest.MonkeyPatch) -> Told:
    """What a test's console is told from now on: one engine."""
    found = Told()
    monkeypatch.setattr(apps.get_app_config("tenants"), "gateways", found, raising=False)
    return found
