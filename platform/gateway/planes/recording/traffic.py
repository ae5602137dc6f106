"""Adds this gateway's traffic of each pool revision to PostgreSQL, for rollouts, and records how
long engines are connected, for their cost."""

from __future__ import annotations

import asyncio

import structlog

from inference.errors import Unavailable
from inference.gateway.hub import Hub
from tenants.directory.registry import DirectoryRegistry

log = structlog.get_logger(__name__)

SHARE_S = 3.0
PRESENT_S = 60.0
"""Well below the five-minute steps in which an engine's presence is counted."""


async def share(hub: Hub, registry: DirectoryRegistry) -> None:
    """Periodically add what was counted since the last time, and report the revisions that are
    connected, until cancelled."""
    while True:
        counted = hub.traffic.take()
        try:
            await registry.share_traffic(hub.gateway_id, hub.revisions, counted)
        except Unavailable as error:
            hub.traffic.give_back(counted.items())
            log.warning("traffic_not_shared", error=str(error))
        await asyncio.sleep(SHARE_S)


async def note_presence(hub: Hub, registry: DirectoryRegistry) -> None:
    """Periodically record which engines are connected, until cancelled."""
    while True:
        try:
            await registry.note_engines(hub.base_models)
        except Unavailable as error:
            log.warning("engines_not_noted", error=str(error))
        await asyncio.sleep(PRESENT_S)
