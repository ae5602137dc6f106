"""Partitions the ledger by month, gives it prices, hourly sums and journals; adds limits."""

import django.core.validators
import django.db.models.deletion
from django.db import migrations, models

SET_ASIDE = """
ALTER TABLE tenants_usageevent RENAME TO tenants_usageevent_old;
ALTER INDEX tenants_usageevent_pkey RENAME TO tenants_usageevent_old_pkey;
DROP INDEX usage_by_tenant, usage_by_key, usage_by_version;
"""
CREATE = """
CREATE TABLE tenants_usageevent (
    id varchar(64) NOT NULL,
    started_at timestamptz NOT NULL,
    tenant_id bigint NOT NULL,
    key_id bigint NOT NULL,
    version_id bigint,
    adapter varchar(63) NOT NULL,
    model varchar(255) NOT NULL,
    base_model varchar(255) NOT NULL,
    engine_id varchar(255) NOT NULL,
    journal varchar(64) NOT NULL,
    prompt_tokens bigint NOT NULL,
    cached_tokens bigint NOT NULL,
    completion_tokens bigint NOT NULL,
    reasoning_tokens bigint NOT NULL,
    prompt_price bigint NOT NULL,
    cached_prompt_price bigint NOT NULL,
    output_price bigint NOT NULL,
    cost bigint NOT NULL,
    finish_reason varchar(64) NOT NULL,
    queue_s double precision NOT NULL,
    load_s double precision NOT NULL,
    ttft_s double precision,
    total_s double precision NOT NULL,
    PRIMARY KEY (id, started_at)
) PARTITION BY RANGE (started_at);
CREATE INDEX usage_by_tenant ON tenants_usageevent (tenant_id, started_at);
"""
PARTITION = """
-- Makes the partition of the month that `at` lies in. Safe to call from many processes at once.
CREATE FUNCTION tenants_usage_partition(at timestamptz) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
    first timestamp := date_trunc('month', at AT TIME ZONE 'UTC');
    name text := 'tenants_usageevent_' || to_char(first, 'YYYY_MM');
BEGIN
    IF to_regclass(name) IS NOT NULL THEN RETURN; END IF;
    PERFORM pg_advisory_xact_lock(hashtext('tenants_usage_partition'));
    EXECUTE format(
        'CREATE TABLE IF NOT EXISTS %I PARTITION OF tenants_usageevent FOR VALUES FROM (%L) TO (%L)',
        name, first AT TIME ZONE 'UTC', (first + interval '1 month') AT TIME ZONE 'UTC');
END $$;
"""
COPY = """
SELECT tenants_usage_partition(started_at) FROM (
    SELECT DISTINCT date_trunc('month', started_at, 'UTC') AS started_at FROM tenants_usageevent_old
) AS months;
INSERT INTO tenants_usageevent
SELECT id, started_at, tenant_id, coalesce(key_id, 0), version_id,
       CASE WHEN model = base_model THEN '' ELSE split_part(model, '@', 1) END,
       model, base_model, engine_id, '', prompt_tokens, cached_tokens, completion_tokens,
       reasoning_tokens, 0, 0, 0, 0, finish_reason, queue_s, load_s, ttft_s, total_s
FROM tenants_usageevent_old;
INSERT INTO tenants_usagerollup (hour, tenant_id, key_id, adapter, model, base_model, requests,
    prompt_tokens, cached_tokens, completion_tokens, reasoning_tokens, cost)
SELECT date_trunc('hour', started_at, 'UTC'), tenant_id, key_id, adapter, model, base_model,
       count(*), sum(prompt_tokens), sum(cached_tokens), sum(completion_tokens),
       sum(reasoning_tokens), 0
FROM tenants_usageevent GROUP BY 1, 2, 3, 4, 5, 6;
DROP TABLE tenants_usageevent_old;
"""
LEDGER = migrations.SeparateDatabaseAndState(
    database_operations=[
        migrations.RunSQL(SET_ASIDE), migrations.RunSQL(CREATE), migrations.RunSQL(PARTITION)
    ],
    state_operations=[
        migrations.DeleteModel('UsageEvent'),
        migrations.CreateModel(
            name='UsageEvent',
            fields=[
                ('id', models.CharField(max_length=64, primary_key=True, serialize=False)),
                ('started_at', models.DateTimeField()),
                ('key', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.apikey')),
                ('tenant', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='usage', to='tenants.tenant')),
                ('version', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.adapterversion')),
                ('adapter', models.CharField(max_length=63)),
                ('model', models.CharField(max_length=255)),
                ('base_model', models.CharField(max_length=255)),
                ('engine_id', models.CharField(max_length=255)),
                ('journal', models.CharField(max_length=64)),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('completion_tokens', models.BigIntegerField()),
                ('reasoning_tokens', models.BigIntegerField()),
                ('prompt_price', models.BigIntegerField()),
                ('cached_prompt_price', models.BigIntegerField()),
                ('output_price', models.BigIntegerField()),
                ('cost', models.BigIntegerField()),
                ('finish_reason', models.CharField(max_length=64)),
                ('queue_s', models.FloatField()),
                ('load_s', models.FloatField()),
                ('ttft_s', models.FloatField(null=True)),
                ('total_s', models.FloatField()),
            ],
            options={
                'ordering': ['-started_at'],
                'indexes': [models.Index(fields=['tenant', 'started_at'], name='usage_by_tenant')],
            },
        ),
    ],
)


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0003_notices'),
    ]

    operations = [
        migrations.CreateModel(
            name='EngineJournal',
            fields=[
                ('journal', models.CharField(max_length=64, primary_key=True, serialize=False)),
                ('engine_id', models.CharField(max_length=255)),
                ('ledger_requests', models.BigIntegerField(default=0)),
                ('ledger_prompt_tokens', models.BigIntegerField(default=0)),
                ('ledger_cached_tokens', models.BigIntegerField(default=0)),
                ('ledger_completion_tokens', models.BigIntegerField(default=0)),
                ('counted_requests', models.BigIntegerField(default=0)),
                ('counted_prompt_tokens', models.BigIntegerField(default=0)),
                ('counted_cached_tokens', models.BigIntegerField(default=0)),
                ('counted_completion_tokens', models.BigIntegerField(default=0)),
                ('unjournaled_tokens', models.BigIntegerField(default=0)),
                ('waiting_requests', models.BigIntegerField(default=0)),
                ('reported_at', models.DateTimeField(null=True)),
            ],
            options={
                'ordering': ['engine_id'],
            },
        ),
        migrations.CreateModel(
            name='IdempotentAnswer',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='The Idempotency-Key header.', max_length=255)),
                ('body_digest', models.BinaryField(help_text='SHA-256 of path and body.', max_length=32)),
                ('request_id', models.CharField(max_length=64)),
                ('claimed_until', models.DateTimeField()),
                ('content_type', models.CharField(blank=True, max_length=100)),
                ('answer', models.BinaryField(null=True)),
                ('created_at', models.DateTimeField()),
            ],
            options={
                'ordering': ['-created_at'],
            },
        ),
        migrations.CreateModel(
            name='LimitSet',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('author', models.CharField(choices=[('operator', 'Operator'), ('tenant', 'Tenant')], max_length=16)),
                ('requests_per_minute', models.BigIntegerField(blank=True, help_text='Requests in any 60 seconds.', null=True, validators=[django.core.validators.MinValueValidator(0)])),
                ('tokens_per_minute', models.BigIntegerField(blank=True, help_text='Prompt and output tokens in any 60 seconds.', null=True, validators=[django.core.validators.MinValueValidator(0)])),
                ('prompt_tokens_per_minute', models.BigIntegerField(blank=True, help_text='Prompt tokens that were not in the cache, in any 60 seconds.', null=True, validators=[django.core.validators.MinValueValidator(0)])),
                ('output_tokens_per_minute', models.BigIntegerField(blank=True, help_text='Output tokens in any 60 seconds.', null=True, validators=[django.core.validators.MinValueValidator(0)])),
                ('concurrent_streams', models.BigIntegerField(blank=True, help_text='Requests running or waiting at the same time.', null=True, validators=[django.core.validators.MinValueValidator(0)])),
                ('tokens_per_day', models.BigIntegerField(blank=True, help_text='Prompt and output tokens in a UTC day.', null=True, validators=[django.core.validators.MinValueValidator(0)])),
                ('tokens_per_month', models.BigIntegerField(blank=True, help_text='Prompt and output tokens in a UTC month.', null=True, validators=[django.core.validators.MinValueValidator(0)])),
                ('cost_per_day', models.BigIntegerField(blank=True, help_text='Micro-units of the currency in a UTC day.', null=True, validators=[django.core.validators.MinValueValidator(0)])),
                ('cost_per_month', models.BigIntegerField(blank=True, help_text='Micro-units of the currency in a UTC month.', null=True, validators=[django.core.validators.MinValueValidator(0)])),
                ('updated_at', models.DateTimeField(auto_now=True)),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='Price',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('starts_at', models.DateTimeField()),
                ('prompt', models.BigIntegerField(help_text='Prompt tokens that were not in the cache.')),
                ('cached_prompt', models.BigIntegerField()),
                ('output', models.BigIntegerField()),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['-starts_at'],
            },
        ),
        LEDGER,
        migrations.CreateModel(
            name='UsageRollup',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('hour', models.DateTimeField()),
                ('adapter', models.CharField(max_length=63)),
                ('model', models.CharField(max_length=255)),
                ('base_model', models.CharField(max_length=255)),
                ('requests', models.BigIntegerField()),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('completion_tokens', models.BigIntegerField()),
                ('reasoning_tokens', models.BigIntegerField()),
                ('cost', models.DecimalField(decimal_places=0, max_digits=38)),
            ],
            options={
                'ordering': ['tenant', 'hour'],
            },
        ),
        migrations.AddField(
            model_name='adapter',
            name='pinned',
            field=models.BooleanField(default=False, help_text='Engines keep its live version loaded. Only operators can set this.'),
        ),
        migrations.AddField(
            model_name='apikey',
            name='lane',
            field=models.CharField(choices=[('interactive', 'Interactive'), ('batch', 'Batch')], default='interactive', help_text='Requests of a batch key wait behind interactive ones.', max_length=16),
        ),
        migrations.AddConstraint(
            model_name='apikey',
            constraint=models.CheckConstraint(condition=models.Q(('lane__in', ['interactive', 'batch'])), name='apikey_lane_known'),
        ),
        migrations.AddIndex(
            model_name='enginejournal',
            index=models.Index(fields=['reported_at'], name='journal_by_report'),
        ),
        migrations.AddField(
            model_name='idempotentanswer',
            name='key',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='answers', to='tenants.apikey'),
        ),
        migrations.AddField(
            model_name='limitset',
            name='adapter',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='limit_sets', to='tenants.adapter'),
        ),
        migrations.AddField(
            model_name='limitset',
            name='key',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='limit_sets', to='tenants.apikey'),
        ),
        migrations.AddField(
            model_name='limitset',
            name='tenant',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='limit_sets', to='tenants.tenant'),
        ),
        migrations.AddField(
            model_name='price',
            name='adapter',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='prices', to='tenants.adapter'),
        ),
        migrations.AddField(
            model_name='price',
            name='base_model',
            field=models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='prices', to='tenants.basemodel'),
        ),
        migrations.AddField(
            model_name='usagerollup',
            name='key',
            field=models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.apikey'),
        ),
        migrations.AddField(
            model_name='usagerollup',
            name='tenant',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='rollups', to='tenants.tenant'),
        ),
        migrations.AddIndex(
            model_name='idempotentanswer',
            index=models.Index(fields=['created_at'], name='answer_by_age'),
        ),
        migrations.AddConstraint(
            model_name='idempotentanswer',
            constraint=models.UniqueConstraint(fields=('key', 'name'), name='answer_unique'),
        ),
        migrations.AddConstraint(
            model_name='limitset',
            constraint=models.UniqueConstraint(fields=('tenant', 'key', 'adapter', 'author'), name='limits_once_per_author', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='limitset',
            constraint=models.CheckConstraint(condition=models.Q(('author__in', ['operator', 'tenant'])), name='limits_author_known'),
        ),
        migrations.AddConstraint(
            model_name='limitset',
            constraint=models.CheckConstraint(condition=models.Q(('key__isnull', True), ('adapter__isnull', True), _connector='OR'), name='limits_of_one_scope'),
        ),
        migrations.AddConstraint(
            model_name='limitset',
            constraint=models.CheckConstraint(condition=models.Q(('tenant__isnull', False), models.Q(('adapter__isnull', True), ('author', 'operator'), ('key__isnull', True)), _connector='OR'), name='limits_default_is_the_operators'),
        ),
        migrations.AddConstraint(
            model_name='limitset',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('requests_per_minute__isnull', True), models.Q(('requests_per_minute__gte', 0), ('requests_per_minute__lte', 1000000000000)), _connector='OR'), models.Q(('tokens_per_minute__isnull', True), models.Q(('tokens_per_minute__gte', 0), ('tokens_per_minute__lte', 1000000000000)), _connector='OR'), models.Q(('prompt_tokens_per_minute__isnull', True), models.Q(('prompt_tokens_per_minute__gte', 0), ('prompt_tokens_per_minute__lte', 1000000000000)), _connector='OR'), models.Q(('output_tokens_per_minute__isnull', True), models.Q(('output_tokens_per_minute__gte', 0), ('output_tokens_per_minute__lte', 1000000000000)), _connector='OR'), models.Q(('concurrent_streams__isnull', True), models.Q(('concurrent_streams__gte', 0), ('concurrent_streams__lte', 1000000000000)), _connector='OR'), models.Q(('tokens_per_day__isnull', True), models.Q(('tokens_per_day__gte', 0), ('tokens_per_day__lte', 1000000000000)), _connector='OR'), models.Q(('tokens_per_month__isnull', True), models.Q(('tokens_per_month__gte', 0), ('tokens_per_month__lte', 1000000000000)), _connector='OR'), models.Q(('cost_per_day__isnull', True), models.Q(('cost_per_day__gte', 0), ('cost_per_day__lte', 1000000000000)), _connector='OR'), models.Q(('cost_per_month__isnull', True), models.Q(('cost_per_month__gte', 0), ('cost_per_month__lte', 1000000000000)), _connector='OR')), name='limits_in_bounds'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.UniqueConstraint(fields=('base_model', 'adapter', 'starts_at'), name='price_unique', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('adapter__isnull', True), ('base_model__isnull', False)), models.Q(('adapter__isnull', False), ('base_model__isnull', True)), _connector='OR'), name='price_of_one_thing'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(('cached_prompt__gte', 0), ('output__gte', 0), ('prompt__gte', 0), ('cached_prompt__lte', 1000000000000), ('output__lte', 1000000000000), ('prompt__lte', 1000000000000)), name='price_in_bounds'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(('cached_prompt__lte', models.F('prompt'))), name='price_cached_not_dearer'),
        ),
        migrations.AddConstraint(
            model_name='usagerollup',
            constraint=models.UniqueConstraint(fields=('tenant', 'hour', 'key', 'adapter', 'model', 'base_model'), name='rollup_unique'),
        ),
        migrations.RunSQL(COPY),
    ]
