"""What the console shows of a real engine: answers, probabilities, schemas, findings of a probe."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from demo import MODEL_NAME, QUESTIONS
from tests.browser.adapters import PIRATE, inert, own
from tests.browser.people import await_ready, await_rejected, go, upload
from tests.browser.playground import (
    ask,
    be_exact,
    foot,
    log,
    open_playground,
    output,
    pane,
    settings,
)

pytestmark = [pytest.mark.vllm, pytest.mark.stack]

QUESTION, ANSWERS = QUESTIONS[0]


@pytest.fixture
def page(owner: Page) -> Page:
    """The owner's page, at the playground."""
    open_playground(owner)
    return owner


def test_base_and_adapter_answer_differently_side_by_side(owner: Page, tmp_path: Path) -> None:
    go(owner, "Adapters")
    upload(owner, "crew", own(PIRATE, tmp_path / "crew"))
    await_ready(owner)
    go(owner, "Playground")
    expect(pane(owner).get_by_label("Model or adapter")).to_have_value(MODEL_NAME)
    owner.get_by_role("button", name="Add pane").click()
    expect(pane(owner, 2).get_by_label("Model or adapter")).to_have_value("crew")
    for number in (1, 2):
        be_exact(pane(owner, number))
    ask(owner, QUESTION)
    expect(output(pane(owner, 1))).to_have_text(ANSWERS["base"])
    expect(output(pane(owner, 2))).to_have_text(ANSWERS["pirate"])
    for number in (1, 2):
        for part in ("TTFT ", " tok/s", " in", " out", "$0.0"):
            expect(foot(pane(owner, number))).to_contain_text(part)


def test_an_adapter_that_changes_nothing_is_rejected_with_the_reason(
    owner: Page, tmp_path: Path
) -> None:
    go(owner, "Adapters")
    upload(owner, "broken", inert(tmp_path / "adapter"))
    await_rejected(owner, "broken", "The adapter changes no log-probability")


def test_how_probable_a_token_was_is_told_to_the_keyboard_too(page: Page) -> None:
    pane(page).get_by_role("button", name="Settings").click()
    settings(page).get_by_label("Show token probabilities").check()
    ask(page, QUESTION)
    expect(foot(pane(page))).to_be_visible()
    expect(output(pane(page))).to_have_text(f"{ANSWERS['base']}<|eos|>")
    first = output(pane(page)).get_by_role("button").first
    first.focus()
    tip = page.get_by_role("tooltip")
    expect(tip).to_contain_text("%")
    expect(tip.locator("tr")).to_have_count(5)
    page.keyboard.press("End")
    expect(tip).to_contain_text("<|eos|>")
    page.keyboard.press("Escape")
    expect(tip).to_be_hidden()


def test_a_schema_is_checked_here_and_by_the_engine(page: Page) -> None:
    pane(page).get_by_role("button", name="Settings").click()
    schema = settings(page).get_by_label("JSON schema for the answer")
    for wrong, why in (("{nope", "This is not JSON"), ("[1]", "A JSON schema is an object")):
        schema.fill(wrong)
        ask(page, "Hello")
        expect(settings(page).get_by_role("alert").get_by_text(why)).to_be_visible()
        expect(schema).to_be_focused()
        expect(log(page).get_by_text("Hello", exact=True)).to_have_count(0)
    schema.fill('{"type": "nonsense"}')
    ask(page, "Hello")
    expect(log(page).get_by_role("alert")).to_contain_text("nonsense")
    schema.fill('{"enum": ["first", "second"]}')
    log(page).get_by_role("button", name="Retry").click()
    expect(foot(pane(page))).to_be_visible()
    assert output(pane(page)).inner_text() in ('"first"', '"second"')
