"""What an installation must not lose."""

HAS = """
import hashlib, json
from django.core.files.storage import storages
from tenants.models import AdapterVersion, ApiKey, UsageEvent
from tenants.billing.receipts import describe, signer

adapters = {{
    f"{{one.adapter}}@{{one.number}}": [
        hashlib.sha256(storages["adapters"].open(f"{{one.folder}}/{{name}}").read()).hexdigest()
        for name in ("adapter_config.json", "adapter_model.safetensors")
    ]
    for one in AdapterVersion.objects.filter(adapter__tenant__internal=False)
}}
events = list(UsageEvent.objects.filter(tenant__internal=False).order_by("id"))
print(json.dumps({{
    "adapters": adapters,
    "events": [describe(one) for one in events],
    "receipt": signer().sign(describe(events[0])),
    "key": ApiKey.objects.find("{key}").name,
}}, default=str))
"""
"""Of all but internal tenants: prints adapters, the ledger with a receipt, and the name of the
`key`, as JSON. A program for `manage.py shell`."""
