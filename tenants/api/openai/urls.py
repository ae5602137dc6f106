"""The endpoints of `/v1/` that Django answers; the token path answers the others.

A gateway forwards requests for these (`gateway.planes.forward`).
"""

from __future__ import annotations

from django.urls import URLPattern, path, re_path

from tenants.api.endpoints.openai import evals, fine_tuning, loading, message_batches
from tenants.api.endpoints.openai.batches import batch, batches, cancel
from tenants.api.endpoints.openai.feedback import feedback
from tenants.api.endpoints.openai.files import content, file, files
from tenants.api.endpoints.openai.organization import completions, costs
from tenants.api.endpoints.openai.uploads import cancel as cancel_upload
from tenants.api.endpoints.openai.uploads import complete, parts, uploads
from tenants.api.endpoints.usage.receipts import key_set, public_key, receipt, receipts
from tenants.api.openai.views import not_found

urlpatterns: list[URLPattern] = [
    path("organization/usage/completions", completions),
    path("organization/costs", costs),
    path("usage/receipts", receipts),
    path("usage/receipts/jwks.json", key_set),
    path("usage/receipts/key", public_key),
    path("usage/receipts/<str:request_id>", receipt),
    path("files", files),
    path("files/<str:id>", file),
    path("files/<str:id>/content", content),
    path("uploads", uploads),
    path("uploads/<str:id>/parts", parts),
    path("uploads/<str:id>/complete", complete),
    path("uploads/<str:id>/cancel", cancel_upload),
    path("batches", batches),
    path("batches/<str:id>", batch),
    path("batches/<str:id>/cancel", cancel),
    path("evals", evals.evals),
    path("evals/<str:id>", evals.eval),
    path("evals/<str:id>/runs", evals.eval_runs),
    path("evals/<str:id>/runs/<str:run_id>", evals.eval_run),
    path("evals/<str:id>/runs/<str:run_id>/cancel", evals.cancel),
    path("evals/<str:id>/runs/<str:run_id>/output_items", evals.items),
    path("evals/<str:id>/runs/<str:run_id>/output_items/<str:item_id>", evals.item),
    path("feedback", feedback),
    path("fine_tuning/jobs", fine_tuning.all_jobs),
    path("fine_tuning/jobs/<str:id>", fine_tuning.one_job),
    path("fine_tuning/jobs/<str:id>/events", fine_tuning.events),
    path("fine_tuning/jobs/<str:id>/checkpoints", fine_tuning.checkpoints),
    path("fine_tuning/jobs/<str:id>/cancel", fine_tuning.cancel),
    path("fine_tuning/jobs/<str:id>/pause", fine_tuning.pause),
    path("fine_tuning/jobs/<str:id>/resume", fine_tuning.resume),
    path("load_lora_adapter", loading.load),
    path("unload_lora_adapter", loading.unload),
    path("messages/batches", message_batches.batches),
    path("messages/batches/<str:id>", message_batches.batch),
    path("messages/batches/<str:id>/cancel", message_batches.cancel),
    path("messages/batches/<str:id>/results", message_batches.results),
    re_path(r"", not_found),
]
