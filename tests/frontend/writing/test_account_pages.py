"""Allauth's pages use sentence case, like the console's."""

from __future__ import annotations

import re

import pytest
from django.test import Client

from frontend.templatetags.lorikeet import sentence_case
from tenants.models import Tenant
from tests.frontend.clients import client_of

SHOWN = re.compile(r"<(title|h1|h2|button|label)\b[^>]*>\s*([^<\s][^<]*)")


@pytest.mark.parametrize(
    "where", ["email/", "password/change/", "2fa/", "2fa/totp/activate/", "logout/"]
)
def test_titles_buttons_and_labels_are_in_sentence_case(tenant: Tenant, where: str) -> None:
    page = client_of(tenant, "owner").get(f"/account/{where}", follow=True)
    shown = [text.strip() for _, text in SHOWN.findall(page.content.decode())]
    assert shown and not [text for text in shown if text[0].islower()]
    assert [text for text in shown if re.search(r"\w[ -][A-Z][a-z]", text)] == []


@pytest.mark.django_db
def test_the_label_of_a_box_as_well(client: Client) -> None:
    assert "<span>Remember me</span>" in client.get("/account/login/").content.decode()


def test_panels_keep_their_titles(tenant: Tenant) -> None:
    page = client_of(tenant, "owner").get("/account/2fa/")
    titles = [text.strip() for tag, text in SHOWN.findall(page.content.decode()) if tag == "h2"]
    assert titles == ["Authenticator app", "Recovery codes"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Two-Factor Authentication", "Two-factor authentication"),
        ("Don't Trust", "Don't trust"),
        ("Use OpenID or TOTP", "Use OpenID or TOTP"),
    ],
)
def test_only_first_letters_of_words_change(text: str, expected: str) -> None:
    assert sentence_case(text) == expected
