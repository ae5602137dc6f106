"""A batch as its developer watches it: progress, errors, answers, and cancelling."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from openai import OpenAI
from playwright.sync_api import Page, expect

from demo import MODEL_NAME
from tests.browser.people import Customer, follow, go, live_state

pytestmark = pytest.mark.stack


def begin(program: OpenAI, count: int, **body: Any) -> str:
    """Create a batch. Returns its id."""
    messages = [{"role": "user", "content": "Hello"}]
    body = {"model": MODEL_NAME, "messages": messages, "max_tokens": 4} | body
    line = {"method": "POST", "url": "/v1/chat/completions", "body": body}
    lines = [json.dumps(line | {"custom_id": str(number)}).encode() for number in range(count)]
    file = program.files.create(file=("lines.jsonl", b"\n".join(lines)), purpose="batch")
    return program.batches.create(
        input_file_id=file.id, endpoint="/v1/chat/completions", completion_window="24h"
    ).id


def test_a_batch_is_watched_and_its_answers_are_downloaded(owner: Page, customer: Customer) -> None:
    go(owner, "Batches")
    expect(owner.get_by_role("main")).to_contain_text("No batches yet")
    expect(live_state(owner)).to_have_text("Live")
    with customer.program(customer.key()) as program:
        id = begin(program, 12)
        row = owner.get_by_role("row", name=id)
        expect(row).to_contain_text("Completed")
        expect(row.get_by_role("progressbar")).to_have_attribute("value", "12")
    follow(owner, row.get_by_role("link"))
    expect(owner.get_by_role("definition").filter(has_text="of 12")).to_be_visible()
    with owner.expect_download() as download:
        owner.get_by_role("link", name="Answers").click()
    found = [json.loads(line) for line in download.value.path().read_bytes().splitlines()]
    assert {one["custom_id"] for one in found} == {str(number) for number in range(12)}
    request_id = found[0]["response"]["request_id"]
    owner.goto(customer.page(f"requests/{request_id.removeprefix('req_')}"))
    follow(owner, owner.get_by_role("link", name=id))
    expect(owner.get_by_role("heading", name="Batch", exact=True)).to_be_visible()


def test_what_is_wrong_with_a_file_is_told_by_line(owner: Page, customer: Customer) -> None:
    with customer.program(customer.key()) as program:
        id = begin(program, 2, model="nobody's")
    owner.goto(customer.page(f"batches/{id}"))
    wrong = owner.get_by_role("region", name="Errors").first
    expect(wrong).to_contain_text("model_not_found")
    expect(owner.get_by_role("button", name="Cancel batch")).to_have_count(0)


def test_a_batch_is_cancelled(owner: Page, customer: Customer) -> None:
    with customer.program(customer.key()) as program:
        id = begin(program, 3000, max_tokens=64, ignore_eos=True)
    owner.goto(customer.page(f"batches/{id}"))
    expect(owner.get_by_text("In progress")).to_be_visible()
    owner.get_by_role("button", name="Cancel batch").click()
    dialog = owner.get_by_role("dialog", name="Cancel this batch?")
    follow(owner, dialog.get_by_role("button", name="Cancel batch"))
    expect(
        owner.get_by_text("Batch cancelled. Finished requests keep their results.")
    ).to_be_visible()
    expect(owner.locator(".pill")).to_have_text(re.compile("Cancelled"))
    expect(owner.get_by_role("link", name="Errors")).to_be_visible()
    owner.goto(customer.page("audit"))
    expect(owner.get_by_role("main")).to_contain_text("Cancelled batch")
