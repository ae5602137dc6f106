"""Revisions and rollouts over the management API; permissions are tested in `test_access`."""

from __future__ import annotations

from typing import Any

import pytest

from tenants.models import (
    AuditEntry,
    BaseModel,
    GatewayProcess,
    PoolRevision,
    Rollout,
    Standing,
    Trial,
)
from tests.tenants.callers import Api
from tests.tenants.making import (
    make_adapter,
    make_base,
    make_gateway,
    make_rollout,
    make_tenant,
    make_user,
    make_version,
)

pytestmark = pytest.mark.django_db


@pytest.fixture
def operator() -> Api:
    return Api(make_user("operator", is_staff=True))


@pytest.fixture
def revision() -> PoolRevision:
    """A waiting revision of a pool whose other revision serves."""
    rollout = make_rollout(make_base())
    rollout.abort()
    rollout.delete()
    PoolRevision.objects.filter(pk=rollout.revision_id).update(standing=Standing.WAITING)
    return PoolRevision.objects.get(pk=rollout.revision_id)


def test_revisions_with_their_engines_and_what_was_tried_on_them(
    operator: Api, revision: PoolRevision
) -> None:
    for passed in (True, False):
        version = make_version(make_adapter(make_tenant()))
        Trial.objects.create(version=version, revision=revision, passed=passed)
    make_gateway("http://a")
    GatewayProcess.objects.update(engines={revision.digest: 3})
    listed = operator("GET", "revisions", base_model="base", standing="waiting").json()
    (row,) = listed["results"]
    known = {"id": revision.pk, "base_model": "base", "standing": "waiting", "engines": 3}
    assert row | known | {"tried": 1, "failed": 1, "engine_version": "2"} == row
    assert operator("GET", "revisions", base_model="other").json()["count"] == 0
    withdrawn = operator("PATCH", f"revisions/{revision.pk}", {"standing": "withdrawn"})
    assert withdrawn.json()["standing"] == "withdrawn"
    refused = operator("PATCH", f"revisions/{revision.pk}", {"digest": "x"})
    assert refused.status_code == 400
    assert operator("PATCH", f"revisions/{revision.pk}", {"standing": "x"}).status_code == 400


def test_a_rollout_is_started_watched_and_aborted(operator: Api, revision: PoolRevision) -> None:
    plan = {"steps": [10, 100], "step_s": 60, "max_ttft_ratio": None}
    made = operator("POST", "rollouts", {"revision": revision.pk, **plan})
    assert made.status_code == 201
    told = made.json()
    known = {"base_model": "base", "state": "running", "weight": 0, "created_by": "operator"}
    assert told | known | plan == told
    assert told["progress"]["new"] == {
        "requests": 0, "errors": 0, "error_percent": 0.0, "ttft_p95_s": None,
    }  # fmt: skip
    path = f"rollouts/{told['id']}"
    again = operator("POST", "rollouts", {"revision": revision.pk})
    assert (again.status_code, again.json()["code"]) == (409, "rollout_under_way")
    assert operator("POST", f"{path}/pause").json()["state"] == "paused"
    assert operator("POST", f"{path}/resume").json()["state"] == "running"
    assert operator("PUT", f"{path}/weight", {"weight": 33}).json()["weight"] == 33
    for weight in (-1, 101, "x"):
        assert operator("PUT", f"{path}/weight", {"weight": weight}).status_code == 400
    ended = operator("POST", f"{path}/abort").json()
    assert ended["state"] == "aborted" and ended["ended_at"]
    late = operator("POST", f"{path}/finish")
    assert (late.status_code, late.json()["code"]) == (409, "illegal_rollout_step")
    assert operator("GET", "rollouts", state="aborted").json()["count"] == 1
    steps = AuditEntry.objects.filter(kind="rollout", object_id=told["id"])
    assert set(steps.values_list("actor_name", flat=True)) == {"operator"} and len(steps) == 5


@pytest.mark.parametrize(
    "wrong",
    [
        {"revision": 0},
        {"steps": []},
        {"steps": [50]},
        {"steps": [100, 100]},
        {"steps": [0, 100]},
        {"step_s": 0},
        {"max_error_percent": 101},
        {"max_ttft_ratio": 0.5},
        {"weight": 5},
        {"colour": 1},
    ],
)
def test_plans_that_are_refused(operator: Api, revision: PoolRevision, wrong: Any) -> None:
    answer = operator("POST", "rollouts", {"revision": revision.pk} | wrong)
    assert answer.status_code == 400, answer.content
    assert answer.json()["errors"][0]["field"].startswith(next(iter(wrong)))
    assert not Rollout.objects.exists()


def test_finished_the_new_revision_serves(operator: Api, revision: PoolRevision) -> None:
    rollout = Rollout.objects.start(revision)
    assert operator("POST", f"rollouts/{rollout.pk}/finish").json()["state"] == "finished"
    standings = PoolRevision.objects.order_by("pk").values_list("standing", flat=True)
    assert list(standings) == ["waiting", "serving"]


def test_turns_of_tenants(operator: Api, revision: PoolRevision) -> None:
    path = f"rollouts/{Rollout.objects.start(revision).pk}/tenants"
    make_tenant("acme")
    assert operator("PUT", f"{path}/acme", {"turn": "first"}).json() == {
        "tenant": "acme", "turn": "first",
    }  # fmt: skip
    operator("PUT", f"{path}/acme", {"turn": "last"})
    listed = operator("GET", path).json()["results"]
    assert listed == [{"tenant": "acme", "turn": "last"}]
    assert operator("PUT", f"{path}/acme", {"turn": "next"}).status_code == 400
    assert operator("PUT", f"{path}/nobody", {"turn": "last"}).status_code == 404
    assert operator("DELETE", f"{path}/acme").status_code == 204
    assert operator("DELETE", f"{path}/acme").status_code == 404
    Rollout.objects.get().abort()
    late = operator("PUT", f"{path}/acme", {"turn": "last"})
    assert (late.status_code, late.json()["code"]) == (409, "illegal_rollout_step")


def test_defaults_of_a_base_model(operator: Api) -> None:
    make_base()
    answer = operator("PATCH", "base-models/base", {"defaults": {"temperature": 0.2}})
    assert (answer.status_code, answer.json()["defaults"]) == (200, {"temperature": 0.2})
    assert operator("PATCH", "base-models/base", {"serves_new": True}).json()["serves_new"]
    stored = BaseModel.objects.get()
    assert stored.defaults == {"temperature": 0.2}, "what was not named stays"
    wrongs: list[Any] = [{"temperature": 3}, {"colour": 1}, {"max_tokens": 0}, [], {"top_p": False}]
    for wrong in wrongs:
        refused = operator("PATCH", "base-models/base", {"defaults": wrong})
        assert refused.status_code == 400, wrong
    for fixed in ("name", "modules", "engine"):
        assert operator("PATCH", "base-models/base", {fixed: "x"}).status_code == 400
    cleared = operator("PATCH", "base-models/base", {"defaults": {}})
    assert cleared.json()["defaults"] == {}
