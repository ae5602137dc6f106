"""Passkeys: adding one, signing in with it, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.test import Client, RequestFactory

from frontend.sign_in import passkeys
from frontend.sign_in.passkeys import MAX_PASSKEYS, NOT_ACCEPTED
from tenants.models import User
from tests.frontend.sign_in.authenticator import Passkey
from tests.tenants.making import make_user

pytestmark = pytest.mark.django_db

PASSWORD = "right and long enough"
ADD, SIGN_IN = "/account/2fa/webauthn/add/", "/account/2fa/webauthn/login/"
JSON = {"Accept": "application/json"}


def browser() -> Client:
    return Client(SERVER_NAME="localhost")


def signed_in(user: User) -> Client:
    client = browser()
    client.post("/account/login/", {"login": user.username, "password": PASSWORD})
    client.post("/account/reauthenticate/", {"password": PASSWORD})
    return client


def add(client: Client, passkey: Passkey, name: str = "Laptop") -> Any:
    options = client.get(ADD).context["js_data"]["creation_options"]
    return client.post(ADD, {"name": name, "credential": passkey.created(options)})


def come_in(passkey: Passkey, client: Client | None = None, **told: Any) -> Client:
    client = client or browser()
    options = client.get(SIGN_IN, headers=JSON).json()["request_options"]
    client.post(SIGN_IN, {"credential": passkey.presented(options, **told), "next": "/join"})
    return client


@pytest.fixture
def ada() -> User:
    return make_user("ada", password=PASSWORD)


@pytest.fixture
def passkey(ada: User) -> Passkey:
    made = Passkey()
    assert add(signed_in(ada), made).status_code == 302
    return made


def test_one_is_added_named_and_signs_in_alone(ada: User, passkey: Passkey) -> None:
    client = come_in(passkey)
    assert client.session["_auth_user_id"] == str(ada.pk)
    page = client.get("/account/2fa/webauthn/").text
    assert "Laptop" in page and "Without password" in page and "not used yet" not in page


def test_it_is_a_second_factor_after_the_password(ada: User, passkey: Passkey) -> None:
    client = browser()
    asked = client.post("/account/login/", {"login": "ada", "password": PASSWORD})
    assert asked["Location"].startswith("/account/2fa/authenticate/")
    page = client.get(asked["Location"])
    assert "Use a passkey" in page.text and "_auth_user_id" not in client.session
    options = page.context["js_data"]["request_options"]
    client.post("/account/2fa/authenticate/", {"credential": passkey.presented(options)})
    assert client.session["_auth_user_id"] == str(ada.pk)


def test_nobody_else_comes_in(ada: User, passkey: Passkey) -> None:
    """With another's handle, a key of one's own, from another origin, with an old answer, or
    without any."""
    bob = make_user("bob", password=PASSWORD)
    other = Passkey(id=b"the other's")
    add(signed_in(bob), other)
    attempts = [
        come_in(other, user=passkey.user),
        come_in(Passkey(id=passkey.id, user=passkey.user)),
        come_in(Passkey("https://evil.example", key=passkey.key, user=passkey.user)),
        come_in(Passkey(host="evil.example", key=passkey.key, user=passkey.user)),
    ]
    client = browser()
    options = client.get(SIGN_IN, headers=JSON).json()["request_options"]
    client.get(SIGN_IN, headers=JSON)
    answer = client.post(SIGN_IN, {"credential": passkey.presented(options)}, follow=True)
    assert NOT_ACCEPTED in answer.text
    for body in ({}, {"credential": "[]"}, {"credential": '{"response": null}'}):
        client.post(SIGN_IN, body)
    assert not [one for one in (*attempts, client) if "_auth_user_id" in one.session]


def test_an_answer_signs_in_once(ada: User, passkey: Passkey) -> None:
    client = browser()
    options = client.get(SIGN_IN, headers=JSON).json()["request_options"]
    body = {"credential": passkey.presented(options)}
    client.post(SIGN_IN, body)
    assert "_auth_user_id" in client.session
    client.post("/account/logout/")
    client.post(SIGN_IN, body)
    assert "_auth_user_id" not in client.session


def test_they_are_bounded(ada: User) -> None:
    client = signed_in(ada)
    data = {"name": "one", "credential": {}}
    for _ in range(MAX_PASSKEYS):
        Authenticator.objects.create(user=ada, type=Authenticator.Type.WEBAUTHN, data=data)
    client.get("/account/2fa/")
    form = passkeys.AddPasskeyForm({"name": "x" * 61, "credential": "1"}, user=ada)
    form.fields["credential"].required = False
    form.data = {"name": "x" * 61}
    assert not form.is_valid()
    assert passkeys.FULL in form.non_field_errors() and "name" in form.errors


@pytest.mark.parametrize(
    ("host", "secure", "possible"),
    [
        ("localhost:8001", False, True),
        ("127.0.0.1:8001", False, False),
        ("[::1]", True, False),
        ("console.example", False, False),
        ("console.example", True, True),
    ],
)
def test_they_are_offered_where_browsers_have_them(
    host: str, secure: bool, possible: bool, settings: Any
) -> None:
    settings.ALLOWED_HOSTS = ["*"]
    request = RequestFactory().get("/", headers={"Host": host}, secure=secure)
    assert passkeys.are_possible(request) == possible
    page = Client(headers={"Host": host}).get("/account/login/", secure=secure).text
    assert ("Use a passkey" in page) == possible
