"""A tenant whose batches are answered by a function."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import openai
import pytest
from django.conf import settings
from django.test import override_settings

from tenants.batch_states import Status
from tenants.batches import jobs as batches
from tenants.evals import runs
from tenants.files import blobs
from tenants.models import Batch, BatchLine, EvalRun
from tests.batches.conftest import base, files_dir, no_jobs, secret, tenant, with_sdk

__all__ = ["base", "files_dir", "no_jobs", "secret", "tenant"]

Answer = Callable[[dict[str, Any]], tuple[int, dict[str, Any]]]
"""Answers the body of a request with a status and a body."""
Sdk = Callable[[Callable[[openai.AsyncOpenAI], Any]], Any]


def jsonl(rows: Sequence[Any]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def completion(text: str, **choice: Any) -> dict[str, Any]:
    """The body of an answer with this text."""
    message = {"role": "assistant", "content": text}
    usage = {
        "prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12,
        "prompt_tokens_details": {"cached_tokens": 4},
    }  # fmt: skip
    choices = [{"index": 0, "finish_reason": "stop", "message": message, **choice}]
    return {"model": "base", "choices": choices, "usage": usage}


@pytest.fixture
def sdk(secret: str) -> Sdk:
    """Runs a script with OpenAI's unmodified SDK, and returns what it returns."""

    return partial(with_sdk, secret)


def go_on(run_id: str, answer: Answer) -> EvalRun:
    """Run the jobs of a run and of its batches, whose lines are answered with `answer`."""
    while True:
        with override_settings():
            del settings.INTERNAL_TOKEN  # workers have none
            runs.go_on_with(run_id=run_id)
        run = EvalRun.objects.select_related("eval__tenant", "samples", "verdicts").get(pk=run_id)
        if run.ended_at is not None:
            return run
        for batch in Batch.objects.unfinished():
            _answered(batch, answer)


def _answered(batch: Batch, answer: Answer) -> None:
    batches.read_batch(batch_id=batch.pk)
    batch.refresh_from_db()
    if batch.status != Status.IN_PROGRESS:
        return
    with blobs.open(batch.input_file_id) as file:
        for number, line in enumerate(file, 1):
            status, body = answer(json.loads(line)["body"])
            BatchLine.objects.create(
                batch=batch,
                number=number,
                status_code=status,
                body=json.dumps(body).encode(),
                first_token_ms=10.0,
                total_ms=100.0 * number,
            )
    batch.advance(Status.FINALIZING)
    batches.write_batch(batch_id=batch.pk)
