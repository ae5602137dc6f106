"""Background jobs that are queued in PostgreSQL or running, by their locks."""

from __future__ import annotations

from typing import Any

from procrastinate.contrib.django.models import ProcrastinateJob
from procrastinate.tasks import Task

UNFINISHED = ("todo", "doing")


def has_job(lock: str) -> bool:
    """Whether a job with this lock is queued or running."""
    jobs = ProcrastinateJob.objects.filter(lock=lock, status__in=UNFINISHED)
    return bool(jobs.exists())


def defer_once(task: Task[..., Any, Any], lock: str, **arguments: Any) -> bool:
    """Queue a job with this lock, unless there is one; returns whether it was queued."""
    if has_job(lock):
        return False
    task.configure(queueing_lock=lock, lock=lock).defer(**arguments)
    return True
