"""The console's URLs. A tenant's pages are under `/t/<slug>/`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.urls import URLPattern, URLResolver, include, path

from frontend.sign_in.single_sign_on import callback
from frontend.views import (
    account,
    alerts,
    audit,
    content,
    data,
    documents,
    engines,
    find,
    home,
    inbox,
    keys,
    limits,
    live,
    members,
    notifications,
    tickets,
    usage,
)
from frontend.views.adapters import adapters, gates, repairs, routes, splits, versions
from frontend.views.batches import batches, creating, files
from frontend.views.evals import comparison, evals
from frontend.views.evals import runs as eval_runs
from frontend.views.operate import audit as whole_log
from frontend.views.operate import (
    credentials,
    models,
    prices,
    quarantine,
    rollouts,
    sizing,
    users,
)
from frontend.views.operate import engines as fleet
from frontend.views.operate import limits as defaults
from frontend.views.operate import overview as installation
from frontend.views.operate import requests as all_requests
from frontend.views.operate import tenants as all_tenants
from frontend.views.operate import usage as all_usage
from frontend.views.overview import overview
from frontend.views.playground import conversations, playground, prompts
from frontend.views.requests import annotating, dataset, request, requests, views
from frontend.views.tuning import creating as tuning_creating
from frontend.views.tuning import jobs as tuning_jobs
from tenants.models import Tenant

View = Callable[..., Any]

ADAPTER = [
    path("", adapters.adapter, name="adapters-one"),
    path("promote", adapters.promote, name="adapters-promote"),
    path("pin", adapters.pin, name="adapters-pin"),
    path("delete", adapters.retire, name="adapters-retire"),
    path("aliases/<str:alias>/roll-back", adapters.roll_back, name="adapters-rollback"),
    path("aliases/<str:alias>/delete", adapters.drop_alias, name="adapters-unalias"),
    path("gates", gates.gates, name="adapters-gates"),
    path("gates/<int:pk>/delete", gates.remove, name="adapters-ungate"),
    path("split", splits.start, name="adapters-split"),
    *(
        path(f"splits/<int:pk>/{what}", splits.act, {"what": what}, name=f"adapters-split-{what}")
        for what in ("pause", "resume", "promote", "stop", "evaluate")
    ),
    path("splits/<int:pk>/weight", splits.weigh, name="adapters-split-weigh"),
    path("versions/<int:number>", versions.version, name="adapters-version"),
    path("versions/<int:number>/diff", versions.diff, name="adapters-diff"),
    path("versions/archive", versions.archive_some, name="adapters-archive-some"),
    path("versions/delete", versions.remove_some, name="adapters-remove-some"),
    path("versions/<int:number>/archive", versions.archive, name="adapters-archive"),
    path("versions/<int:number>/delete", versions.remove, name="adapters-remove"),
]
ROLLOUT = [
    path("", rollouts.rollout, name="operate_rollouts-one"),
    *(
        path(what, rollouts.step, {"what": what}, name=f"operate_rollouts-{what}")
        for what in ("pause", "resume", "finish", "abort")
    ),
    path("weight", rollouts.weigh, name="operate_rollouts-weigh"),
    path("tenants", rollouts.set_turn, name="operate_rollouts-turn"),
    path("tenants/<int:pk>/drop", rollouts.drop_turn, name="operate_rollouts-drop-turn"),
]


def _notifications(
    name: str, page: View, choose_mails: View, replay_some: View, *each: View
) -> list[URLPattern]:
    """The pages of a tenant or of the installation. The views `each`: rotate a webhook's secret,
    test a webhook, remove it, send a delivery again."""
    named = zip(("rotate", "test", "remove", "replay"), each, strict=True)
    return [
        path("notifications", page, name=name),
        path("notifications/mail", choose_mails, name=f"{name}-mail"),
        path("notifications/replay", replay_some, name=f"{name}-replay-some"),
        *(path(f"notifications/<int:pk>/{what}", v, name=f"{name}-{what}") for what, v in named),
    ]


NOTIFICATIONS_OF_TENANT = _notifications(
    "notifications",
    notifications.notifications,
    notifications.choose_mails,
    notifications.replay_some,
    notifications.rotate,
    notifications.test,
    notifications.remove,
    notifications.replay,
)
NOTIFICATIONS_OF_ALL = _notifications(
    "operate_notifications",
    notifications.of_installation,
    notifications.choose_mails_of_installation,
    notifications.replay_some_of_installation,
    notifications.rotate_of_installation,
    notifications.test_of_installation,
    notifications.remove_of_installation,
    notifications.replay_of_installation,
)
OPERATE: list[URLPattern | URLResolver] = [
    path("", installation.overview, name="operate"),
    path("live/", include(live.OF_ALL)),
    path("isolation", installation.check_isolation, name="operate-isolation"),
    path("tenants", all_tenants.tenants, name="operate_tenants"),
    *(
        path(
            f"{what}-tenants",  # below `tenants/` it would be a tenant's slug
            all_tenants.set_status_of_some,
            {"status": status},
            name=f"operate_tenants-{what}-some",
        )
        for what, status in (
            ("suspend", Tenant.Status.SUSPENDED),
            ("activate", Tenant.Status.ACTIVE),
        )
    ),
    path("tenants/<str:tenant_slug>", all_tenants.edit, name="operate_tenants-edit"),
    path("tenants/<str:tenant_slug>/suspend", all_tenants.suspend, name="operate_tenants-suspend"),
    path(
        "tenants/<str:tenant_slug>/activate", all_tenants.activate, name="operate_tenants-activate"
    ),
    path("users", users.users, name="operate_users"),
    *(
        path(
            f"users/{what}",
            users.set_active_of_some,
            {"active": active},
            name=f"operate_users-{what}-some",
        )
        for what, active in (("deactivate", False), ("activate", True))
    ),
    path(
        "users/<int:pk>/active", users.set_access, {"what": "active"}, name="operate_users-active"
    ),
    path(
        "users/<int:pk>/operator",
        users.set_access,
        {"what": "operator"},
        name="operate_users-operator",
    ),
    path("users/<int:pk>/password", users.password_link, name="operate_users-password"),
    path(
        "users/<int:pk>/second-factor",
        users.remove_second_factor,
        name="operate_users-second-factor",
    ),
    path("requests", all_requests.requests, name="operate_requests"),
    path("usage", all_usage.usage, name="operate_usage"),
    path("usage/csv", all_usage.export, name="operate_usage-export"),
    path("models", models.models, name="operate_models"),
    path("models/<int:pk>", models.model, name="operate_models-one"),
    path("models/<int:pk>/roll-out", rollouts.start, name="operate_rollouts-start"),
    path("rollouts/<int:rollout>/", include(ROLLOUT)),
    *(
        path(
            f"revisions/<int:pk>/{standing}",
            rollouts.stand,
            {"standing": standing},
            name=f"operate_revisions-{standing}",
        )
        for standing in ("serving", "withdrawn")
    ),
    path("limits", defaults.limits, name="operate_limits"),
    path("prices", prices.prices, name="operate_prices"),
    path("prices/<int:pk>/withdraw", prices.withdraw, name="operate_prices-withdraw"),
    path("sizing", sizing.sizing, name="operate_sizing"),
    path("engines", fleet.engines, name="operate_engines"),
    path("engines/drain", fleet.drain, name="operate_engines-drain"),
    path("engines/credentials", credentials.credentials, name="operate_engines-credentials"),
    path("engines/credentials/revoke", credentials.revoke_some, name="operate_engines-revoke-some"),
    path("engines/credentials/<int:pk>/rotate", credentials.rotate, name="operate_engines-rotate"),
    path("engines/credentials/<int:pk>/revoke", credentials.revoke, name="operate_engines-revoke"),
    path("quarantine", quarantine.quarantine, name="operate_quarantine"),
    path("quarantine/bill", quarantine.bill_some, name="operate_quarantine-bill-some"),
    path("quarantine/dismiss", quarantine.dismiss_some, name="operate_quarantine-dismiss-some"),
    path("quarantine/<int:pk>/bill", quarantine.bill, name="operate_quarantine-bill"),
    path("quarantine/<int:pk>/dismiss", quarantine.dismiss, name="operate_quarantine-dismiss"),
    path("inbox", inbox.of_installation, name="operate_inbox"),
    path("inbox/read", inbox.read_of_installation, name="operate_inbox-read"),
    *NOTIFICATIONS_OF_ALL,
    path("audit", whole_log.audit, name="operate_audit"),
]
KEPT = [
    path("", conversations.conversation, name="playground-conversation"),
    path("save", conversations.save, name="playground-save"),
    path("rename", conversations.rename, name="playground-rename"),
    path("delete", conversations.delete, name="playground-delete"),
    path("share", conversations.share, name="playground-share"),
    path("unshare", conversations.unshare, name="playground-unshare"),
]
PLAYGROUND: list[URLPattern | URLResolver] = [
    path("conversations", conversations.conversations, name="playground-conversations"),
    path("conversations/delete", conversations.delete_some, name="playground-delete-some"),
    path("conversations/<int:pk>/", include(KEPT)),
    path("prompts", prompts.save, name="playground-save-prompt"),
    path("prompts/<int:pk>", prompts.prompt, name="playground-prompt"),
    path("prompts/<int:pk>/delete", prompts.delete, name="playground-drop-prompt"),
    path("sets", prompts.save_set, name="playground-save-set"),
    path("sets/<int:pk>", prompts.prompts_of, name="playground-set"),
    path("sets/<int:pk>/votes", prompts.vote, name="playground-vote"),
    path("sets/<int:pk>/delete", prompts.delete_set, name="playground-drop-set"),
    path("shared/<uuid:link>", conversations.shared, name="playground-shared"),
    path("shared/<uuid:link>/copy", conversations.copy, name="playground-copy"),
]
urlpatterns: list[URLPattern | URLResolver] = [
    path("", home.home, name="console"),
    path(
        "account/oidc/<str:provider_id>/login/callback/", callback, name="openid_connect_callback"
    ),  # before allauth's own
    path("account/second-factor", home.ask_for_second_factor, name="second-factor"),
    path("account/sessions/<int:pk>/end", account.end_session, name="sessions-end"),
    path("account/", include("allauth.urls")),
    path("join", home.join, name="join"),
    path("find", find.anywhere, name="find"),
    path("documentation", documents.document, name="documents"),
    path("documentation/<slug:document>", documents.document, name="documents-one"),
    path("tickets", tickets.ticket, name="tickets"),
    path("invitations/<str:token>", home.invitation, name="invitation"),
    path("operate/", include(OPERATE)),
    path(
        "t/<slug:slug>/",
        include(
            [
                path("", overview.overview, name="overview"),
                path("live/", include(live.OF_TENANT)),
                path("find", find.of_tenant, name="find-tenant"),
                path("usage", usage.usage, name="usage"),
                path("limits", limits.limits, name="limits"),
                path("limits/keys/<int:pk>", limits.of_key, name="limits-key"),
                path("limits/adapters/<str:name>", limits.of_adapter, name="limits-adapter"),
                path("members", members.members, name="members"),
                path("members/leave", members.leave, name="members-leave"),
                path(
                    "members/second-factor",
                    members.require_second_factor,
                    name="members-second-factor",
                ),
                path("members/remove", members.remove_some, name="members-remove-some"),
                path("members/<int:pk>/role", members.change_role, name="members-role"),
                path("members/<int:pk>/remove", members.remove, name="members-remove"),
                path(
                    "members/invitations/withdraw",
                    members.withdraw_some,
                    name="members-withdraw-some",
                ),
                path(
                    "members/invitations/<int:pk>/resend",
                    members.resend,
                    name="members-resend",
                ),
                path(
                    "members/invitations/<int:pk>/withdraw",
                    members.withdraw,
                    name="members-withdraw",
                ),
                path("adapters", adapters.adapters, name="adapters"),
                path("adapters/upload", adapters.upload, name="adapters-upload"),
                path("adapters/repair", repairs.choose, name="adapters-repair"),
                path(
                    "adapters/uploads/<uuid:id>/discard", adapters.discard, name="adapters-discard"
                ),
                path("adapters/<str:name>/", include(ADAPTER)),
                path("routes", routes.routes, name="adapters-routes"),
                path("routes/<str:route>", routes.route, name="adapters-route"),
                path("routes/<str:route>/fit", routes.fit, name="adapters-route-fit"),
                path("routes/<str:route>/on", routes.turn, {"on": True}, name="adapters-route-on"),
                path(
                    "routes/<str:route>/off", routes.turn, {"on": False}, name="adapters-route-off"
                ),
                path("routes/<str:route>/delete", routes.remove, name="adapters-route-remove"),
                path("requests", requests.requests, name="requests"),
                path("requests/csv", requests.export, name="requests-export"),
                path("requests/views", views.save, name="requests-save-view"),
                path("requests/views/<int:pk>/delete", views.delete, name="requests-drop-view"),
                path("requests/dataset", dataset.save, name="requests-dataset"),
                path("requests/<str:request_id>", request.request, name="requests-one"),
                path("requests/<str:request_id>/content", request.content, name="requests-content"),
                path("requests/<str:request_id>/open", request.reopen, name="requests-reopen"),
                path("requests/<str:request_id>/tags", annotating.tag, name="requests-tag"),
                path(
                    "requests/<str:request_id>/tags/<int:pk>/delete",
                    annotating.untag,
                    name="requests-untag",
                ),
                path("requests/<str:request_id>/scores", annotating.score, name="requests-score"),
                path(
                    "requests/<str:request_id>/scores/<int:pk>/delete",
                    annotating.unscore,
                    name="requests-unscore",
                ),
                path("requests/<str:request_id>/receipt", request.receipt, name="requests-receipt"),
                path("batches", batches.batches, name="batches"),
                path("batches/cancel", batches.cancel_some, name="batches-cancel-some"),
                path("batches/new", creating.new_batch, name="batches-new"),
                path("batches/<str:batch_id>", batches.batch, name="batches-one"),
                path("batches/<str:batch_id>/cancel", batches.cancel, name="batches-cancel"),
                path(
                    "batches/<str:batch_id>/files/<str:role>",
                    batches.download,
                    name="batches-download",
                ),
                path("evals", evals.evals, name="evals"),
                path("evals/<str:eval_id>", evals.eval, name="evals-one"),
                path("evals/<str:eval_id>/compare", comparison.compare, name="evals-compare"),
                path("evals/<str:eval_id>/runs/<str:run_id>", eval_runs.run, name="evals-run"),
                path(
                    "evals/<str:eval_id>/runs/<str:run_id>/cancel",
                    eval_runs.cancel,
                    name="evals-cancel",
                ),
                path("fine-tuning", tuning_jobs.tuning, name="fine-tuning"),
                path("fine-tuning/new", tuning_creating.new_job, name="fine-tuning-new"),
                path("fine-tuning/<str:job_id>", tuning_jobs.job, name="fine-tuning-one"),
                path(
                    "fine-tuning/<str:job_id>/compare",
                    tuning_jobs.compare,
                    name="fine-tuning-compare",
                ),
                path(
                    "fine-tuning/<str:job_id>/<str:action>",
                    tuning_jobs.change,
                    name="fine-tuning-change",
                ),
                path("files", files.files, name="batches-files"),
                path("files/<str:file_id>", files.download, name="batches-file"),
                path("files/<str:file_id>/delete", files.delete, name="batches-file-delete"),
                path("data", data.data, name="data"),
                path("data/delete", data.delete, name="data-delete"),
                path("data/keep", data.keep, name="data-keep"),
                path("data/receipt", data.receipt, name="data-receipt"),
                path("data/<str:export_id>", data.download, name="data-download"),
                path("engines", engines.engines, name="engines"),
                path("content", content.content, name="content"),
                path("content/destroy", content.destroy, name="content-destroy"),
                path("content/overflow", content.overflow, name="content-overflow"),
                path(
                    "content/<int:pk>/confirmation",
                    content.confirmation,
                    name="content-confirmation",
                ),
                path("inbox", inbox.of_tenant, name="inbox"),
                path("inbox/read", inbox.read, name="inbox-read"),
                path("alerts", alerts.alerts, name="alerts"),
                path("alerts/<int:pk>/change", alerts.change, name="alerts-change"),
                path("alerts/<int:pk>/remove", alerts.remove, name="alerts-remove"),
                *NOTIFICATIONS_OF_TENANT,
                path("audit", audit.audit, name="audit"),
                path("audit/csv", audit.export, name="audit-export"),
                path("playground", playground.playground, name="playground"),
                path("playground/", include(PLAYGROUND)),
                path("keys", keys.keys, name="keys"),
                path("keys/revoke", keys.revoke_some, name="keys-revoke-some"),
                path("keys/<int:pk>/revoke", keys.revoke, name="keys-revoke"),
                path("keys/<int:pk>/rotate", keys.rotate, name="keys-rotate"),
            ]
        ),
    ),
]
