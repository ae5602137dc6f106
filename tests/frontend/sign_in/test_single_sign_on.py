"""Single sign-on against a real identity provider, followed as a browser does."""

from __future__ import annotations

import html
import re
import runpy
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from allauth.account.models import EmailAddress
from allauth.mfa.totp.internal import auth as totp
from allauth.socialaccount.models import SocialAccount
from django.contrib.sessions.models import Session
from django.test import Client

from tenants.models import Invitation, Membership, Role, Tenant, User
from tests.frontend.sign_in.identity_provider import CLIENT, IdentityProvider, key, serving
from tests.tenants.making import make_member, make_tenant, make_user

SETTINGS = Path(__file__).parents[3] / "platform/gateway/settings.py"
SIGN_IN = "/account/oidc/sso/login/"
NAME = "Parrot <ID>"
pytestmark = pytest.mark.django_db


@pytest.fixture
def provider(settings: Any, monkeypatch: pytest.MonkeyPatch) -> Iterator[IdentityProvider]:
    """A running provider, configured by environment variables as in production."""
    with serving() as server:
        for name, value in (("ISSUER", f"{server.issuer}/"), ("NAME", NAME)):
            monkeypatch.setenv(f"LORIKEET_OIDC_{name}", value)
        for name, value in zip(("ID", "SECRET"), CLIENT, strict=True):
            monkeypatch.setenv(f"LORIKEET_OIDC_CLIENT_{name}", value)
        made = runpy.run_path(str(SETTINGS))
        settings.SOCIALACCOUNT_PROVIDERS = made["SOCIALACCOUNT_PROVIDERS"]
        yield server


class Browser:
    """Follows links, forms and redirects, with a session of its own."""

    def __init__(self) -> None:
        self.client = Client(enforce_csrf_checks=True)

    def go(self, url: str) -> Any:
        """The page at which the redirects end; all of them stay on this host."""
        while True:
            parts = urlsplit(url)
            assert parts.netloc in ("", "testserver")
            page = self.client.get(f"{parts.path}?{parts.query}")
            if not (url := onward(page)):
                return page

    def press(self, page: Any, label: str, **fields: str) -> Any:
        """The response to the form with this button. Like the policy `form-action 'self'`, it
        submits to no other origin."""
        forms = re.findall(r"<form.*?</form>", page.content.decode(), re.S)
        form = next(form for form in forms if found(label, form))
        action = re.search(r'action="([^"]*)"', form)
        hidden = re.findall(r'type="hidden" name="([^"]+)" value="([^"]*)"', form)
        at = html.unescape(action[1]) if action else page.request["PATH_INFO"]
        answer = self.client.post(at, dict(hidden) | fields)
        assert not urlsplit(answer.headers.get("location", "")).netloc
        return answer

    def ask(self, page: Any = None, label: str = NAME) -> str:
        """Go to the provider. Returns the address to which that sends the browser back."""
        page = page or self.go("/account/login/")
        return onward(httpx.get(onward(self.press(page, label))))

    def sign_on(self, next: str = "") -> Any:
        """The whole way from the sign-in page to the page at which it ends."""
        return self.go(self.ask(self.go(f"/account/login/?next={next}")))

    @property
    def user(self) -> User | None:
        """The user who is signed in."""
        return User.objects.filter(pk=self.client.session.get("_auth_user_id") or 0).first()


def onward(answer: Any) -> str:
    """The address to which the response redirects the browser, or an empty string."""
    if answer.status_code == 302:
        return str(answer.headers["location"])
    found = re.search(r'http-equiv="refresh" content="0; url=([^"]+)"', answer.content.decode())
    return html.unescape(found[1]) if found else ""


def found(label: str, form: str) -> bool:
    """Whether the form has this button."""
    return bool(re.search(rf">\s*{re.escape(html.escape(label))}\s*</button>", form))


def text(page: Any) -> str:
    return " ".join(html.unescape(re.sub(r"<[^>]+>", " ", page.content.decode())).split())


def ann(*, verified: bool = True, **fields: Any) -> User:
    """A user with the address that the provider names, and a password."""
    user = make_user("ann", email="ann@example.com", password="correct horse", **fields)
    EmailAddress.objects.create(user=user, email=user.email, verified=verified, primary=True)
    return user


def invited(browser: Browser, tenant: Tenant, role: Role) -> Any:
    """The page of a new invitation."""
    by = make_member(tenant, "owner")
    _, token = Invitation.objects.invite(tenant, role=role, note="", by=by)
    return browser.go(f"/invitations/{token}")


def refused(browser: Browser, page: Any) -> bool:
    """Whether the page states the failure, and nobody is signed in or linked to the provider."""
    assert page.status_code == 401 and "Single sign-on failed" in text(page)
    assert "Traceback" not in text(page)
    return browser.user is None and not SocialAccount.objects.exists()


# --- The way in ----------------------------------------------------------------------------------
def test_there_is_a_button_where_it_is_configured(provider: IdentityProvider) -> None:
    assert NAME in text(Browser().go("/account/login/"))


def test_there_is_none_where_it_is_not() -> None:
    page = Browser().go("/account/login/")
    assert page.content.decode().count("<form") == 1
    for where in (SIGN_IN, SIGN_IN + "callback/"):
        assert Client().get(where).status_code == 404 and Client().post(where).status_code == 404


def test_going_to_the_provider_and_back_in_vain_writes_nothing(provider: IdentityProvider) -> None:
    browser = Browser()
    browser.ask()
    assert not Session.objects.exists()
    browser.go(browser.ask())
    assert browser.user is None and not Session.objects.exists()


def test_an_operator_who_came_by_single_sign_on_is_not_asked_for_a_second_factor(
    provider: IdentityProvider, settings: Any
) -> None:
    settings.OPERATOR_SECOND_FACTOR = "require"
    user, browser = ann(is_staff=True), Browser()
    browser.sign_on()
    assert browser.user == user
    assert browser.client.get("/operate/users").status_code == 200
    other = Client()
    other.force_login(user)  # in another way, such as by password
    assert other.get("/operate/users").status_code == 302


def test_somebody_with_the_same_verified_address_signs_in(provider: IdentityProvider) -> None:
    user, browser = ann(), Browser()
    page = browser.sign_on()
    assert page.status_code == 200 and browser.user == user
    user.refresh_from_db()
    assert user.check_password("correct horse") and User.objects.count() == 1


def test_later_the_subject_counts_whatever_the_address(provider: IdentityProvider) -> None:
    user = ann()
    Browser().sign_on()
    provider.person |= {"email": "new@example.com", "email_verified": False}
    browser = Browser()
    browser.sign_on()
    assert browser.user == user
    provider.person |= {"sub": "somebody-else", "email": "ann@example.com"}
    (browser := Browser()).sign_on()
    assert browser.user is None


def test_a_link_to_the_provider_asks_first(provider: IdentityProvider) -> None:
    user, browser = ann(), Browser()
    page = browser.go(SIGN_IN)
    browser.go(browser.ask(page, "Continue"))
    assert browser.user == user


def test_an_account_that_is_switched_off_stays_so(provider: IdentityProvider) -> None:
    ann(is_active=False)
    browser = Browser()
    browser.sign_on()
    assert browser.user is None


# --- Whose address it is -------------------------------------------------------------------------
@pytest.mark.parametrize("claim", [False, "false", "no", 0, None, ["true"]])
def test_an_address_that_the_provider_has_not_verified_is_nobodys(
    provider: IdentityProvider, claim: Any
) -> None:
    ann()
    provider.person["email_verified"] = claim
    browser = Browser()
    page = text(browser.sign_on())
    assert "by invitation only" in page and "has not verified that this address is yours" in page
    assert browser.user is None and not SocialAccount.objects.exists()


def test_true_in_a_text_is_true(provider: IdentityProvider) -> None:
    user, browser = ann(), Browser()
    provider.person["email_verified"] = "true"
    browser.sign_on()
    assert browser.user == user


@pytest.mark.parametrize("listed", [True, False])
def test_nobody_waits_for_others_under_their_address(
    provider: IdentityProvider, listed: bool
) -> None:
    """Otherwise a user could add another's address to an account, and that person would then work
    in it."""
    user = ann(verified=False)
    if not listed:
        EmailAddress.objects.all().delete()
    browser = Browser()
    assert "by invitation only" in text(browser.sign_on())
    user.refresh_from_db()
    assert browser.user is None and user.check_password("correct horse")
    assert not SocialAccount.objects.exists()


def test_somebody_signed_in_connects_and_disconnects(provider: IdentityProvider) -> None:
    user, browser = ann(verified=False), Browser()
    page = browser.go("/account/login/")
    browser.press(page, "Sign in", login="ann", password="correct horse")
    assert "Single sign-on" in text(browser.go("/account/email/"))
    page = browser.go("/account/3rdparty/")
    assert "signs you in" in text(browser.go(browser.ask(page)))
    (other := Browser()).sign_on()
    assert other.user == user
    page = browser.go("/account/3rdparty/")
    browser.press(page, "Disconnect", account=str(SocialAccount.objects.get().pk))
    assert not SocialAccount.objects.exists()


def test_the_only_way_in_stays_connected(provider: IdentityProvider, tenant: Tenant) -> None:
    browser = Browser()
    invited(browser, tenant, Role.VIEWER)
    browser.sign_on()
    page = browser.go("/account/3rdparty/")
    kept = SocialAccount.objects.get()
    assert "only way to sign in" in text(browser.press(page, "Disconnect", account=str(kept.pk)))
    assert SocialAccount.objects.get() == kept


# --- Strangers -----------------------------------------------------------------------------------
def test_a_stranger_gets_no_account(provider: IdentityProvider) -> None:
    browser = Browser()
    page = text(browser.sign_on())
    assert "Accounts are by invitation only" in page
    assert f"{NAME} says that you are ann@example.com , which has no account" in page
    assert not User.objects.exists() and browser.user is None
    assert "by invitation only" in text(browser.go("/account/signup/"))
    assert browser.go("/account/3rdparty/signup/").request["PATH_INFO"] == "/account/login/"


def test_an_invitation_makes_a_member(provider: IdentityProvider, tenant: Tenant) -> None:
    browser = Browser()
    page = invited(browser, tenant, Role.DEVELOPER)
    way = re.search(r'href="(/account/login/[^"]+)"', page.content.decode())
    assert way
    page = browser.go(browser.ask(browser.go(html.unescape(way[1]))))
    user = User.objects.get(username="ann")
    assert browser.user == user and not user.is_staff and not user.has_usable_password()
    browser.press(page, "Join as ann")
    assert Membership.objects.get(user=user, tenant=tenant).role == Role.DEVELOPER
    (stranger := Browser()).sign_on()
    assert stranger.user == user


def test_an_invitation_that_is_over_makes_nobody(
    provider: IdentityProvider, tenant: Tenant
) -> None:
    browser = Browser()
    invited(browser, tenant, Role.OWNER)
    Invitation.objects.get().withdraw()
    assert "by invitation only" in text(browser.sign_on())
    assert browser.user is None and not User.objects.filter(username="ann").exists()


@pytest.mark.parametrize("verified", [True, False])
def test_an_invitation_gives_nobody_the_account_of_another(
    provider: IdentityProvider, tenant: Tenant, verified: bool
) -> None:
    """The address may be another person's, so the new account is created without it."""
    other = ann(verified=not verified)
    provider.person["email_verified"] = verified
    browser = Browser()
    invited(browser, tenant, Role.VIEWER)
    page = browser.sign_on()
    again = browser.press(page, "Create account", username="ann2", email="ann@example.com")
    assert browser.user is None and "already" in text(again)
    browser.press(page, "Create account", username="ann2", email="")
    assert browser.user == User.objects.get(username="ann2") != other
    assert not EmailAddress.objects.filter(user=browser.user, email=other.email).exists()


# --- Wrong providers and stolen codes ------------------------------------------------------------
@pytest.mark.parametrize(
    "claims",
    [
        {"aud": "another client"},
        {"aud": None},
        {"iss": "http://127.0.0.1:1"},
        {"exp": 1_700_000_000},
        {"exp": None},
        {"iat": 4_000_000_000},
        {"nonce": "another"},
        {"nonce": None},
        {"sub": "somebody else"},
        {"sub": None},
    ],
    ids=str,
)
def test_an_id_token_that_is_not_for_us(provider: IdentityProvider, claims: dict[str, Any]) -> None:
    ann()
    provider.token = claims
    browser = Browser()
    assert refused(browser, browser.sign_on())


@pytest.mark.parametrize("kid", ["right", "wrong", None])
def test_an_id_token_that_another_signed(provider: IdentityProvider, kid: str | None) -> None:
    ann()
    provider.signer = key("wrong")
    provider.header = {"kid": kid} if kid else {}
    browser = Browser()
    assert refused(browser, browser.sign_on())


@pytest.mark.parametrize("algorithm", ["none", "HS256"])
def test_an_id_token_under_an_algorithm_of_its_own_choice(
    provider: IdentityProvider, algorithm: str
) -> None:
    ann()
    provider.algorithm = algorithm
    browser = Browser()
    assert refused(browser, browser.sign_on())


@pytest.mark.parametrize(
    "userinfo",
    [{"sub": "somebody else"}, {"sub": None}, {"sub": "x" * 192}],
    ids=["other", "none", "long"],
)
def test_user_info_about_another(provider: IdentityProvider, userinfo: dict[str, Any]) -> None:
    ann()
    provider.userinfo = userinfo
    browser = Browser()
    assert refused(browser, browser.sign_on())


def test_a_secret_that_the_provider_does_not_know(
    provider: IdentityProvider, settings: Any
) -> None:
    ann()
    app = settings.SOCIALACCOUNT_PROVIDERS["openid_connect"]["APPS"][0]
    app["secret"] = "not that"
    browser = Browser()
    assert refused(browser, browser.sign_on())


def test_a_state_is_good_once_and_in_one_browser(provider: IdentityProvider) -> None:
    user, browser, thief = ann(), Browser(), Browser()
    back = browser.ask()
    thief.ask()
    assert refused(thief, thief.go(back))
    assert refused(browser, browser.go(re.sub("state=[^&]+", "state=made-up", back)))
    assert refused(browser, browser.go(re.sub("&?state=[^&]+", "", back)))
    browser.go(back)
    assert browser.user == user
    browser.client.logout()
    assert browser.go(back).status_code == 401 and browser.user is None


def test_a_code_of_another_browser_is_no_good(provider: IdentityProvider) -> None:
    """A stolen code fails: the code verifier (PKCE) and the nonce are another browser's."""
    ann()
    victim, thief = Browser(), Browser()
    stolen = re.search("code=[^&]+", victim.ask())
    assert stolen
    assert refused(thief, thief.go(re.sub("code=[^&]+", stolen[0], thief.ask())))


def test_a_callback_without_a_code_is_refused(provider: IdentityProvider) -> None:
    browser = Browser()
    assert refused(browser, browser.go(re.sub("code=[^&]+", "", browser.ask())))
    provider.denies = "server_error"
    assert refused(browser, browser.sign_on())
    provider.denies = "access_denied"
    assert "cancelled" in text(browser.sign_on()) and browser.user is None


@pytest.mark.parametrize(
    "path", ["/.well-known/openid-configuration", "/token", "/keys", "/userinfo"]
)
def test_a_part_of_the_provider_that_breaks_on_the_way(
    provider: IdentityProvider, path: str
) -> None:
    ann()
    browser = Browser()
    back = browser.ask()
    provider.broken = {path}
    assert refused(browser, browser.go(back))
    provider.broken = set()
    browser.sign_on()
    assert browser.user


def test_a_provider_that_is_away(provider: IdentityProvider) -> None:
    browser = Browser()
    page, back = browser.go("/account/login/"), browser.ask()
    provider.shutdown()
    provider.server_close()
    assert refused(browser, browser.press(page, NAME))
    assert refused(browser, browser.go(back))


@pytest.mark.parametrize("name", ["authorization_endpoint", "token_endpoint", "jwks_uri", "issuer"])
def test_a_provider_that_does_not_describe_itself(provider: IdentityProvider, name: str) -> None:
    browser = Browser()
    provider.describes = {name: None}
    assert refused(browser, browser.press(browser.go("/account/login/"), NAME))


# --- After the provider --------------------------------------------------------------------------
def test_a_second_factor_is_asked_for_as_well(provider: IdentityProvider, settings: Any) -> None:
    settings.MFA_TOTP_TOLERANCE = 1  # the next code may become valid meanwhile
    user, browser, secret = ann(), Browser(), totp.generate_totp_secret()
    totp.TOTP.activate(user, secret)
    page = browser.sign_on("/account/email/")
    assert page.request["PATH_INFO"] == "/account/2fa/authenticate/" and browser.user is None
    assert onward(browser.client.get("/account/email/")).startswith("/account/login/")
    right = [totp.hotp_value(secret, count) for count in totp.yield_hotp_counters_from_time()]
    wrong = next(code for code in range(9) if code not in right)
    browser.press(page, "Sign in", code=totp.format_hotp_value(wrong))
    assert browser.user is None
    done = browser.press(page, "Sign in", code=totp.format_hotp_value(right[1]))
    assert browser.user == user and onward(done) == "/account/email/"


@pytest.mark.parametrize(
    ("next", "lands"),
    [
        ("/account/email/", "/account/email/"),
        ("https://evil.example/", "/"),
        ("//evil.example/", "/"),
        ("/%5Cevil.example", "/"),
        ("javascript:alert(1)", "/"),
    ],
)
def test_next_comes_back_to_the_page(provider: IdentityProvider, next: str, lands: str) -> None:
    ann()
    browser = Browser()
    page = browser.sign_on(next)
    assert page.status_code == 200 and page.request["PATH_INFO"] == lands and browser.user


def test_a_member_lands_where_the_sign_in_began(provider: IdentityProvider) -> None:
    tenant, browser = make_tenant("acme"), Browser()
    Membership.objects.create(user=ann(), tenant=tenant, role="viewer")
    page = browser.go("/t/acme/usage")
    assert page.request["PATH_INFO"] == "/account/login/"
    page = browser.go(browser.ask(page))
    assert page.status_code == 200 and page.request["PATH_INFO"] == "/t/acme/usage"
