"""The playground: panes, streams and what may go wrong with them."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from demo import MODEL_NAME
from tests.browser.people import PATIENCE_MS, Street, go
from tests.browser.playground import ENDLESS, LONG, answer_to, ask, foot, pane, said
from tests.stack.asking import QUESTION, serves, until
from tests.stack.running import Stack

pytestmark = pytest.mark.stack

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
    ask(page, LONG)
    for word in ("word5 ", "word30 ", "word60 "):
        expect(said(pane(page))).to_contain_text(word)
        page.wait_for_function(OPEN)  # again, after the last cut
        page.locator("lora-playground").evaluate(CUT)
    expect(foot(pane(page))).to_be_visible()
    expect(said(pane(page))).to_have_text(answer_to(LONG))
    page.wait_for_function(OPEN)  # also where the answer had ended before the last cut
    assert len([url for url in sockets if "/ws/playground/" in url]) == 3


def test_a_gateway_that_dies_takes_no_answer_with_it(
    page: Page, street: Street, stack: Stack
) -> None:
    """It is started again, as another one would be there; the engine went on meanwhile."""
    street.witness.allow("console: WebSocket connection", "net::ERR_")
    ask(page, ENDLESS)
    expect(said(pane(page))).to_contain_text("word20 ")
    stack.children("gateway")[0].kill()
    expect(foot(pane(page))).to_be_visible(timeout=4 * PATIENCE_MS)
    expect(said(pane(page))).to_have_text(answer_to(ENDLESS))
    expect(pane(page).get_by_text("Failed")).to_have_count(0)
    until(lambda: serves(stack.url))


def test_escape_stops_the_engine_and_says_what_is_billed(page: Page) -> None:
    ask(page, ENDLESS)
    expect(said(pane(page))).to_contain_text("word5 ")
    page.keyboard.press("Escape")
    expect(pane(page).get_by_text("Stopped. This is what is billed:")).to_be_visible()
    expect(foot(pane(page))).to_contain_text(" out")
    expect(said(pane(page))).not_to_contain_text("word649")


def test_hostile_text_is_text(page: Page) -> None:
    ask(page, HOSTILE)
    expect(foot(pane(page))).to_be_visible()
    log = pane(page).get_by_role("log")
    expect(log).to_contain_text("<script>alert(1)</script>")
    links = said(pane(page)).get_by_role("link").evaluate_all("all => all.map((one) => one.href)")
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


def test_a_saved_prompt_asks_for_its_variables_and_enter_sends_it(page: Page) -> None:
    page.get_by_label("Message").fill("Dear {{guest}}, it is {{ weather }}.")
    page.get_by_role("button", name="Prompts").click()
    dialog = page.get_by_role("dialog", name="Prompts")
    dialog.get_by_text("Save the message as a prompt").click()
    dialog.get_by_label("Name").fill("Greeting")
    dialog.get_by_role("button", name="Save prompt").click()
    dialog.get_by_role("button", name="Greeting", exact=True).click()
    dialog.get_by_label("guest").fill("Ada")
    dialog.get_by_label("weather").fill("sunny")
    dialog.get_by_role("button", name="Use").click()
    message = page.get_by_label("Message")
    expect(message).to_have_value("Dear Ada, it is sunny.")
    message.press("Shift+Enter")
    expect(foot(pane(page))).to_have_count(0)
    message.press("Enter")
    expect(said(pane(page))).to_contain_text("Dear Ada, it is sunny.")
    page.get_by_label("Enter sends").uncheck()
    message.fill("two")
    message.press("Enter")
    expect(message).to_have_value("two\n")
    expect(pane(page).get_by_text("base", exact=True)).to_be_visible()
    foot(pane(page)).get_by_role("link").click()
    expect(page.get_by_role("heading", name="Request", exact=True)).to_be_visible()
