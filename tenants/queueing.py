"""Jobs that wait in PostgreSQL, or run, by the locks that they hold."""

from __future__ import annotations

from typing import Any

from procrastinate.contrib.django.models import ProcrastinateJob
from procrastinate.tasks import Task

UNFINISHED = ("todo", "doing")


def has_job(lock: str) -> bool:
    """Whether one with this lock waits or runs."""
    jobs = ProcrastinateJob.objects.filter(lock=lock, status__in=UNFINISHED)
    return bool(jobs.exists())


def defer_once(task: Task[..., Any, Any], lock: str, **arguments: Any) -> bool:
    """Queue a job with this lock, unless there is one; whether that was done."""
    if has_job(lock):
        return False
    task.configure(queueing_lock=lock, lock=lock).defer(**arguments)
    return True
