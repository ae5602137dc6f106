"""Prompts and answers, stored only if a tenant wants that; by default nothing is.

A tenant's admin chooses for how many days (`Tenant.content_days`, 0: nothing is kept); a key can
opt out for its own requests (`ApiKey.keeps_nothing`), but not keep more than its tenant. Content is
encrypted with a key per tenant (`sealing`), which is encrypted with the master key CONTENT_KEY:
destroying the tenant's key makes all of its content unreadable, and is confirmed with a signature
(`retention`).

For code that stores content in a gateway:

- `Grant.keeps_content` says whether tenant and key keep content.
- `store.PostgresContents.keep([Item(...)])`, `read(tenant_id, kind, name)` and `delete(tenant_id,
  kind, name)`: content is found by tenant, kind (`naming.REQUEST`, `naming.RESPONSE`) and name (at
  most 64 characters), and gone after its days are over or its tenant's key is destroyed. `keep`
  writes nothing for tenants that keep nothing, whatever the gateway has in memory.

Responses of the Responses API are stored by `responses`, for `inference.gateway.stored.responses`.
Requests are collected by `inference.gateway.measuring.content`, which never blocks, and written by
`gateway.planes.recording.content`.
"""
