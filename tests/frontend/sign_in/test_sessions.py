"""Sessions: rows for signed-in users, signed cookies for everybody else."""

from __future__ import annotations

from typing import Any

import pytest
from django.contrib.sessions.models import Session
from django.core.exceptions import SuspiciousOperation
from django.core.signing import TimestampSigner, b62_decode, b62_encode
from django.test import Client

from frontend.sign_in.sessions import ANONYMOUS_S, SessionStore
from tests.tenants.making import make_user

pytestmark = pytest.mark.django_db


def saved(**content: Any) -> SessionStore:
    session = SessionStore()
    session.update(content)
    session.save()
    return session


def test_an_anonymous_session_is_in_the_cookie_alone() -> None:
    session = saved(invitation="token")
    assert dict(SessionStore(session.session_key).items()) == {"invitation": "token"}
    assert not Session.objects.exists()


@pytest.mark.parametrize("change", ["forged", "cut", "old"])
def test_one_that_is_not_ours_or_too_old_is_empty(
    change: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    key = saved(invitation="token").session_key
    assert key is not None
    if change == "old":
        signed = TimestampSigner.timestamp
        monkeypatch.setattr(TimestampSigner, "timestamp", lambda self: long_before(signed(self)))
        key = saved(invitation="token").session_key
    else:
        key = "x" + key[1:] if change == "forged" else key[:-3]
    session = SessionStore(key)
    assert session.get("invitation") is None and session.is_empty()


def long_before(stamp: str) -> str:
    return b62_encode(b62_decode(stamp) - ANONYMOUS_S - 1)


def test_a_session_is_stored_at_sign_in_with_its_earlier_data() -> None:
    session = saved(invitation="token")
    session = SessionStore(session.session_key)
    session.cycle_key()
    session["_auth_user_id"] = "1"
    session.save()
    (row,) = Session.objects.all()
    assert row.session_key == session.session_key and ":" not in row.session_key
    assert SessionStore(row.session_key)["invitation"] == "token"
    session.cycle_key()
    (row,) = Session.objects.all()
    assert row.session_key == session.session_key and session["invitation"] == "token"
    session.flush()
    assert not Session.objects.exists() and session.session_key is None


def test_a_sign_in_that_waits_for_a_code_is_a_row_until_it_is_given_up() -> None:
    """In a cookie it could be copied, and used again after it was abandoned."""
    session = saved(account_login={"user_pk": 1})
    row = Session.objects.get()
    session.pop("account_login")
    session["other"] = 1
    session.save()
    assert session.session_key != row.session_key
    assert not Session.objects.exists()


def test_a_large_one_is_refused() -> None:
    noise = "".join(str(hash(str(number))) for number in range(1000))
    with pytest.raises(SuspiciousOperation):
        saved(state=noise)


def test_signing_in_and_out_leaves_no_row() -> None:
    make_user("ann", password="correct horse battery")
    client = Client()
    client.post("/account/login/", {"login": "ann", "password": "correct horse battery"})
    assert client.session["_auth_user_id"] and Session.objects.count() == 1
    client.post("/account/logout/")
    assert "_auth_user_id" not in client.session and not Session.objects.exists()
