"""The management API under `/api/v1/`.

An endpoint about one tenant takes it from the key; for a user it is the one that `?tenant=<slug>`
names, or the user's only one.
"""

from __future__ import annotations

from typing import Any

from django.urls import URLPattern, URLResolver, path, re_path
from drf_spectacular.views import SpectacularAPIView, SpectacularSwaggerSplitView

from tenants.api.endpoints.adapters.adapters import Adapters, Aliases, Versions
from tenants.api.endpoints.adapters.gates import AliasGate
from tenants.api.endpoints.adapters.routes import Routes
from tenants.api.endpoints.adapters.sessions import Uploads
from tenants.api.endpoints.adapters.splits import AliasSplit, SplitHistory
from tenants.api.endpoints.alerts import AlertRules
from tenants.api.endpoints.audit import InstallationAudit, TenantAudit
from tenants.api.endpoints.content import Content, ContentKeys
from tenants.api.endpoints.deletions import OneDeletion
from tenants.api.endpoints.exports import Exports
from tenants.api.endpoints.fleet.credentials import EngineCredentials, Quarantine
from tenants.api.endpoints.fleet.engines import BaseModels, EngineList
from tenants.api.endpoints.fleet.isolation import IsolationChecks
from tenants.api.endpoints.fleet.rollouts import Revisions, Rollouts, Turns
from tenants.api.endpoints.invitations import Invitations
from tenants.api.endpoints.keys import KeyList
from tenants.api.endpoints.limits import AdapterLimits, DefaultLimits, KeyLimits, LimitsList
from tenants.api.endpoints.tenants import Members, OneTenant, Tenants
from tenants.api.endpoints.usage.annotations import Scores, Tags
from tenants.api.endpoints.usage.metrics import Metrics
from tenants.api.endpoints.usage.prices import Prices
from tenants.api.endpoints.usage.requests import OneRequest, RequestList
from tenants.api.endpoints.usage.usage import Costs, UsageList
from tenants.api.endpoints.users import Users
from tenants.api.endpoints.webhooks import (
    Deliveries,
    InstallationDeliveries,
    InstallationWebhooks,
    Webhooks,
)
from tenants.api.problems import not_found

Actions = dict[str, Any]
READ: Actions = {"get": "retrieve"}
LIST: Actions = {"get": "list"}
CREATE: Actions = {"post": "create"}
EDIT: Actions = {"patch": "partial_update"}
REPLACE: Actions = {"put": "update"}
DELETE: Actions = {"delete": "destroy"}
READ_ONLY = {"http_method_names": ["get", "head"]}

urlpatterns: list[URLPattern | URLResolver] = [
    path("tenants", Tenants.as_view(LIST | CREATE)),
    path("tenants/<str:slug>", OneTenant.as_view(READ | EDIT)),
    path(
        "tenants/<str:slug>/deletion",
        OneDeletion.as_view(READ | CREATE | {"delete": "take_back"}),
    ),
    path("members", Members.as_view(LIST)),
    path("members/<int:pk>", Members.as_view(READ | EDIT | DELETE)),
    path("invitations", Invitations.as_view(LIST | CREATE)),
    path("invitations/<int:pk>", Invitations.as_view(READ | DELETE)),
    path("keys", KeyList.as_view(LIST | CREATE)),
    path("keys/<int:pk>", KeyList.as_view(READ | EDIT | DELETE)),
    path("keys/<int:pk>/limits", KeyLimits.as_view(READ | REPLACE | EDIT)),
    path("adapters", Adapters.as_view(LIST)),
    path("adapters/<str:name>", Adapters.as_view(READ | EDIT | DELETE)),
    path("adapters/<str:name>/limits", AdapterLimits.as_view(READ | REPLACE | EDIT)),
    path("adapters/<str:name>/versions", Versions.as_view(LIST | CREATE)),
    path("adapters/<str:name>/versions/<int:number>", Versions.as_view(READ | DELETE)),
    path(
        "adapters/<str:name>/versions/<int:number>/archive", Versions.as_view({"post": "archive"})
    ),
    path("adapters/<str:name>/aliases", Aliases.as_view(LIST)),
    path(
        "adapters/<str:name>/aliases/<str:alias>",
        Aliases.as_view(READ | {"put": "promote"} | DELETE),
    ),
    path(
        "adapters/<str:name>/aliases/<str:alias>/roll_back", Aliases.as_view({"post": "roll_back"})
    ),
    path(
        "adapters/<str:name>/aliases/<str:alias>/gate",
        AliasGate.as_view(READ | {"put": "require"} | DELETE),
    ),
    path("adapters/<str:name>/splits", SplitHistory.as_view(LIST)),
    path("adapters/<str:name>/aliases/<str:alias>/split", AliasSplit.as_view(READ | CREATE)),
    path(
        "adapters/<str:name>/aliases/<str:alias>/split/weight", AliasSplit.as_view({"put": "weigh"})
    ),
    *(
        path(
            f"adapters/<str:name>/aliases/<str:alias>/split/{action}",
            AliasSplit.as_view({"post": action}),
        )
        for action in ("pause", "resume", "promote", "stop", "evaluate")
    ),
    path("routes", Routes.as_view(LIST | CREATE)),
    path("routes/<str:name>", Routes.as_view(READ | DELETE)),
    path("routes/<str:name>/fit", Routes.as_view({"post": "fit"})),
    path("routes/<str:name>/on", Routes.as_view({"post": "turn_on"})),
    path("routes/<str:name>/off", Routes.as_view({"post": "turn_off"})),
    path("uploads", Uploads.as_view(LIST | CREATE)),
    path(
        "uploads/<uuid:id>",
        Uploads.as_view(READ | {"head": "measure", "patch": "append"} | DELETE),
    ),
    path("limits", LimitsList.as_view(READ | REPLACE | EDIT)),
    path("limits/default", DefaultLimits.as_view(READ | REPLACE | EDIT)),
    path("base-models", BaseModels.as_view(LIST)),
    path("base-models/<path:name>", BaseModels.as_view(READ | EDIT)),
    path("revisions", Revisions.as_view(LIST)),
    path("revisions/<int:pk>", Revisions.as_view(READ | EDIT)),
    path("rollouts", Rollouts.as_view(LIST | CREATE)),
    path("rollouts/<int:pk>", Rollouts.as_view(READ)),
    path("rollouts/<int:pk>/pause", Rollouts.as_view({"post": "pause"})),
    path("rollouts/<int:pk>/resume", Rollouts.as_view({"post": "resume"})),
    path("rollouts/<int:pk>/weight", Rollouts.as_view({"put": "weigh"})),
    path("rollouts/<int:pk>/finish", Rollouts.as_view({"post": "finish"})),
    path("rollouts/<int:pk>/abort", Rollouts.as_view({"post": "abort"})),
    path("rollouts/<int:pk>/tenants", Turns.as_view(LIST)),
    path("rollouts/<int:pk>/tenants/<str:slug>", Turns.as_view(REPLACE | DELETE)),
    path("engines", EngineList.as_view()),
    path("engine-credentials", EngineCredentials.as_view(LIST | CREATE)),
    path("engine-credentials/<int:pk>", EngineCredentials.as_view(READ | DELETE)),
    path("engine-credentials/<int:pk>/rotate", EngineCredentials.as_view({"post": "rotate"})),
    path("quarantine", Quarantine.as_view(LIST)),
    path("quarantine/<int:pk>", Quarantine.as_view(READ)),
    path("quarantine/<int:pk>/bill", Quarantine.as_view({"post": "bill"})),
    path("quarantine/<int:pk>/dismiss", Quarantine.as_view({"post": "dismiss"})),
    path("content", Content.as_view(READ | EDIT)),
    path("content/keys", ContentKeys.as_view(LIST)),
    path("content/destroy", ContentKeys.as_view({"post": "destroy_all"})),
    path("exports", Exports.as_view(LIST | CREATE)),
    path("exports/<str:pk>", Exports.as_view(READ)),
    path("exports/<str:pk>/archive", Exports.as_view({"get": "archive"})),
    path("alert-rules", AlertRules.as_view(LIST | CREATE)),
    path("alert-rules/<int:pk>", AlertRules.as_view(READ | EDIT | DELETE)),
    path("webhooks", Webhooks.as_view(LIST | CREATE)),
    path("webhooks/<int:pk>", Webhooks.as_view(READ | DELETE)),
    path("webhooks/<int:pk>/rotate", Webhooks.as_view({"post": "rotate"})),
    path("webhooks/<int:pk>/test", Webhooks.as_view({"post": "test"})),
    path("webhook-deliveries", Deliveries.as_view(LIST)),
    path("webhook-deliveries/<int:pk>", Deliveries.as_view(READ)),
    path("webhook-deliveries/<int:pk>/replay", Deliveries.as_view({"post": "replay"})),
    path("installation/webhooks", InstallationWebhooks.as_view(LIST | CREATE)),
    path("installation/webhooks/<int:pk>", InstallationWebhooks.as_view(READ | DELETE)),
    path("installation/webhooks/<int:pk>/rotate", InstallationWebhooks.as_view({"post": "rotate"})),
    path("installation/webhooks/<int:pk>/test", InstallationWebhooks.as_view({"post": "test"})),
    path("installation/webhook-deliveries", InstallationDeliveries.as_view(LIST)),
    path("installation/webhook-deliveries/<int:pk>", InstallationDeliveries.as_view(READ)),
    path(
        "installation/webhook-deliveries/<int:pk>/replay",
        InstallationDeliveries.as_view({"post": "replay"}),
    ),
    path("installation/audit", InstallationAudit.as_view(LIST)),
    path("audit", TenantAudit.as_view(LIST)),
    path("users", Users.as_view(LIST)),
    path("users/<int:pk>", Users.as_view(READ | EDIT)),
    path("isolation", IsolationChecks.as_view(LIST | {"post": "check"})),
    path("usage", UsageList.as_view()),
    path("costs", Costs.as_view()),
    path("metrics", Metrics.as_view()),
    path("requests", RequestList.as_view()),
    path("requests/<str:request_id>", OneRequest.as_view()),
    path("requests/<str:request_id>/tags", Tags.as_view(CREATE)),
    path("requests/<str:request_id>/tags/<str:name>", Tags.as_view(DELETE)),
    path("requests/<str:request_id>/scores", Scores.as_view(CREATE)),
    path("requests/<str:request_id>/scores/<int:pk>", Scores.as_view(DELETE)),
    path("prices", Prices.as_view(LIST | CREATE)),
    path("prices/<int:pk>", Prices.as_view(READ | DELETE)),
    path("schema/", SpectacularAPIView.as_view(**READ_ONLY), name="schema"),
    path("docs/", SpectacularSwaggerSplitView.as_view(url_name="schema", **READ_ONLY), name="docs"),
    re_path(r"", not_found),
]
