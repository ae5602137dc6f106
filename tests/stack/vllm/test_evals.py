"""An eval through OpenAI's unmodified SDK: a tenant's adapter answers, its base model judges."""

from __future__ import annotations

import time
from typing import Any

import openai
import pytest

from demo import MODEL_NAME, TENANTS
from tests.stack.running import Stack
from tests.stack.test_batches import END_S

pytestmark = [pytest.mark.stack, pytest.mark.vllm]


@pytest.mark.timeout(900)  # two batches beside other tests
def test_an_adapter_is_evaluated_with_graders_of_all_kinds(stack: Stack) -> None:
    tenant = TENANTS[0]
    client = openai.OpenAI(base_url=f"{stack.url}/v1", api_key=stack.key(tenant.slug))
    answer = "{{ sample.output_text }}"
    criteria: list[Any] = [
        {"type": "text_similarity", "name": "near", "input": answer, "pass_threshold": 0.0,
         "reference": "{{ item.answer }}", "evaluation_metric": "fuzzy_match"},
        {"type": "label_model", "name": "polite", "model": MODEL_NAME,
         "input": [{"role": "user", "content": f"Polite or rude? {answer}"}],
         "labels": ["polite", "rude"], "passing_labels": ["polite", "rude"]},
        {"type": "score_model", "name": "good", "model": MODEL_NAME, "range": [0, 9],
         "input": [{"role": "user", "content": f"Rate: {answer}"}], "pass_threshold": 0},
        {"type": "logprob", "name": "sure", "pass_threshold": -100},
    ]  # fmt: skip
    schema: dict[str, object] = {"type": "object", "required": ["question", "answer"]}
    eval = client.evals.create(
        data_source_config={"type": "custom", "item_schema": schema}, testing_criteria=criteria
    )
    rows = [
        {"item": {"question": "What is the capital of Peru?", "answer": "Lima"}},
        {"item": {"question": "Say hello.", "answer": "Hello"}},
    ]
    asked = [{"role": "user", "content": "{{ item.question }}"}]
    source: Any = {
        "type": "completions", "model": tenant.adapter,
        "source": {"type": "file_content", "content": rows},
        "input_messages": {"type": "template", "template": asked},
        "sampling_params": {"temperature": 0, "max_completion_tokens": 12},
    }  # fmt: skip
    run: Any = client.evals.runs.create(eval.id, data_source=source)
    end = time.monotonic() + END_S
    while run.status in ("queued", "in_progress"):
        assert time.monotonic() < end, run
        time.sleep(0.2)
        run = client.evals.runs.retrieve(run.id, eval_id=eval.id)
    assert run.status == "completed", run.error
    items = [*client.evals.runs.output_items.list(run.id, eval_id=eval.id)]
    assert [item.status for item in items] == ["pass", "pass"], items
    usage = {one.model_name: one.invocation_count for one in run.per_model_usage}
    assert usage[MODEL_NAME] == 4 and sum(usage.values()) == 6
    same = client.chat.completions.create(
        model=tenant.adapter, temperature=0, max_completion_tokens=12,
        messages=[{"role": "user", "content": rows[0]["item"]["question"]}],
    )  # fmt: skip
    assert items[0].sample.output[0].content == same.choices[0].message.content
