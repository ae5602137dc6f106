"""Allauth's sign-in is the only way in. Every address is tried anonymously, with an operator's
password, and as an operator without a second factor."""

from __future__ import annotations

import base64
from typing import Any

import pytest
from allauth.account.auth_backends import AuthenticationBackend
from allauth.mfa.models import Authenticator
from allauth.mfa.totp.internal import auth as totp
from django.conf import settings as configured
from django.contrib.sessions.models import Session
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import reverse

from frontend.sign_in.backends import SessionUserBackend
from tenants.models import Tenant, User
from tests.environment import ROOT
from tests.frontend.clients import client_of
from tests.frontend.sign_in.doors import Door, doors
from tests.tenants.making import make_member, make_user

pytestmark = pytest.mark.django_db

DOORS = doors()
OTHERS = ("PUT", "PATCH", "DELETE", "HEAD", "OPTIONS")
TRIED = [
    (door, method)
    for number, door in enumerate(DOORS)
    for method in ("GET", "POST", OTHERS[number % len(OTHERS)])
]
"""GET and POST at each door, and the other methods at every fifth."""
PASSWORD = "an operator's own password"
OPEN = {
    "account_login", "account_signup", "account_inactive", "account_logout",
    "account_reset_password", "account_reset_password_done", "account_reset_password_from_key",
    "account_reset_password_from_key_done", "account_confirm_email",
    "account_email_verification_sent", "mfa_login_webauthn", "socialaccount_login_cancelled",
    "socialaccount_login_error", "schema", "docs",
    "/v1/usage/receipts/key", "/v1/usage/receipts/jwks.json",
}  # fmt: skip
"""Addresses that answer anonymous clients."""
CHANGES = ("INSERT", "UPDATE", "DELETE")


def everything_sent(door: Door, client: Client, method: str, body: dict[str, Any]) -> Any:
    if method == "GET":
        return client.get(door.path, body)
    if method == "POST":
        return client.post(door.path, body)
    return client.generic(method, door.path)


def credentials(user: User) -> dict[str, str]:
    """A user name and a password, under every field name that a form could use."""
    names = ("login", "username", "user", "email", "name")
    passwords = ("password", "oldpassword", "password1", "password2", "pass")
    said = dict.fromkeys(names, user.username) | dict.fromkeys(passwords, PASSWORD)
    return said | {"next": "/operate/", "this_is_the_login_form": "1"}


def basic(user: User) -> dict[str, str]:
    token = base64.b64encode(f"{user.username}:{PASSWORD}".encode()).decode()
    return {"Authorization": f"Basic {token}"}


@pytest.fixture
def operator_account() -> User:
    return make_user("ann", email="ann@example.com", password=PASSWORD, is_staff=True)


@pytest.fixture
def acme(tenant: Tenant) -> Tenant:
    return tenant


def test_every_address_is_among_the_doors() -> None:
    names = {door.name for door in DOORS}
    assert {"operate_users", "overview", "account_login", "mfa_authenticate", "docs"} <= names
    assert len(DOORS) > 120
    assert OPEN <= names


def test_nobody_gets_in_and_writes_nothing(acme: Tenant) -> None:
    make_member(acme, "owner")
    shown = set()
    with CaptureQueriesContext(connection) as queries:
        for door, method in TRIED:
            client = Client()
            answer = everything_sent(door, client, method, {"next": "/operate/", "q": "x"})
            assert "_auth_user_id" not in client.session, door
            assert acme.name not in answer.content.decode(errors="replace"), door
            if answer.status_code == 200:
                shown.add(door.name)
    assert shown <= OPEN
    written = [query["sql"] for query in queries if query["sql"].lstrip().startswith(CHANGES)]
    assert written == []
    assert not Session.objects.exists()


@pytest.mark.parametrize("way", ["form", "basic"])
def test_a_password_is_taken_at_one_address_only(
    acme: Tenant, operator_account: User, way: str
) -> None:
    for door in DOORS:
        client = Client(headers=basic(operator_account) if way == "basic" else {})
        for method in ("GET", "POST"):
            said = credentials(operator_account) if way == "form" else {}
            everything_sent(door, client, method, said)
        expected = way == "form" and door.name == "account_login"
        assert ("_auth_user_id" in client.session) == expected, door
        assert (client.get("/operate/").status_code == 200) == expected, door
    operator_account.refresh_from_db()
    assert operator_account.check_password(PASSWORD)


def test_a_password_alone_opens_nothing_where_there_is_a_second_factor(
    acme: Tenant, operator_account: User
) -> None:
    secret = totp.generate_totp_secret()
    totp.TOTP.activate(operator_account, secret)
    client = Client()
    asked = client.post("/account/login/", credentials(operator_account))
    assert asked["Location"].startswith(reverse("mfa_authenticate"))
    cookies = dict(client.cookies.items())
    for door in DOORS:
        for method in ("GET", "POST"):
            client.cookies.clear()
            for name, morsel in cookies.items():
                client.cookies[name] = morsel.value
            answer = everything_sent(door, client, method, credentials(operator_account))
            assert "_auth_user_id" not in client.session, door
            assert acme.name not in answer.content.decode(errors="replace"), door
            if answer.status_code == 200:
                assert door.name in OPEN | {"mfa_authenticate"}, door


def test_only_allauth_signs_users_in() -> None:
    """Users are signed in by allauth only, whose checks come first; Django's own backend is not
    configured, and ours only loads the user of a session."""
    assert configured.AUTHENTICATION_BACKENDS == ["frontend.sign_in.backends.SessionUserBackend"]
    assert issubclass(SessionUserBackend, AuthenticationBackend)
    assert {name for name in vars(SessionUserBackend) if not name.startswith("__")} == {"get_user"}
    ways = ("auth import login", "auth import authenticate", "perform_login", "force_login")
    sources = [
        file
        for folder in ("frontend", "tenants", "platform/gateway")
        for file in (ROOT / folder).rglob("*.py")
    ]
    assert len(sources) > 100
    assert [file for file in sources if any(way in file.read_text() for way in ways)] == []


# --- An operator without a second factor ---------------------------------------------------------

BANNER = "You are signed in as an operator with a password only."


def test_he_is_asked_to_set_one_up_when_he_signs_in(operator_account: User) -> None:
    client = Client()
    said = credentials(operator_account) | {"next": "/operate/users"}
    asked = client.post("/account/login/", said)
    assert asked["Location"] == "/account/second-factor?next=%2Foperate%2Fusers"
    page = client.get(asked["Location"]).content.decode()
    assert "Set up a second factor" in page and 'href="/operate/users">Not now' in page
    assert BANNER in client.get("/operate/users").content.decode()
    totp.TOTP.activate(operator_account, totp.generate_totp_secret())
    assert BANNER not in client.get("/operate/users").content.decode()
    assert client.get(asked["Location"])["Location"] == "/operate/users"


@pytest.mark.parametrize("role", ["owner", "viewer"])
def test_others_are_not(tenant: Tenant, role: str) -> None:
    user = make_member(tenant, role)
    user.set_password(PASSWORD)
    user.save()
    client = Client()
    answer = client.post("/account/login/", credentials(user) | {"next": "/t/acme/"})
    assert answer["Location"] == "/t/acme/"
    assert BANNER not in client.get("/t/acme/").content.decode()


@pytest.mark.parametrize("onward", ["//evil.example/", "https://evil.example/", "javascript:x", ""])
def test_the_page_leads_nowhere_else(operator_account: User, onward: str) -> None:
    client = Client()
    client.force_login(operator_account)
    page = client.get("/account/second-factor", {"next": onward}).content.decode()
    assert 'href="/">Not now' in page and "evil" not in page


def test_where_it_is_required_he_can_do_nothing_else(
    acme: Tenant, operator_account: User, settings: Any
) -> None:
    settings.OPERATOR_SECOND_FACTOR = "require"
    client = Client()
    client.post("/account/login/", credentials(operator_account))
    assert "_auth_user_id" in client.session
    before = User.objects.count(), Tenant.objects.count()
    for door in DOORS:
        if door.path.startswith(("/account/", "/v1/")):
            continue  # needed to set one up; and /v1/ takes keys only
        for method in ("GET", "POST"):  # the middleware that refuses does not look at the method
            answer = everything_sent(door, client, method, {"username": "x", "slug": "y"})
            assert answer.status_code in (302, 403), (method, door)
            if answer.status_code == 302:
                assert answer["Location"].startswith("/account/second-factor"), door
            assert acme.name not in answer.content.decode(errors="replace"), door
    assert (User.objects.count(), Tenant.objects.count()) == before
    refused = client.get("/api/v1/keys", {"tenant": "acme"})
    assert refused.json()["code"] == "second_factor_required"
    part = client.get("/operate/", headers={"HX-Request": "true"})
    assert (part.status_code, part["HX-Redirect"]) == (204, "/account/second-factor")
    page = client.get("/account/second-factor").content.decode()
    assert "Not now" not in page and "Sign out" in page
    totp.TOTP.activate(operator_account, totp.generate_totp_secret())
    assert client.get("/operate/").status_code == 200


def test_where_it_is_required_others_work_on(tenant: Tenant, settings: Any) -> None:
    settings.OPERATOR_SECOND_FACTOR = "require"
    assert client_of(tenant, "viewer").get("/t/acme/").status_code == 200


def test_an_unverified_address_keeps_nobody_from_setting_one_up(
    operator_account: User,
) -> None:
    client = Client()
    client.post("/account/login/", credentials(operator_account))
    client.post("/account/email/", {"action_add": "", "email": "other@example.com"})
    client.post("/account/reauthenticate/", {"password": PASSWORD})
    page = client.get(reverse("mfa_activate_totp"))
    assert page.status_code == 200 and "authenticator app" in page.content.decode()
    assert not Authenticator.objects.exists()
