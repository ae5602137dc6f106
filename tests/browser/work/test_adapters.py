"""Adapters: uploaded, checked, promoted and rolled back while they are in use."""

from __future__ import annotations

from hashlib import sha256
from pathlib import Path

import pytest
from openai import OpenAI
from playwright.sync_api import Page, expect

from inference.content import FILES, digest_of
from tests.browser.adapters import PIRATE, SUPPORT, own, too_high
from tests.browser.people import (
    Customer,
    await_ready,
    await_rejected,
    completion,
    follow,
    go,
    long_stream,
    staying,
    upload,
)
from tests.stack.asking import until

pytestmark = pytest.mark.stack


def test_a_sound_adapter_becomes_ready_before_ones_eyes(owner: Page) -> None:
    go(owner, "Adapters")
    upload(owner, "dispatcher", SUPPORT)
    expect(owner.get_by_role("heading", name="Version 1")).to_be_visible()
    with staying(owner):
        await_ready(owner)
        expect(owner.get_by_role("region", name="Checks")).to_contain_text("Finite output")
        expect(owner.get_by_role("region", name="Checks")).to_contain_text("With this adapter")


def test_a_broken_adapter_is_rejected_with_the_reason(owner: Page, tmp_path: Path) -> None:
    go(owner, "Adapters")
    upload(owner, "broken", too_high(tmp_path / "adapter"))
    await_rejected(owner, "broken", "r is 32, above this base model's limit of 16.")


def test_files_that_are_no_adapter_are_not_even_sent(owner: Page, tmp_path: Path) -> None:
    go(owner, "Adapters")
    (tmp_path / "adapter_config.json").write_text("{}")
    (tmp_path / "adapter_model.bin").write_bytes(b"pickle")
    owner.get_by_role("button", name="Upload adapter").first.click()
    dialog = owner.get_by_role("dialog", name="Upload adapter")
    dialog.get_by_label("Files", exact=True).set_input_files(sorted(tmp_path.iterdir()))
    expect(dialog.get_by_role("alert")).to_contain_text("adapter_model.bin is a pickle")
    (tmp_path / "adapter_model.bin").rename(tmp_path / "model.onnx")
    dialog.get_by_label("Files", exact=True).set_input_files(sorted(tmp_path.iterdir()))
    expect(dialog.get_by_role("alert")).to_have_text("adapter_model.safetensors is missing.")


def test_promoting_and_rolling_back_spares_open_streams(
    owner: Page, customer: Customer, tmp_path: Path
) -> None:
    folders = own(SUPPORT, tmp_path / "1"), own(PIRATE, tmp_path / "2")
    first, second = (voice(customer, folder) for folder in folders)
    for number, folder in enumerate(folders, start=1):
        go(owner, "Adapters")
        upload(owner, "dispatcher", folder)
        expect(owner.get_by_role("heading", name=f"Version {number}")).to_be_visible()
        await_ready(owner)
    with customer.program(customer.key()) as program:
        assert answer(program).startswith(first)
        following = long_stream(program, "dispatcher", max_tokens=600)
        text = next(following).choices[0].delta.content or ""

        promote(owner, 2)
        until(lambda: answer(program).startswith(second))
        go(owner, "Adapters")
        follow(owner, owner.get_by_role("link", name="dispatcher", exact=True))
        for number in (1, 2):
            version = owner.get_by_role("row", name=f"Version {number}")
            expect(version.get_by_text("1 engine")).to_be_visible()

        roll_back(owner, 1)
        until(lambda: answer(program).startswith(first))
        seen = list(following)
    text += "".join(chunk.choices[0].delta.content or "" for chunk in seen)
    assert text.startswith(first)
    assert seen[-1].choices[0].finish_reason == "length"


def voice(customer: Customer, folder: Path) -> str:
    """The beginning of the synthetic engine's answers with this adapter."""
    digest = digest_of(*(sha256((folder / name).read_bytes()).hexdigest() for name in FILES))
    return f"{customer.slug}/dispatcher@{digest}: "


def promote(page: Page, number: int) -> None:
    """On the page of a version: promote it to live."""
    page.get_by_role("button", name="Promote").click()
    dialog = page.get_by_role("dialog", name=f"Promote version {number}")
    follow(page, dialog.get_by_role("button", name="Promote"))
    expect(page.get_by_text(f"“live” points at version {number}.")).to_be_visible()
    expect(page.get_by_role("row", name="live dispatcher")).to_contain_text(str(number))


def roll_back(page: Page, number: int) -> None:
    """On the page of an adapter: roll back to the previous version."""
    page.get_by_role("button", name="Roll back").click()
    dialog = page.get_by_role("dialog", name=f"back to version {number}")
    follow(page, dialog.get_by_role("button", name="Roll back"))
    expect(page.get_by_text(f"“live” is back at version {number}.")).to_be_visible()


def answer(program: OpenAI) -> str:
    """The answer of the adapter's live version."""
    return completion(program, "dispatcher", 60).choices[0].message.content or ""
