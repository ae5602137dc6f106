"""The audit log: written by triggers, so whoever makes a change cannot leave it out."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

AUDIT = """
-- Arguments: what kind of thing the row is; how its tenant is found (id, tenant_id, adapter_id, or
-- nothing); the column that names it for people.
CREATE FUNCTION tenants_audit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    quiet constant text[] := ARRAY['secret_hmac', 'cache_secret', 'token_digest', 'password', 'last_login',
                                   'last_used_at', 'updated_at', 'changed_at', 'config', 'report'];
    old_row jsonb := CASE WHEN TG_OP = 'INSERT' THEN NULL ELSE to_jsonb(OLD) - quiet END;
    new_row jsonb := CASE WHEN TG_OP = 'DELETE' THEN NULL ELSE to_jsonb(NEW) - quiet END;
    any_row jsonb := coalesce(new_row, old_row);
    actor jsonb := nullif(current_setting('lorikeet.actor', true), '')::jsonb;
    whose bigint;
    called text := any_row ->> TG_ARGV[2];
BEGIN
    IF TG_OP = 'UPDATE' THEN
        SELECT jsonb_object_agg(key, value), jsonb_object_agg(key, old_row -> key)
            INTO new_row, old_row
            FROM jsonb_each(new_row) WHERE old_row -> key IS DISTINCT FROM value;
        IF new_row IS NULL THEN RETURN NULL; END IF;
    END IF;
    whose := CASE TG_ARGV[1]
        WHEN 'adapter_id' THEN
            (SELECT tenant_id FROM tenants_adapter WHERE id = (any_row ->> 'adapter_id')::bigint)
        ELSE (any_row ->> nullif(TG_ARGV[1], ''))::bigint END;
    IF TG_ARGV[0] = 'member' THEN
        called := (SELECT username FROM tenants_user WHERE id = (any_row ->> 'user_id')::bigint);
    END IF;
    INSERT INTO tenants_auditentry (tenant_id, actor_kind, actor_id, actor_name, address, request_id,
                                    action, kind, name, object_id, before, after)
    VALUES (whose, coalesce(actor ->> 'kind', 'system'), (actor ->> 'id')::bigint,
            coalesce(actor ->> 'name', ''), coalesce(actor ->> 'address', ''),
            coalesce(actor ->> 'request_id', ''),
            CASE TG_OP WHEN 'INSERT' THEN 'created' WHEN 'UPDATE' THEN 'changed' ELSE 'deleted' END,
            TG_ARGV[0], left(coalesce(called, ''), 255), (any_row ->> 'id')::bigint,
            old_row, new_row);
    RETURN NULL;
END $$;
"""

APPEND_ONLY = """
CREATE FUNCTION tenants_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    RAISE EXCEPTION 'the audit log is never changed'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'audit_is_append_only';
END $$;
CREATE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE ON tenants_auditentry
    FOR EACH ROW EXECUTE FUNCTION tenants_audit_is_append_only();
"""

AUDITED = [
    # table, kind, how its tenant is found, the column that names it
    ("tenant", "tenant", "id", "slug"),
    ("membership", "member", "tenant_id", ""),
    ("apikey", "key", "tenant_id", "name"),
    ("limitset", "limits", "tenant_id", "author"),
    ("adapter", "adapter", "tenant_id", "name"),
    ("adapterversion", "version", "adapter_id", "number"),
    ("alias", "alias", "adapter_id", "name"),
    ("price", "price", "adapter_id", "starts_at"),
    ("user", "user", "", "username"),
]


def watch(table, kind, tenant, name):
    # Named to be last: what another trigger refuses or changes is not written.
    return migrations.RunSQL(
        f"CREATE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_{table} "
        f"FOR EACH ROW EXECUTE FUNCTION tenants_audit('{kind}', '{tenant}', '{name}');",
        f"DROP TRIGGER zz_audit ON tenants_{table};",
    )



class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0006_journal_surplus'),
    ]

    operations = [
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('actor_kind', models.CharField(max_length=16)),
                ('actor_id', models.BigIntegerField(null=True)),
                ('actor_name', models.CharField(blank=True, max_length=255)),
                ('address', models.CharField(blank=True, max_length=64)),
                ('request_id', models.CharField(blank=True, max_length=64)),
                ('action', models.CharField(max_length=32)),
                ('kind', models.CharField(max_length=32)),
                ('name', models.CharField(blank=True, max_length=255)),
                ('object_id', models.BigIntegerField(null=True)),
                ('before', models.JSONField(null=True)),
                ('after', models.JSONField(null=True)),
                ('tenant', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='audit', to='tenants.tenant')),
            ],
            options={
                'verbose_name_plural': 'audit entries',
                'ordering': ['-id'],
                'indexes': [models.Index(fields=['tenant', '-id'], name='audit_by_tenant')],
            },
        ),
        migrations.RunSQL(AUDIT, "DROP FUNCTION tenants_audit();"),
        migrations.RunSQL(
            APPEND_ONLY,
            "DROP TRIGGER audit_is_append_only ON tenants_auditentry; "
            "DROP FUNCTION tenants_audit_is_append_only();",
        ),
        *(watch(*audited) for audited in AUDITED),
    ]
