"""Allauth's pages speak as the console does."""

from __future__ import annotations

import re
from pathlib import Path

import allauth
import pytest
from allauth.mfa.recovery_codes.internal.auth import RecoveryCodes
from allauth.mfa.totp.internal.auth import TOTP, generate_totp_secret
from django.test import Client

from frontend.sign_in.wording import WORDING
from frontend.templatetags.lorikeet import sentence_case
from tenants.models import Invitation, Role, Tenant
from tests.frontend.clients import client_of, user_of
from tests.tenants.making import make_user

SHOWN = re.compile(r"<(title|h1|h2|button|label)\b[^>]*>\s*([^<\s][^<]*)")


@pytest.mark.parametrize(
    "where",
    [
        "email/",
        "password/change/",
        "2fa/",
        "2fa/totp/activate/",
        "2fa/webauthn/",
        "sessions/",
        "logout/",
    ],
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
    assert titles == ["Authenticator app", "Passkeys", "Recovery codes"]


ALLAUTH = Path(allauth.__file__).parent
SOURCES = ("account/adapter.py", "account/forms.py", "mfa/totp/forms.py")
SAID = re.compile(r"""{% (?:trans|translate) (["'])(.*?)\1 %}""")


def texts_of_allauth() -> str:
    """All its templates without tags, and the sources that have texts of their own."""
    templates = (SAID.sub(r"\2", path.read_text()) for path in ALLAUTH.rglob("templates/**/*.html"))
    texts = [re.sub(r"{%.*?%}", " ", text) for text in templates]
    texts += [(ALLAUTH / file).read_text() for file in SOURCES]
    return " ".join(" ".join(texts).split())


def test_every_text_that_is_reworded_is_one_of_allauths() -> None:
    texts = texts_of_allauth()
    assert [text for text in WORDING if text not in texts] == []


@pytest.mark.parametrize(
    ("where", "said"),
    [
        ("2fa/", "<title>Second factor · Lorikeet</title>"),
        ("2fa/", "<h1>Second factor</h1>"),
        ("2fa/", ">Set up</a>"),
        ("2fa/", "You get recovery codes when you set up"),
        ("2fa/totp/activate/", "<h1>Set up authenticator app</h1>"),
        ("2fa/totp/activate/", ">Setup key</label>"),
        ("2fa/totp/activate/", "Enter this key in the app"),
        ("2fa/totp/activate/", ">Code</label>"),
        ("reauthenticate/", "<h1>Confirm it\u2019s you</h1>"),
        ("email/", "You have no email address. Add one"),
    ],
)
@pytest.mark.django_db
def test_pages_are_in_the_consoles_words(client: Client, where: str, said: str) -> None:
    make_user("ada", password=(password := "right-and-long-enough"))
    client.post("/account/login/", {"login": "ada", "password": password})
    if "totp" in where:
        client.post("/account/reauthenticate/", {"password": password})
    page = client.get(f"/account/{where}").content.decode()
    assert said in page


def test_texts_with_variables_are_reworded(tenant: Tenant) -> None:
    owner = client_of(tenant, "owner")
    user = user_of(owner)
    TOTP.activate(user, generate_totp_secret())
    RecoveryCodes.activate(user)
    assert "10 of 10 recovery codes are left." in owner.get("/account/2fa/").content.decode()
    _, token = Invitation.objects.invite(tenant, role=Role.VIEWER, note="", by=user)
    client = Client()
    client.get(f"/invitations/{token}")
    page = client.get("/account/signup/?next=/join").content.decode()
    assert re.search(r'Already have an account\? <a href="[^"]+">Sign in</a></p>', page)
    assert "placeholder" not in page and page.count("(optional)") == 1


@pytest.mark.django_db
def test_labels_stay_reworded_when_a_form_is_refused(client: Client) -> None:
    page = client.post("/account/login/", {"login": "ada", "password": "wrong"}).content.decode()
    assert "Wrong username" in page and "<span>Remember me</span>" in page


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
