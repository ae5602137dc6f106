"""A program is notified by webhook, and members choose which emails they get."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from openai import OpenAI
from playwright.sync_api import Page, expect

from tests.browser.people import Customer, copied, follow, go
from tests.stack.asking import until

pytestmark = pytest.mark.stack


class Program(ThreadingHTTPServer):
    """A customer's webhook receiver."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.got: list[tuple[str, dict[str, str]]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/hook"


class _Handler(BaseHTTPRequestHandler):
    server: Program

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["content-length"])).decode()
        self.server.got.append((body, dict(self.headers)))
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def receiving() -> Iterator[Program]:
    with Program() as program:
        thread = threading.Thread(target=program.serve_forever)
        thread.start()
        yield program
        program.shutdown()
        thread.join()


def test_a_program_is_told_and_verifies_by_whom(owner: Page, customer: Customer) -> None:
    with receiving() as program:
        go(owner, "Notifications")
        owner.get_by_role("button", name="Add webhook").first.click()
        dialog = owner.get_by_role("dialog", name="Add webhook")
        dialog.get_by_label("URL").fill(program.url)
        dialog.get_by_label("API key expires").check()
        follow(owner, dialog.get_by_role("button", name="Add"))
        secret = copied(owner, owner.get_by_role("region", name="Signing secret of"))
        owner.reload()
        expect(owner.get_by_text(secret)).to_have_count(0)
        expect(owner.get_by_role("row", name=program.url)).to_have_count(1)

        soon = (datetime.now(UTC) + timedelta(days=3)).isoformat()
        body = {"name": "ci", "scopes": ["inference"], "expires_at": soon}
        customer.office.post("/api/v1/keys", params={"tenant": customer.slug}, json=body)
        until(lambda: program.got)  # within a minute
        said, headers = program.got[0]
        OpenAI(api_key="-", webhook_secret=secret).webhooks.verify_signature(said, headers)

        row = owner.get_by_role("row", name="key.expiring").last
        until(lambda: owner.reload() and row.filter(has_text="Delivered").count())
        follow(owner, row.get_by_role("button", name="Send again: key.expiring"))
        expect(owner.get_by_text("is being sent again")).to_be_visible()
        until(lambda: len(program.got) > 1)
        assert program.got[1][1]["webhook-id"] == headers["webhook-id"]


def test_people_choose_what_they_are_mailed(owner: Page) -> None:
    go(owner, "Notifications")
    choice = owner.get_by_label("API key expires").first
    expect(choice).to_be_checked()
    choice.uncheck()
    follow(owner, owner.get_by_role("button", name="Save"))
    expect(owner.get_by_text("Email settings saved.")).to_be_visible()
    expect(owner.get_by_label("API key expires").first).not_to_be_checked()
    expect(owner.get_by_label("Adapter ready").first).to_be_checked()
