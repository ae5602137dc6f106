"""What requests meet on each revision of a pool here is added up in PostgreSQL, for rollouts."""

from __future__ import annotations

import asyncio

import structlog

from inference.errors import Unavailable
from inference.gateway.fleet.hub import Hub
from tenants.directory.registry import Registry

log = structlog.get_logger(__name__)

SHARE_S = 3.0


async def share(hub: Hub, registry: Registry) -> None:
    """Add what was counted since the last time, and say which engines are here, until cancelled."""
    while True:
        counted = hub.traffic.take()
        try:
            await registry.share_traffic(hub.gateway_id, hub.revisions, counted)
        except Unavailable as error:
            hub.traffic.give_back(counted.items())
            log.warning("traffic_not_shared", error=str(error))
        await asyncio.sleep(SHARE_S)
