"""Requests that were running when engines failed: known on every engine, refused after the second
failure.

Rules
    1. A request is identified by a digest of its tenant and content (`digest_of`), so a client's
       retry has the same digest, and no other tenant's request has it.
    2. It is a *suspect* while an engine's failure counts against it, and is refused while failures
       of two engine runs do.
    3. A failure counts for FORGET_S, and only until the request has run to its end somewhere.
    4. A failure counts against all requests running at that time. But the agent starts suspects one
       after another: while one of them has no token yet, it is *on trial*, and a failure then
       counts against that one and not against other suspects. So the neighbours of a request that
       kills engines are not refused, though their clients retry them together with it.

Theory of operation: each agent stores what it knows on its disk and reports changes to the
gateways, which pass them to the other agents. Failures are a set keyed by run; of successful ends
only the latest time counts. So reports that arrive twice, late or out of order change nothing (a
CRDT).

Times are unix times in seconds, because they cross machines.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from inference.link.engine_info import Suspect
from inference.link.wire import Submit

FORGET_S = 3600.0
"""How long a failure counts: longer than clients retry automatically."""
REFUSED_AT = 2
"""The number of counting failures from which a request is refused."""
MAX_KNOWN = 4096
"""Most requests remembered; the ones least recently reported are forgotten."""
MAX_DEATHS = 8
"""Most failures remembered of one request; the newest."""


def digest_of(frame: Submit) -> str:
    """Identifies the tenant and content of a request (hexadecimal). About a second per GB."""
    adapter = frame.adapter.digest if frame.adapter else ""
    whole = hashlib.blake2b(
        "\0".join((frame.tenant, frame.kind, adapter, "")).encode(), digest_size=16
    )
    whole.update(frame.body)
    return whole.hexdigest()


class Suspects:
    """The suspects that are known here."""

    def __init__(self, known: Iterable[Suspect] = ()) -> None:
        self._known: OrderedDict[str, Suspect] = OrderedDict()
        for suspect in known:
            self._keep(suspect)

    def failures(self, digest: str, now: float) -> int:
        """The number of engine failures that count against this request now."""
        suspect = self._known.get(digest)
        return 0 if suspect is None else len(_counting(suspect, now))

    def refused(self, now: float) -> list[Suspect]:
        """The requests that are refused now, the most recently reported last."""
        return [one for one in self._known.values() if len(_counting(one, now)) >= REFUSED_AT]

    def all(self, now: float) -> list[Suspect]:
        """All suspects, to tell others; forgets those whose failures are older than FORGET_S."""
        for suspect in list(self._known.values()):
            if not _lately(suspect, now - FORGET_S, now):
                del self._known[suspect.digest]
        return list(self._known.values())

    def failed_with(self, suspect: Suspect, run: str, now: float) -> Suspect:
        """Record that the engine failed in this run with this request; returns the updated
        suspect."""
        return self._keep(msgspec.structs.replace(suspect, deaths={run: now}))

    def ended_well(self, digest: str, now: float) -> Suspect | None:
        """Record that the request ran to its end; returns the updated suspect, to tell others, if
        any failure counted against it."""
        suspect = self._known.get(digest)
        if suspect is None or not _counting(suspect, now):
            return None
        return self._keep(msgspec.structs.replace(suspect, ended_well_at=now))

    def merge(self, reported: Iterable[Suspect]) -> list[Suspect]:
        """Merge what others report; returns the suspects that changed, as updated."""
        news = list[Suspect]()
        for suspect in reported:
            before = self._known.get(suspect.digest)
            if (after := self._keep(suspect)) != before:
                news.append(after)
        return news

    def _keep(self, suspect: Suspect) -> Suspect:
        """Merge it with what is known; returns the result."""
        before = self._known.pop(suspect.digest, suspect)
        deaths = before.deaths | suspect.deaths
        newest = sorted(deaths, key=lambda run: (deaths[run], run))[-MAX_DEATHS:]
        newer = max(before, suspect, key=lambda one: max(one.deaths.values(), default=0.0))
        kept = Suspect(
            suspect.digest,
            {run: deaths[run] for run in newest},
            max(before.ended_well_at, suspect.ended_well_at),
            newer.tenant,
            newer.request_id,
        )
        self._known[suspect.digest] = kept
        if len(self._known) > MAX_KNOWN:
            self._known.popitem(last=False)
        return kept


def _counting(suspect: Suspect, now: float) -> list[str]:
    """The runs whose failures count against it."""
    return _lately(suspect, max(suspect.ended_well_at, now - FORGET_S), now)


def _lately(suspect: Suspect, since: float, now: float) -> list[str]:
    """The runs that failed after `since`; ignores times more than FORGET_S in the future, from a
    wrong clock."""
    return [run for run, at in suspect.deaths.items() if since < at < now + FORGET_S]
