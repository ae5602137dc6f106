"""What can be watched, and what tells that it changed.

To add a topic: a line in TOPICS, a method of `Signals`, and the address where its part is rendered
(`frontend.views.live`). Free of Django: gateways look here how to watch a topic, the console how
often a page may ask for its part.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from frontend.live.feeds import Key
from frontend.live.signals import LIMITS_S, Signals, Values
from frontend.tickets import WHOLE, Ticket
from inference.gateway.history import STEP_S

Signal = Callable[[Signals, Sequence[Key], float], Values]
"""Of each watched key at a unix time, a value that is another one when the state is."""


@dataclass(frozen=True)
class Topic:
    """Something to watch, in a tenant by those who have the permission (its name) that it `needs`
    there; None where it is no tenant's. Of the `whole` installation only operators watch it."""

    name: str
    needs: str | None
    signal: Signal | None
    """None where it is what happens that is told (requests that ended), not a state."""
    every_s: float = field(default=1.0, kw_only=True)
    """A state is looked at this often while it is watched, and a page asks no more often."""
    whole: bool = field(default=False, kw_only=True)


_ALL: Sequence[Topic] = (
    # name, what it needs in a tenant, the signal: what tells that it changed
    #   the engines, the tenant's adapters on them, notices of the tenant
    Topic("engines", "READ_ADAPTERS", Signals.engines),
    #   notices of the tenant, its adapters on engines
    Topic("adapters", "READ_ADAPTERS", Signals.adapters),
    #   notices of the tenant, the first engine, the first request
    Topic("steps", "READ_TENANT", Signals.steps, every_s=2.0),
    #   notices of the tenant, its requests of the last minute on any gateway, the day
    Topic("limits", "READ_LIMITS", Signals.limits, every_s=LIMITS_S),
    #   what the ledger has written, on any gateway
    Topic("requests", "READ_OWN_USAGE", None, whole=True),
    #   all that engines say of themselves
    Topic("fleet", None, Signals.fleet, whole=True),
    #   what engines do at the moment
    Topic("figures", None, Signals.figures, whole=True),
    #   each point of the past
    Topic("history", None, Signals.history, whole=True, every_s=STEP_S / 2),
)
TOPICS: Mapping[str, Topic] = {topic.name: topic for topic in _ALL}


def key_of(topic: Topic | None, ticket: Ticket) -> Key | None:
    """What a topic is to who holds this ticket; None where there is nothing for him."""
    if topic is None:
        return None
    if ticket.tenant_id == WHOLE:
        return Key(topic.name) if topic.whole and ticket.staff else None
    if topic.needs is None or topic.needs not in ticket.claims["may"]:
        return None
    audience = ticket.audience if topic.signal is None else ""
    return Key(topic.name, ticket.tenant_id, ticket.slug, audience)
