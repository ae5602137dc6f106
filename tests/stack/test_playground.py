"""The playground in a real browser, on the whole stack with a synthetic engine."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest
from playwright.sync_api import Locator, Page, expect, sync_playwright

from gateway.demo import MODEL_NAME, TENANTS
from tests.stack.running import Stack, up

CHROMIUM = shutil.which("chromium") or ""
pytestmark = [
    pytest.mark.stack,
    pytest.mark.skipif(not CHROMIUM, reason="needs Chromium, which `.ci/run` installs"),
]

TENANT = TENANTS[0]
LONG = " ".join(f"word{number}" for number in range(120))
"""Repeated by the engine at 100 tokens a second: two seconds and a half to cut its socket in."""
HOSTILE = (
    "[bad](javascript:alert(1)) [data](data:text/html,x) ![img](https://evil.example/a.png) "
    "<img src=x onerror=alert(1)><script>alert(1)</script> [good](https://example.com/x)"
)
CUT = "playground => playground.link.socket.close()"


@pytest.fixture(scope="module")
def quick(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    options = "--engine synthetic --tokens-per-second 100"
    with up(tmp_path_factory.mktemp("playground") / "var", ENGINE_OPTIONS=options) as running:
        yield running


@pytest.fixture
def page(quick: Stack) -> Iterator[Page]:
    """The playground of a demo tenant; nothing strange happened when the test is over."""
    strange: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"]
        )
        page = browser.new_page()
        page.on("pageerror", lambda error: strange.append(str(error)))
        page.on("console", lambda said: strange.append(said.text) if said.type == "error" else None)
        page.on("request", lambda asked: strange.append(asked.url) if _off(quick, asked.url) else 0)
        _sign_in(page, quick)
        page.goto(f"{quick.url}/t/{TENANT.slug}/playground")
        yield page
        browser.close()
    assert strange == []


def _off(stack: Stack, url: str) -> bool:
    return not url.startswith((stack.url, "data:"))


def _sign_in(page: Page, stack: Stack) -> None:
    login = stack.facts["operator"]
    page.goto(stack.url)
    page.fill("[name=login]", login["username"])
    page.fill("[name=password]", login["password"])
    page.press("[name=password]", "Enter")
    expect(page.locator("#content")).to_be_visible(timeout=30_000)


def ask(page: Page, text: str) -> None:
    page.focus("#message")
    page.keyboard.insert_text(text)
    page.keyboard.press("Control+Enter")


def said(page: Page, pane: int = 0) -> Locator:
    """The last answer of a pane."""
    return page.locator("lora-chat").nth(pane).locator(".said").last


def feet(page: Page, count: int) -> None:
    """Wait until so many answers have ended."""
    expect(page.locator(".foot")).to_have_count(count, timeout=30_000)


def test_two_panes_answer_differently_and_edit_asks_again(page: Page) -> None:
    expect(page.locator("#link-state")).to_have_text("Live")
    page.focus("#add-pane")
    page.keyboard.press("Enter")
    expect(page.locator("lora-chat")).to_have_count(2)
    ask(page, "Hello there")
    feet(page, 2)
    assert said(page, 0).inner_text().startswith(f"{TENANT.slug}/{TENANT.adapter}@")
    assert said(page, 1).inner_text() == f"{MODEL_NAME}: Hello there"
    foot = page.locator(".foot").last.inner_text()
    for part in ("TTFT ", " tok/s", " in", " out", "$0.0", "req_"):
        assert part in foot
    page.click("#edit")
    assert page.input_value("#message") == "Hello there"
    page.fill("#message", "")
    ask(page, "Good night")
    feet(page, 2)
    expect(said(page, 1)).to_have_text(f"{MODEL_NAME}: Good night")
    page.locator("[data-act=code]").last.click()
    for language, part in (("curl", "curl "), ("python", "OpenAI("), ("javascript", "fetch(")):
        code = page.locator(f"[data-code={language}]").inner_text()
        assert part in code and "Good night" in code and MODEL_NAME in code


def test_a_cut_socket_loses_and_doubles_nothing(page: Page) -> None:
    page.locator("[data-field=model]").fill(MODEL_NAME)
    ask(page, LONG)
    for word in ("word5 ", "word30 ", "word60 "):
        expect(said(page)).to_contain_text(word, timeout=30_000)
        page.eval_on_selector("lora-playground", CUT)
    feet(page, 1)
    assert said(page).inner_text() == f"{MODEL_NAME}: {LONG}"


def test_escape_stops_and_says_what_is_billed(page: Page) -> None:
    ask(page, LONG * 3)
    expect(said(page)).to_contain_text("word5 ", timeout=30_000)
    page.keyboard.press("Escape")
    feet(page, 1)
    expect(page.locator(".why")).to_have_text("Stopped. This is what is billed:")
    assert " out" in page.locator(".foot").inner_text()


def test_hostile_text_is_text(page: Page) -> None:
    ask(page, HOSTILE)
    feet(page, 1)
    links = said(page).locator("a[href]").evaluate_all("all => all.map((one) => one.href)")
    assert links == ["https://example.com/x"]
    assert said(page).locator("img, script, iframe, [src], [onerror]").count() == 0


def test_an_error_stays_in_its_pane_with_retry(page: Page) -> None:
    page.locator("[data-field=model]").fill("nobody")
    ask(page, "Hello")
    notice = page.get_by_role("alert")
    expect(notice).to_contain_text("The model `nobody` does not exist")
    page.locator("[data-field=model]").fill(MODEL_NAME)
    notice.get_by_role("button", name="Retry").press("Enter")
    expect(said(page)).to_have_text(f"{MODEL_NAME}: Hello")
    expect(notice).to_have_count(0)
