"""Tasks that run as long as their process: whatever ends one is logged, and it is restarted."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any

import structlog

log = structlog.get_logger(__name__)

BACKOFF_S = (0.5, 30.0)
"""Shortest and longest pause before a restart; pauses double."""
STEADY_S = 60.0
"""After a run of this length the next pause is the shortest again."""
CANCEL_AGAIN_S = 0.1


async def ended(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancel these tasks, and wait until they have ended.

    A library may swallow a cancellation that arrives at the same moment as the result that it waits
    for, so tasks are cancelled again every CANCEL_AGAIN_S until they end.
    """
    waiting = set(tasks)
    while waiting:
        for task in waiting:
            task.cancel()
        over, waiting = await asyncio.wait(waiting, timeout=CANCEL_AGAIN_S)
        await asyncio.gather(*over, return_exceptions=True)  # their outcome does not matter


async def supervised(
    name: str,
    work: Callable[[], Awaitable[object]],
    backoff_s: tuple[float, float] = BACKOFF_S,
    *,
    may_return: bool = False,
) -> None:
    """Run the endless `work()` until this is cancelled: whatever ends it is logged, and after a
    pause it runs again. Work that `may_return` has then ended, and so has this."""
    pause_s, longest_s = backoff_s
    while True:
        began = time.monotonic()
        failure: Exception | None = None
        try:
            await work()
            if may_return:
                return
        except Exception as error:
            failure = error
        if time.monotonic() - began >= STEADY_S:
            pause_s = backoff_s[0]
        event = "task_returned" if failure is None else "task_ended"
        log.error(event, task=name, again_in_s=pause_s, exc_info=failure)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, longest_s)


def in_background(
    tasks: set[asyncio.Task[None]], work: Coroutine[Any, Any, None], name: str | None = None
) -> asyncio.Task[None]:
    """Run `work` in a task, which is kept in `tasks` until it ends; its exception is logged."""
    task = asyncio.create_task(work, name=name)
    tasks.add(task)
    task.add_done_callback(tasks.discard)
    task.add_done_callback(_log_failure)
    return task


def _log_failure(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        log.error("task_failed", task=task.get_name(), exc_info=error)
