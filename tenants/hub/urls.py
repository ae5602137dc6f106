"""The URLs of the hub, under `/hub/`."""

from __future__ import annotations

from django.urls import URLPattern, path

from tenants.hub import managing, pulling, pushing

MODEL = "api/models/<str:tenant>/<str:name>"

urlpatterns: list[URLPattern] = [
    path("api/whoami-v2", pulling.whoami),
    path("api/validate-yaml", pushing.validate_yaml),
    path("api/models", managing.listed),
    path("api/repos/create", pushing.create),
    path("api/repos/delete", managing.delete),
    path("api/repos/move", managing.move),
    path(MODEL, pulling.info),
    path(f"{MODEL}/revision/<str:revision>", pulling.info),
    path(f"{MODEL}/auth-check", pulling.auth_check),
    path(f"{MODEL}/refs", pulling.refs),
    path(f"{MODEL}/branch/<str:branch>", managing.branch),
    path(f"{MODEL}/tag/<str:revision>", managing.tag),
    path(f"{MODEL}/commits/<str:revision>", pulling.commits),
    path(f"{MODEL}/paths-info/<str:revision>", pulling.paths_info),
    path(f"{MODEL}/tree/<str:revision>", pulling.tree),
    path(f"{MODEL}/tree/<str:revision>/<path:path>", pulling.tree),
    path(f"{MODEL}/preupload/<str:revision>", pushing.preupload),
    path(f"{MODEL}/xet-write-token/<str:revision>", pushing.xet_token),
    path(f"{MODEL}/commit/<str:revision>", pushing.commit),
    path("objects/<str:signed>", pushing.put_object),
    path("<str:tenant>/<str:name>.git/info/lfs/objects/batch", pushing.batch),
    path("<str:tenant>/<str:name>/resolve/<str:revision>/<path:path>", pulling.resolve),
]
