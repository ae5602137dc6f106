"""A tenant stores prompts and answers for a while, reads one, and has all of it destroyed."""

from __future__ import annotations

import pytest
from openai import NotFoundError
from playwright.sync_api import Page, expect

from demo import MODEL_NAME
from tests.browser.people import Customer, completion, follow, go
from tests.stack.asking import QUESTION, until

pytestmark = pytest.mark.stack


def test_what_is_stored_is_read_and_destroyed(owner: Page, customer: Customer) -> None:
    go(owner, "Stored prompts")
    expect(owner.get_by_text("Not stored", exact=True)).to_be_visible()
    owner.get_by_role("button", name="Change").click()
    dialog = owner.get_by_role("dialog", name="Store prompts and answers?")
    dialog.get_by_label("Prompts and answers").select_option("Store for 7 days")
    follow(owner, dialog.get_by_role("button", name="Save"))
    expect(owner.get_by_text("Stored for 7 days")).to_be_visible()

    go(owner, "Requests")
    rows = owner.get_by_role("row", name=MODEL_NAME)
    drawer = owner.get_by_role("dialog", name="Request")
    shows = drawer.get_by_role("button", name="Show prompt and answer")
    answers: list[str] = []

    def opens_one_that_is_stored() -> bool:
        """Send a request. Returns whether it was stored: the gateway may not know of it yet."""
        with customer.program(customer.key()) as program:
            answers.append(completion(program, MODEL_NAME, 8).choices[0].message.content or "")
        until(lambda: owner.reload() and rows.count() == len(answers))
        rows.first.get_by_role("link").first.click()
        drawer.get_by_role("heading", name="Content").wait_for()
        if not shows.count():
            drawer.get_by_role("button", name="Close").click()
        return shows.count() > 0

    until(opens_one_that_is_stored)
    answer = answers[-1]
    assert answer
    expect(drawer.get_by_text(QUESTION)).to_have_count(0)
    shows.click()
    for speaker, text in (("User", QUESTION), ("Assistant", answer.strip())):
        turn = drawer.get_by_role("article").filter(has_text=speaker)
        expect(turn.get_by_text(text, exact=True)).to_be_visible()
    drawer.get_by_role("button", name="Close").click()
    with customer.program(customer.key()) as program:
        stored = program.responses.create(model=MODEL_NAME, input=QUESTION, max_output_tokens=8)
        assert program.responses.retrieve(stored.id).output_text == stored.output_text

    go(owner, "Audit log")
    expect(owner.get_by_role("row", name="Read stored prompt")).to_have_count(1)
    go(owner, "Stored prompts")
    owner.get_by_role("button", name="Destroy everything stored").click()
    dialog = owner.get_by_role("dialog", name="Destroy everything stored?")
    follow(owner, dialog.get_by_role("button", name="Destroy"))
    expect(owner.get_by_text("Not stored", exact=True)).to_be_visible()
    with customer.program(customer.key()) as program, pytest.raises(NotFoundError):
        program.responses.retrieve(stored.id)
    with owner.expect_download() as download:
        owner.get_by_role("link", name="Signed confirmation").click()
    assert download.value.suggested_filename.startswith(f"destroyed-{customer.slug}-")
