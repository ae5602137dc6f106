"""Prompts and answers, kept where a tenant wants that; nothing is by default.

A tenant's admin chooses for how many days (`Tenant.content_days`, 0: nothing is kept); a key can
say that nothing of its own is kept (`ApiKey.keeps_nothing`), never more than its tenant. What is
kept is encrypted by a key of the tenant's (`sealing`), which the master key CONTENT_KEY encrypts:
destroying the tenant's key makes all of it unreadable, and is confirmed with a signature
(`choice`).

For whoever keeps something in a gateway:

- `Grant.keeps_content` says whether tenant and key keep content.
- `store.PostgresContents.keep([Item(...)])`, `read(tenant_id, kind, name)` and `delete(tenant_id,
  kind, name)`: what is kept is found by tenant, kind (`naming.REQUEST`, `naming.RESPONSE`) and name
  (at most 64 characters), and gone when its days are over, or its tenant's key is destroyed. `keep`
  writes nothing for tenants that keep nothing, whatever the gateway has in memory.

Responses of the Responses API are kept by `responses`, for `inference.gateway.stored.responses`.
Requests are taken up by `inference.gateway.stored.content`, which never waits, and written by
`gateway.planes.content`.
"""
