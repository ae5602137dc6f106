"""What can be watched, by whom, and where it comes from.

To add a topic: a line in TOPICS. A `StateTopic` has something to sample: `sample` is asked for all
watched keys at once and returns for each `{"html": ...}`, which replaces the content of the page's
<live-part>, or `{"mark": ...}`, at whose change the page fetches its <live-part> anew. An
`EventTopic` is told by `Board.publish`, and `show` says what a key's audience sees of the events:
the page hears of them as a `live` event with `detail.rows`. What of the rows must be looked up is
added by `read`, which is asked for all watched keys at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from frontend.live import states, tail
from frontend.live.feeds import Key
from frontend.live.messages import Watch
from inference.gateway.history import STEP_S
from tenants.models import User
from tenants.permissions import Caller, Permission

P = Permission

Sample = Callable[[Sequence[Key]], Awaitable[Mapping[Key, Any]]]
"""The state of each key as JSON; a key that means nothing is left out."""
Read = Callable[[Mapping[Key, Sequence[Any]]], Awaitable[Mapping[Key, Sequence[Any]]]]
"""What pages are told of the rows of each key; of a key that is left out, that they missed some."""


def everybody(caller: Caller) -> str:
    """All who may watch it see the same."""
    return ""


@dataclass(frozen=True)
class Topic:
    """Something to watch, in a tenant by those who have the permission that it `needs` there; None
    where it is no tenant's. Of the `whole` installation only operators watch it."""

    name: str
    needs: Permission | None
    whole: bool = field(default=False, kw_only=True)
    audience: Callable[[Caller], str] = field(default=everybody, kw_only=True)
    """Those with the same one see the same of a tenant."""


@dataclass(frozen=True)
class StateTopic(Topic):
    """Sampled every `every_s` seconds while it is watched."""

    sample: Sample
    every_s: float = field(default=1.0, kw_only=True)


@dataclass(frozen=True)
class EventTopic(Topic):
    """Published as it happens."""

    show: Callable[[Key, Sequence[Any]], Sequence[Any]]
    """The rows, as JSON, that a key's audience sees of these events; cheap, on the event loop."""
    read: Read | None = None


def keys_of(topics: Mapping[str, Topic], user: User, watches: Sequence[Watch]) -> list[Key | None]:
    """What each watch means for this person; None where there is nothing for him."""
    slugs = {watch.tenant for watch in watches if watch.tenant}
    callers = {slug: Caller.of_user(user, slug) for slug in slugs}
    return [key_of(topics.get(one.topic), user, callers.get(one.tenant), one) for one in watches]


def key_of(topic: Topic | None, user: User, caller: Caller | None, watch: Watch) -> Key | None:
    """Who may watch what is decided here."""
    if topic is None:
        return None
    if not watch.tenant:
        return Key(topic.name, query=watch.query) if topic.whole and user.is_staff else None
    if caller is None or topic.needs is None or not caller.may(topic.needs):
        return None
    return Key(topic.name, caller.tenant.pk, watch.query, topic.audience(caller))


_ALL: Sequence[Topic] = (
    # name, what a watcher needs in a tenant, where it comes from
    StateTopic("engines", P.READ_ADAPTERS, states.engines),
    StateTopic("fleet", None, states.fleet, whole=True),
    EventTopic(
        "requests", P.READ_OWN_USAGE, tail.show, tail.read, audience=tail.audience, whole=True
    ),
    StateTopic("figures", None, states.figures, whole=True),
    StateTopic("history", None, states.history, whole=True, every_s=STEP_S / 2),
    StateTopic("adapters", P.READ_ADAPTERS, states.adapters),
    StateTopic("steps", P.READ_TENANT, states.steps, every_s=2.0),
    StateTopic("limits", P.READ_LIMITS, states.limits, every_s=2.0),
)
TOPICS: Mapping[str, Topic] = {topic.name: topic for topic in _ALL}
