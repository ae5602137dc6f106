"""Every kind of caller of the management API of the tenant acme, and the client that they use."""

from __future__ import annotations

import json
from typing import Any

from django.test import Client

from tenants.models import ApiKey, Tenant, User
from tests.tenants.making import make_key, make_member, make_tenant, make_user

ROLES = {"owner", "admin", "developer", "viewer"}
KEYS = {"admin key", "writing key", "inference key", "usage key", "scoring key"}
STRANGERS = {"outsider", "foreign key"}
EVERYBODY = {*ROLES, *KEYS, *STRANGERS, "operator", "nobody"}
SCOPES = {
    "admin key": "admin",
    "writing key": "adapters:write",
    "inference key": "inference",
    "usage key": "usage:read",
    "scoring key": "scores:write",
}


OF_NO_TENANT = {
    "tenants", "base-models", "engines", "engine-credentials", "quarantine", "revisions",
    "rollouts", "schema", "installation", "users", "isolation",
}  # fmt: skip
"""Addresses that take no `?tenant=`."""


class Api:
    """A caller of the API, with a person's session, a key's text, or neither."""

    def __init__(self, credential: User | str | None = None, tenant: str | None = None) -> None:
        self.client = Client(raise_request_exception=True)
        self.headers = {}
        self.tenant = tenant
        if isinstance(credential, User):
            self.client.force_login(credential)
        elif credential:
            self.headers = {"Authorization": f"Bearer {credential}"}

    def __call__(self, method: str, path: str, body: Any = None, **query: Any) -> Any:
        """The response; `path` is under `/api/v1/`."""
        of_a_tenant = path.split("/")[0] not in OF_NO_TENANT and path != "limits/default"
        query = ({"tenant": self.tenant} if self.tenant and of_a_tenant else {}) | query
        sent: dict[str, Any] = {} if body is None else {"data": json.dumps(body)}
        return self.client.generic(
            method,
            f"/api/v1/{path}",
            **sent,
            content_type="application/json",
            query_params=query,
            headers=self.headers,
        )


def person(tenant: Tenant, role: str) -> tuple[Api, User]:
    user = make_member(tenant, role)
    return Api(user), user


def with_key(tenant: Tenant, *scopes: str, **fields: Any) -> tuple[Api, ApiKey]:
    key, text = make_key(tenant, *scopes, **fields)
    return Api(text), key


def everybody(acme: Tenant) -> dict[str, Api]:
    """A client for each of EVERYBODY, all asking about acme."""
    other = make_tenant("other")
    found: dict[str, Any] = {role: make_member(acme, role) for role in ROLES}
    found |= {name: make_key(acme, scope)[1] for name, scope in SCOPES.items()}
    found |= {
        "operator": make_user("operator", is_staff=True),
        "outsider": make_member(other, "owner"),
        "foreign key": make_key(other, *SCOPES.values())[1],
        "nobody": None,
    }
    return {name: Api(credential, "acme") for name, credential in found.items()}
