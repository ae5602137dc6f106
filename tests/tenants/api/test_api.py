"""The management API's behaviour towards callers with the permission."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import psycopg
import pytest
from django.core.management import call_command
from django.db import (
    DatabaseError,
    DataError,
    IntegrityError,
    InterfaceError,
    InternalError,
    OperationalError,
    ProgrammingError,
)
from django.test import Client
from django.utils import timezone

from tenants.api.problems import handle
from tenants.api.serializers.accounts import TenantSerializer
from tenants.api.serializers.keys import KeySerializer
from tenants.models import (
    Adapter,
    AdapterVersion,
    Alias,
    ApiKey,
    AuditEntry,
    Invitation,
    Membership,
    Role,
    State,
    Tenant,
)
from tenants.permissions import Caller
from tests.fleet.fake import FakeGateways
from tests.tenants.callers import Api, person, with_key
from tests.tenants.making import (
    make_adapter,
    make_base,
    make_key,
    make_member,
    make_tenant,
    make_user,
    make_version,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def owner(tenant: Tenant) -> Api:
    return person(tenant, "owner")[0]


@pytest.fixture
def operator(tenant: Tenant) -> Api:
    return Api(make_user("op", is_staff=True), "acme")


def errors(response: Any, status: int = 400) -> dict[str, str]:
    assert response.status_code == status, response.content
    return {error["field"]: error["message"] for error in response.json()["errors"]}


# --- The document --------------------------------------------------------------------------------


def test_the_openapi_document_is_valid_and_has_no_warnings(tmp_path: Any) -> None:
    call_command("spectacular", fail_on_warn=True, validate=True, file=str(tmp_path / "schema.yml"))
    text = (tmp_path / "schema.yml").read_text()
    assert text.startswith("openapi: 3.1.0") and "application/problem+json" in text


def test_the_document_and_its_pages_are_served_from_here(settings: Any) -> None:
    plain = {"BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"}
    settings.STORAGES = {**settings.STORAGES, "staticfiles": plain}  # `collectstatic` has not run
    assert Client().get("/api/v1/schema/").status_code == 200
    page = Client().get("/api/v1/docs/").content.decode()
    assert "/static/drf_spectacular_sidecar/swagger-ui-dist/" in page
    assert "https://" not in page


# --- Bodies, pages, errors -----------------------------------------------------------------------


def test_an_error_is_an_rfc_9457_problem(owner: Api) -> None:
    answer = owner("POST", "keys", {"scopes": ["inference", "root"], "nmae": "typo", "prefix": "x"})
    assert answer["Content-Type"] == "application/problem+json"
    assert answer.json() == {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": "nmae: Unknown field.",
        "code": "invalid",
        "errors": [
            {"field": "nmae", "message": "Unknown field."},
            {"field": "prefix", "message": "This field is read-only."},
        ],
    }
    answer = owner("POST", "keys", {"scopes": ["inference", "root"]})
    assert errors(answer) == {
        "name": "This field is required.",
        "scopes.1": '"root" is not a valid choice.',
    }


def test_a_database_that_is_away_is_a_503() -> None:
    answer = handle(OperationalError("connection refused"), {})
    assert answer is not None
    assert (answer.status_code, answer["Retry-After"]) == (503, "1")
    assert answer.data["code"] == "service_unavailable" and "refused" not in str(answer.data)
    assert handle(ZeroDivisionError(), {}) is None


def caused(error: Exception, cause: Exception) -> Exception:
    """The error with its cause, as Django wraps psycopg's errors."""
    error.__cause__ = cause
    return error


@pytest.mark.parametrize(
    "error",
    [
        caused(InterfaceError("x"), psycopg.InterfaceError("the connection is closed")),
        caused(DatabaseError("x"), psycopg.DatabaseError("server closed the connection")),
        caused(DataError("x"), psycopg.errors.InvalidParameterValue("invalid TimeZone")),
        caused(InternalError("x"), psycopg.errors.ReadOnlySqlTransaction("cannot execute")),
        caused(ProgrammingError("x"), psycopg.errors.InvalidCatalogName("no database")),
    ],
)
def test_a_database_that_is_away_is_never_the_clients_fault(error: Exception) -> None:
    answer = handle(error, {})
    assert answer is not None
    assert (answer.status_code, answer.data["code"]) == (503, "service_unavailable")


@pytest.mark.parametrize(
    "error",
    [
        caused(DataError("NUL"), psycopg.DataError("text fields cannot contain NUL (0x00) bytes")),
        caused(DataError("x"), psycopg.errors.NumericValueOutOfRange("out of range")),
    ],
)
def test_a_value_that_no_column_holds_is(error: Exception) -> None:
    answer = handle(error, {})
    assert answer is not None and answer.status_code == 400


@pytest.mark.parametrize(
    "error",
    [
        caused(DataError("x"), psycopg.errors.DivisionByZero("x")),
        caused(ProgrammingError("x"), psycopg.errors.UndefinedTable("x")),
        caused(ProgrammingError("x"), psycopg.ProgrammingError("a placeholder is missing")),
    ],
)
def test_bugs_are_not_reported_as_problems(error: Exception) -> None:
    assert handle(error, {}) is None


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (IntegrityError("duplicate key"), 409, "conflict"),
        (Alias.DoesNotExist("no row"), 404, "not_found"),
    ],
)
def test_concurrent_changes_are_no_server_errors(error: Exception, status: int, code: str) -> None:
    answer = handle(error, {})
    assert answer is not None
    assert (answer.status_code, answer.data["code"]) == (status, code)
    assert str(error) not in str(answer.data)


@pytest.mark.parametrize(
    ("path", "told"),
    [
        ("adapters/nothing", "There is no adapter with this name or id."),
        ("keys/999999", "There is no API key with this name or id."),
        ("adapters/support/versions/9", "There is no adapter version with this name or id."),
    ],
)
def test_a_404_names_what_is_missing(owner: Api, adapter: Adapter, path: str, told: str) -> None:
    answer = owner("GET", path)
    assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    assert answer.json()["detail"] == told


@pytest.mark.parametrize("body", ["{", "[]", '"x"', "null", '{"name": "\\u0000"}', "\ud800"])
def test_a_body_that_is_no_key_is_refused(owner: Api, body: str) -> None:
    answer = owner.client.post(
        "/api/v1/keys", body.encode("utf-8", "surrogatepass"), content_type="application/json"
    )
    assert answer.status_code == 400 and answer.json()["status"] == 400


DEEPER = "[" * 20_000 + "]" * 20_000
HALF = "\\ud800"


@pytest.mark.parametrize(
    "body",
    [
        f'{{"name": {DEEPER}, "scopes": ["inference"]}}',
        f'{{"name": "k", "scopes": ["{HALF}"]}}',
        f'{{"{HALF}": "k"}}',
    ],
    ids=["deeper", "half a pair", "half a pair as a name"],
)
def test_a_hostile_body_is_refused(owner: Api, body: str) -> None:
    answer = owner.client.post("/api/v1/keys", body, content_type="application/json")
    assert (answer.status_code, answer.json()["code"]) == (400, "parse_error")


def test_bodies_that_are_almost_too_deep_are_refused(owner: Api) -> None:
    """A body that the parser accepts may be too deep for the error message that shows it. The exact
    depth depends on how deep the stack was before, and on the version of Python."""
    found = []
    for depth in (*range(700, 1000, 4), 20_000):
        body = f'{{"name": "k", "scopes": [{"[" * depth}{"]" * depth}]}}'
        answer = owner.client.post("/api/v1/keys", body, content_type="application/json")
        found.append((answer.status_code, answer.json()["code"]))
    assert {status for status, _ in found} == {400}
    assert [code for _, code in found] == sorted(code for _, code in found)
    assert {code for _, code in found} == {"invalid", "parse_error"}


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "adapters/a\0b", None),
        ("GET", "adapters/a\0b/aliases", None),
        ("GET", "base-models/a\0b", None),
        ("GET", "keys?tenant=%00", None),
    ],
)
def test_no_null_character_reaches_the_database(
    operator: Api, method: str, path: str, body: Any
) -> None:
    path, _, query = path.partition("?")
    answer = operator(method, path, body, **({"tenant": "\0"} if query else {}))
    assert (answer.status_code, answer.json()["code"]) == (400, "parse_error")


def test_options_is_not_allowed(owner: Api) -> None:
    answer = owner("OPTIONS", "keys")
    assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")


def test_a_list_comes_in_pages(owner: Api, tenant: Tenant) -> None:
    for number in range(5):
        make_adapter(tenant, f"a{number}")
    first = owner("GET", "adapters", limit=2).json()
    assert first["count"] == 5
    assert [adapter["name"] for adapter in first["results"]] == ["a0", "a1"]
    assert "page=2" in first["next"] and first["previous"] is None
    last = owner("GET", "adapters", limit=2, page=3).json()
    assert [adapter["name"] for adapter in last["results"]] == ["a4"] and last["next"] is None
    assert owner("GET", "adapters", limit=2, page=4).status_code == 404


def test_a_page_has_200_at_most(owner: Api, tenant: Tenant) -> None:
    base = make_base()
    Adapter.objects.bulk_create(
        Adapter(tenant=tenant, name=f"a{number}", base_model=base) for number in range(201)
    )
    assert len(owner("GET", "adapters", limit=100_000).json()["results"]) == 200
    assert len(owner("GET", "adapters").json()["results"]) == 50


def test_a_page_of_adapters_is_a_fixed_number_of_queries(
    owner: Api, tenant: Tenant, django_assert_max_num_queries: Any
) -> None:
    for number in range(10):
        adapter = make_adapter(tenant, f"a{number}")
        adapter.promote(make_version(adapter))
    with django_assert_max_num_queries(10):
        assert len(owner("GET", "adapters").json()["results"]) == 10


# --- Tenants and members -------------------------------------------------------------------------


def test_an_operator_runs_tenants(operator: Api) -> None:
    made = operator("POST", "tenants", {"slug": "new", "name": "New", "weight": 2.5})
    assert made.status_code == 201
    assert Tenant.objects.get(slug="new").weight == 2.5
    changed = operator("PATCH", "tenants/new", {"status": "suspended", "weight": 3})
    assert changed.json()["status"] == "suspended"
    assert "secret" not in changed.content.decode()
    slugs = [tenant["slug"] for tenant in operator("GET", "tenants").json()["results"]]
    assert slugs == ["acme", "new"]
    found = operator("GET", "tenants", status="suspended").json()["results"]
    assert [tenant["slug"] for tenant in found] == ["new"]


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"slug": "acme", "name": "x"}, "slug"),
        ({"slug": "No Slug", "name": "x"}, "slug"),
        ({"slug": "ok", "name": ""}, "name"),
        ({"slug": "ok", "name": "x", "weight": 0}, "weight"),
        ({"slug": "ok", "name": "x", "weight": "NaN"}, "weight"),
        ({"slug": "ok", "name": "x", "status": "odd"}, "status"),
    ],
)
def test_a_tenant_that_is_not_valid(operator: Api, body: dict[str, Any], field: str) -> None:
    assert errors(operator("POST", "tenants", body)).keys() == {field}


def test_a_tenant_names_itself_but_does_not_weigh_itself(owner: Api) -> None:
    assert owner("PATCH", "tenants/acme", {"name": "Acme & Co"}).json()["name"] == "Acme & Co"
    for field in ({"weight": 100}, {"status": "active"}):
        assert owner("PATCH", "tenants/acme", {"name": "x"} | field).status_code == 403
    assert errors(owner("PATCH", "tenants/acme", {"slug": "other"})).keys() == {"slug"}
    assert Tenant.objects.get().name == "Acme & Co"


def test_members_come_by_invitation_change_and_go(owner: Api, tenant: Tenant) -> None:
    made = owner("POST", "invitations", {"role": "viewer", "note": "Bo"})
    assert made.status_code == 201 and made["Cache-Control"] == "no-store"
    listed = owner("GET", "invitations").json()["results"]
    assert listed == [{name: made.json()[name] for name in made.json() if name != "url"}]
    joiner = make_user("joiner")
    client = Client()
    client.force_login(joiner)
    assert not tenant.memberships.filter(user=joiner).exists()
    client.get(made.json()["url"])
    client.post("/join")
    path = f"members/{tenant.memberships.get(user=joiner).pk}"
    assert owner("GET", path).json()["role"] == "viewer"
    assert owner("GET", "invitations").json()["count"] == 0
    assert owner("PATCH", path, {"role": "admin"}).json()["role"] == "admin"
    assert owner("GET", "members", role="admin").json()["count"] == 1
    assert owner("DELETE", path).status_code == 204


def test_members_cannot_be_added_without_an_invitation(owner: Api, tenant: Tenant) -> None:
    """The attack: add another tenant's user, or the operator, by name."""
    make_member(make_tenant("other"), "owner")
    make_user("theoperator", is_staff=True)
    for name in ("theoperator", "nobody"):
        answer = owner("POST", "members", {"username": name, "role": "viewer"})
        assert (answer.status_code, answer.json()["code"]) == (405, "method_not_allowed")
    assert tenant.memberships.count() == 1


def test_no_answer_tells_whether_a_user_name_is_taken(owner: Api, tenant: Tenant) -> None:
    make_user("taken")
    path = f"members/{Membership.objects.get(user=make_member(tenant, 'viewer')).pk}"
    asked = [
        ("POST", "members", {"role": "viewer"}),
        ("PATCH", path, {"role": "viewer"}),
        ("PATCH", path, {}),
        ("POST", "invitations", {"role": "viewer"}),
    ]
    for method, where, body in asked:
        known, unknown = (
            owner(method, where, {"username": name} | body) for name in ("taken", "invented")
        )
        assert known.status_code == unknown.status_code >= 400
        assert known.content == unknown.content
    for query in ("taken", "invented"):
        assert owner("GET", "members", username=query).json()["count"] == 0


@pytest.mark.usefixtures("plain_files")
def test_an_invitation_is_withdrawn(owner: Api, tenant: Tenant) -> None:
    made = owner("POST", "invitations", {"role": "viewer"}).json()
    assert owner("GET", f"invitations/{made['id']}").json()["note"] == ""
    assert owner("GET", "invitations", role="owner").json()["count"] == 0
    assert owner("DELETE", f"invitations/{made['id']}").status_code == 204
    assert owner("DELETE", f"invitations/{made['id']}").status_code == 404
    assert Client().get(made["url"]).status_code == 404


def test_a_tenant_has_so_many_open_invitations_and_no_more(owner: Api, tenant: Tenant) -> None:
    for _ in range(50):
        Invitation.objects.invite(tenant, role=Role.VIEWER, note="", by=None)
    answer = owner("POST", "invitations", {"role": "viewer"})
    assert (answer.status_code, answer.json()["code"]) == (409, "too_many_invitations")
    Invitation.objects.all()[0].withdraw()
    assert owner("POST", "invitations", {"role": "viewer"}).status_code == 201
    other = make_tenant("other")
    Invitation.objects.invite(other, role=Role.VIEWER, note="", by=None)


def test_a_keys_invitation_names_no_person(tenant: Tenant) -> None:
    key, _ = with_key(tenant, "admin")
    made = key("POST", "invitations", {"role": "developer", "note": "CI"})
    assert (made.status_code, made.json()["created_by"]) == (201, None)
    entry = AuditEntry.objects.get(kind="invitation")
    assert (entry.actor_kind, entry.name, entry.tenant) == ("key", "CI", tenant)


def test_the_last_owner_stays(owner: Api, tenant: Tenant) -> None:
    path = f"members/{Membership.objects.get().pk}"
    for answer in (owner("PATCH", path, {"role": "admin"}), owner("DELETE", path)):
        assert (answer.status_code, answer.json()["code"]) == (409, "last_owner")
    assert Membership.objects.get().role == "owner"


def test_an_admin_does_not_touch_owners(tenant: Tenant) -> None:
    boss = Membership.objects.get(user=make_member(tenant, "owner"))
    admin, me = person(tenant, "admin")
    owners, _ = Invitation.objects.invite(tenant, role=Role.OWNER, note="", by=None)
    key, _ = with_key(tenant, "admin")
    mine = Membership.objects.get(user=me)
    for ask in (admin, key):
        tries = [
            ask("PATCH", f"members/{boss.pk}", {"role": "viewer"}),
            ask("DELETE", f"members/{boss.pk}"),
            ask("PATCH", f"members/{mine.pk}", {"role": "owner"}),
            ask("POST", "invitations", {"role": "owner"}),
            ask("DELETE", f"invitations/{owners.pk}"),
        ]
        assert [answer.status_code for answer in tries] == [403] * 5
    assert list(Membership.objects.owners()) == [boss]


# --- Keys ----------------------------------------------------------------------------------------


def test_a_keys_text_is_shown_once(owner: Api) -> None:
    made = owner("POST", "keys", {"name": "ci", "scopes": ["usage:read", "inference"]})
    assert made.status_code == 201 and made["Cache-Control"] == "no-store"
    body = made.json()
    key = ApiKey.objects.find(body["secret"])
    assert key is not None and key.scopes == ["inference", "usage:read"]
    assert key.created_by is not None
    assert body["models"] is None and body["created_by"] == key.created_by.username
    for path in ("keys", f"keys/{key.pk}"):
        text = owner("GET", path).content.decode()
        assert "secret" not in text and body["secret"][16:] not in text and "hmac" not in text


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"scopes": []}, "scopes"),
        ({"scopes": "inference"}, "scopes"),
        ({"name": ""}, "name"),
        ({"models": []}, "models"),
        ({"models": ["support@3"]}, "models.0"),
        ({"models": ["a b"]}, "models.0"),
        ({"expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"expires_at": "soon"}, "expires_at"),
    ],
)
def test_a_key_that_is_not_valid(owner: Api, fields: dict[str, Any], field: str) -> None:
    answer = owner("POST", "keys", {"name": "k", "scopes": ["inference"]} | fields)
    assert errors(answer).keys() == {field}


def test_a_key_is_narrowed_and_revoked(owner: Api, tenant: Tenant) -> None:
    key = make_key(tenant, "inference", "usage:read")[0]
    body = {"name": "new", "scopes": ["inference"], "models": ["support", "base"]}
    assert owner("PATCH", f"keys/{key.pk}", body).json()["models"] == ["base", "support"]
    assert owner("PATCH", f"keys/{key.pk}", {"models": None}).json()["models"] is None
    assert owner("DELETE", f"keys/{key.pk}").status_code == 204
    assert owner("GET", f"keys/{key.pk}").json()["revoked_at"]
    answer = owner("PATCH", f"keys/{key.pk}", {"name": "again"})
    assert (answer.status_code, answer.json()["code"]) == (409, "key_revoked")
    assert owner("GET", "keys", revoked="true").json()["count"] == 1
    assert owner("GET", "keys", revoked="false").json()["count"] == 0
    assert owner("GET", "keys", scope="inference").json()["count"] == 1
    assert owner("GET", "keys", scope="admin").json()["count"] == 0
    assert errors(owner("GET", "keys", scope="odd")).keys() == {"scope"}


def test_a_change_does_not_undo_what_was_done_meanwhile(tenant: Tenant) -> None:
    key = make_key(tenant, "inference")[0]
    asked = {"caller": Caller(tenant)}
    naming = KeySerializer(key, {"name": "new"}, partial=True, context=asked)
    renaming = TenantSerializer(Tenant.objects.get(), {"name": "New"}, partial=True, context=asked)
    ApiKey.objects.get().revoke()
    Tenant.objects.update(status=Tenant.Status.SUSPENDED)
    for change in (naming, renaming):
        change.is_valid(raise_exception=True)
        change.save()
    key.refresh_from_db()
    assert key.name == "new" and key.revoked_at is not None
    tenant.refresh_from_db()
    assert tenant.name == "New" and not tenant.active


def test_a_key_gets_no_scopes_that_its_creator_lacks(tenant: Tenant) -> None:
    developer, me = person(tenant, "developer")
    key, _ = with_key(tenant, "admin", "usage:read")
    wanted = {"name": "k", "scopes": ["admin", "inference"]}
    assert errors(developer("POST", "keys", wanted)) == {
        "scopes": "You cannot grant scopes that you do not have: admin."
    }
    assert errors(key("POST", "keys", wanted)) == {
        "scopes": "You cannot grant scopes that you do not have: inference."
    }
    mine = make_key(tenant, "inference", created_by=me)[0]
    for scope in ("admin", "usage:read"):
        changed = developer("PATCH", f"keys/{mine.pk}", {"scopes": [scope]})
        assert errors(changed) == {
            "scopes": f"You cannot grant scopes that you do not have: {scope}."
        }
    assert key("POST", "keys", wanted | {"scopes": ["usage:read"]}).status_code == 201


def test_a_key_hands_on_neither_more_models_nor_more_time(tenant: Tenant) -> None:
    until = timezone.now() + timedelta(days=1)
    ask, own = with_key(tenant, "admin", allowed_models=["support"], expires_at=until)
    body = {"name": "k", "scopes": ["admin"]}
    assert errors(ask("POST", "keys", body)).keys() == {"models"}
    body |= {"models": ["support", "json"], "expires_at": until.isoformat()}
    assert errors(ask("POST", "keys", body)).keys() == {"models"}
    body |= {"models": ["support"]}
    late = (until + timedelta(seconds=1)).isoformat()
    assert errors(ask("POST", "keys", body | {"expires_at": late})).keys() == {"expires_at"}
    assert errors(ask("POST", "keys", body | {"expires_at": None})).keys() == {"expires_at"}
    assert ask("POST", "keys", body).status_code == 201
    assert errors(ask("PATCH", f"keys/{own.pk}", {"models": None})).keys() == {"models"}


def test_a_developer_changes_his_own_keys_only(tenant: Tenant) -> None:
    developer, me = person(tenant, "developer")
    mine, other = make_key(tenant, created_by=me)[0], make_key(tenant)[0]
    for key, status in ((mine, 200), (other, 403)):
        assert developer("PATCH", f"keys/{key.pk}", {"name": "x"}).status_code == status
    assert developer("DELETE", f"keys/{other.pk}").status_code == 403
    assert developer("DELETE", f"keys/{mine.pk}").status_code == 204
    other.refresh_from_db()
    assert other.revoked_at is None


def test_a_keys_use_is_noted(tenant: Tenant) -> None:
    ask, key = with_key(tenant, "admin")
    ask("GET", "keys")
    key.refresh_from_db()
    first = key.last_used_at
    assert first is not None
    ask("GET", "keys")
    key.refresh_from_db()
    assert key.last_used_at == first


# --- Adapters ------------------------------------------------------------------------------------


def test_adapters_and_versions_are_shown(owner: Api, live: AdapterVersion) -> None:
    second = make_version(live.adapter, state=State.REJECTED)
    AdapterVersion.objects.filter(pk=second.pk).update(report={"findings": ["x"]})
    (adapter,) = owner("GET", "adapters").json()["results"]
    assert (adapter["name"], adapter["base_model"]) == ("support", "base")
    (alias,) = adapter["aliases"]
    assert (alias["name"], alias["version"], alias["previous"]) == ("live", 1, None)
    assert owner("GET", "adapters/support").json() == adapter
    versions = owner("GET", "adapters/support/versions").json()["results"]
    assert [(v["number"], v["state"], v["aliases"]) for v in versions] == [
        (2, "rejected", []),
        (1, "ready", ["live"]),
    ]
    one = owner("GET", "adapters/support/versions/2").json()
    assert one["report"] == {"findings": ["x"]} and one["digest"] == second.digest
    assert "folder" not in one
    found = owner("GET", "adapters/support/versions", state="ready").json()["results"]
    assert [version["number"] for version in found] == [1]
    assert owner("GET", "adapters", name="upp").json()["count"] == 1
    assert owner("GET", "adapters", base_model="other").json()["count"] == 0


def test_promote_and_roll_back(owner: Api, live: AdapterVersion) -> None:
    second = make_version(live.adapter)
    path = "adapters/support/aliases/live"
    body = owner("PUT", path, {"version": 2}).json()
    assert (body["name"], body["version"], body["previous"]) == ("live", 2, 1)
    assert Alias.objects.get().version == second
    body = owner("POST", f"{path}/roll_back").json()
    assert (body["version"], body["previous"]) == (1, None)
    answer = owner("POST", f"{path}/roll_back")
    assert (answer.status_code, answer.json()["code"]) == (409, "nothing_to_roll_back_to")
    assert owner("PUT", "adapters/support/aliases/canary", {"version": 2}).status_code == 200
    names = [alias["name"] for alias in owner("GET", "adapters/support/aliases").json()["results"]]
    assert names == ["canary", "live"]
    assert owner("DELETE", "adapters/support/aliases/canary").status_code == 204
    assert owner("GET", "adapters/support/aliases/canary").status_code == 404


def test_a_promotion_that_cannot_be(owner: Api, live: AdapterVersion) -> None:
    make_version(live.adapter, state=State.REJECTED)
    path = "adapters/support/aliases/live"
    answer = owner("PUT", path, {"version": 2})
    assert (answer.status_code, answer.json()["code"]) == (409, "version_not_ready")
    assert errors(owner("PUT", path, {"version": 99})).keys() == {"version"}
    assert errors(owner("PUT", path, {"version": "x"})).keys() == {"version"}
    assert errors(owner("PUT", path, {})).keys() == {"version"}
    for name in ("3", "deadbeef", "A"):
        body = {"version": 1}
        assert errors(owner("PUT", f"adapters/support/aliases/{name}", body)).keys() == {"alias"}
    assert owner("POST", "adapters/support/aliases/none/roll_back").status_code == 404
    assert Alias.objects.get().version == live


@pytest.mark.parametrize("how", ["archive", "delete"])
def test_a_live_version_cannot_be_archived_or_deleted(
    owner: Api, live: AdapterVersion, how: str
) -> None:
    second = make_version(live.adapter)

    def end(number: int) -> Any:
        path = f"adapters/support/versions/{number}"
        return owner("POST", f"{path}/archive") if how == "archive" else owner("DELETE", path)

    answer = end(1)
    assert (answer.status_code, answer.json()["code"]) == (409, "version_in_use")
    assert owner("GET", "adapters/support/versions/1").json()["state"] == "ready"
    assert end(2).status_code in (200, 204)
    left = AdapterVersion.objects.filter(pk=second.pk).values_list("state", flat=True)
    assert list(left) == (["archived"] if how == "archive" else [])


def test_an_adapter_goes_after_its_aliases(owner: Api, live: AdapterVersion) -> None:
    answer = owner("DELETE", "adapters/support")
    assert (answer.status_code, answer.json()["code"]) == (409, "adapter_in_use")
    owner("DELETE", "adapters/support/aliases/live")
    assert owner("DELETE", "adapters/support").status_code == 204
    assert not Adapter.objects.exists()


# --- Engines and base models ---------------------------------------------------------------------


ENGINE = {
    "id": "e1",
    "kind": "vllm",
    "base_model": "base",
    "max_model_len": 512,
    "max_loras": 8,
    "max_lora_rank": 16,
    "kv_tokens": 65_536,
    "overflow": False,
    "role": "",
    "connected_at": "2026-05-01T12:00:00+00:00",
    "draining": False,
    "asleep": False,
    "running": 3,
    "waiting": 2,
    "queued": 1,
    "kv_usage": 0.5,
    "resident_adapters": ["acme/support@aa", "other/secret@bb", "acme2/x@cc"],
    "prompt_tokens": 1,
    "cached_tokens": 1,
    "completion_tokens": 1,
    "profile": "ngram",
    "proof": "not proven on this hardware",
}


@pytest.fixture
def one_engine(gateways: FakeGateways) -> None:
    gateways.engines = [dict(ENGINE)]


def test_no_engine_is_an_empty_list(owner: Api) -> None:
    assert owner("GET", "engines").json() == {"count": 0, "results": []}


def test_engines_show_a_tenant_only_its_own(
    one_engine: None, owner: Api, operator: Api, tenant: Tenant
) -> None:
    key, _ = with_key(tenant, "inference")
    for ask in (owner, key):
        (engine,) = ask("GET", "engines").json()["results"]
        assert engine["resident_adapters"] == ["acme/support@aa"]
        assert not {"running", "waiting", "queued", "kv_usage", "prompt_tokens"} & engine.keys()
        assert not {"profile", "proof"} & engine.keys()
    assert operator("GET", "engines").json()["results"] == [ENGINE]


def test_base_models_are_shown(owner: Api) -> None:
    make_base("org/base")
    assert owner("GET", "base-models/org/base").json()["name"] == "org/base"
    assert owner("GET", "base-models").json()["count"] == 1
    assert owner("GET", "base-models/none").status_code == 404
