"""The playground: panes, streams and what may go wrong with them."""

from __future__ import annotations

from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from demo import MODEL_NAME, QUESTIONS
from tests.browser.adapters import PIRATE, own
from tests.browser.people import await_ready, go, upload
from tests.browser.playground import ENDLESS, LONG, ask, foot, make_it_say, pane, said

pytestmark = [pytest.mark.vllm, pytest.mark.stack]

QUESTION, ANSWERS = QUESTIONS[0]
HOSTILE = (
    "[bad](javascript:alert(1)) [data](data:text/html,x) ![img](https://evil.example/a.png) "
    "<img src=x onerror=alert(1)><script>alert(1)</script> [good](https://example.com/x)"
)
OPEN = "() => document.querySelector('lora-playground').link.isOpen"
CUT = "playground => playground.link.socket.close()"


@pytest.fixture
def page(owner: Page) -> Page:
    """The owner, in the playground."""
    go(owner, "Playground")
    expect(owner.get_by_role("status").get_by_text("Live")).to_be_visible()
    return owner


def test_base_and_adapter_answer_differently_side_by_side(owner: Page, tmp_path: Path) -> None:
    go(owner, "Adapters")
    upload(owner, "crew", own(PIRATE, tmp_path / "crew"))
    await_ready(owner)
    go(owner, "Playground")
    expect(pane(owner).get_by_label("Model or adapter")).to_have_value("crew")
    owner.get_by_role("button", name="Add a pane").click()
    expect(pane(owner, 2).get_by_label("Model or adapter")).to_have_value(MODEL_NAME)
    for number in (1, 2):
        pane(owner, number).get_by_role("button", name="Settings").click()
        pane(owner, number).get_by_label("Temperature").fill("0")
    ask(owner, QUESTION)
    expect(said(pane(owner, 1))).to_have_text(ANSWERS["pirate"])
    expect(said(pane(owner, 2))).to_have_text(ANSWERS["base"])
    for number in (1, 2):
        for part in ("TTFT ", " tok/s", " in", " out", "$0.0"):
            expect(foot(pane(owner, number))).to_contain_text(part)


def test_the_last_message_can_be_edited_and_asked_from_a_program(page: Page) -> None:
    ask(page, "Hello")
    expect(foot(pane(page))).to_be_visible()
    page.get_by_role("button", name="Edit the last message").click()
    expect(page.get_by_label("Message")).to_have_value("Hello")
    ask(page, QUESTION)
    expect(pane(page).get_by_role("log").get_by_text("Hello", exact=True)).to_have_count(0)
    expect(pane(page).get_by_label("Version 2 of 2")).to_be_visible()
    expect(foot(pane(page))).to_be_visible()
    pane(page).get_by_role("button", name="Code").click()
    dialog = page.get_by_role("dialog", name="The same request from a program")
    for part in ("curl http", "OpenAI(base_url", "await fetch("):
        code = dialog.locator("pre").filter(has_text=part)
        expect(code).to_contain_text(QUESTION)
        expect(code).to_contain_text(MODEL_NAME)


def test_a_cut_socket_loses_and_doubles_nothing(page: Page) -> None:
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    make_it_say(pane(page), LONG)
    ask(page, "Count")
    for word in ("word5 ", "word30 ", "word60 "):
        expect(said(pane(page))).to_contain_text(word)
        page.wait_for_function(OPEN)  # again, after the last cut
        page.locator("lora-playground").evaluate(CUT)
    expect(foot(pane(page))).to_be_visible()
    expect(said(pane(page))).to_have_text(f'"{LONG}"')
    page.wait_for_function(OPEN)  # also where the answer had ended before the last cut
    assert len([url for url in sockets if "/ws/playground/" in url]) == 3


def test_escape_stops_the_engine_and_says_what_is_billed(page: Page) -> None:
    make_it_say(pane(page), ENDLESS)
    ask(page, "Count")
    expect(said(pane(page))).to_contain_text("word5 ")
    page.keyboard.press("Escape")
    expect(pane(page).get_by_text("Stopped. This is what is billed:")).to_be_visible()
    expect(foot(pane(page))).to_contain_text(" out")
    expect(said(pane(page))).not_to_contain_text("word649")


def test_hostile_text_is_text(page: Page) -> None:
    make_it_say(pane(page), HOSTILE)
    ask(page, HOSTILE)
    expect(foot(pane(page))).to_be_visible()
    log = pane(page).get_by_role("log")
    expect(log).to_contain_text("<script>alert(1)</script>")
    links = log.get_by_role("link").evaluate_all("all => all.map((one) => one.href)")
    assert links == ["https://example.com/x"]
    expect(log.locator("img, script, iframe, [src], [onerror]")).to_have_count(0)


def test_an_error_stays_in_its_pane_with_retry(page: Page) -> None:
    model = pane(page).get_by_label("Model or adapter")
    model.fill("nobody")
    ask(page, QUESTION)
    notice = page.get_by_role("alert")
    expect(notice).to_contain_text("The model `nobody` does not exist")
    model.fill(MODEL_NAME)
    notice.get_by_role("button", name="Retry").click()
    expect(foot(pane(page))).to_be_visible()
    expect(notice).to_have_count(0)
