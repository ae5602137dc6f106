"""A rollout: started, watched and aborted by the operator."""

from __future__ import annotations

import re

import httpx
import pytest
from playwright.sync_api import Page, expect

from demo import MODEL_NAME
from tests.browser.people import Customer, follow, go
from tests.stack.asking import until
from tests.stack.engines import another_engine

pytestmark = pytest.mark.stack


def test_a_rollout_is_started_watched_and_aborted(
    operator: Page, customer: Customer, office: httpx.Client
) -> None:
    with another_engine(customer.stack, "canary", "--max-lora-rank", "32"):
        waiting = {"standing": "waiting", "base_model": MODEL_NAME}
        until(lambda: office.get("/api/v1/revisions", params=waiting).json()["count"])
        go(operator, "Base models")
        follow(operator, operator.get_by_role("link", name=MODEL_NAME))
        expect(operator.get_by_role("region", name="Revisions").first).to_contain_text("Waiting")
        operator.get_by_role("button", name="Roll out revision").click()
        dialog = operator.get_by_role("dialog", name="Roll out revision")
        dialog.get_by_label("Weights in percent").fill("1, 100")
        dialog.get_by_label("Seconds at each weight").fill("3600")
        dialog.get_by_label("Check isolation at each weight").uncheck()
        follow(operator, dialog.get_by_role("button", name="Start"))
        expect(operator.get_by_role("heading", level=1)).to_contain_text("Rollout of")

        # The worker's report appears without a reload.
        expect(operator.get_by_text(re.compile(r"s more at 1%"))).to_be_visible()
        operator.get_by_role("button", name="Set a tenant's turn").click()
        turn = operator.get_by_role("dialog", name="Set a tenant's turn")
        turn.get_by_label("Tenant").fill(customer.slug)
        follow(operator, turn.get_by_role("button", name="Set"))
        expect(operator.get_by_text(f"{customer.slug} moves first.")).to_be_visible()
        with customer.program(customer.key()) as program:
            program.chat.completions.create(
                model=MODEL_NAME, messages=[{"role": "user", "content": "Hello"}]
            )
        requests = operator.get_by_role("row", name=re.compile("^Requests"))
        expect(requests.get_by_role("cell").nth(1)).not_to_have_text("0")

        operator.get_by_role("button", name="Abort").click()
        dialog = operator.get_by_role("dialog", name="Abort the rollout?")
        follow(operator, dialog.get_by_role("button", name="Abort"))
        expect(operator.get_by_text("The rollout is aborted.")).to_be_visible()
        expect(operator.get_by_role("button", name="Pause")).to_have_count(0)
        follow(operator, operator.get_by_role("link", name="See its steps in the audit log"))
        expect(operator.get_by_role("main")).to_contain_text("rollout")
