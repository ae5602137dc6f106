"""Records an engine's failures: how many there were, and which requests ran then.

Kept in a file in the journal's folder, because the agent ends with its engine and is started again.
`inference.link.suspects` has the rules.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from pathlib import Path
from uuid import uuid4

import msgspec
import structlog

from inference.agent.job import Job
from inference.errors import RequestQuarantined
from inference.link.engine_info import Suspect
from inference.link.suspects import REFUSED_AT, Suspects, digest_of

log = structlog.get_logger(__name__)

FILE = "failures"
DIED, HUNG = "died", "hung"
LONG_BODY_BYTES = 1 << 20


class _Kept(msgspec.Struct, array_like=True, frozen=True):
    """The file's contents. As in `inference.link.wire`: append fields with a default, never change
    one."""

    failures: int = 0
    last: str = ""
    suspects: list[Suspect] = []


class EngineFailures:
    """One engine's failures, over restarts of its agent, and what other engines' agents report."""

    def __init__(self, path: Path | None = None, kept: _Kept | None = None) -> None:
        """`path` is the file to keep it in; None: it is not kept."""
        kept = kept or _Kept()
        self.count, self.last = kept.failures, kept.last
        self.refusals = 0
        """Requests refused in this run."""
        self.run_id = uuid4().hex
        self.how = ""
        """How the engine failed in this run; empty if it has not."""
        self.over = False
        """The agent no longer serves: an engine that ends after that has not failed on its
        requests."""
        self._path, self._suspects = path, Suspects(kept.suspects)
        self._trial = asyncio.Lock()

    @classmethod
    def open(cls, folder: Path) -> EngineFailures:
        """Read the file in this folder; a damaged one counts as empty, as nothing depends on it."""
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

    async def recognise(self, job: Job) -> None:
        """Set the job's digest; on a thread if the body is so long that it would hold up the
        event loop."""
        if len(job.request.body) < LONG_BODY_BYTES:
            job.digest = digest_of(job.request)
        else:
            job.digest = await asyncio.to_thread(digest_of, job.request)

    def is_suspect(self, job: Job) -> bool:
        """Whether an engine's failure counts against the job's request.

        Raises:
            RequestQuarantined: too many failures do.
        """
        failures = self._suspects.failures(job.digest, time.time())
        if failures < REFUSED_AT:
            return bool(failures)
        self.refusals += 1
        log.error(
            "request_quarantined", request_id=job.id, tenant=job.request.tenant, digest=job.digest
        )
        raise RequestQuarantined

    async def try_alone(self, job: Job) -> None:
        """Wait until no other suspect is on trial, then put this one on trial.

        Raises:
            RequestQuarantined: too many engines have failed with it meanwhile.
        """
        await self._trial.acquire()
        job.on_trial = True
        self.is_suspect(job)

    def end_trial(self, job: Job) -> None:
        """The job has generated something, or has ended: it is no longer on trial."""
        if job.on_trial:
            job.on_trial = False
            self._trial.release()

    def ended_well(self, job: Job) -> list[Suspect]:
        """The job ran to its end; returns what other agents should be told of that."""
        suspect = self._suspects.ended_well(job.digest, time.time())
        if suspect is None:
            return []
        self._keep()
        return [suspect]

    # --- engines ---------------------------------------------------------------------------------

    def note(self, how: str, ran: Sequence[Job]) -> list[Suspect]:
        """The engine failed while these ran; returns what other agents should be told of that."""
        now = time.time()
        self.how = self.last = how
        self.count += 1
        charged = [
            self._suspects.failed_with(
                Suspect(job.digest, tenant=job.request.tenant, request_id=job.id), self.run_id, now
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
        """The jobs against which the failure counts: rule 4."""
        if not any(job.on_trial for job in ran):
            return list(ran)
        return [job for job in ran if job.on_trial or not self._suspects.failures(job.digest, now)]

    def merge(self, suspects: Sequence[Suspect]) -> None:
        """Take in what other engines' agents report."""
        if self._suspects.merge(suspects):
            self._keep()

    def known(self) -> list[Suspect]:
        """All suspects that a gateway should be told of."""
        return self._suspects.all(time.time())

    def _keep(self) -> None:
        """Write the file; that it can't be written is logged and otherwise ignored."""
        if self._path is None:
            return
        kept = _Kept(self.count, self.last, self._suspects.all(time.time()))
        draft = self._path.with_suffix(".next")
        try:
            draft.write_bytes(msgspec.msgpack.encode(kept))
            os.replace(draft, self._path)
        except OSError as error:
            log.warning("failures_not_kept", path=str(self._path), error=str(error))
