"""The console's addresses. A tenant's pages are under `/t/<slug>/`."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, include, path

from frontend.views import home, keys, overview

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
                path("keys", keys.keys, name="keys"),
                path("keys/<int:pk>/revoke", keys.revoke, name="keys-revoke"),
                path("keys/<int:pk>/rotate", keys.rotate, name="keys-rotate"),
            ]
        ),
    ),
]
