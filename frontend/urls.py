"""The console's addresses. A tenant's pages are under `/t/<slug>/`."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path

from frontend.views import audit, home, keys, limits, members, overview

urlpatterns: list[URLPattern | URLResolver] = [
    path("", home.home, name="console"),
    path("account/", include("allauth.urls")),
    path("join", home.join, name="join"),
    path("invitations/<str:token>", home.invitation, name="invitation"),
    path(
        "t/<str:slug>/",
        include(
            [
                path("", overview.overview, name="overview"),
                path("limits", limits.limits, name="limits"),
                path("limits/keys/<int:pk>", limits.of_key, name="limits-key"),
                path("limits/adapters/<str:name>", limits.of_adapter, name="limits-adapter"),
                path("members", members.members, name="members"),
                path("members/leave", members.leave, name="members-leave"),
                path("members/<int:pk>/role", members.change_role, name="members-role"),
                path("members/<int:pk>/remove", members.remove, name="members-remove"),
                path(
                    "members/invitations/<int:pk>/withdraw",
                    members.withdraw,
                    name="members-withdraw",
                ),
                path("audit", audit.audit, name="audit"),
                path("audit/csv", audit.export, name="audit-export"),
                path("keys", keys.keys, name="keys"),
                path("keys/<int:pk>/revoke", keys.revoke, name="keys-revoke"),
                path("keys/<int:pk>/rotate", keys.rotate, name="keys-rotate"),
            ]
        ),
    ),
]
