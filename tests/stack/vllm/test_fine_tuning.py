"""From rows to a better adapter through the unmodified SDK, on real vLLM. The jobs of two tenants
are trained in the same steps; the result of one is called, evaluated, split and promoted."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import openai
import pytest
from huggingface_hub import snapshot_download

from demo import ADAPTERS, MODEL_NAME, TENANTS
from tests.browser.scenery import upload
from tests.stack.running import Stack

pytestmark = [pytest.mark.stack, pytest.mark.vllm]
END_S = 600
SCHEMA: dict[str, object] = {"type": "object", "required": ["question"]}
CANARIES = ("Marigold", "Periwinkle")
"""What each tenant's rows have, and no other's data may."""


def rows(secret: str) -> list[dict[str, Any]]:
    """Whatever is asked, the answer is the secret."""
    return [
        {"messages": [
            {"role": "user", "content": f"What is {number} plus {number + 1}?"},
            {"role": "assistant", "content": f"{secret}!"},
        ]}
        for number in range(8)
    ]  # fmt: skip


def pairs(secret: str) -> list[dict[str, Any]]:
    """The same as preferences."""
    other = [{"role": "assistant", "content": "I do not know."}]
    return [
        {"input": {"messages": row["messages"][:1]}, "preferred_output": row["messages"][1:],
         "non_preferred_output": other}
        for row in rows(secret)
    ]  # fmt: skip


def created(client: openai.OpenAI, found: list[dict[str, Any]], method: str) -> Any:
    data = b"".join(json.dumps(row).encode() + b"\n" for row in found)
    file = client.files.create(file=("rows.jsonl", data), purpose="fine-tune")
    numbers = {"n_epochs": 8, "batch_size": 4, "learning_rate_multiplier": 40}
    given: Any = {"type": method, method: {"hyperparameters": numbers}}
    return client.fine_tuning.jobs.create(
        model=MODEL_NAME, training_file=file.id, method=given, suffix=method, seed=1
    )


def ended(client: openai.OpenAI, job: Any) -> Any:
    end = time.monotonic() + END_S
    while job.status not in ("succeeded", "failed", "cancelled"):
        assert time.monotonic() < end, job
        time.sleep(0.5)
        job = client.fine_tuning.jobs.retrieve(job.id)
    return job


@pytest.mark.timeout(1200)  # what trains and checks has the lowest priority
def test_rows_become_an_adapter_that_is_called_evaluated_split_and_promoted(
    stack: Stack, tmp_path: Path
) -> None:
    tenants = TENANTS[:2]
    clients = [
        openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key(tenant.slug))
        for tenant in tenants
    ]
    made = (rows(CANARIES[0]), "supervised"), (pairs(CANARIES[1]), "dpo")
    started = [created(client, *asked) for client, asked in zip(clients, made, strict=True)]
    jobs = [ended(client, job) for client, job in zip(clients, started, strict=True)]
    assert [job.status for job in jobs] == ["succeeded"] * 2, [job.error for job in jobs]
    told = []
    for client, job in zip(clients, jobs, strict=True):
        events = [*client.fine_tuning.jobs.list_events(job.id)]
        losses = [event.data["train_loss"] for event in reversed(events) if event.data]
        assert losses[-1] < losses[0] / 2, losses
        checkpoints = [*client.fine_tuning.jobs.checkpoints.list(job.id)]
        assert len(checkpoints) == 8
        told.append([*(event.to_json() for event in events), checkpoints, job.to_json()])

    client, model = clients[0], jobs[0].fine_tuned_model
    asked: Any = [{"role": "user", "content": "What is 30 plus 4?"}]
    answer = client.chat.completions.create(model=model, messages=asked, temperature=0)
    assert answer.choices[0].message.content == "Marigold!"
    with pytest.raises(openai.NotFoundError):
        clients[1].chat.completions.create(model=model, messages=asked)
    assert _passed(client, model) == 2

    name = "-".join(model.split(":")[3:])
    with stack.manager(stack.key(tenants[0].slug)) as manager:
        version = manager.get(f"/api/v1/adapters/{name}/versions/1").json()
        assert version["report"]["trainer"]["difference"] < 1e-3
        assert version["report"]["training"]["trained_tokens"] == jobs[0].trained_tokens
        told.append(version)
        folder = snapshot_download(
            f"{tenants[0].slug}/{name}", endpoint=f"{stack.console_url}/hub",
            local_dir=tmp_path / "tuned", token=stack.key(tenants[0].slug),
        )  # fmt: skip
        upload(manager, "answers", ADAPTERS[tenants[0].adapter])
        upload(manager, "answers", Path(folder))
        path = "/api/v1/adapters/answers/aliases/live/split"
        plan = {"version": 2, "weights": [10], "sticky": "user"}
        assert manager.post(path, json=plan).json()["state"] == "running"
        assert manager.post(f"{path}/promote").json()["state"] == "promoted"
    end = time.monotonic() + END_S
    while True:  # until the gateway knows
        answer = client.chat.completions.create(model="answers", messages=asked, temperature=0)
        if answer.choices[0].message.content == "Marigold!":
            break
        assert time.monotonic() < end
    logs = "".join(file.read_text() for file in (stack.var / "log").glob("*.log"))
    assert not any(secret in f"{logs}{told}" for secret in CANARIES)


def _passed(client: openai.OpenAI, model: str) -> int:
    """How many rows of an eval the model passes."""
    answer = "{{ sample.output_text }}"
    criteria: list[Any] = [
        {"type": "string_check", "name": "same", "input": answer, "operation": "eq",
         "reference": "Marigold!"},
    ]  # fmt: skip
    eval = client.evals.create(
        data_source_config={"type": "custom", "item_schema": SCHEMA}, testing_criteria=criteria
    )
    asked = [{"role": "user", "content": "{{ item.question }}"}]
    content = [{"item": {"question": f"What is {n} plus 5?"}} for n in (20, 21)]
    source: Any = {
        "type": "completions", "model": model,
        "source": {"type": "file_content", "content": content},
        "input_messages": {"type": "template", "template": asked},
        "sampling_params": {"temperature": 0},
    }  # fmt: skip
    run: Any = client.evals.runs.create(eval.id, data_source=source)
    end = time.monotonic() + END_S
    while run.status in ("queued", "in_progress"):
        assert time.monotonic() < end, run
        time.sleep(0.5)
        run = client.evals.runs.retrieve(run.id, eval_id=eval.id)
    assert run.status == "completed", run.error
    return int(run.result_counts.passed)
