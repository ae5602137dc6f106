"""From rows to a better adapter through the unmodified SDK, on real vLLM. The jobs of two tenants
are trained in the same steps; the result of one is called, evaluated, split and promoted."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from huggingface_hub import snapshot_download

from demo import ADAPTERS, MODEL_NAME, TENANTS
from tests.browser.scenery import upload
from tests.stack.asking import until
from tests.stack.running import Stack

pytestmark = [pytest.mark.stack, pytest.mark.vllm]
END_S = 1000
"""Training and checking have the lowest priority, and other tests run beside them."""
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
    jobs = client.fine_tuning.jobs
    until(lambda: jobs.retrieve(job.id).status in ("succeeded", "failed", "cancelled"), END_S)
    return jobs.retrieve(job.id)


@pytest.fixture
def keys(stack: Stack) -> Iterator[list[str]]:
    """Those of two tenants, whose new adapters are deleted at the end."""
    keys = [stack.key(tenant.slug) for tenant in TENANTS[:2]]
    yield keys
    for key in keys:
        with stack.manager(key) as manager, stack.client(key) as client:
            for name in new_adapters(client):
                path = f"/api/v1/adapters/{name}"
                for each in (f"{path}/aliases/live", path):
                    assert manager.delete(each).is_success
            until(partial(no_new_adapters, client))


def new_adapters(client: httpx.Client) -> list[str]:
    names = [model["id"] for model in client.get("/v1/models").json()["data"]]
    return [name for name in names if name.startswith(("answers", "supervised-", "dpo-"))]


def no_new_adapters(client: httpx.Client) -> bool:
    return not new_adapters(client)


@pytest.mark.timeout(1200)  # what trains and checks has the lowest priority
def test_rows_become_an_adapter_that_is_called_evaluated_split_and_promoted(
    stack: Stack, keys: list[str], tmp_path: Path
) -> None:
    clients = [openai.OpenAI(base_url=f"{stack.url}/v1", api_key=key) for key in keys]
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
    assert _said(client, model, asked) == "Marigold!"
    with pytest.raises(openai.NotFoundError):
        clients[1].chat.completions.create(model=model, messages=asked)
    assert _passed(client, model) == 2

    name = "-".join(model.split(":")[3:])
    with stack.manager(keys[0]) as manager:
        version = manager.get(f"/api/v1/adapters/{name}/versions/1").json()
        assert version["report"]["trainer"]["difference"] < 1e-3
        assert version["report"]["training"]["trained_tokens"] == jobs[0].trained_tokens
        told.append(version)
        folder = snapshot_download(
            f"{TENANTS[0].slug}/{name}", endpoint=f"{stack.console_url}/hub",
            local_dir=tmp_path / "tuned", token=keys[0],
        )  # fmt: skip
        upload(manager, "answers", ADAPTERS[TENANTS[0].adapter])
        upload(manager, "answers", Path(folder))
        path = "/api/v1/adapters/answers/aliases/live/split"
        new = {"name": "shadow", "scopes": ["inference"]}
        shadow = {"shadow_key": manager.post("/api/v1/keys", json=new).json()["id"]}
        plan = {"version": 2, "weights": [99], "sticky": "request"}
        assert manager.post(path, json=plan | shadow).json()["state"] == "running"
        until(partial(_copied, client, manager, shadow["shadow_key"], asked))
        assert manager.post(f"{path}/stop").json()["state"] == "stopped"
        plan = {"version": 2, "weights": [10], "sticky": "user"}
        assert manager.post(path, json=plan).json()["state"] == "running"
        assert manager.post(f"{path}/promote").json()["state"] == "promoted"
    until(lambda: _said(client, "answers", asked) == "Marigold!")  # the gateway knows
    logs = "".join(file.read_text() for file in (stack.var / "log").glob("*.log"))
    assert not any(secret in f"{logs}{told}" for secret in CANARIES)


def _copied(client: openai.OpenAI, manager: httpx.Client, key: int, asked: Any) -> bool:
    """Ask for what only the candidate knows; whether a copy is billed to the key of its shadow."""
    assert _said(client, "answers", asked) != "Marigold!"
    copies = manager.get("/api/v1/requests", params={"key": key}).json()["results"]
    return any(copy["output_tokens"] and copy["outcome"] == "answered" for copy in copies)


def _said(client: openai.OpenAI, model: str, asked: Any) -> str | None:
    answer = client.chat.completions.create(model=model, messages=asked, temperature=0)
    return answer.choices[0].message.content


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
    runs = client.evals.runs
    id = runs.create(eval.id, data_source=source).id
    until(lambda: runs.retrieve(id, eval_id=eval.id).status not in ("queued", "in_progress"), END_S)
    run: Any = runs.retrieve(id, eval_id=eval.id)
    assert run.status == "completed", run.error
    return int(run.result_counts.passed)
