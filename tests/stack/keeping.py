"""What an installation must not lose."""

HAS = """
import hashlib, json
from django.core.files.storage import storages
from tenants.models import AdapterVersion, ApiKey, Tenant, UsageEvent
from tenants.billing.receipts import describe, signer

adapters = {{
    f"{{one.adapter}}@{{one.number}}": [
        hashlib.sha256(storages["adapters"].open(f"{{one.folder}}/{{name}}").read()).hexdigest()
        for name in ("adapter_config.json", "adapter_model.safetensors")
    ]
    for one in AdapterVersion.objects.select_related("adapter")
}}
events = list(UsageEvent.objects.order_by("id"))
print(json.dumps({{
    "adapters": adapters,
    "events": [describe(one) for one in events],
    "receipt": signer().sign(describe(events[0])),
    "key": ApiKey.objects.find("{key}").name,
}}, default=str))
"""
"""Prints its adapters, its ledger with a receipt and the name of the `key`, as JSON: a program for
`manage.py shell`."""
