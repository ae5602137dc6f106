"""User accounts: an operator enables and disables them, and makes users operators."""

from __future__ import annotations

from threading import Barrier, Thread
from typing import Any

import pytest
from allauth.mfa.models import Authenticator
from django.db import connection
from django.test import Client
from django.urls import reverse

from tenants.errors import LastOperator
from tenants.models import AuditEntry, Tenant, User
from tests.frontend.clients import client_of, user_of
from tests.tenants.making import make_member, make_user

ACTIONS = ("active", "operator", "password", "second-factor")


@pytest.fixture
def operator(tenant: Tenant) -> Client:
    return client_of(tenant, "operator")


def act(client: Client, user: User, action: str, **body: str) -> Any:
    return client.post(reverse(f"operate_users-{action}", args=[user.pk]), body, follow=True)


def said(page: Any) -> str:
    return " ".join(str(message) for message in page.context["messages"])


def test_the_list_is_paged_and_filtered(
    operator: Client, tenant: Tenant, django_assert_max_num_queries: Any
) -> None:
    for number in range(51):
        make_user(f"person{number:02}", email=f"p{number}@example.com")
    User.objects.filter(username="person07").update(is_active=False)
    with django_assert_max_num_queries(10):
        first = operator.get(reverse("operate_users"))
    assert first.context["users"][0].username == "person50"
    second = operator.get(reverse("operate_users"), {"before": first.context["last"].pk})
    assert "person00" in [one.username for one in second.context["users"]]

    def names(**query: str) -> list[str]:
        found = operator.get(reverse("operate_users"), query).context["users"]
        return [one.username for one in found]

    assert names(q="PERSON07") == names(who="inactive") == ["person07"]
    assert names(q="p9@example") == ["person09"]
    assert names(who="operators") == [user_of(operator).username]
    assert (
        "No user matches" in operator.get(reverse("operate_users"), {"q": "x y"}).content.decode()
    )


@pytest.mark.parametrize("role", ["owner", "outsider", "nobody"])
@pytest.mark.parametrize("action", ACTIONS)
def test_only_operators_change_accounts(tenant: Tenant, role: str, action: str) -> None:
    someone, client = make_user(), client_of(tenant, role)
    answer = client.post(reverse(f"operate_users-{action}", args=[someone.pk]), {"operator": "yes"})
    assert answer.status_code == (302 if role == "nobody" else 404)
    someone.refresh_from_db()
    assert someone.is_active and not someone.is_staff


def test_a_deactivated_user_is_signed_out_and_cannot_sign_in(
    operator: Client, tenant: Tenant
) -> None:
    user = make_member(tenant, "owner")
    client = Client()
    client.force_login(user)
    page = f"/t/{tenant.slug}/"
    assert client.get(page).status_code == 200
    assert "can no longer sign in" in said(act(operator, user, "active", active="no"))
    assert client.get(page).status_code == 302
    assert AuditEntry.objects.get(kind="user", after={"is_active": False}).action == "changed"
    act(operator, user, "active", active="yes")
    assert client.get(page).status_code == 200


def test_an_operator_is_made_and_unmade(operator: Client, tenant: Tenant) -> None:
    user = make_member(tenant, "viewer")
    client = Client()
    client.force_login(user)
    assert client.get(reverse("operate")).status_code == 404
    act(operator, user, "operator", operator="yes")
    assert client.get(reverse("operate")).status_code == 200
    act(operator, user, "operator", operator="no")
    assert client.get(reverse("operate")).status_code == 404


@pytest.mark.parametrize(("action", "field"), [("active", "active"), ("operator", "operator")])
def test_the_last_operator_stays(operator: Client, action: str, field: str) -> None:
    make_user("switched-off", is_staff=True, is_active=False)
    me = user_of(operator)
    assert "at least one operator" in said(act(operator, me, action, **{field: "no"}))
    me.refresh_from_db()
    assert me.is_active and me.is_staff
    make_user("second", is_staff=True)
    act(operator, me, action, **{field: "no"})
    me.refresh_from_db()
    assert not (me.is_active and me.is_staff)


@pytest.mark.django_db(transaction=True)
def test_two_operators_who_switch_each_other_off_take_turns() -> None:
    both = [make_user(name, is_staff=True) for name in ("one", "two")]
    start, refused = Barrier(2), list[LastOperator]()

    def switch_off(user: User) -> None:
        start.wait()
        try:
            user.set_access(active=False)
        except LastOperator as error:
            refused.append(error)
        finally:
            connection.close()

    threads = [Thread(target=switch_off, args=[user]) for user in both]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(refused) == 1
    assert User.objects.filter(is_staff=True, is_active=True).count() == 1


def test_a_lost_second_factor_is_removed(operator: Client, tenant: Tenant) -> None:
    user = make_member(tenant, "viewer")
    for owner in (user, user_of(operator)):
        Authenticator.objects.create(user=owner, type=Authenticator.Type.TOTP, data={})
    assert "no longer has a second factor" in said(act(operator, user, "second-factor"))
    assert list(Authenticator.objects.values_list("user", flat=True)) == [user_of(operator).pk]


def test_a_password_link_works_once_and_is_not_kept(operator: Client, tenant: Tenant) -> None:
    user = make_member(tenant, "viewer")
    shown = act(operator, user, "password")
    assert shown["Cache-Control"].startswith("max-age=0") and shown.status_code == 200
    link = shown.context["shown_once"].text
    assert link in shown.content.decode()
    assert link not in operator.get(reverse("operate_users")).content.decode()
    client = Client()
    form = client.get(link, follow=True)
    password = "a new and long enough one"
    where = form.redirect_chain[-1][0]
    answer = client.post(where, {"password1": password, "password2": password})
    assert answer.status_code == 302
    assert Client().login(username=user.username, password=password)
    again = Client().get(link, follow=True)
    assert "password1" not in again.content.decode()


def test_a_deactivated_user_gets_no_password_link(operator: Client) -> None:
    gone = make_user("gone", is_active=False)
    assert act(operator, gone, "password").status_code == 404


def test_the_stock_admin_is_gone(operator: Client) -> None:
    for path in ("/admin/", "/admin/login/"):
        assert operator.get(path).status_code == 404
