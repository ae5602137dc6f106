"""The console's addresses. A tenant's pages are under `/t/<slug>/`."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path

from frontend.views import adapters, audit, home, keys, members, overview, versions

ADAPTER = [
    path("", adapters.adapter, name="adapters-one"),
    path("promote", adapters.promote, name="adapters-promote"),
    path("pin", adapters.pin, name="adapters-pin"),
    path("delete", adapters.retire, name="adapters-retire"),
    path("aliases/<str:alias>/roll-back", adapters.roll_back, name="adapters-rollback"),
    path("aliases/<str:alias>/delete", adapters.drop_alias, name="adapters-unalias"),
    path("versions/<int:number>", versions.version, name="adapters-version"),
    path("versions/<int:number>/state", versions.state, name="adapters-state"),
    path("versions/<int:number>/diff", versions.diff, name="adapters-diff"),
    path("versions/<int:number>/archive", versions.archive, name="adapters-archive"),
    path("versions/<int:number>/delete", versions.remove, name="adapters-remove"),
]
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
                path("members", members.members, name="members"),
                path("members/leave", members.leave, name="members-leave"),
                path("members/<int:pk>/role", members.change_role, name="members-role"),
                path("members/<int:pk>/remove", members.remove, name="members-remove"),
                path(
                    "members/invitations/<int:pk>/withdraw",
                    members.withdraw,
                    name="members-withdraw",
                ),
                path("adapters", adapters.adapters, name="adapters"),
                path("adapters/<str:name>/", include(ADAPTER)),
                path("audit", audit.audit, name="audit"),
                path("audit/csv", audit.export, name="audit-export"),
                path("keys", keys.keys, name="keys"),
                path("keys/<int:pk>/revoke", keys.revoke, name="keys-revoke"),
                path("keys/<int:pk>/rotate", keys.rotate, name="keys-rotate"),
            ]
        ),
    ),
]
