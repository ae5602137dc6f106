"""Requests with which engines failed: known everywhere, refused the second time.

Rules
    1. A request is known by a digest of who asks for what (`digest_of`), so a client that sends it
       again sends the same one, and nobody else's request has that digest.
    2. It is a *suspect* while an engine's failure counts against it, and refused while the failures
       of two runs of engines do.
    3. A failure counts for FORGET_S, and only until the request has run to its end somewhere.
    4. A failure counts against all that ran then. But suspects start one after another (the agent
       sees to that): while one of them has no token yet, it is *on trial*, and a failure then
       counts against that one and not against other suspects. So the neighbours of a request that
       kills engines are not refused, though their clients send them again together with it.

Theory of operation: each agent keeps what it knows on its disk, tells the gateways of what changed,
and they tell the other agents. Failures are a set by run, a good end is a time of which the latest
counts: so what is heard twice, late, or in another order changes nothing (a CRDT).

Times are unix times in seconds, because they cross machines.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Iterable

import msgspec

from inference.link.wire import Submit, Suspect

FORGET_S = 3600.0
"""How long a failure counts: longer than clients try again by themselves."""
REFUSED_AT = 2
"""Failures that count, at which a request is refused."""
MAX_KNOWN = 4096
"""Requests; the ones heard of longest ago are forgotten."""
MAX_DEATHS = 8
"""That are kept of one request."""


def digest_of(frame: Submit) -> str:
    """Names what a frame asks for, and for whom (hexadecimal). About a second for each GB."""
    adapter = frame.adapter.digest if frame.adapter else ""
    whole = hashlib.blake2b(
        "\0".join((frame.tenant, frame.kind, adapter, "")).encode(), digest_size=16
    )
    whole.update(frame.body)
    return whole.hexdigest()


class Suspects:
    """What is known of requests with which engines failed."""

    def __init__(self, known: Iterable[Suspect] = ()) -> None:
        self._known: OrderedDict[str, Suspect] = OrderedDict()
        for suspect in known:
            self._keep(suspect)

    def failures(self, digest: str, now: float) -> int:
        """Of engines, that count against this request now."""
        suspect = self._known.get(digest)
        return 0 if suspect is None else len(_counting(suspect, now))

    def refused(self, now: float) -> list[Suspect]:
        """Those that are refused now, the newest last."""
        return [one for one in self._known.values() if len(_counting(one, now)) >= REFUSED_AT]

    def all(self, now: float) -> list[Suspect]:
        """What others should know; what is older than FORGET_S is forgotten."""
        for suspect in list(self._known.values()):
            if not _lately(suspect, now - FORGET_S, now):
                del self._known[suspect.digest]
        return list(self._known.values())

    def failed_with(self, suspect: Suspect, run: str, now: float) -> Suspect:
        """An engine failed in this run, and the failure counts against this request; what is known
        of it then."""
        return self._keep(msgspec.structs.replace(suspect, deaths={run: now}))

    def ended_well(self, digest: str, now: float) -> Suspect | None:
        """The request ran to its end; what others should hear of that, if anything counted."""
        suspect = self._known.get(digest)
        if suspect is None or not _counting(suspect, now):
            return None
        return self._keep(msgspec.structs.replace(suspect, ended_well_at=now))

    def heard(self, told: Iterable[Suspect]) -> list[Suspect]:
        """Others say this; what of it was news, as it is known now."""
        news = list[Suspect]()
        for suspect in told:
            before = self._known.get(suspect.digest)
            if (after := self._keep(suspect)) != before:
                news.append(after)
        return news

    def _keep(self, suspect: Suspect) -> Suspect:
        """Together with what is known of it."""
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
    """The runs whose failure counts against it."""
    return _lately(suspect, max(suspect.ended_well_at, now - FORGET_S), now)


def _lately(suspect: Suspect, since: float, now: float) -> list[str]:
    """Of the runs, those that ended since then; one whose clock is hours ahead is not believed."""
    return [run for run, at in suspect.deaths.items() if since < at < now + FORGET_S]
