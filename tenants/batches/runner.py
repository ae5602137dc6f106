"""Runs batches: the part of a worker process that works with leases instead of jobs.

1. A batch that has been read and that no worker has is leased (`leases`).
2. Its lines, except those that have answers, are read from its file and sent to gateways as far as
   its window allows (`window`). Gateways dispatch them to engines (`inference.gateway.lines`).
3. Answers are written every FLUSH_S, which also renews the lease.
4. Once all lines have answers, or the batch is cancelled or expired and none of its lines runs any
   more, its output files are written (`jobs.write_batch`).

Whatever is killed, answers that were not written are requested again, in a higher turn. A batch is
one asyncio task, however many lines it has. A background response takes the same path, as a batch
of one line (`response_leases`); only gateways see its request and its answer.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from functools import partial
from typing import TypeVar

import structlog
from django.db import DatabaseError, connection

from inference.gateway.lines.frames import AskLine, LineAnswer, LineNews, WithdrawBatch
from inference.process.supervision import in_background, supervised
from tenants.batch_states import Status
from tenants.batches.batch_leases import BatchLease
from tenants.batches.gateways import BatchGateways
from tenants.batches.leases import Lease, Lost, Result
from tenants.batches.response_leases import ResponseLease
from tenants.batches.sources import BatchSource
from tenants.batches.window import BatchWindow, LineVerdict, OutOfTurns, WindowLine
from tenants.models import GatewayProcess

log = structlog.get_logger(__name__)
T = TypeVar("T")

KINDS: tuple[type[Lease], ...] = (BatchLease, ResponseLease)
"""The kinds of leases that are claimed."""
POLL_S = 1.0
"""Time between searches for batches and gateways."""
FLUSH_S = 0.2
FLUSH_LINES = 500
"""Answers are written this often, or as soon as there are this many."""
THREADS = 4
"""Threads that read files and query the database."""
MAX_RESULTS = 4 * FLUSH_LINES
MAX_RESULT_BYTES = 32 << 20
"""Answers that may wait to be written. Beyond either bound, which is reached while the database is
down, no lines are sent."""


class BatchRunner:
    """All batches of one worker process."""

    def __init__(self, token: str) -> None:
        self._threads = ThreadPoolExecutor(THREADS, thread_name_prefix="batches")
        self._gateways = BatchGateways(self, token)
        self._running: dict[str, RunningBatch] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Run until cancelled, then release the batches for other workers."""
        try:
            await supervised("batches", self._poll)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
            await self._gateways.close()
            for _ in range(THREADS):
                self._threads.submit(connection.close)
            self._threads.shutdown()

    async def in_thread(self, function: Callable[[], T]) -> T:
        """Call a function that reads files or queries the database, in a thread."""

        def called() -> T:
            try:
                return function()
            except DatabaseError:
                connection.close()  # so that the next call gets a working one
                raise

        return await asyncio.get_running_loop().run_in_executor(self._threads, called)

    async def _poll(self) -> None:
        while True:
            self._gateways.set(await self.in_thread(_live_gateways))
            for kind in KINDS:
                taken = sum(type(one.lease) is kind for one in self._running.values())
                for lease in await self.in_thread(partial(kind.claim, kind.MAX_LEASES - taken)):
                    self._start(lease)
            await asyncio.sleep(POLL_S)

    def _start(self, lease: Lease) -> None:
        if lease.id in self._running:  # its lease ran out here, and it has not noticed yet
            return
        running = self._running[lease.id] = RunningBatch(self, self._gateways, lease)
        in_background(self._tasks, self._run(running), lease.id)

    async def _run(self, running: RunningBatch) -> None:
        lease = running.lease
        log.info("batch_leased", batch=lease.id, run=lease.run)
        try:
            await running.run()
        except asyncio.CancelledError:
            await self.in_thread(partial(lease.release, running.results))
            raise
        except Lost:
            log.info("batch_lease_lost", batch=lease.id, run=lease.run)
        except OutOfTurns:
            await self.in_thread(partial(lease.release, running.results))
        except Exception:
            log.exception("batch_run_failed", batch=lease.id)
        finally:
            del self._running[lease.id]
            for gateway in self._gateways.open:
                self._gateways.post(gateway, WithdrawBatch(lease.id))

    # --- what gateways say (gateways.Owner) ------------------------------------------------------

    def joined(self, gateway: str) -> None:
        for running in self._running.values():
            running.joined(gateway)

    def on_news(self, gateway: str, news: LineNews) -> None:
        for id, number in news.begun:
            if (running := self._running.get(id)) is not None:
                running.begun(gateway, number)
        for answer in news.answers:
            if (running := self._running.get(answer.batch)) is not None:
                running.answered(gateway, answer)

    def lost(self, gateway: str) -> None:
        for running in self._running.values():
            running.lost(gateway)


def _live_gateways() -> list[str]:
    return [*GatewayProcess.objects.alive().values_list("url", flat=True)]


class RunningBatch:
    """A batch that this worker has leased."""

    def __init__(self, runner: BatchRunner, gateways: BatchGateways, lease: Lease) -> None:
        self.lease = lease
        self._runner, self._gateways = runner, gateways
        self._window = BatchWindow(lease.run)
        self._news = asyncio.Event()
        self.results: list[Result] = []
        """Answers that are not written yet."""
        self._result_bytes = 0
        self._flushed_at = time.monotonic()
        self._ahead: deque[tuple[WindowLine, bytes]] = deque()
        """Lines that were read from the source and not sent yet."""
        self._ready: tuple[WindowLine, bytes] | None = None
        """The next line to send."""
        self._ending: Status | None = None
        self._code = ""

    async def run(self) -> None:
        """Run until all lines have answers, or until the batch ends without them.

        Raises:
            Lost: another worker has the batch.
            OutOfTurns: another worker has to continue it.
        """
        for gateway in self._gateways.open:
            self.joined(gateway)
        with closing(await self._runner.in_thread(self.lease.open)) as source:
            while not self._is_over(source):
                await self._send(source)
                await self._pause()
                if time.monotonic() >= self._flush_at:
                    await self._flush()
        await self._insist(partial(self.lease.renew, self.results))
        ending = self._ending or Status.COMPLETED
        await self._insist(partial(self.lease.finish, ending, self._code))

    # --- news of gateways ------------------------------------------------------------------------

    def joined(self, gateway: str) -> None:
        self._gateways.post(gateway, self.lease.opening)
        self._window.joined(gateway)
        self._news.set()

    def lost(self, gateway: str) -> None:
        self._window.lost(gateway, time.monotonic())
        self._news.set()

    def begun(self, gateway: str, number: int) -> None:
        self._window.begun(gateway, number)
        if not self.lease.begun:
            self.lease.begun, self._flushed_at = True, -math.inf  # flush at once, to store that
        self._news.set()

    def answered(self, gateway: str, answer: LineAnswer) -> None:
        verdict = self._window.answered(gateway, answer, time.monotonic())
        if verdict is LineVerdict.DONE:
            usage, code = answer.usage, answer.code
            result = Result(answer.number, answer.status, answer.body, usage, code)
            self.results.append(result)
            self._result_bytes += len(answer.body)
        elif verdict is LineVerdict.KEY_ENDED:
            self._end(Status.CANCELLED, answer.code)
        self._news.set()

    # --- sending ---------------------------------------------------------------------------------

    def _is_over(self, source: BatchSource) -> bool:
        unsent = self._ahead or self._ready is not None or not source.exhausted
        return self._window.empty and (self._window.closed or not unsent)

    @property
    def _full(self) -> bool:
        return len(self.results) >= MAX_RESULTS or self._result_bytes >= MAX_RESULT_BYTES

    async def _send(self, source: BatchSource) -> None:
        """Send the lines that the window allows now."""
        while self._window.gateway(time.monotonic()) and not self._full:
            if self._ready is None:
                self._ready = await self._next(source)
            gateway = self._window.gateway(time.monotonic())
            if self._ready is None or gateway is None:  # it was lost meanwhile
                return
            (line, body), self._ready = self._ready, None
            turn = self._window.sent(line, gateway)
            self._gateways.post(gateway, AskLine(self.lease.id, line.number, turn, body))

    async def _next(self, source: BatchSource) -> tuple[WindowLine, bytes] | None:
        """The next line with its request's body: one that is due again, or else a new one."""
        if (line := self._window.again(time.monotonic())) is not None:
            return line, await self._runner.in_thread(partial(source.body, line))
        if not self._ahead and not source.exhausted:
            self._ahead.extend(await self._runner.in_thread(source.ahead))
        return self._ahead.popleft() if self._ahead else None

    # --- writing ---------------------------------------------------------------------------------

    @property
    def _flush_at(self) -> float:
        if len(self.results) >= FLUSH_LINES or self._result_bytes >= MAX_RESULT_BYTES:
            return self._flushed_at
        return self._flushed_at + (FLUSH_S if self.results else self.lease.RENEW_S)

    async def _pause(self) -> None:
        """Wait until there is something to do."""
        now = time.monotonic()
        due = [at for at in (self._flush_at, self._window.next_at(now)) if at is not None]
        with suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, min(due) - now)):
                await self._news.wait()
        self._news.clear()

    async def _insist(self, function: Callable[[], object]) -> None:
        """Call the function in a thread, again and again until the database is up.

        Raises:
            Lost: another worker has the batch.
        """
        while True:
            try:
                await self._runner.in_thread(function)
                return
            except DatabaseError as error:
                log.warning("batch_not_written", batch=self.lease.id, reason=str(error))
                await asyncio.sleep(POLL_S)

    async def _flush(self) -> None:
        """Write answers, and end the batch if it was cancelled or has expired."""
        results, self.results = self.results, []
        size, self._result_bytes = self._result_bytes, 0
        self._flushed_at = time.monotonic()
        try:
            status = await self._runner.in_thread(partial(self.lease.renew, results))
        except DatabaseError as error:  # it can be written again even if it was written
            log.warning("batch_not_written", batch=self.lease.id, reason=str(error))
            self.results = results + self.results
            self._result_bytes += size
            self._flushed_at = time.monotonic() + POLL_S
            return
        if status is Status.CANCELLING:
            self._end(Status.CANCELLED)
        elif self.lease.expired:
            self._end(Status.EXPIRED)

    def _end(self, ending: Status, code: str = "") -> None:
        """Send no more lines; those that engines have begun are still finished."""
        if self._ending is None:
            self._ending, self._code = ending, code
            self._window.closed = True
            for gateway in self._gateways.open:
                self._gateways.post(gateway, WithdrawBatch(self.lease.id))
            self._news.set()
