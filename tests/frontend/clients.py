"""Signed-in clients of the console, and addresses of pages."""

from __future__ import annotations

from django.test import Client

from tenants.models import Tenant, User
from tests.tenants.making import make_member, make_tenant, make_user


def client_of(tenant: Tenant, role: str) -> Client:
    """A client of a new user: a member of the tenant with this role, an `operator`, an `outsider`
    (the owner of another tenant), or `nobody` (not signed in)."""
    client = Client()
    if role == "operator":
        client.force_login(make_user(is_staff=True))
    elif role == "outsider":
        client.force_login(make_member(make_tenant(), "owner"))
    elif role != "nobody":
        client.force_login(make_member(tenant, role))
    return client


def user_of(client: Client) -> User:
    return User.objects.get(pk=client.session["_auth_user_id"])


def address(tenant: Tenant, page: str) -> str:
    return f"/t/{tenant.slug}/" + ("" if page == "overview" else page)
