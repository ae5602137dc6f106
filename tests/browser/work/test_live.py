"""What changes by itself on an open page, and what a page shows without a connection."""

from __future__ import annotations

import re

import pytest
from playwright.sync_api import Page, expect

from demo import MODEL_NAME
from tests.browser.people import (
    TEXTS,
    Customer,
    Street,
    completion,
    follow,
    go,
    live_state,
    long_stream,
    staying,
)
from tests.browser.playground import ask, foot, pane
from tests.stack.asking import serves, until
from tests.stack.running import Stack

pytestmark = pytest.mark.stack


def test_a_request_appears_in_the_tail_and_opens(owner: Page, customer: Customer) -> None:
    go(owner, "Requests")
    expect(live_state(owner)).to_have_text("Live")
    with staying(owner):
        with customer.program(customer.key()) as program:
            done = completion(program, MODEL_NAME, 20)
        row = owner.get_by_role("row").filter(has_text=MODEL_NAME)
        expect(row).to_have_count(1)
        row.get_by_role("link").first.click()
        drawer = owner.get_by_role("dialog", name="Request")
        expect(drawer).to_contain_text(re.compile(r"req_\w+"))
        for phase in ("Queued", "Prefill", "Decode", "Total"):
            expect(drawer.get_by_role("listitem").filter(has_text=phase)).to_be_visible()
        assert done.usage is not None
        tokens = drawer.get_by_role("row", name="Output")
        expect(tokens).to_contain_text(str(done.usage.completion_tokens))
        expect(drawer.locator("tr.sum")).to_contain_text("$0.0")
        with owner.expect_download() as receipt:
            drawer.get_by_role("link", name="Signed receipt").click()
        assert b'"jws": "ey' in receipt.value.path().read_bytes()
        owner.keyboard.press("Escape")
        expect(drawer).not_to_be_visible()


def test_the_operators_engines_are_live(operator: Page, customer: Customer) -> None:
    engines = operator.get_by_role("navigation", name="Installation")
    follow(operator, engines.get_by_role("link", name="Engines"))
    expect(live_state(operator)).to_have_text("Live")
    with staying(operator):
        running = operator.get_by_role("row", name="engine-1").get_by_role("cell").nth(1)
        expect(running).to_have_text("0")
        with customer.program(customer.key()) as program:
            stream = long_stream(program, MODEL_NAME)
            expect(running).to_have_text("1")
            stream.close()
        expect(running).to_have_text("0")


def test_a_tail_has_each_request_once_though_its_gateway_was_killed(
    street: Street, stack: Stack, owner: Page, customer: Customer
) -> None:
    street.witness.allow("console: WebSocket connection", "net::ERR_")
    go(owner, "Requests")
    expect(live_state(owner)).to_have_text("Live")
    rows = owner.get_by_role("row").filter(has_text=MODEL_NAME)
    with staying(owner), customer.program(customer.key()) as program:
        completion(program, MODEL_NAME, 2)
        expect(rows).to_have_count(1)
        stack.children("gateway")[0].kill()
        until(lambda: serves(stack.url))
        completion(program, MODEL_NAME, 2)
        expect(rows).to_have_count(2)
        expect(live_state(owner)).to_have_text("Live")
        assert len(set(rows.evaluate_all("found => found.map((row) => row.id)"))) == 2


def test_a_killed_gateway_is_waited_for(street: Street, stack: Stack, owner: Page) -> None:
    street.witness.allow("console: WebSocket connection", "net::ERR_")
    go(owner, "Engines")
    expect(live_state(owner)).to_have_text("Live")
    with staying(owner):
        texts = live_state(owner).evaluate_handle(TEXTS)  # however briefly it is away
        stack.children("gateway")[0].kill()
        owner.wait_for_function("texts => texts.join() === 'Reconnecting,Live'", arg=texts)
    until(lambda: serves(stack.url))  # the engine reconnects at its own pace
    go(owner, "Playground")
    ask(owner, "Hello")
    expect(foot(pane(owner))).to_be_visible()
