"""Each engine has a credential of its own; gateways hear of every change of one, and the audit log
has it. That an engine was seen is no change."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.conf import settings
from django.db import migrations, models

NOTICES = """
CREATE FUNCTION tenants_notify_engine() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify('{"kind": "engine"}'::jsonb);
    RETURN NULL;
END $$;
CREATE TRIGGER notify_made AFTER INSERT OR DELETE ON tenants_enginecredential FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_engine();
CREATE TRIGGER notify_changed AFTER UPDATE ON tenants_enginecredential FOR EACH ROW
    WHEN ((to_jsonb(OLD) - 'last_seen_at') IS DISTINCT FROM (to_jsonb(NEW) - 'last_seen_at'))
    EXECUTE FUNCTION tenants_notify_engine();
"""

AUDIT = """
CREATE TRIGGER zz_audit AFTER INSERT OR DELETE ON tenants_enginecredential FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('credential', '', 'name');
CREATE TRIGGER zz_audit_changed AFTER UPDATE ON tenants_enginecredential FOR EACH ROW
    WHEN ((to_jsonb(OLD) - 'last_seen_at') IS DISTINCT FROM (to_jsonb(NEW) - 'last_seen_at'))
    EXECUTE FUNCTION tenants_audit('credential', '', 'name');
"""
NO_AUDIT = """
DROP TRIGGER zz_audit ON tenants_enginecredential;
DROP TRIGGER zz_audit_changed ON tenants_enginecredential;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0026_storage_quota'),
    ]

    operations = [
        migrations.CreateModel(
            name='EngineCredential',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='For example the machine that the engine runs on.', max_length=200)),
                ('prefix', models.CharField(editable=False, max_length=12, unique=True)),
                ('secret_hmac', models.BinaryField(max_length=32)),
                ('pools', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=255), blank=True, help_text='Base models that the engine may serve; empty: all.', null=True, size=None)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('last_seen_at', models.DateTimeField(editable=False, null=True)),
                ('revoked_at', models.DateTimeField(editable=False, null=True)),
                ('created_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.AddConstraint(
            model_name='enginecredential',
            constraint=models.UniqueConstraint(condition=models.Q(('revoked_at__isnull', True)), fields=('name',), name='engine_credential_name_unique'),
        ),
        migrations.AddConstraint(
            model_name='enginecredential',
            constraint=models.CheckConstraint(condition=models.Q(('name', ''), _negated=True), name='engine_credential_named'),
        ),
        migrations.RunSQL(NOTICES, "DROP FUNCTION tenants_notify_engine() CASCADE;"),
        migrations.RunSQL(AUDIT, NO_AUDIT),
    ]
