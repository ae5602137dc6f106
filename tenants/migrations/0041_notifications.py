"""Notifications, webhooks, and deliveries to these and to people; triggers write what is a change
of a row. That an engine was seen, or has stopped, is no change of its credential."""


import django.contrib.postgres.fields
import django.contrib.postgres.functions
import django.db.models.deletion
import django.db.models.functions.datetime
import tenants.models.notifications
from django.conf import settings
from django.db import migrations, models

OUTBOX = """
-- Writes a notification and its deliveries, unless one of this kind was written with the same `once`.
CREATE FUNCTION tenants_notify_of(what text, whose bigint, told jsonb, once_for text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    made uuid;
BEGIN
    INSERT INTO tenants_notification (tenant_id, kind, data, once)
    VALUES (whose, what, told, once_for)
    ON CONFLICT (tenant_id, kind, once) WHERE NOT (once = '') DO NOTHING
    RETURNING id INTO made;
    IF made IS NULL THEN RETURN false; END IF;
    INSERT INTO tenants_delivery (notification_id, target_id)
    SELECT made, id FROM tenants_target
    WHERE tenant_id IS NOT DISTINCT FROM whose AND what = ANY(kinds) AND ended_at IS NULL;
    RETURN true;
END $$;

CREATE FUNCTION tenants_notify_version() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    adapter record;
BEGIN
    SELECT tenant_id, name INTO adapter FROM tenants_adapter WHERE id = NEW.adapter_id;
    PERFORM tenants_notify_of('adapter.' || NEW.state, adapter.tenant_id, jsonb_strip_nulls(
        jsonb_build_object('adapter', adapter.name, 'version', NEW.number, 'digest', NEW.digest,
                           'reason', NEW.report -> 'findings' -> 0 ->> 'message')), '');
    RETURN NULL;
END $$;
CREATE TRIGGER notify_judged AFTER UPDATE ON tenants_adapterversion FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND NEW.state IN ('ready', 'rejected'))
    EXECUTE FUNCTION tenants_notify_version();

CREATE FUNCTION tenants_notify_isolation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify_of('isolation.failed', NULL, jsonb_build_object(
        'base_model', NEW.base_model, 'findings', NEW.findings), '');
    RETURN NULL;
END $$;
CREATE TRIGGER notify_failed AFTER INSERT ON tenants_isolationcheck FOR EACH ROW
    WHEN (NEW.passed = false) EXECUTE FUNCTION tenants_notify_isolation();

CREATE FUNCTION tenants_notify_rollout() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify_of('rollout.stopped', NULL, jsonb_build_object(
        'rollout', NEW.name, 'state', NEW.state, 'reason', NEW.reason), '');
    RETURN NULL;
END $$;
CREATE TRIGGER notify_stopped AFTER UPDATE ON tenants_rollout FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND NEW.state IN ('aborted', 'rolled back'))
    EXECUTE FUNCTION tenants_notify_rollout();
"""
NO_OUTBOX = """
DROP TRIGGER notify_judged ON tenants_adapterversion;
DROP TRIGGER notify_failed ON tenants_isolationcheck;
DROP TRIGGER notify_stopped ON tenants_rollout;
DROP FUNCTION tenants_notify_version();
DROP FUNCTION tenants_notify_isolation();
DROP FUNCTION tenants_notify_rollout();
DROP FUNCTION tenants_notify_of(text, bigint, jsonb, text);
"""
AUDIT = """
CREATE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_target FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('webhook', 'tenant_id', 'url');
"""
NO_AUDIT = "DROP TRIGGER zz_audit ON tenants_target;"


CHANGED = """
DROP TRIGGER notify_changed ON tenants_enginecredential;
DROP TRIGGER zz_audit_changed ON tenants_enginecredential;
CREATE TRIGGER notify_changed AFTER UPDATE ON tenants_enginecredential FOR EACH ROW
    WHEN ((to_jsonb(OLD) - {quiet}) IS DISTINCT FROM (to_jsonb(NEW) - {quiet}))
    EXECUTE FUNCTION tenants_notify_engine();
CREATE TRIGGER zz_audit_changed AFTER UPDATE ON tenants_enginecredential FOR EACH ROW
    WHEN ((to_jsonb(OLD) - {quiet}) IS DISTINCT FROM (to_jsonb(NEW) - {quiet}))
    EXECUTE FUNCTION tenants_audit('credential', '', 'name');
"""
QUIET = CHANGED.format(quiet="ARRAY['last_seen_at', 'stopped_at']")
AS_BEFORE = CHANGED.format(quiet="'last_seen_at'")


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0039_lfs_objects'),
    ]

    operations = [
        migrations.AddField(
            model_name='enginecredential',
            name='stopped_at',
            field=models.DateTimeField(editable=False, null=True),
        ),
        migrations.CreateModel(
            name='Notification',
            fields=[
                ('id', models.UUIDField(db_default=django.contrib.postgres.functions.RandomUUID(), primary_key=True, serialize=False)),
                ('kind', models.CharField(choices=[('adapter.ready', 'Adapter ready'), ('adapter.rejected', 'Adapter rejected'), ('budget.reached', '80 or 100 % of a budget used'), ('key.expiring', 'API key expires within a week'), ('engine.lost', 'Engine lost'), ('ledger.drift', 'Ledger differs from an engine'), ('isolation.failed', 'Isolation check failed'), ('rollout.stopped', 'Rollout rolled back or aborted')], max_length=32)),
                ('data', models.JSONField()),
                ('once', models.CharField(max_length=200)),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('mailed', models.BooleanField(db_default=False)),
                ('tenant', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
            ],
            options={
                'ordering': ['-at'],
            },
        ),
        migrations.CreateModel(
            name='Target',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('url', models.CharField(max_length=500)),
                ('kinds', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=32), size=None)),
                ('secrets', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=64), db_column='password', default=tenants.models.notifications.first_secrets, editable=False, size=None)),
                ('rotated_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('ended_at', models.DateTimeField(null=True)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('tenant', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='targets', to='tenants.tenant')),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='Delivery',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state', models.CharField(choices=[('waiting', 'Waiting'), ('delivered', 'Delivered'), ('failed', 'Failed')], db_default='waiting', max_length=16)),
                ('attempts', models.PositiveSmallIntegerField(db_default=0)),
                ('due_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('tried_at', models.DateTimeField(null=True)),
                ('status', models.PositiveSmallIntegerField(null=True)),
                ('error', models.CharField(db_default='', max_length=300)),
                ('user', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('notification', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='tenants.notification')),
                ('target', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='tenants.target')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='Muted',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kinds', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=32), size=None)),
                ('tenant', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['id'],
                'constraints': [models.UniqueConstraint(fields=('user', 'tenant'), name='muted_once', nulls_distinct=False)],
            },
        ),
        migrations.AddIndex(
            model_name='notification',
            index=models.Index(fields=['at'], name='notification_by_time'),
        ),
        migrations.AddConstraint(
            model_name='notification',
            constraint=models.UniqueConstraint(condition=models.Q(('once', ''), _negated=True), fields=('tenant', 'kind', 'once'), name='notification_once', nulls_distinct=False),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(condition=models.Q(('state', 'waiting')), fields=['due_at'], name='delivery_due'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.UniqueConstraint(fields=('notification', 'target', 'user'), name='delivery_once', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.CheckConstraint(condition=models.Q(('target__isnull', True), ('user__isnull', True), _connector='XOR'), name='delivery_to_one'),
        ),
        migrations.RunSQL(OUTBOX, NO_OUTBOX),
        migrations.RunSQL(AUDIT, NO_AUDIT),
        migrations.RunSQL(QUIET, AS_BEFORE),
    ]
