"""Endless tasks: an exception that ends one is logged, and the task is restarted."""

from __future__ import annotations

import asyncio

import pytest
import structlog

from inference.process.supervision import ended, in_background, supervised


async def test_a_failed_task_is_logged_and_restarted() -> None:
    runs: list[int] = []

    async def work() -> None:
        runs.append(len(runs))
        if len(runs) < 3:
            raise ValueError("of no use")

    with structlog.testing.capture_logs() as logs:
        await supervised("beating", work, (0.001, 0.002), may_return=True)
    assert len(runs) == 3
    assert [(one["event"], one["task"]) for one in logs] == [("task_ended", "beating")] * 2
    assert [one["again_in_s"] for one in logs] == [0.001, 0.002]


async def test_a_task_that_returns_is_logged_and_restarted() -> None:
    third = asyncio.Event()
    runs: list[int] = []

    async def work() -> None:
        runs.append(len(runs))
        if len(runs) == 3:
            third.set()

    with structlog.testing.capture_logs() as logs:
        task = asyncio.create_task(supervised("beating", work, (0.001, 0.002)))
        async with asyncio.timeout(60):
            await third.wait()
        await ended([task])
    said = {"event": "task_returned", "task": "beating", "log_level": "error"}
    assert logs[:2] == [
        said | {"again_in_s": pause_s, "exc_info": None} for pause_s in (0.001, 0.002)
    ]


async def test_an_exception_that_ends_a_task_is_logged() -> None:
    async def work(error: Exception | None) -> None:
        if error is not None:
            raise error

    error = ValueError("of no use")
    tasks: set[asyncio.Task[None]] = set()
    with structlog.testing.capture_logs() as logs:
        in_background(tasks, work(None))
        in_background(tasks, work(error), "failing")
        in_background(tasks, asyncio.sleep(1_000), "cancelled")
        (waiting,) = (task for task in tasks if task.get_name() == "cancelled")
        waiting.cancel()
        await asyncio.wait({*tasks})
    assert tasks == set(), "kept until they end"
    said = {"event": "task_failed", "task": "failing", "log_level": "error"}
    assert logs == [said | {"exc_info": error}]


async def test_a_swallowed_cancellation_is_repeated() -> None:
    heard: list[bool] = []

    async def deaf_at_first() -> None:
        while len(heard) < 2:
            try:
                await asyncio.sleep(1_000)
            except asyncio.CancelledError:
                heard.append(True)

    tasks = [asyncio.create_task(deaf_at_first()), asyncio.create_task(asyncio.sleep(0))]
    await asyncio.sleep(0)
    await ended(tasks)
    assert len(heard) == 2 and all(task.done() for task in tasks)


async def test_it_ends_when_it_is_cancelled() -> None:
    began = asyncio.Event()

    async def work() -> None:
        began.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(supervised("waiting", work))
    await began.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
