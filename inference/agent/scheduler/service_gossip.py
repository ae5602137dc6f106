"""The names under which engines tell each other what service they gave.

Each agent tells every gateway by how much the service of each tenant grew, and one gateway tells it
what all others gave together (`inference.gateway.fleet.service`).
"""

from __future__ import annotations

from collections.abc import Mapping

BATCH_SERVICE = "batch:"
"""Prefix of a tenant's name for its batch service, as engines tell each other; in no tenant's name.
Lanes have counters of their own: batch service by an idle engine delays no tenant's chat."""


def service_name(tenant: str, *, batch: bool) -> str:
    """The name under which service in a lane is reported."""
    return BATCH_SERVICE + tenant if batch else tenant


def by_lane(service: Mapping[str, float]) -> tuple[dict[str, float], dict[str, float]]:
    """Reported service by tenant: that of the interactive lane, and that of the batch lane."""
    lanes: tuple[dict[str, float], dict[str, float]] = ({}, {})
    for name, amount in service.items():
        lanes[name.startswith(BATCH_SERVICE)][name.removeprefix(BATCH_SERVICE)] = amount
    return lanes
