"""The playground: panes, streams, and their failures."""

from __future__ import annotations

import pytest
from playwright.sync_api import Page, expect

from demo import ADAPTERS, MODEL_NAME
from tests.browser.people import PATIENCE_MS, Customer, Street, go
from tests.browser.playground import ENDLESS, LONG, answer_to, ask, foot, output, pane, settings
from tests.browser.scenery import upload
from tests.browser.scripts.sockets import Sockets
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
    """The owner's page, at the playground."""
    go(owner, "Playground")
    expect(owner.get_by_role("status").get_by_text("Live")).to_be_visible()
    return owner


def test_the_last_message_can_be_edited_and_asked_from_a_program(page: Page) -> None:
    ask(page, "Hello")
    expect(foot(pane(page))).to_be_visible()
    page.get_by_role("button", name="Edit last message").click()
    expect(page.get_by_label("Message")).to_have_value("Hello")
    ask(page, QUESTION)
    expect(pane(page).get_by_role("log").get_by_text("Hello", exact=True)).to_have_count(0)
    expect(pane(page).get_by_label("Version 2 of 2")).to_be_visible()
    expect(foot(pane(page))).to_be_visible()
    pane(page).get_by_role("button", name="Code").click()
    dialog = page.get_by_role("dialog", name="Use this request in code")
    for part in ("curl http", "OpenAI(base_url", "new OpenAI("):
        code = dialog.locator("pre").filter(has_text=part)
        expect(code).to_contain_text(QUESTION)
        expect(code).to_contain_text(MODEL_NAME)


def test_a_cut_socket_loses_and_doubles_nothing(page: Page) -> None:
    sockets: list[str] = []
    page.on("websocket", lambda socket: sockets.append(socket.url))
    ask(page, LONG)
    for word in ("word5 ", "word30 ", "word60 "):
        expect(output(pane(page))).to_contain_text(word)
        page.wait_for_function(OPEN)  # open again after the last cut
        page.locator("lora-playground").evaluate(CUT)
    expect(foot(pane(page))).to_be_visible()
    expect(output(pane(page))).to_have_text(answer_to(LONG))
    page.wait_for_function(OPEN)  # even if the answer had ended before the last cut
    assert len([url for url in sockets if "/ws/playground/" in url]) == 3


def test_a_gateway_that_dies_takes_no_answer_with_it(
    page: Page, street: Street, stack: Stack
) -> None:
    """It is restarted, as another one would take over; the engine continued meanwhile."""
    street.witness.allow("console: WebSocket connection", "net::ERR_")
    ask(page, ENDLESS)
    expect(output(pane(page))).to_contain_text("word20 ")
    stack.children("gateway")[0].kill()
    expect(foot(pane(page))).to_be_visible(timeout=4 * PATIENCE_MS)
    expect(output(pane(page))).to_have_text(answer_to(ENDLESS))
    expect(pane(page).get_by_text("Failed")).to_have_count(0)
    until(lambda: serves(stack.url))


def test_escape_stops_the_engine_and_says_what_is_billed(page: Page) -> None:
    ask(page, ENDLESS)
    expect(output(pane(page))).to_contain_text("word5 ")
    page.keyboard.press("Escape")
    expect(pane(page).get_by_text("Stopped. Billed so far:")).to_be_visible()
    expect(foot(pane(page))).to_contain_text(" out")
    expect(output(pane(page))).not_to_contain_text("word649")


def test_hostile_text_is_text(page: Page) -> None:
    ask(page, HOSTILE)
    expect(foot(pane(page))).to_be_visible()
    log = pane(page).get_by_role("log")
    expect(log).to_contain_text("<script>alert(1)</script>")
    links = output(pane(page)).get_by_role("link").evaluate_all("all => all.map((one) => one.href)")
    assert links == ["https://example.com/x"]
    expect(log.locator("img, script, iframe, [src], [onerror]")).to_have_count(0)


def test_text_from_right_to_left_is_aligned_and_fits(page: Page, customer: Customer) -> None:
    name = "مفتاح (2)"
    body = {"name": name, "scopes": ["inference"]}
    assert customer.office.post("/api/v1/keys", params={"tenant": customer.slug}, json=body)
    for width in (1280, 390):
        page.set_viewport_size({"width": width, "height": 820})
        ask(page, f"{RIGHT_TO_LEFT}\n\nLeft to right.\n\n{LETTER * 300}")
        expect(foot(pane(page))).to_be_visible()
        asked, paragraphs = pane(page).locator(".asked").last, output(pane(page)).locator("p")
        assert asked.evaluate(STARTS_AT) == "right"
        # The answer begins with the model's name.
        assert [one.evaluate(STARTS_AT) for one in paragraphs.all()] == ["left", "left", "right"]
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        page.get_by_role("button", name="New conversation").click()
    page.get_by_role("button", name="Menu").click()
    go(page, "API keys")
    assert page.get_by_role("rowheader", name=name).evaluate(ENDS_BEFORE_IT_STARTS)
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")


LETTER = "\N{ARABIC LETTER MEEM}"
RIGHT_TO_LEFT = "أريد أن أعرف سياسة الإرجاع (الطلب رقم 12345)! " * 8
LETTERS = """
  const text = document.createTreeWalker(one, NodeFilter.SHOW_TEXT);
  while (text.nextNode() && !text.currentNode.data.trim());
  const of = (at) => {
    const range = document.createRange();
    range.setStart(text.currentNode, at);
    range.setEnd(text.currentNode, at + 1);
    return range.getBoundingClientRect();
  };
"""
STARTS_AT = f"""one => {{ {LETTERS}
  const [letter, box] = [of(0), one.getBoundingClientRect()];
  return letter.left - box.left < box.right - letter.right ? "left" : "right";
}}"""
ENDS_BEFORE_IT_STARTS = f"""one => {{ {LETTERS}
  return of(text.currentNode.data.trimEnd().length - 1).left < of(0).left;
}}"""


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
    expect(output(pane(page))).to_contain_text("Dear Ada, it is sunny.")
    page.get_by_label("Enter sends").uncheck()
    message.fill("two")
    message.press("Enter")
    expect(message).to_have_value("two\n")
    expect(pane(page).get_by_text("base", exact=True)).to_be_visible()
    foot(pane(page)).get_by_role("link").click()
    expect(page.get_by_role("heading", name="Request", exact=True)).to_be_visible()


def test_a_prompt_set_runs_over_the_panes_and_votes_add_up(page: Page) -> None:
    page.get_by_role("button", name="Add pane").click()
    page.get_by_role("button", name="Prompt sets").click()
    dialog = page.get_by_role("dialog", name="Prompt sets")
    dialog.get_by_text("New prompt set").click()
    dialog.get_by_label("Name").fill("Greetings")
    dialog.get_by_label("Prompts", exact=True).fill("Hello\n---\nGood morning")
    dialog.get_by_role("button", name="Save prompt set").click()
    expect(dialog.get_by_text("2 prompts")).to_be_visible()
    dialog.get_by_role("button", name="Greetings", exact=True).click()
    run = page.get_by_role("region", name="Greetings")
    expect(run.get_by_text("0 of 2 prompts answered")).to_be_visible()
    run.get_by_role("button", name="Run 2 over 2 panes").click()
    expect(run.get_by_text("2 of 2 prompts answered")).to_be_visible()
    expect(run.get_by_role("article")).to_have_count(4)
    expect(run.get_by_text(answer_to("Good morning"))).to_have_count(2)
    expect(pane(page)).to_be_hidden()
    run.get_by_label("Blind").uncheck()
    run.get_by_role("group", name="Which answer to prompt 1").get_by_label("B better").check()
    run.get_by_role("group", name="Which answer to prompt 2").get_by_label("Tie").check()

    def sums() -> list[str]:
        return [text.split()[0] for text in run.locator(".stat dd:first-of-type").all_inner_texts()]

    assert sums() == ["0", "1", "1"] and run.get_by_text("all voted").is_visible()
    page.reload()
    expect(run.get_by_text("2 of 2 prompts answered")).to_be_visible()
    assert sums() == ["0", "1", "1"]
    run.get_by_role("button", name="Back to the panes").click()
    expect(pane(page, 2)).to_be_visible()
    expect(page.get_by_label("Message")).to_be_focused()


def test_a_model_is_found_in_its_group_and_the_last_one_asked_is_the_next(
    page: Page, customer: Customer
) -> None:
    with customer.stack.manager(customer.key("adapters:write")) as manager:
        upload(manager, "support", ADAPTERS["support"])
    page.reload()
    model = pane(page).get_by_label("Model or adapter")
    expect(model).to_have_value(MODEL_NAME)
    model.click()
    found = page.get_by_role("listbox", name="Models")
    expect(found.get_by_role("group", name="Base models")).to_be_visible()
    model.fill("supp")
    expect(found.get_by_role("option")).to_have_text(["support @1 live", "support@1 @1 live"])
    model.press("ArrowDown")
    model.press("Escape")
    expect(found).to_be_hidden()
    model.fill("supp")
    model.press("Enter")
    expect(model).to_have_value("support")
    ask(page, QUESTION)
    expect(foot(pane(page))).to_be_visible()
    tab = page.context.new_page()
    tab.goto(customer.page("playground"))
    expect(pane(tab).get_by_label("Model or adapter")).to_have_value("support")


def test_votes_are_there_when_the_set_is_opened_again(page: Page, customer: Customer) -> None:
    with customer.stack.manager(customer.key("adapters:write")) as manager:
        upload(manager, "support", ADAPTERS["support"])
    page.reload()
    page.get_by_role("button", name="Add pane").click()
    expect(pane(page, 2).get_by_label("Model or adapter")).to_have_value("support")
    page.get_by_role("button", name="Prompt sets").click()
    dialog = page.get_by_role("dialog", name="Prompt sets")
    dialog.get_by_text("New prompt set").click()
    dialog.get_by_label("Name").fill("Farewells")
    dialog.get_by_label("Prompts", exact=True).fill("Bye")
    dialog.get_by_role("button", name="Save prompt set").click()
    dialog.get_by_role("button", name="Farewells", exact=True).click()
    run = page.get_by_role("region", name="Farewells")
    votes = run.get_by_role("region", name="Votes").get_by_role("row")
    run.get_by_role("button", name="Run 1 over 2 panes").click()
    expect(run.get_by_text("1 of 1 prompts answered")).to_be_visible()
    expect(votes).to_have_count(0)
    run.get_by_label("Blind").uncheck()
    run.get_by_label("A better").check()
    expect(votes.nth(1)).to_contain_text("1 (100%)")
    assert votes.get_by_role("rowheader").all_inner_texts() == [MODEL_NAME, "support@1"]
    run.get_by_label("Tie").check()
    expect(votes.nth(1)).to_contain_text("0 (0%)")
    run.get_by_label("A better").check()
    expect(votes.nth(1)).to_contain_text("1 (100%)")
    page.get_by_role("button", name="New conversation").click()
    page.reload()
    page.get_by_role("button", name="Prompt sets").click()
    dialog.get_by_role("button", name="Farewells", exact=True).click()
    expect(votes.nth(1).locator("td")).to_have_text(["1 (100%)", "0", "1", "1"])


def test_a_blind_vote_reveals_the_models_and_is_final(page: Page, customer: Customer) -> None:
    with customer.stack.manager(customer.key("adapters:write")) as manager:
        upload(manager, "support", ADAPTERS["support"])
    page.reload()
    page.get_by_role("button", name="Add pane").click()
    save_set(page, "Blind", "Bye")
    run = page.get_by_role("region", name="Blind")
    answers, best = run.get_by_role("article"), run.get_by_label("A better")
    titles = answers.get_by_role("heading", level=4)
    expect(titles).to_have_text(["Answer A", "Answer B"])
    expect(best).to_be_disabled()
    run.get_by_role("button", name="Run 1 over 2 panes").click()
    expect(run.get_by_text("1 of 1 prompts answered")).to_be_visible()
    for figure in (answers.locator(".foot"), run.locator(".stats")):
        expect(figure.first).to_be_hidden()
    page.reload()
    expect(titles).to_have_text(["Answer A", "Answer B"])
    with page.expect_response("**/votes") as saved:
        best.check()
    winner, loser = (text.split(" · ")[1] for text in titles.all_inner_texts())
    assert {winner, loser} == {MODEL_NAME, "support@1"}
    won = {one["model"]: one["wins"] for one in saved.value.json()["scores"]}
    assert won == {winner: 1, loser: 0}
    expect(run.locator(".stats")).to_be_visible()
    expect(answers.locator(".foot").first).to_be_visible()
    expect(best).to_be_disabled()


def test_a_stopped_run_goes_on_where_it_was(page: Page) -> None:
    sockets = Sockets(page, "/ws/playground/*")
    page.reload()
    page.get_by_role("button", name="Add pane").click()
    save_set(page, "Questions", "One\n---\nTwo\n---\nThree")
    run = page.get_by_role("region", name="Questions")
    halt, votes = run.get_by_role("button", name="Stop"), run.get_by_role("group")

    def asked(first: int, *prompts: str) -> list[str]:
        """The ids of the answers that the page asks for from this one on."""
        found = sockets.of_type("start", first + len(prompts))[first:]
        assert [one["messages"][-1]["content"] for one in found] == [*prompts]
        return [one["id"] for one in found]

    def end(id: str, reason: str = "stop") -> None:
        sockets.say(type="done", id=id, finish_reason=reason, **ENDED)

    run.get_by_role("button", name="Run 3 over 2 panes").click()
    for id in asked(0, "One", "One"):
        end(id)
    done, stopped = asked(2, "Two", "Two")
    end(done)
    sockets.say(type="delta", id=stopped, seq=1, text="Half an answer")
    expect(run.get_by_text("Half an")).to_be_visible()
    halt.click()
    (message,) = sockets.of_type("stop", 1)
    assert message["id"] == stopped
    end(stopped, "cancelled")
    expect(run.get_by_text("1 of 3 prompts answered, 1 with an error or stopped")).to_be_visible()
    expect(run.get_by_text("Stopped.")).to_be_visible()
    expect(halt).to_be_hidden()
    for at, enabled in enumerate((True, False, False)):
        expect(votes.nth(at).get_by_label("Tie")).to_be_enabled(enabled=enabled)
    page.reload()
    expect(run.get_by_text("Half an")).to_be_visible()
    run.get_by_role("button", name="Run the rest").click()
    (again,) = asked(4, "Two")
    assert again != stopped
    expect(run.get_by_text("Half an")).to_have_count(0)
    end(again)
    for id in asked(5, "Three", "Three"):
        end(id)
    expect(run.get_by_text("3 of 3 prompts answered", exact=True)).to_be_visible()
    for button in (halt, run.get_by_role("button", name="Run")):
        expect(button).to_be_hidden()


def save_set(page: Page, name: str, prompts: str) -> None:
    """Save a prompt set with these prompts, and open its run."""
    page.get_by_role("button", name="Prompt sets").click()
    dialog = page.get_by_role("dialog", name="Prompt sets")
    dialog.get_by_text("New prompt set").click()
    dialog.get_by_label("Name").fill(name)
    dialog.get_by_label("Prompts", exact=True).fill(prompts)
    dialog.get_by_role("button", name="Save prompt set").click()
    dialog.get_by_role("button", name=name, exact=True).click()


def test_settings_are_in_a_drawer_that_stays_open(page: Page) -> None:
    page.get_by_role("button", name="Add pane").click()
    opener = pane(page, 2).get_by_role("button", name="Settings")
    opener.press("Enter")
    expect(settings(page).get_by_role("heading", name="Settings of pane 2")).to_be_visible()
    expect(settings(page).get_by_label("System prompt")).to_be_focused()
    expect(opener).to_have_attribute("aria-expanded", "true")
    settings(page).get_by_label("Seed").fill("7")
    pane(page, 1).get_by_role("button", name="Settings").click()
    expect(settings(page).get_by_label("Seed")).to_have_value("")
    expect(page.get_by_label("Message")).to_be_in_viewport(ratio=1)
    page.reload()
    expect(settings(page)).to_be_visible()
    expect(page.get_by_label("Message")).to_be_focused()
    opener.click()
    expect(settings(page).get_by_label("Seed")).to_have_value("7")
    page.keyboard.press("Escape")
    expect(settings(page)).to_be_hidden()
    expect(opener).to_be_focused()
    opener.press("Enter")
    pane(page, 2).get_by_role("button", name="Remove this pane").click()
    expect(settings(page).get_by_role("heading", name="Settings", exact=True)).to_be_visible()


def test_what_is_wrong_in_the_settings_is_said_as_it_is_typed(page: Page) -> None:
    pane(page).get_by_role("button", name="Settings").click()
    tools, send = settings(page).get_by_label("Tools"), page.get_by_role("button", name="Send")
    tools.fill('[{"function": {"name": ""}}]')
    problem = "`tools[0].function.name` must be a text that is not empty."
    expect(settings(page).get_by_role("alert").get_by_text(problem)).to_be_visible()
    expect(send).to_be_disabled()
    expect(send).to_have_accessible_description(f"Settings: {problem}")
    tools.fill("[\n{]")
    expect(settings(page).get_by_role("alert").get_by_text("line 2, column 2")).to_be_visible()
    tools.fill(TOOLS)
    expect(send).to_be_enabled()
    expect(page.locator("#cannot-send")).to_be_hidden()


def test_four_panes_fit_and_a_phone_has_tabs(page: Page) -> None:
    page.set_viewport_size({"width": 1280, "height": 720})
    for _ in range(3):
        page.get_by_role("button", name="Add pane").click()
    ask(page, LONG)
    for number in range(1, 5):
        expect(foot(pane(page, number))).to_be_visible()
        expect(pane(page, number)).to_be_in_viewport(ratio=1)
    expect(page.get_by_label("Message")).to_be_in_viewport(ratio=1)
    assert not page.evaluate("document.documentElement.scrollWidth > innerWidth")
    assert not page.evaluate("document.documentElement.scrollHeight > innerHeight")
    page.set_viewport_size({"width": 390, "height": 820})
    tabs = page.get_by_role("tablist", name="Panes").get_by_role("tab")
    shown = page.get_by_role("tabpanel")
    expect(tabs).to_have_count(4)
    expect(shown).to_have_count(1)
    tabs.first.click()
    page.keyboard.press("ArrowLeft")
    expect(tabs.nth(3)).to_be_focused()
    expect(shown).to_have_accessible_name("Pane 4")
    page.keyboard.press("ArrowRight")
    expect(shown).to_have_accessible_name("Pane 1")
    shown.get_by_role("button", name="Settings").click()
    box = settings(page).bounding_box()
    assert box is not None and (box["width"], box["height"]) == (390, 820)
    settings(page).get_by_role("button", name="Close settings").click()
    expect(shown.get_by_role("button", name="Settings")).to_be_focused()


TOOLS = '[{"type": "function", "function": {"name": "weather", "parameters": {}}}]'


def test_a_called_tool_is_a_card_and_its_result_goes_on(page: Page) -> None:
    sockets = Sockets(page, "/ws/playground/*")
    page.reload()
    pane(page).get_by_role("button", name="Settings").click()
    settings(page).get_by_label("Tools").fill(TOOLS)
    pane(page).get_by_role("button", name="Settings").click()
    ask(page, "Is it sunny?")
    asked = sockets.until(1, 3)[-1]
    assert asked["parameters"]["tools"][0]["function"]["name"] == "weather"
    parts = [{"id": "c1", "name": "weather"}, {"arguments": '{"city": '}, {"arguments": '"Bern"}'}]
    for at, part in enumerate(parts, start=1):
        sockets.say(type="delta", id=asked["id"], seq=0, text="", calls=[part], call_seq=at)
    sockets.say(type="done", id=asked["id"], finish_reason="tool_calls", **ENDED)
    called = pane(page).locator(".call")
    expect(called).to_contain_text("Calls weather")
    expect(called.locator(".hljs-attr")).to_have_text('"city"')
    pane(page).get_by_label("Result of weather").fill('{"sky": "clear"}')
    pane(page).get_by_role("button", name="Send result").click()
    again = sockets.until(1, 4)[-1]
    function = {"name": "weather", "arguments": '{"city": "Bern"}'}
    call = {"id": "c1", "type": "function", "function": function}
    assert again["messages"][1:] == [
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": '{"sky": "clear"}', "tool_call_id": "c1"},
    ]
    expect(called.nth(1)).to_contain_text("Result of weather")
    page.reload()
    expect(called.nth(1)).to_contain_text("Result of weather")


ENDED = {
    "request_id": "req_1",
    "usage": {"prompt_tokens": 9, "completion_tokens": 5,
              "prompt_tokens_details": {"cached_tokens": 0}},
    "cost": 10**9, "ttft_ms": 12.5, "tokens_per_s": 60.0, "queue_ms": 0, "load_ms": 0,
}  # fmt: skip
