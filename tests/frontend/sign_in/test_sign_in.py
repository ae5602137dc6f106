"""Guessing passwords, codes and invitation links, and requesting reset mails: which clients are
slowed down, and which are not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.totp.internal import auth as totp
from django.contrib.sessions.models import Session
from django.core import mail
from django.template.loader import render_to_string
from django.test import Client, RequestFactory

from frontend.sign_in import throttling
from tenants.models import Invitation, Membership, Role, Tenant, User
from tests.tenants.making import make_member, make_user

pytestmark = pytest.mark.django_db

PASSWORD = "right and long enough"
HERE, ELSEWHERE = "192.0.2.99", "198.51.100.7"
SLOWED = "Too many attempts. Try again in 15 seconds."


@pytest.fixture(autouse=True)
def clock_stands(monkeypatch: pytest.MonkeyPatch) -> None:
    """Stops the throttles' clock, so that no failure expires during a test on a busy machine."""
    for name in ("PASSWORDS", "CODES", "RESET_MAILS", "INVITATION_LINKS"):
        stopped = replace(getattr(throttling, name), clock=lambda: 1_000_000.0)
        monkeypatch.setattr(throttling, name, stopped)


@pytest.fixture
def ada() -> User:
    user = make_user("ada", email="ada@example.com", password=PASSWORD)
    EmailAddress.objects.create(user=user, email=user.email, verified=True, primary=True)
    return user


def sign_in(login: str, password: str, address: str = HERE) -> Any:
    client = Client(REMOTE_ADDR=address)
    return client.post("/account/login/", {"login": login, "password": password})


def came_in(answer: Any) -> bool:
    return "_auth_user_id" in answer.client.session


def guess(login: str, times: int, address: str = HERE) -> None:
    for _ in range(times):
        page = sign_in(login, "wrong", address).content.decode()
        assert "Wrong username, email or password." in page


# --- Passwords -----------------------------------------------------------------------------------


def test_guessing_is_slowed_down_and_says_when_to_try_again(ada: User) -> None:
    guess("ada", 5)
    refused = sign_in("ada", PASSWORD)
    assert SLOWED in refused.content.decode() and not came_in(refused)


def test_nobody_locks_somebody_else_out(ada: User) -> None:
    """The attack: keep another's account locked with five wrong passwords."""
    guess("ada", 5)
    assert SLOWED in sign_in("ada", "wrong").content.decode()
    assert came_in(sign_in("ada", PASSWORD, ELSEWHERE))


def test_an_address_that_tries_many_accounts_is_slowed_down_and_no_other(
    ada: User, settings: Any
) -> None:
    settings.ACCOUNT_RATE_LIMITS = {**settings.ACCOUNT_RATE_LIMITS, "login": None}  # 30 a minute
    for number in range(30):
        sign_in(f"person{number}", "Summer2026")
    assert "Too many attempts." in sign_in("ada", PASSWORD).content.decode()
    assert came_in(sign_in("ada", PASSWORD, ELSEWHERE))


@pytest.mark.parametrize("other", ["ada@example.com", "ADA", "Ada@Example.com"])
def test_an_account_has_one_count_whatever_it_is_called(ada: User, other: str) -> None:
    guess("ada", 3)
    guess(other, 2)
    assert SLOWED in sign_in(other, PASSWORD).content.decode()
    assert SLOWED in sign_in("ada", PASSWORD).content.decode()


def test_refusals_do_not_tell_which_accounts_exist(ada: User) -> None:
    texts = []
    for login in ("ada", "bob"):
        said = [sign_in(login, "wrong").content.decode() for _ in range(7)]
        texts.append([text.replace(login, "") for text in said])
    assert [SLOWED in text for text in texts[0]] == [SLOWED in text for text in texts[1]]
    assert [SLOWED in text for text in texts[0]] == [False] * 5 + [True] * 2


def test_a_correct_password_resets_the_count_of_failures(ada: User) -> None:
    for _ in range(3):
        guess("ada", 4)
        assert came_in(sign_in("ada", PASSWORD))


def test_a_password_that_is_asked_for_again_is_guessed_at_no_faster(ada: User) -> None:
    """The attacker has a session of the user, but not the password."""
    client = Client(REMOTE_ADDR=HERE)
    client.force_login(ada)
    for _ in range(5):
        answer = client.post("/account/reauthenticate/", {"password": "wrong"})
    assert "Too many attempts" not in answer.content.decode()
    answer = client.post("/account/reauthenticate/", {"password": PASSWORD})
    assert SLOWED in answer.content.decode()


# --- Codes ---------------------------------------------------------------------------------------


def at_the_second_factor(address: str = HERE) -> Client:
    client: Client = sign_in("ada", PASSWORD, address).client
    return client


def enter(client: Client, code: str) -> Any:
    return client.post("/account/2fa/authenticate/", {"code": code})


def code_of(secret: str) -> str:
    counter = next(totp.yield_hotp_counters_from_time())
    return str(totp.format_hotp_value(totp.hotp_value(secret, counter)))


@pytest.fixture
def secret(ada: User) -> str:
    made = totp.generate_totp_secret()
    totp.TOTP.activate(ada, made)
    return str(made)


def test_codes_are_slowed_down_too(secret: str) -> None:
    client = at_the_second_factor()
    for _ in range(5):
        assert "Incorrect code" in enter(client, "000000x").content.decode()
    refused = enter(client, code_of(secret))
    assert SLOWED in refused.content.decode()
    assert "_auth_user_id" not in client.session


def test_guessing_codes_from_many_addresses_is_slowed_down_as_well(secret: str) -> None:
    """Only with the password is a code asked for, so no stranger can lock the account this way."""
    for number in range(20):
        answer = enter(at_the_second_factor(f"203.0.113.{number}"), "000000x")
        assert "Incorrect code" in answer.content.decode()
    refused = enter(at_the_second_factor(ELSEWHERE), code_of(secret))
    assert "Try again in 60 seconds" in refused.content.decode()


def test_the_right_code_signs_in(secret: str) -> None:
    client = at_the_second_factor()
    enter(client, "000000x")
    for _ in range(2):  # the code may expire in between
        if enter(client, code_of(secret)).status_code == 302:
            break
    assert "_auth_user_id" in client.session


def test_recovery_codes_are_shown() -> None:
    shown = render_to_string(
        "mfa/recovery_codes/index.html",
        {"unused_codes": ["11112222", "33334444"], "can_view_codes": True},
        RequestFactory().get("/"),
    )
    assert ">11112222\n33334444</pre>" in shown


@pytest.mark.parametrize("mail", [True, False])
def test_no_mail_is_claimed_that_nobody_sends(ada: User, settings: Any, mail: bool) -> None:
    if not mail:
        settings.EMAIL_BACKEND = "gateway.mail.PrivateFiles"
        settings.EMAIL_FILE_PATH = str(settings.VAR / "mail")
    client = Client(REMOTE_ADDR=HERE)
    asked = client.get("/account/password/reset/").text
    done = client.post("/account/password/reset/", {"email": ada.email}, follow=True).text
    claims = ("You will get a link", "we sent it a link")
    assert [claim in page for claim, page in zip(claims, (asked, done), strict=True)] == [mail] * 2
    for page in (asked, done):
        assert ("This installation does not send email. Ask an operator" in page) != mail


# --- Mails ---------------------------------------------------------------------------------------


def ask_for_mail(address: str, by: str = HERE) -> Any:
    return Client(REMOTE_ADDR=by).post("/account/password/reset/", {"email": address})


def test_mails_say_what_to_do_and_no_more(ada: User) -> None:
    ask_for_mail("ada@example.com")
    (sent,) = mail.outbox
    assert sent.subject == "Reset your password"
    first, _, link, _, last, *_ = str(sent.body).splitlines()
    assert first == "Open this link to choose a new password for ada:"
    assert link.startswith("http") and "/account/password/reset/" in link
    assert "Your password stays the same" in last and "Thank you" not in sent.body


def test_nobody_is_flooded_with_mails(ada: User) -> None:
    for number in range(6):
        answer = ask_for_mail("ada@example.com", f"203.0.113.{number}")
    assert len(mail.outbox) == 3
    assert "Too many attempts. Try again in 60 seconds." in answer.content.decode()


def test_strangers_have_no_mails_sent_to_strangers(ada: User) -> None:
    answer = ask_for_mail("nobody@elsewhere.example")
    assert answer.status_code == 302 and mail.outbox == []


def test_asking_for_mails_does_not_tell_which_accounts_exist(ada: User) -> None:
    answers = {
        address: [ask_for_mail(address, by).status_code for _ in range(4)]
        for address, by in (("ada@example.com", HERE), ("nobody@example.com", ELSEWHERE))
    }
    assert answers["ada@example.com"] == answers["nobody@example.com"] == [302, 302, 302, 200]


def test_an_address_that_asks_for_many_is_slowed_down(ada: User) -> None:
    for number in range(10):
        assert ask_for_mail(f"person{number}@example.com").status_code == 302
    assert "Too many attempts" in ask_for_mail("ada@example.com").content.decode()
    assert ask_for_mail("ada@example.com", ELSEWHERE).status_code == 302 and len(mail.outbox) == 1


# --- Invitations ---------------------------------------------------------------------------------


@pytest.fixture
def token(tenant: Tenant) -> str:
    by = make_member(tenant, "owner")
    return Invitation.objects.invite(tenant, role=Role.VIEWER, note="", by=by)[1]


def test_guessing_links_is_slowed_down(token: str) -> None:
    client = Client(REMOTE_ADDR=HERE)
    for number in range(20):
        assert client.get(f"/invitations/guess{number}").status_code == 404
    refused = client.get(f"/invitations/{token}")
    assert (refused.status_code, refused["Retry-After"]) == (429, "2")
    assert "Try again in 2 seconds." in refused.content.decode()
    assert Client(REMOTE_ADDR=ELSEWHERE).get(f"/invitations/{token}")["Location"] == "/join"


def test_a_link_that_works_may_be_opened_often(token: str) -> None:
    for _ in range(40):
        assert Client(REMOTE_ADDR=HERE).get(f"/invitations/{token}").status_code == 302


@pytest.mark.parametrize("length", [10, 60_000])
def test_a_wrong_link_leaves_nothing_behind(length: int) -> None:
    """The attack: have each link of 60 KB stored in a session of its own."""
    client = Client()
    answer = client.get("/invitations/" + "x" * length)
    assert (
        answer.status_code == 404
        and "This invitation is no longer valid" in answer.content.decode()
    )
    assert not Session.objects.exists() and not client.cookies.get("sessionid")


def test_an_invitation_leads_through_the_sign_up_without_a_row_before(
    tenant: Tenant, token: str
) -> None:
    client = Client()
    assert client.get(f"/invitations/{token}")["Location"] == "/join"
    assert tenant.name in client.get("/join").content.decode()
    assert not Session.objects.exists()
    body = {"username": "bo", "password1": PASSWORD, "password2": PASSWORD}
    assert client.post("/account/signup/?next=/join", body)["Location"] == "/join"
    assert client.post("/join")["Location"] == f"/t/{tenant.slug}/"
    assert Membership.objects.get(user__username="bo").tenant == tenant
