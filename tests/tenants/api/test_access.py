"""Each endpoint's status for each kind of caller: roles, operator, outsider, keys, nobody.

A new endpoint without a row here fails `test_every_endpoint_has_a_row`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import pytest
from django.db import transaction
from django.utils import timezone

from tenants.api.urls import urlpatterns
from tenants.models import (
    AdapterVersion,
    AlertRule,
    Alias,
    ApiKey,
    EngineCredential,
    Invitation,
    Membership,
    Notification,
    Price,
    PromotionGate,
    QuarantinedEntry,
    RequestScore,
    RequestTag,
    Role,
    Route,
    Split,
    Target,
    Tenant,
)
from tenants.models.annotations import ScoreValue
from tenants.models.notifications import NotificationKind
from tests.tenants.callers import EVERYBODY, KEYS, ROLES, STRANGERS, Api, everybody
from tests.tenants.making import (
    make_eval,
    make_key,
    make_member,
    make_rollout,
    make_user,
    make_version,
)
from tests.tenants.refusing import refuse

pytestmark = pytest.mark.django_db

STAFF = {"operator"}
ADMINS = {"owner", "admin", "admin key", *STAFF}
READERS = {*ROLES, *STAFF}
SEE_ADAPTERS = {*READERS, "admin key", "writing key", "inference key"}
SEE_USAGE = {*READERS, "admin key", "usage key"}
WRITE_ADAPTERS = {"owner", "admin", "developer", "admin key", "writing key", *STAFF}


@dataclass(frozen=True)
class Row:
    """`allowed` callers get `status`; of the others, nobody gets 401, STRANGERS `strangers` and the
    rest 403. `others` are exceptions."""

    endpoint: str
    allowed: set[str]
    status: int = 200
    body: Any = None
    strangers: int = 404
    others: dict[str, int] = field(default_factory=dict)

    @property
    def collection(self) -> str:
        """The first part of the path."""
        return self.endpoint.split(" ")[1].split("/")[0]

    def all_expected(self) -> dict[str, int]:
        return {name: self._expected(name) for name in EVERYBODY} | self.others

    def _expected(self, name: str) -> int:
        if name in self.allowed:
            return self.status
        if name == "nobody":
            return 401
        return self.strangers if name in STRANGERS else 403


ANYBODY = EVERYBODY - {"nobody"}
PRICE = {"prompt": 2, "cached_prompt": 1, "output": 3}
NEW_KEY = {"name": "new", "scopes": ["inference"]}
OWN = {"own": {"requests_per_minute": 5}}
ROWS = [
    Row("GET tenants", ANYBODY),
    Row("POST tenants", STAFF, 201, {"slug": "new", "name": "New"}, strangers=403),
    Row("GET tenants/<slug>", {*READERS, *KEYS}),
    Row("PATCH tenants/<slug>", ADMINS, body={"name": "Renamed"}),
    Row("GET tenants/<slug>/deletion", {"owner", "operator"}, 404),
    Row("POST tenants/<slug>/deletion", {"owner", "operator"}, 201, {"confirm": "acme"}),
    Row("DELETE tenants/<slug>/deletion", {"owner", "operator"}, 409),
    Row("GET members", {*READERS, "admin key"}),
    Row("GET members/<pk>", {*READERS, "admin key"}),
    Row("PATCH members/<pk>", ADMINS, body={"role": "developer"}),
    Row("DELETE members/<pk>", ADMINS, 204),
    Row("GET invitations", ADMINS),
    Row("POST invitations", ADMINS, 201, {"role": "viewer", "note": "Bo"}),
    Row("GET invitations/<pk>", ADMINS),
    Row("DELETE invitations/<pk>", ADMINS, 204),
    Row("GET keys", {*READERS, "admin key"}),
    # 400 for an admin key: it may create keys, but lacks this one's scope, `inference`.
    Row(
        "POST keys",
        {"owner", "admin", "developer", *STAFF},
        201,
        NEW_KEY,
        others={"admin key": 400},
    ),
    Row("GET keys/<pk>", {*READERS, "admin key"}),
    Row("PATCH keys/<pk>", ADMINS, body={"name": "renamed"}),
    Row("DELETE keys/<pk>", ADMINS, 204),
    Row("GET keys/<pk>/limits", {*READERS, "admin key"}),
    Row("PUT keys/<pk>/limits", ADMINS, body=OWN),
    Row("PATCH keys/<pk>/limits", ADMINS, body=OWN),
    Row("GET adapters", SEE_ADAPTERS),
    Row("GET adapters/<name>", SEE_ADAPTERS),
    Row("PATCH adapters/<name>", STAFF, body={"pinned": True}),
    Row("DELETE adapters/<name>", WRITE_ADAPTERS, 409),
    Row("GET adapters/<name>/limits", {*READERS, "admin key"}),
    Row("PUT adapters/<name>/limits", ADMINS, body=OWN),
    Row("PATCH adapters/<name>/limits", ADMINS, body=OWN),
    Row("GET adapters/<name>/versions", SEE_ADAPTERS),
    Row("POST adapters/<name>/versions", WRITE_ADAPTERS, 415, {}),
    Row("GET adapters/<name>/versions/<number>", SEE_ADAPTERS),
    Row("DELETE adapters/<name>/versions/<number>", WRITE_ADAPTERS, 204),
    Row("POST adapters/<name>/versions/<number>/archive", WRITE_ADAPTERS),
    Row("GET adapters/<name>/aliases", SEE_ADAPTERS),
    Row("GET adapters/<name>/aliases/<alias>", SEE_ADAPTERS),
    Row("PUT adapters/<name>/aliases/<alias>", WRITE_ADAPTERS, body={"version": 2}),
    Row("DELETE adapters/<name>/aliases/<alias>", WRITE_ADAPTERS, 204),
    Row("POST adapters/<name>/aliases/<alias>/roll_back", WRITE_ADAPTERS, 409),
    Row("GET adapters/<name>/aliases/<alias>/gate", SEE_ADAPTERS),
    Row(
        "PUT adapters/<name>/aliases/<alias>/gate",
        WRITE_ADAPTERS,
        400,
        {"eval": "eval_none", "min_pass_rate": 0.5},
    ),
    Row("DELETE adapters/<name>/aliases/<alias>/gate", WRITE_ADAPTERS, 204),
    Row("GET adapters/<name>/splits", SEE_ADAPTERS),
    Row("GET adapters/<name>/aliases/<alias>/split", SEE_ADAPTERS),
    Row("POST adapters/<name>/aliases/<alias>/split", WRITE_ADAPTERS, 409, {"version": 2}),
    Row("PUT adapters/<name>/aliases/<alias>/split/weight", WRITE_ADAPTERS, body={"weight": 50}),
    Row("POST adapters/<name>/aliases/<alias>/split/pause", WRITE_ADAPTERS),
    Row("POST adapters/<name>/aliases/<alias>/split/resume", WRITE_ADAPTERS),
    Row("POST adapters/<name>/aliases/<alias>/split/promote", WRITE_ADAPTERS),
    Row("POST adapters/<name>/aliases/<alias>/split/stop", WRITE_ADAPTERS),
    Row("POST adapters/<name>/aliases/<alias>/split/evaluate", WRITE_ADAPTERS, 409),
    Row("GET routes", SEE_ADAPTERS),
    Row("POST routes", WRITE_ADAPTERS, 201, {"name": "auto", "options": ["base", "support"]}),
    Row("GET routes/<name>", SEE_ADAPTERS),
    Row("DELETE routes/<name>", WRITE_ADAPTERS, 204),
    Row("POST routes/<name>/fit", WRITE_ADAPTERS, 400, {"eval": "eval_none"}),
    Row("POST routes/<name>/on", WRITE_ADAPTERS, 409),
    Row("POST routes/<name>/off", WRITE_ADAPTERS),
    Row("GET uploads", WRITE_ADAPTERS),
    Row("POST uploads", WRITE_ADAPTERS, 412),
    Row("GET uploads/<id>", WRITE_ADAPTERS),
    Row("PATCH uploads/<id>", WRITE_ADAPTERS, 412),
    Row("DELETE uploads/<id>", WRITE_ADAPTERS, 412),
    Row("GET limits", {*READERS, "admin key"}),
    Row("PUT limits", ADMINS, body=OWN),
    Row("PATCH limits", ADMINS, body=OWN),
    Row("GET limits/default", STAFF, strangers=403),
    Row("PUT limits/default", STAFF, body=OWN["own"], strangers=403),
    Row("PATCH limits/default", STAFF, body=OWN["own"], strangers=403),
    Row("GET base-models", ANYBODY - {"usage key", "scoring key"}),
    Row("GET base-models/<name>", ANYBODY - {"usage key", "scoring key"}),
    Row("PATCH base-models/<name>", STAFF, body={"defaults": {"top_p": 0.9}}, strangers=403),
    Row("GET revisions", STAFF, strangers=403),
    Row("GET revisions/<pk>", STAFF, strangers=403),
    Row("PATCH revisions/<pk>", STAFF, 409, {"standing": "serving"}, strangers=403),
    Row("GET rollouts", STAFF, strangers=403),
    Row("POST rollouts", STAFF, 400, {}, strangers=403),
    Row("GET rollouts/<pk>", STAFF, strangers=403),
    Row("POST rollouts/<pk>/pause", STAFF, strangers=403),
    Row("POST rollouts/<pk>/resume", STAFF, 409, strangers=403),
    Row("PUT rollouts/<pk>/weight", STAFF, body={"weight": 7}, strangers=403),
    Row("POST rollouts/<pk>/finish", STAFF, strangers=403),
    Row("POST rollouts/<pk>/abort", STAFF, strangers=403),
    Row("GET rollouts/<pk>/tenants", STAFF, strangers=403),
    Row("PUT rollouts/<pk>/tenants/<slug>", STAFF, body={"turn": "last"}, strangers=403),
    Row("DELETE rollouts/<pk>/tenants/<slug>", STAFF, 204, strangers=403),
    Row("GET engines", ANYBODY - {"usage key", "scoring key"}),
    Row("GET engine-credentials", STAFF, strangers=403),
    Row("POST engine-credentials", STAFF, 201, {"name": "gpu-2"}, strangers=403),
    Row("GET engine-credentials/<pk>", STAFF, strangers=403),
    Row("DELETE engine-credentials/<pk>", STAFF, 204, strangers=403),
    Row("POST engine-credentials/<pk>/rotate", STAFF, strangers=403),
    Row("GET quarantine", STAFF, strangers=403),
    Row("GET quarantine/<pk>", STAFF, strangers=403),
    # 409: billing uses a connection of its own, which does not see this test's uncommitted rows.
    Row("POST quarantine/<pk>/bill", STAFF, 409, strangers=403),
    Row("POST quarantine/<pk>/dismiss", STAFF, strangers=403),
    Row("GET content", {*READERS, *KEYS}),
    Row("PATCH content", {"owner", "admin", "admin key"}, body={"days": 0}),
    Row("GET content/keys", {*READERS, *KEYS}),
    Row("POST content/destroy", {"owner", "admin"}, 409),
    Row("GET exports", {"owner", "operator"}),
    Row("POST exports", {"owner", "operator"}, 202),
    Row("GET exports/<pk>", {"owner", "operator"}),
    Row("GET exports/<pk>/archive", {"owner", "operator"}, 404),
    Row("GET alert-rules", ADMINS),
    Row(
        "POST alert-rules",
        ADMINS,
        201,
        {"name": "slow", "metric": "ttft_p95", "threshold": 900, "minutes": 5, "min_requests": 20},
    ),
    Row("GET alert-rules/<pk>", ADMINS),
    Row("PATCH alert-rules/<pk>", ADMINS, body={"threshold": 500}),
    Row("DELETE alert-rules/<pk>", ADMINS, 204),
    Row("GET webhooks", ADMINS),
    Row("POST webhooks", ADMINS, 201, {"url": "https://a.example/", "events": ["adapter.ready"]}),
    Row("GET webhooks/<pk>", ADMINS),
    Row("DELETE webhooks/<pk>", ADMINS, 204),
    Row("POST webhooks/<pk>/rotate", ADMINS),
    Row("POST webhooks/<pk>/test", ADMINS),
    Row("GET webhook-deliveries", ADMINS),
    Row("GET webhook-deliveries/<pk>", ADMINS),
    Row("POST webhook-deliveries/<pk>/replay", ADMINS),
    Row("GET installation/webhooks", STAFF, strangers=403),
    Row(
        "POST installation/webhooks",
        STAFF,
        201,
        {"url": "https://a.example/", "events": ["engine.lost"]},
        strangers=403,
    ),
    Row("GET installation/webhooks/<pk>", STAFF, strangers=403),
    Row("DELETE installation/webhooks/<pk>", STAFF, 204, strangers=403),
    Row("POST installation/webhooks/<pk>/rotate", STAFF, strangers=403),
    Row("POST installation/webhooks/<pk>/test", STAFF, strangers=403),
    Row("GET installation/webhook-deliveries", STAFF, strangers=403),
    Row("GET installation/webhook-deliveries/<pk>", STAFF, strangers=403),
    Row("POST installation/webhook-deliveries/<pk>/replay", STAFF, strangers=403),
    Row("GET installation/audit", STAFF, strangers=403),
    Row("GET audit", {"owner", "admin", *STAFF}),
    Row("GET users", STAFF, strangers=403),
    Row("GET users/<pk>", STAFF, strangers=403),
    Row("PATCH users/<pk>", STAFF, body={"active": False}, strangers=403),
    Row("GET isolation", STAFF, strangers=403),
    Row("POST isolation", STAFF, 202, strangers=403),
    Row("GET usage", SEE_USAGE),
    Row("GET costs", SEE_USAGE),
    Row("GET metrics", SEE_USAGE),
    Row("GET requests", SEE_USAGE),
    Row(  # 404: it was made with another member's key
        "GET requests/<request_id>",
        {"owner", "admin", "admin key", "usage key", *STAFF},
        others={"developer": 404, "viewer": 404},
    ),
    *(
        Row(endpoint, {*ADMINS, "scoring key"}, status, body, others={"developer": 404})
        for endpoint, status, body in (
            ("POST requests/<request_id>/tags", 201, {"name": "good"}),
            ("DELETE requests/<request_id>/tags/<name>", 204, None),
            ("POST requests/<request_id>/scores", 201, {"name": "quality", "value": 0.5}),
            ("DELETE requests/<request_id>/scores/<pk>", 204, None),
        )
    ),
    Row("GET prices", SEE_USAGE),
    Row("POST prices", STAFF, 201, {"base_model": "base", **PRICE}),
    Row("GET prices/<pk>", SEE_USAGE),
    Row("DELETE prices/<pk>", STAFF, 204),
]
OPEN_TO_ALL = {"GET schema/", "GET docs/"}


@pytest.fixture
def path_of(live: AdapterVersion) -> dict[str, str]:
    """The values of the placeholders in the paths."""
    acme = live.adapter.tenant
    make_version(live.adapter)
    Split.objects.start(live.adapter.aliases.get(), make_version(live.adapter), None)
    PromotionGate.objects.put(live.adapter, "gated", make_eval(acme), 0.5)
    Route.objects.add(acme, None, name="auto-support", options=["base", "support"])
    invited, _ = Invitation.objects.invite(acme, role=Role.VIEWER, note="", by=None)
    member = Membership.objects.get(user=make_member(acme, "viewer"))
    key = make_key(acme, "inference")[0]
    tomorrow = timezone.now() + timedelta(days=1)
    price = Price.objects.create(adapter=live.adapter, starts_at=tomorrow, **PRICE)
    credential, _ = EngineCredential.objects.issue(name="gpu-1")
    entry = QuarantinedEntry.objects.create(
        key="k", attempt=1, reason="unsigned", prompt_tokens=1, completion_tokens=1
    )
    rollout = make_rollout(live.adapter.base_model)
    rollout.tenants.create(tenant=acme, turn="first")
    notified = {
        f"{folder}{name}/<pk>": f"{folder}{name}/{pk}"
        for folder, whose in (("installation/", None), ("", acme))
        for name, pk in _notified(whose).items()
    }
    rule = AlertRule.objects.add(acme, None, name="x", metric="ttft_p95", threshold=900)
    export = acme.exports.create(asked_by="x", content=False, finished_at=timezone.now())
    refused = refuse(key, timezone.now())
    of_request = (acme, refused.pk, refused.started_at, None)
    tag = RequestTag.objects.put(*of_request, "good")
    score = RequestScore.objects.put(*of_request, name="quality", value=ScoreValue.of(0.5))
    upload = acme.uploads.create(adapter_name="support", file_name="a.tar", length_bytes=1)
    return notified | {
        "GET base-models/<name>": "base",
        "<slug>": "acme",
        "members/<pk>": f"members/{member.pk}",
        "invitations/<pk>": f"invitations/{invited.pk}",
        "keys/<pk>": f"keys/{key.pk}",
        "prices/<pk>": f"prices/{price.pk}",
        "engine-credentials/<pk>": f"engine-credentials/{credential.pk}",
        "quarantine/<pk>": f"quarantine/{entry.pk}",
        "users/<pk>": f"users/{member.user_id}",
        "exports/<pk>": f"exports/{export.pk}",
        "alert-rules/<pk>": f"alert-rules/{rule.pk}",
        "revisions/<pk>": f"revisions/{rollout.revision_id}",
        "rollouts/<pk>": f"rollouts/{rollout.pk}",
        "tags/<name>": f"tags/{tag.name}",
        "scores/<pk>": f"scores/{score.pk}",
        "routes/<name>": "routes/auto-support",
        "aliases/<alias>/gate": "aliases/gated/gate",
        "<name>": "support",
        "<number>": "2",
        "<alias>": "live",
        "<id>": str(upload.pk),
        "<request_id>": refused.pk,
    }


def _notified(whose: Tenant | None) -> dict[str, int]:
    """Create a webhook and a delivery. Returns their ids by collection."""
    kind = NotificationKind.ENGINE_LOST if whose is None else NotificationKind.ADAPTER_READY
    target = Target.objects.add(whose, "https://hooks.example/", [kind.value], None)
    Notification.objects.post(kind, {}, tenant=whose)
    return {"webhooks": target.pk, "webhook-deliveries": target.deliveries.get().pk}


def concrete(row: Row, path_of: dict[str, str]) -> tuple[str, str]:
    method, path = row.endpoint.split(" ")
    if path.startswith("base-models/"):
        return method, "base-models/base"
    for placeholder, value in path_of.items():
        path = path.replace(placeholder, value)
    return method, path


def statuses(row: Row, callers: dict[str, Api], path_of: dict[str, str]) -> dict[str, int]:
    """The status that each caller gets. What the requests change is rolled back."""
    method, path = concrete(row, path_of)
    found = {}
    for name, ask in callers.items():
        with transaction.atomic():
            response = ask(method, path, row.body)
            found[name] = response.status_code
            transaction.set_rollback(True)
        if response.status_code >= 400:
            assert response["Content-Type"] == "application/problem+json", (row, name)
            assert response.json()["status"] == response.status_code
        if response.status_code == 401:
            assert response["WWW-Authenticate"] == "Bearer"
    return found


@pytest.mark.parametrize("collection", sorted({row.collection for row in ROWS}))
def test_status_codes_of_every_endpoint_by_role(
    collection: str, tenant: Tenant, path_of: dict[str, str]
) -> None:
    callers = everybody(tenant)
    for row in ROWS:
        if row.collection == collection:
            assert statuses(row, callers, path_of) == row.all_expected(), row.endpoint


def test_every_endpoint_has_a_row() -> None:
    found = set()
    for pattern in urlpatterns:
        route = str(pattern.pattern)
        view = getattr(pattern.callback, "cls", None) or pattern.callback
        actions = getattr(pattern.callback, "actions", None)
        methods = actions or [name for name in ("get", "post", "put") if hasattr(view, name)]
        for converter in ("str:", "int:", "path:", "uuid:"):
            route = route.replace(converter, "")
        found |= {f"{method.upper()} {route}" for method in methods if method != "head"}
    rows = [row.endpoint for row in ROWS]
    assert len(rows) == len(set(rows))
    assert found == {*rows, *OPEN_TO_ALL}


@pytest.mark.parametrize("stranger", sorted(STRANGERS))
def test_without_a_tenant_parameter_outsiders_see_their_own_tenant(
    live: AdapterVersion, stranger: str
) -> None:
    """And acme's resources look exactly like ones that do not exist."""
    acme = live.adapter.tenant
    ask = everybody(acme)[stranger]
    ask.tenant = None
    key = make_key(acme)[0]
    member = Membership.objects.get(user=make_member(acme, "viewer"))
    invited, _ = Invitation.objects.invite(acme, role=Role.VIEWER, note="", by=None)
    for path in ("adapters", "keys", "members", "usage", "costs", "prices", "tenants"):
        text = ask("GET", path).content.decode()
        assert "acme" not in text and "support" not in text, path
    pairs = [
        ("GET", "adapters/support", "adapters/nothing"),
        ("DELETE", "adapters/support", "adapters/nothing"),
        ("GET", "adapters/support/versions", "adapters/nothing/versions"),
        ("GET", "adapters/support/versions/1", "adapters/nothing/versions/1"),
        ("PUT", "adapters/support/aliases/live", "adapters/nothing/aliases/live"),
        ("GET", f"keys/{key.pk}", "keys/99999999"),
        ("DELETE", f"keys/{key.pk}", "keys/99999999"),
        ("GET", f"keys/{key.pk}/limits", "keys/99999999/limits"),
        ("PUT", f"keys/{key.pk}/limits", "keys/99999999/limits"),
        ("GET", "adapters/support/limits", "adapters/nothing/limits"),
        ("PATCH", "adapters/support/limits", "adapters/nothing/limits"),
        ("PATCH", f"members/{member.pk}", "members/99999999"),
        ("GET", f"invitations/{invited.pk}", "invitations/99999999"),
        ("DELETE", f"invitations/{invited.pk}", "invitations/99999999"),
        ("GET", "tenants/acme", "tenants/nothing"),
        ("PATCH", "tenants/acme", "tenants/nothing"),
    ]
    for method, real, invented in pairs:
        answers = [ask(method, path, {"version": 1}) for path in (real, invented)]
        assert [answer.status_code for answer in answers] == [404, 404], real
        assert answers[0].content == answers[1].content, real
    assert not ApiKey.objects.exclude(revoked_at=None).exists()
    assert Alias.objects.get().version == live


def test_a_session_needs_a_csrf_token(tenant: Tenant) -> None:
    ask = Api(make_member(tenant, "owner"))
    ask.client.handler.enforce_csrf_checks = True
    answer = ask("POST", "keys", NEW_KEY)
    assert answer.status_code == 403 and "CSRF" in answer.json()["detail"]
    assert not ApiKey.objects.exists()


@pytest.mark.parametrize("end", ["revoke", "expire", "suspend", "wrong"])
def test_a_key_that_ended_is_nobody(tenant: Tenant, end: str) -> None:
    key, text = make_key(tenant, "admin")
    assert Api(text)("GET", "keys").status_code == 200
    if end == "revoke":
        key.revoke()
    elif end == "expire":
        ApiKey.objects.update(expires_at=key.created_at)
    elif end == "suspend":
        Tenant.objects.update(status="suspended")
    else:
        text = text[:-1] + ("a" if text[-1] != "a" else "b")
    answer = Api(text)("GET", "keys")
    assert (answer.status_code, answer.json()["code"]) == (401, "invalid_api_key")


def test_a_suspended_tenant_is_read_only_for_its_members(tenant: Tenant) -> None:
    owner, operator = Api(make_member(tenant, "owner")), Api(make_user(is_staff=True), "acme")
    Tenant.objects.update(status="suspended")
    assert owner("GET", "keys").status_code == 200
    answer = owner("POST", "keys", NEW_KEY)
    assert (answer.status_code, answer.json()["code"]) == (403, "tenant_suspended")
    assert operator("PATCH", "tenants/acme", {"status": "active"}).status_code == 200
    assert owner("POST", "keys", NEW_KEY).status_code == 201


def test_a_member_of_two_tenants_says_which(tenant: Tenant) -> None:
    user = make_member(tenant, "owner")
    ask = Api(user)
    assert ask("GET", "keys").status_code == 200
    second = Tenant.objects.create(slug="second", name="Second")
    Membership.objects.create(user=user, tenant=second, role="viewer")
    answer = ask("GET", "keys")
    assert answer.status_code == 400
    message = "You are a member of several tenants. Set `tenant` to one of acme, second."
    assert answer.json()["errors"] == [{"field": "tenant", "message": message}]
    assert ask("GET", "keys", tenant="second").status_code == 200
    assert ask("POST", "keys", NEW_KEY, tenant="second").status_code == 403


def test_somebody_without_a_tenant_is_told(db: None) -> None:
    answer = Api(make_user())("GET", "keys")
    assert answer.status_code == 400 and "not a member of any tenant" in answer.json()["detail"]


@pytest.mark.parametrize("path", ["nothing", "keys/abc", "keys/1/", "adapters/a/b/c/d", "tenants/"])
def test_an_unknown_address_is_a_problem(db: None, path: str) -> None:
    answer = Api()("GET", path)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer["Content-Type"] == "application/problem+json"


def test_a_method_that_is_not_taken(tenant: Tenant) -> None:
    answer = Api(make_member(tenant, "owner"))("PUT", "keys", {})
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
