"""What an engine's failures left behind: how many there were, and which requests ran then.

In a file of the journal's folder, because the agent ends with its engine and is started again.
`inference.link.suspects` has the rules.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path

import msgspec
import structlog

from inference.agent.job import Job
from inference.errors import RequestQuarantined
from inference.link.suspects import REFUSED_AT, Suspects, digest_of
from inference.link.wire import Submit, Suspect

log = structlog.get_logger(__name__)

FILE = "failures"
DIED, HUNG = "died", "hung"
LONG_BODY_BYTES = 1 << 20


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    """The file. As in `inference.link.wire`: append fields with a default, never change one."""

    failures: int = 0
    last: str = ""
    suspects: list[Suspect] = []


class Failures:
    """Of one engine, over restarts of its agent, and what other engines' agents say of theirs."""

    def __init__(self, path: Path | None = None, kept: _Kept | None = None) -> None:
        """`path` is where it is kept; nowhere if None."""
        kept = kept or _Kept()
        self.count, self.last = kept.failures, kept.last
        self.refusals = 0
        """Of requests, in this run."""
        self._path, self._suspects = path, Suspects(kept.suspects)
        self._trial = asyncio.Lock()

    @classmethod
    def open(cls, folder: Path) -> Failures:
        """What the file in this folder says; nothing if it is damaged, for nothing hangs on it."""
        path = folder / FILE
        try:
            kept = msgspec.msgpack.decode(path.read_bytes(), type=_Kept)
        except FileNotFoundError:
            kept = _Kept()
        except (OSError, msgspec.MsgspecError) as error:
            log.warning("failures_not_read", path=str(path), error=str(error))
            kept = _Kept()
        return cls(path, kept)

    # --- requests --------------------------------------------------------------------------------

    async def recognise(self, job: Job, frame: Submit) -> None:
        """Set the job's digest; elsewhere, where that takes longer than a loop may be held."""
        if len(frame.body) < LONG_BODY_BYTES:
            job.digest = digest_of(frame)
        else:
            job.digest = await asyncio.to_thread(digest_of, frame)

    def is_suspect(self, job: Job) -> bool:
        """Whether an engine's failure counts against it.

        Raises:
            RequestQuarantined: too many do.
        """
        failures = self._suspects.failures(job.digest, time.time())
        if failures < REFUSED_AT:
            return bool(failures)
        self.refusals += 1
        log.error("request_quarantined", request_id=job.id, tenant=job.tenant, digest=job.digest)
        raise RequestQuarantined

    async def try_alone(self, job: Job) -> None:
        """Wait until no other suspect is on trial; from then this one is.

        Raises:
            RequestQuarantined: engines failed with it meanwhile.
        """
        await self._trial.acquire()
        job.on_trial = True
        self.is_suspect(job)

    def end_trial(self, job: Job) -> None:
        """It has generated something, or has ended."""
        if job.on_trial:
            job.on_trial = False
            self._trial.release()

    def ended_well(self, job: Job) -> list[Suspect]:
        """It ran to its end; what others should hear of that."""
        suspect = self._suspects.ended_well(job.digest, time.time())
        if suspect is None:
            return []
        self._keep()
        return [suspect]

    # --- engines ---------------------------------------------------------------------------------

    def note(self, how: str, run: str, ran: Sequence[Job]) -> list[Suspect]:
        """The engine failed while these ran; what others should hear of that."""
        now = time.time()
        self.count, self.last = self.count + 1, how
        charged = [
            self._suspects.failed_with(
                Suspect(job.digest, tenant=job.tenant, request_id=job.id), run, now
            )
            for job in self._charged(ran, now)
        ]
        for suspect in charged:
            if self._suspects.failures(suspect.digest, now) >= REFUSED_AT:
                log.error(
                    "request_refused_from_now",
                    request_id=suspect.request_id,
                    tenant=suspect.tenant,
                    digest=suspect.digest,
                )
        self._keep()
        return charged

    def _charged(self, ran: Sequence[Job], now: float) -> list[Job]:
        """Against which of them the failure counts: rule 4."""
        if not any(job.on_trial for job in ran):
            return list(ran)
        return [job for job in ran if job.on_trial or not self._suspects.failures(job.digest, now)]

    def heard(self, suspects: Sequence[Suspect]) -> None:
        """What other engines' agents say."""
        if self._suspects.heard(suspects):
            self._keep()

    def known(self) -> list[Suspect]:
        """All that a gateway should hear."""
        return self._suspects.all(time.time())

    def _keep(self) -> None:
        """Write the file. That it can't be is no reason to end."""
        if self._path is None:
            return
        kept = _Kept(self.count, self.last, self._suspects.all(time.time()))
        draft = self._path.with_suffix(".next")
        try:
            draft.write_bytes(msgspec.msgpack.encode(kept))
            os.replace(draft, self._path)
        except OSError as error:
            log.warning("failures_not_kept", path=str(self._path), error=str(error))
