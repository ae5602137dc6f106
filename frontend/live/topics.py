"""The topics that pages can watch, and the signal that detects changes of each.

To add a topic: a line in TOPICS, a method of `Signals`, and the URL where its part is rendered
(`frontend.views.live`). Free of Django, since gateways use it to watch a topic; the console reads
from it how often a page may fetch its part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from frontend.live.feeds import Key
from frontend.live.signals import BATCHES_S, HEALTH_S, LIMITS_S, ROLLOUTS_S, Signals, Values
from frontend.sockets.tickets import WHOLE, Ticket
from inference.gateway.measuring.history import STEP_S

Signal = Callable[[Signals, Sequence[Key], float], Values]
"""Returns, for each watched key at a unix time, a value that differs whenever the state does."""


@dataclass(frozen=True)
class Topic:
    """Something to watch. `needs` names the permission required in a tenant; None if the topic is
    not about a tenant. With `whole`, operators can watch it for the whole installation."""

    name: str
    needs: str | None
    signal: Signal | None
    """None for a topic of events (requests that ended) rather than of state."""
    every_s: float = field(default=1.0, kw_only=True)
    """Polling interval of a state while it is watched; a page fetches no more often either."""
    whole: bool = field(default=False, kw_only=True)


_ALL: Sequence[Topic] = (
    # name, permission in a tenant, signal; above each: what the signal depends on
    #   the engines, the tenant's adapters on them, notices of the tenant
    Topic("engines", "READ_ADAPTERS", Signals.engines),
    #   notices of the tenant, its adapters on engines
    Topic("adapters", "READ_ADAPTERS", Signals.adapters),
    #   notices of the tenant, the first engine, the first request
    Topic("steps", "READ_TENANT", Signals.steps, every_s=2.0),
    #   notices of the tenant, its requests of the last minute on any gateway, the day
    Topic("limits", "READ_LIMITS", Signals.limits, every_s=LIMITS_S),
    #   requests of the tenant, or of all, that ended on any gateway; the minute
    Topic("health", "READ_OWN_USAGE", Signals.health, whole=True, every_s=HEALTH_S),
    #   requests written to the ledger, or refused, by any gateway
    Topic("requests", "READ_OWN_USAGE", None, whole=True),
    #   the time: a worker writes the answers of batches five times a second
    Topic("batches", "USE_FILES", Signals.batches, every_s=BATCHES_S),
    #   everything that engines report
    Topic("fleet", None, Signals.fleet, whole=True),
    #   what engines are doing now
    Topic("figures", None, Signals.figures, whole=True),
    #   the time: a worker looks at rollouts every few seconds
    Topic("rollouts", None, Signals.rollouts, whole=True, every_s=ROLLOUTS_S),
    #   each new point of the history
    Topic("history", None, Signals.history, whole=True, every_s=STEP_S / 2),
)
TOPICS: Mapping[str, Topic] = {topic.name: topic for topic in _ALL}


def key_of(topic: Topic | None, ticket: Ticket) -> Key | None:
    """The feed key of a topic for the holder of a ticket; None if they may not watch it."""
    if topic is None:
        return None
    if ticket.tenant_id == WHOLE:
        return Key(topic.name) if topic.whole and ticket.staff else None
    if topic.needs is None or topic.needs not in ticket.claims["may"]:
        return None
    audience = ticket.audience if topic.signal is None else ""
    return Key(topic.name, ticket.tenant_id, ticket.slug, audience)
