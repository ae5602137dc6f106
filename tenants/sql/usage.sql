-- The ledger's partitions, and the sums of months and days: always what the hours add up to, whoever
-- writes those.

-- Makes the partition of the month that `at` lies in. Safe to call from many processes at once. Its
-- table is made first and then attached, which waits for no reader or writer. Made as a partition at
-- once, it waited for whoever had read the ledger in an open transaction, such as a dump, and all of
-- the ledger waited behind it.
CREATE OR REPLACE FUNCTION tenants_usage_partition(at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    first timestamp := date_trunc('month', at AT TIME ZONE 'UTC');
    name text := 'tenants_usageevent_' || to_char(first, 'YYYY_MM');
    bounds text := format(
        'FOR VALUES FROM (%L) TO (%L)',
        first AT TIME ZONE 'UTC', (first + interval '1 month') AT TIME ZONE 'UTC');
BEGIN
    IF to_regclass(name) IS NOT NULL THEN RETURN; END IF;
    -- The lock that attaching takes. Unlike an advisory one, it shows what its last holder made.
    LOCK TABLE ONLY tenants_usageevent IN SHARE UPDATE EXCLUSIVE MODE;
    IF to_regclass(name) IS NOT NULL THEN RETURN; END IF;
    EXECUTE format('CREATE TABLE %I (LIKE tenants_usageevent)', name);
    EXECUTE format('ALTER TABLE tenants_usageevent ATTACH PARTITION %I %s', name, bounds);
END $$;

-- An upsert is an insert and an update, each with a trigger. Two statements which have the same months
-- the other way round in these two would wait for each other, hence the lock. Whoever holds it has
-- everything else that it needs: triggers run last.

CREATE OR REPLACE FUNCTION tenants_usagemonth_insert() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('tenants_usagemonth'));
    INSERT INTO tenants_usagemonth AS kept (
        tenant_id, month, key_id, adapter, model, base_model,
        requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost
    )
    SELECT tenant_id, date_trunc('month', hour, 'UTC'), key_id, adapter, model, base_model,
           sum(requests), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
           sum(reasoning_tokens), sum(cost)
    FROM given
    GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
    ON CONFLICT (tenant_id, month, key_id, adapter, model, base_model) DO UPDATE SET
        requests = kept.requests + excluded.requests,
        prompt_tokens = kept.prompt_tokens + excluded.prompt_tokens,
        cached_tokens = kept.cached_tokens + excluded.cached_tokens,
        completion_tokens = kept.completion_tokens + excluded.completion_tokens,
        reasoning_tokens = kept.reasoning_tokens + excluded.reasoning_tokens,
        cost = kept.cost + excluded.cost;
    INSERT INTO tenants_usagetotal AS kept (
        span, start, tenant_id, base_model,
        requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost
    )
    SELECT span, date_trunc(span, hour, 'UTC'), tenant_id, base_model,
           sum(requests), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
           sum(reasoning_tokens), sum(cost)
    FROM given
    CROSS JOIN (VALUES ('day'), ('month')) AS length (span)
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (span, start, tenant_id, base_model) DO UPDATE SET
        requests = kept.requests + excluded.requests,
        prompt_tokens = kept.prompt_tokens + excluded.prompt_tokens,
        cached_tokens = kept.cached_tokens + excluded.cached_tokens,
        completion_tokens = kept.completion_tokens + excluded.completion_tokens,
        reasoning_tokens = kept.reasoning_tokens + excluded.reasoning_tokens,
        cost = kept.cost + excluded.cost;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER month_insert AFTER INSERT ON tenants_usagerollup REFERENCING NEW TABLE AS given
    FOR EACH STATEMENT EXECUTE FUNCTION tenants_usagemonth_insert();

CREATE OR REPLACE FUNCTION tenants_usagemonth_update() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('tenants_usagemonth'));
    INSERT INTO tenants_usagemonth AS kept (
        tenant_id, month, key_id, adapter, model, base_model,
        requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost
    )
    SELECT tenant_id, date_trunc('month', hour, 'UTC'), key_id, adapter, model, base_model,
           sum(requests), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
           sum(reasoning_tokens), sum(cost)
    FROM (SELECT hour, tenant_id, key_id, adapter, model, base_model,
                  requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost
           FROM given
           UNION ALL
           SELECT hour, tenant_id, key_id, adapter, model, base_model,
                  -requests AS requests, -prompt_tokens AS prompt_tokens,
                  -cached_tokens AS cached_tokens, -completion_tokens AS completion_tokens,
                  -reasoning_tokens AS reasoning_tokens, -cost AS cost
           FROM taken) AS changed
    GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
    ON CONFLICT (tenant_id, month, key_id, adapter, model, base_model) DO UPDATE SET
        requests = kept.requests + excluded.requests,
        prompt_tokens = kept.prompt_tokens + excluded.prompt_tokens,
        cached_tokens = kept.cached_tokens + excluded.cached_tokens,
        completion_tokens = kept.completion_tokens + excluded.completion_tokens,
        reasoning_tokens = kept.reasoning_tokens + excluded.reasoning_tokens,
        cost = kept.cost + excluded.cost;
    INSERT INTO tenants_usagetotal AS kept (
        span, start, tenant_id, base_model,
        requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost
    )
    SELECT span, date_trunc(span, hour, 'UTC'), tenant_id, base_model,
           sum(requests), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
           sum(reasoning_tokens), sum(cost)
    FROM (SELECT hour, tenant_id, key_id, adapter, model, base_model,
                  requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost
           FROM given
           UNION ALL
           SELECT hour, tenant_id, key_id, adapter, model, base_model,
                  -requests AS requests, -prompt_tokens AS prompt_tokens,
                  -cached_tokens AS cached_tokens, -completion_tokens AS completion_tokens,
                  -reasoning_tokens AS reasoning_tokens, -cost AS cost
           FROM taken) AS changed
    CROSS JOIN (VALUES ('day'), ('month')) AS length (span)
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (span, start, tenant_id, base_model) DO UPDATE SET
        requests = kept.requests + excluded.requests,
        prompt_tokens = kept.prompt_tokens + excluded.prompt_tokens,
        cached_tokens = kept.cached_tokens + excluded.cached_tokens,
        completion_tokens = kept.completion_tokens + excluded.completion_tokens,
        reasoning_tokens = kept.reasoning_tokens + excluded.reasoning_tokens,
        cost = kept.cost + excluded.cost;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER month_update AFTER UPDATE ON tenants_usagerollup REFERENCING NEW TABLE AS given OLD TABLE AS taken
    FOR EACH STATEMENT EXECUTE FUNCTION tenants_usagemonth_update();

CREATE OR REPLACE FUNCTION tenants_usagemonth_delete() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM pg_advisory_xact_lock(hashtext('tenants_usagemonth'));
    INSERT INTO tenants_usagemonth AS kept (
        tenant_id, month, key_id, adapter, model, base_model,
        requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost
    )
    SELECT tenant_id, date_trunc('month', hour, 'UTC'), key_id, adapter, model, base_model,
           sum(requests), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
           sum(reasoning_tokens), sum(cost)
    FROM (SELECT hour, tenant_id, key_id, adapter, model, base_model,
                  -requests AS requests, -prompt_tokens AS prompt_tokens,
                  -cached_tokens AS cached_tokens, -completion_tokens AS completion_tokens,
                  -reasoning_tokens AS reasoning_tokens, -cost AS cost
           FROM taken) AS changed
    GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
    ON CONFLICT (tenant_id, month, key_id, adapter, model, base_model) DO UPDATE SET
        requests = kept.requests + excluded.requests,
        prompt_tokens = kept.prompt_tokens + excluded.prompt_tokens,
        cached_tokens = kept.cached_tokens + excluded.cached_tokens,
        completion_tokens = kept.completion_tokens + excluded.completion_tokens,
        reasoning_tokens = kept.reasoning_tokens + excluded.reasoning_tokens,
        cost = kept.cost + excluded.cost;
    INSERT INTO tenants_usagetotal AS kept (
        span, start, tenant_id, base_model,
        requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost
    )
    SELECT span, date_trunc(span, hour, 'UTC'), tenant_id, base_model,
           sum(requests), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
           sum(reasoning_tokens), sum(cost)
    FROM (SELECT hour, tenant_id, key_id, adapter, model, base_model,
                  -requests AS requests, -prompt_tokens AS prompt_tokens,
                  -cached_tokens AS cached_tokens, -completion_tokens AS completion_tokens,
                  -reasoning_tokens AS reasoning_tokens, -cost AS cost
           FROM taken) AS changed
    CROSS JOIN (VALUES ('day'), ('month')) AS length (span)
    GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (span, start, tenant_id, base_model) DO UPDATE SET
        requests = kept.requests + excluded.requests,
        prompt_tokens = kept.prompt_tokens + excluded.prompt_tokens,
        cached_tokens = kept.cached_tokens + excluded.cached_tokens,
        completion_tokens = kept.completion_tokens + excluded.completion_tokens,
        reasoning_tokens = kept.reasoning_tokens + excluded.reasoning_tokens,
        cost = kept.cost + excluded.cost;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER month_delete AFTER DELETE ON tenants_usagerollup REFERENCING OLD TABLE AS taken
    FOR EACH STATEMENT EXECUTE FUNCTION tenants_usagemonth_delete();

-- Ids of months and of totals are negative, because Django wants each id once.
CREATE OR REPLACE VIEW tenants_usagesum AS
SELECT id, 'hour' AS span, hour AS start, tenant_id, key_id, adapter, model, base_model,
       requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost
FROM tenants_usagerollup
UNION ALL
SELECT -id, 'month', month, tenant_id, key_id, adapter, model, base_model,
       requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost
FROM tenants_usagemonth;

CREATE OR REPLACE VIEW tenants_tenantsum AS
SELECT id, 'hour' AS span, hour AS start, tenant_id, base_model,
       requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost
FROM tenants_usagerollup
UNION ALL
SELECT -id, span, start, tenant_id, base_model,
       requests, prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost
FROM tenants_usagetotal;
