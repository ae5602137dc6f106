"""What engines are: the revisions of each base model that are served, and what each can do.

Engines of one base model may differ, as during a rollout. Each kind of engine has a row of its own
here, so that what a base model is said to take does not depend on which engine connected last: it
is the best of all kinds that were seen in the last minutes, field by field, and stays as it is
while none is. An upload is checked against that; a request, and the probe that tries an upload, go
only to an engine that can do all of what they need (`inference.gateway.routing`).
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from django.db import connection, models, transaction

from inference.link.wire import ModelInfo
from tenants.models.adapters import BaseModel

LIVE_FOR = timedelta(minutes=5)
"""How long a kind of engine counts after a gateway saw one; gateways say so once a minute."""
KEPT_FOR = timedelta(days=30)


class PoolRevision(models.Model):
    """A kind of engine: which weights it has of a base model, what runs it and what it can do.

    `digest` is `ModelInfo.pool_digest`; `revision` the digest of weights, tokenizer and chat
    template, empty where engines don't say. `modules` is as in `BaseModel`.
    """

    base_model = models.ForeignKey(BaseModel, models.CASCADE, related_name="revisions")
    digest = models.CharField(max_length=64)
    revision = models.CharField(max_length=64, blank=True)
    engine = models.CharField(max_length=32)
    engine_version = models.CharField(max_length=64, blank=True)
    max_model_len = models.PositiveIntegerField()
    max_lora_rank = models.PositiveIntegerField()
    modules = models.JSONField(default=dict)
    operations = models.JSONField(default=list)
    parsers = models.JSONField(default=dict)
    created_at = models.DateTimeField(auto_now_add=True)
    seen_at = models.DateTimeField()

    class Meta:
        ordering = ["-seen_at"]
        constraints = [
            models.UniqueConstraint(fields=["base_model", "digest"], name="pool_revision_unique"),
        ]

    def __str__(self) -> str:
        return f"{self.base_model}@{self.digest[:12]}"


ADD_BASE_MODEL = """
INSERT INTO tenants_basemodel
    (name, max_model_len, max_lora_rank, modules, engine, created_at, updated_at)
VALUES (%(name)s, %(max_model_len)s, %(max_lora_rank)s, %(modules)s, %(engine)s,
        clock_timestamp(), clock_timestamp())
ON CONFLICT (name) DO NOTHING
"""
# Two gateways that note two kinds of engine at once would each miss the other's row.
LOCK_BASE_MODEL = "SELECT id FROM tenants_basemodel WHERE name = %(name)s FOR UPDATE"
SEE = """
INSERT INTO tenants_poolrevision
    (base_model_id, digest, revision, engine, engine_version, max_model_len, max_lora_rank, modules,
     operations, parsers, created_at, seen_at)
SELECT id, %(digest)s, %(revision)s, %(engine)s, %(engine_version)s, %(max_model_len)s,
       %(max_lora_rank)s, %(modules)s, %(operations)s, %(parsers)s,
       clock_timestamp(), clock_timestamp()
FROM tenants_basemodel WHERE name = %(name)s
ON CONFLICT (base_model_id, digest) DO UPDATE SET seen_at = clock_timestamp()
"""
FORGET = """
DELETE FROM tenants_poolrevision p USING tenants_basemodel b
WHERE b.id = p.base_model_id AND b.name = %(name)s
  AND p.seen_at <= clock_timestamp() - %(kept_for)s
"""
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

NOTE = (ADD_BASE_MODEL, LOCK_BASE_MODEL, SEE, FORGET, ADVERTISE)
"""Statements of one transaction, all with `parameters`."""


def parameters(info: ModelInfo) -> dict[str, Any]:
    """Of the statements in `NOTE`."""
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


def note(info: ModelInfo) -> None:
    """An engine of this kind is connected. Writes only what is new, and when it was seen."""
    told = parameters(info)
    with transaction.atomic(), connection.cursor() as cursor:
        for statement in NOTE:
            cursor.execute(statement, told)
