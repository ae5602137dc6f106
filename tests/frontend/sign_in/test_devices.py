"""A person's own sessions: which there are, and ending them."""

from __future__ import annotations

import pytest
from allauth.mfa.totp.internal import auth as totp
from allauth.usersessions.models import UserSession
from django.core.cache import cache
from django.db import connection
from django.test import Client
from django.test.utils import CaptureQueriesContext

from frontend.sign_in.devices import device
from tenants.models import User
from tests.tenants.making import make_user

pytestmark = pytest.mark.django_db

PASSWORD = "right and long enough"
FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
PHONE = (
    "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1.15 "
    "(KHTML, like Gecko) Version/18.5 Mobile/15E148 Safari/604.1"
)
SESSIONS = "/account/sessions/"


@pytest.fixture
def ada() -> User:
    return make_user("ada", password=PASSWORD)


def sign_in(name: str, agent: str = FIREFOX, address: str = "192.0.2.1") -> Client:
    client = Client(headers={"User-Agent": agent}, REMOTE_ADDR=address)
    client.post("/account/login/", {"login": name, "password": PASSWORD})
    return client


def alive(client: Client) -> bool:
    return client.get(SESSIONS).status_code == 200


def test_each_is_listed_with_browser_and_address(ada: User) -> None:
    here = sign_in("ada")
    sign_in("ada", PHONE, "198.51.100.7")
    page = here.get(SESSIONS).text
    assert "Firefox on Linux" in page and "Safari on iPhone" in page and "198.51.100.7" in page
    assert page.count("This one") == 1 and page.count('action="/account/sessions/') == 2


def test_one_is_ended_and_all_others(ada: User) -> None:
    here, phone, third = sign_in("ada"), sign_in("ada", PHONE), sign_in("ada", "curl/8")
    there = UserSession.objects.get(user_agent=PHONE)
    assert (
        "Safari on iPhone is signed out"
        in here.post(f"{SESSIONS}{there.pk}/end", follow=True).content.decode()
    )
    assert (alive(here), alive(phone), alive(third)) == (True, False, True)
    here.post(SESSIONS)
    assert (alive(here), alive(third)) == (True, False)


def test_nobody_ends_anothers(ada: User) -> None:
    here = sign_in("ada")
    make_user("bob", password=PASSWORD)
    session = UserSession.objects.get()
    bob = sign_in("bob")
    assert bob.post(f"{SESSIONS}{session.pk}/end").status_code == 404
    bob.post(SESSIONS)
    assert Client().post(f"{SESSIONS}{session.pk}/end").status_code == 302
    assert alive(here)


def test_ones_own_session_may_be_ended_as_well(ada: User) -> None:
    here = sign_in("ada")
    session = UserSession.objects.get()
    assert here.post(f"{SESSIONS}{session.pk}/end").status_code == 302
    assert not alive(here)


def test_use_is_noted_now_and_then(ada: User) -> None:
    """A session that began before there were such rows gets one; a page costs no query for it."""
    client = Client(headers={"User-Agent": FIREFOX})
    client.force_login(ada)
    client.get("/account/email/")
    assert UserSession.objects.get().user == ada
    with CaptureQueriesContext(connection) as queries:
        client.get("/account/email/")
    assert not [query for query in queries if "usersession" in query["sql"]]
    cache.clear()
    moved = Client(headers={"User-Agent": PHONE}, REMOTE_ADDR="198.51.100.7")
    moved.cookies = client.cookies
    moved.get("/account/email/")
    assert UserSession.objects.get().ip == "198.51.100.7"


def test_a_first_second_factor_signs_out_everywhere_else(
    ada: User, django_capture_on_commit_callbacks: object
) -> None:
    here, there = sign_in("ada"), sign_in("ada", PHONE)
    here.post("/account/reauthenticate/", {"password": PASSWORD})
    page = here.get("/account/2fa/totp/activate/")
    secret = page.context["form"].secret
    with django_capture_on_commit_callbacks(execute=True):  # type: ignore[operator]
        for counter in totp.yield_hotp_counters_from_time():
            code = totp.format_hotp_value(totp.hotp_value(secret, counter))
            here.post("/account/2fa/totp/activate/", {"code": code})
    assert (alive(here), alive(there)) == (True, False)


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (FIREFOX, "Firefox on Linux"),
        (PHONE, "Safari on iPhone"),
        ("Mozilla/5.0 (Windows NT 10.0) Chrome/140.0 Safari/537.36 Edg/140.0", "Edge on Windows"),
        ("Mozilla/5.0 (Linux; Android 15) Chrome/140.0 Mobile Safari/537.36", "Chrome on Android"),
        ("curl/8.5.0", "curl/8.5.0"),
        ("", "Unknown browser"),
    ],
)
def test_browsers_have_names(agent: str, name: str) -> None:
    assert device(agent) == name
