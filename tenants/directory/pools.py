"""Pools: the revisions of each base model that engines serve, and the capabilities of each.

Engines of one base model may differ, for example during a rollout. Each kind of engine has its own
row, so that the advertised capabilities of a base model do not depend on which engine connected
last: they are the best, field by field, of all kinds seen in the last minutes, and stay unchanged
while there are none. Uploads are checked against them; requests, and the probe of an upload, go
only to an engine that can do all that they need (`inference.gateway.routing.engines`).

The first kind that is seen serves. A new kind waits for a rollout (`tenants.rollouts`) if a serving
kind has, or recently had, engines, unless its base model lets new ones serve at once. So an
operator who replaces all engines, without running old and new ones side by side, needs no rollout.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from inference.link.engine_info import ModelInfo

LIVE_FOR = timedelta(minutes=5)
"""How long a kind of engine counts after it was last seen; gateways note it once a minute."""
KEPT_FOR = timedelta(days=30)

ADD_BASE_MODEL = """
INSERT INTO tenants_basemodel
    (name, max_model_len, max_lora_rank, modules, engine, created_at, updated_at)
VALUES (%(name)s, %(max_model_len)s, %(max_lora_rank)s, %(modules)s, %(engine)s,
        clock_timestamp(), clock_timestamp())
ON CONFLICT (name) DO NOTHING
"""
# Without the lock, gateways that record two kinds at once would each miss the other's row.
LOCK_BASE_MODEL = "SELECT id FROM tenants_basemodel WHERE name = %(name)s FOR UPDATE"
SEE = """
INSERT INTO tenants_poolrevision
    (base_model_id, digest, revision, engine, engine_version, max_model_len, max_lora_rank, modules,
     operations, parsers, standing, created_at, seen_at)
SELECT id, %(digest)s, %(revision)s, %(engine)s, %(engine_version)s, %(max_model_len)s,
       %(max_lora_rank)s, %(modules)s, %(operations)s, %(parsers)s, 'waiting',
       clock_timestamp(), clock_timestamp()
FROM tenants_basemodel WHERE name = %(name)s
ON CONFLICT (base_model_id, digest) DO UPDATE SET seen_at = clock_timestamp()
"""
SERVE = """
UPDATE tenants_poolrevision p SET standing = 'serving' FROM tenants_basemodel b
WHERE b.name = %(name)s AND p.base_model_id = b.id AND p.digest = %(digest)s
  AND p.standing = 'waiting'
  AND (b.serves_new OR NOT EXISTS (
      SELECT FROM tenants_poolrevision o WHERE o.base_model_id = b.id
      AND o.standing = 'serving' AND o.seen_at > clock_timestamp() - %(live_for)s))
  AND NOT EXISTS (SELECT FROM tenants_rollout r
                  WHERE r.revision_id = p.id AND r.state IN ('running', 'paused'))
"""
UNUSED = """
SELECT p.id FROM tenants_poolrevision p JOIN tenants_basemodel b ON b.id = p.base_model_id
WHERE b.name = %(name)s AND p.seen_at <= clock_timestamp() - %(kept_for)s
  AND NOT EXISTS (SELECT FROM tenants_rollout r WHERE r.revision_id = p.id)
"""
FORGET = [
    f"DELETE FROM tenants_{of} WHERE {key} IN ({UNUSED})"
    for of, key in (
        ("trial", "revision_id"),
        ("revisionminute", "revision_id"),
        ("poolrevision", "id"),
    )
]
ADVERTISE = """
WITH live AS (
    SELECT p.* FROM tenants_poolrevision p JOIN tenants_basemodel b ON b.id = p.base_model_id
    WHERE b.name = %(name)s AND p.seen_at > clock_timestamp() - %(live_for)s
), best AS (
    SELECT max(max_model_len) AS max_model_len, max(max_lora_rank) AS max_lora_rank,
           left(string_agg(DISTINCT engine, ', '), 32) AS engine,
           (SELECT coalesce(jsonb_object_agg(key, value ORDER BY digest), '{}')
            FROM live, jsonb_each(live.modules)) AS modules
    FROM live
)
UPDATE tenants_basemodel b
SET max_model_len = best.max_model_len, max_lora_rank = best.max_lora_rank, engine = best.engine,
    modules = best.modules, updated_at = clock_timestamp()
FROM best
WHERE b.name = %(name)s AND (b.max_model_len, b.max_lora_rank, b.engine, b.modules)
    IS DISTINCT FROM (best.max_model_len, best.max_lora_rank, best.engine, best.modules)
"""

NOTE = (ADD_BASE_MODEL, LOCK_BASE_MODEL, SEE, SERVE, *FORGET, ADVERTISE)
"""Statements to run in one transaction, each with `parameters`."""


def parameters(info: ModelInfo) -> dict[str, Any]:
    """The parameters of the statements in `NOTE`."""
    return {
        "name": info.name,
        "digest": info.pool_digest(),
        "revision": info.revision,
        "engine": info.engine,
        "engine_version": info.engine_version,
        "max_model_len": info.max_model_len,
        "max_lora_rank": info.max_lora_rank,
        "modules": json.dumps(info.modules),
        "operations": json.dumps(info.operations),
        "parsers": json.dumps(info.parsers),
        "live_for": LIVE_FOR,
        "kept_for": KEPT_FOR,
    }
