"""`manage.py create_operator`: who signs in first, and who can't any more."""

from __future__ import annotations

from io import StringIO
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.core.management import CommandError, call_command
from django.test import Client

from tenants.models import User
from tests.tenants.making import make_user

pytestmark = pytest.mark.django_db

HINT = "manage.py create_operator"


def created(*arguments: str, **options: Any) -> str:
    out = StringIO()
    call_command("create_operator", *arguments, stdout=out, **options)
    return out.getvalue()


def password_in(text: str) -> str:
    return text.partition("Password: ")[2].split()[0]


def signs_in(name: str, password: str) -> bool:
    return Client().login(username=name, password=password)


def test_a_fresh_installation_says_how_and_the_printed_password_signs_in() -> None:
    assert HINT in Client().get("/account/login/").text
    text = created(email="ada@example.com")
    user = User.objects.get()
    assert (user.username, user.email, user.is_staff) == ("operator", "ada@example.com", True)
    assert signs_in("operator", password_in(text))
    assert HINT not in Client().get("/account/login/").text


def test_a_container_gives_the_password_and_may_run_it_at_each_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("LORIKEET_OPERATOR_PASSWORD", "a secret of the cluster")
    text = created("ada", if_none=True)
    assert "secret" not in text and signs_in("ada", "a secret of the cluster")
    assert created("ada", if_none=True) == "There is an operator already.\n"
    assert User.objects.count() == 1


def test_an_account_that_was_locked_out_comes_back() -> None:
    user = make_user()
    user.is_active = False
    user.save()
    Authenticator.objects.create(user=user, type=Authenticator.Type.TOTP, data={})
    with pytest.raises(CommandError, match="exists already"):
        created(user.username)
    assert not User.operators().exists()
    assert signs_in(user.username, password_in(created(user.username, reset=True)))
    assert User.operators().get() == user and not Authenticator.objects.exists()


@pytest.mark.parametrize(
    ("name", "password", "said"),
    [("ada", "short", "too short"), ("a da", "a long secret of mine", "valid username")],
)
def test_what_cannot_be_is_said_and_nothing_is_made(
    monkeypatch: pytest.MonkeyPatch, name: str, password: str, said: str
) -> None:
    monkeypatch.setenv("LORIKEET_OPERATOR_PASSWORD", password)
    with pytest.raises(CommandError, match=said):
        created(name)
    assert not User.objects.exists()
