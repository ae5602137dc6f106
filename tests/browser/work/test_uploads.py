"""An interrupted upload is resumed where it stopped."""

from __future__ import annotations

import re
from os import urandom
from pathlib import Path

import pytest
from playwright.sync_api import CDPSession, Page, Request, Route, expect

from demo import MODEL_NAME
from inference.content import CONFIG, WEIGHTS
from tests.adapters.checks.builder import config_bytes
from tests.browser.people import Customer, Street, chosen, follow, go
from tests.stack.asking import until

pytestmark = pytest.mark.stack

WEIGHTS_BYTES = 24 << 20
SLOW_BYTES_PER_S = 1 << 20
"""Slow enough that the page can be left before everything is sent."""
RATE = re.compile(r"[KM]B/s")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / CONFIG).write_bytes(config_bytes(base_model_name_or_path=MODEL_NAME))
    (tmp_path / WEIGHTS).write_bytes(urandom(WEIGHTS_BYTES))
    return tmp_path


@pytest.fixture
def line(owner: Page) -> CDPSession:
    """The page's only DevTools session: a limit set by another session would stay in force."""
    line = owner.context.new_cdp_session(owner)
    line.send("Network.enable")
    return line


def slow_down(line: CDPSession, bytes_per_s: int) -> None:
    """Limit the page's upload rate; -1 removes the limit."""
    conditions = {"offline": False, "latency": 0, "downloadThroughput": -1}
    line.send("Network.emulateNetworkConditions", conditions | {"uploadThroughput": bytes_per_s})


def arrived(page: Page, customer: Customer) -> int:
    """Bytes of the only upload that the server has received."""
    (one,) = page.request.get(f"/api/v1/uploads?tenant={customer.slug}").json()
    return int(one["offset"])


def test_leaving_the_page_loses_nothing(
    street: Street, owner: Page, customer: Customer, line: CDPSession, folder: Path
) -> None:
    offsets: list[int] = []

    def note(request: Request) -> None:
        if request.method == "PATCH":
            offsets.append(int(request.headers["upload-offset"]))

    owner.on("request", note)
    owner.on("dialog", lambda dialog: dialog.accept())  # "Leave this page?"
    go(owner, "Adapters")
    dialog = chosen(owner, "dispatcher", folder)
    slow_down(line, SLOW_BYTES_PER_S)
    dialog.get_by_role("button", name="Upload").click()
    expect(dialog.get_by_text(RATE)).to_be_visible()
    until(lambda: arrived(owner, customer))
    owner.reload()
    slow_down(line, -1)
    dialog = chosen(owner, "dispatcher", folder)
    expect(dialog.get_by_text("will resume where it stopped")).to_be_visible()
    # Data of the first request may still be arriving; the page then gets 409 and asks again.
    uploads = f"{street.stack.console_url}/api/v1/uploads/"
    street.witness.allow(f"409 {uploads}", f"net::ERR_CONNECTION_RESET {uploads}")
    follow(owner, dialog.get_by_role("button", name="Upload"))
    expect(owner.get_by_role("heading", name="Version 1")).to_be_visible()
    first, *later = offsets
    assert first == 0 and later and all(0 < offset < WEIGHTS_BYTES for offset in later)
    go(owner, "Adapters")
    expect(owner.get_by_role("heading", name="Unfinished uploads")).to_have_count(0)


def test_files_that_were_chosen_before_the_script_came_are_sent(
    owner: Page, customer: Customer, folder: Path
) -> None:
    held: list[Route] = []
    owner.route("**/js/upload/upload.*", lambda route: held.append(route))
    with owner.expect_request("**/js/upload/upload.*"):
        owner.goto(customer.page("adapters"), wait_until="commit")
    owner.wait_for_function("() => customElements.get('copy-button')")  # every page's script ran
    dialog = chosen(owner, "dispatcher", folder)
    held[0].continue_()
    follow(owner, dialog.get_by_role("button", name="Upload"))
    expect(owner.get_by_role("heading", name="Version 1")).to_be_visible()


def test_a_cancelled_upload_is_forgotten(owner: Page, line: CDPSession, folder: Path) -> None:
    go(owner, "Adapters")
    dialog = chosen(owner, "dispatcher", folder)
    slow_down(line, SLOW_BYTES_PER_S)
    dialog.get_by_role("button", name="Upload").click()
    expect(dialog.get_by_text(RATE)).to_be_visible()
    with owner.expect_response(lambda answer: answer.request.method == "DELETE"):
        dialog.get_by_role("button", name="Cancel").click()
    expect(dialog).to_be_hidden()
    go(owner, "Adapters")
    dialog = chosen(owner, "dispatcher", folder)
    expect(dialog.get_by_text("will resume where it stopped")).to_be_hidden()
    expect(owner.get_by_role("heading", name="Unfinished uploads")).to_have_count(0)
