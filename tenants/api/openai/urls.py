"""What Django answers of `/v1/`; the rest of it is the token path's.

`gateway.asgi` sends `/v1/organization/...` and `/v1/usage/...` here.
"""

from __future__ import annotations

from django.urls import URLPattern, path, re_path

from tenants.api.endpoints.organization import completions, costs
from tenants.api.endpoints.receipts import key_set, public_key, receipt, receipts
from tenants.api.openai.views import not_found

urlpatterns: list[URLPattern] = [
    path("organization/usage/completions", completions),
    path("organization/costs", costs),
    path("usage/receipts", receipts),
    path("usage/receipts/jwks.json", key_set),
    path("usage/receipts/key", public_key),
    path("usage/receipts/<str:request_id>", receipt),
    re_path(r"", not_found),
]
