"""Conversations of the playground."""

import django.db.models.deletion
import django.db.models.lookups
from django.db import migrations, models


AUDIT = """
-- As tenants_audit, but of a conversation the log says only who made, shared and deleted it.
CREATE FUNCTION tenants_audit_conversation() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    actor jsonb := nullif(current_setting('lorikeet.actor', true), '')::jsonb;
    about tenants_conversation := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    INSERT INTO tenants_auditentry (tenant_id, actor_kind, actor_id, actor_name, address, request_id,
                                    action, kind, object_id, name, before, after)
    VALUES ((SELECT tenant_id FROM tenants_membership WHERE id = about.member_id),
            coalesce(actor ->> 'kind', 'system'), (actor ->> 'id')::bigint,
            coalesce(actor ->> 'name', ''), coalesce(actor ->> 'address', ''),
            coalesce(actor ->> 'request_id', ''),
            CASE TG_OP WHEN 'INSERT' THEN 'created' WHEN 'UPDATE' THEN 'changed' ELSE 'deleted' END,
            'conversation', about.id, about.id::text,
            CASE WHEN TG_OP <> 'INSERT' THEN jsonb_build_object('shared', OLD.shared_as IS NOT NULL) END,
            CASE WHEN TG_OP <> 'DELETE' THEN jsonb_build_object('shared', NEW.shared_as IS NOT NULL) END);
    RETURN NULL;
END $$;
CREATE TRIGGER zz_audit AFTER INSERT OR DELETE ON tenants_conversation
    FOR EACH ROW EXECUTE FUNCTION tenants_audit_conversation();
CREATE TRIGGER zz_audit_shared AFTER UPDATE OF shared_as ON tenants_conversation
    FOR EACH ROW WHEN (OLD.shared_as IS DISTINCT FROM NEW.shared_as)
    EXECUTE FUNCTION tenants_audit_conversation();
"""
NO_AUDIT = """
DROP TRIGGER zz_audit_shared ON tenants_conversation;
DROP TRIGGER zz_audit ON tenants_conversation;
DROP FUNCTION tenants_audit_conversation();
"""


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0009_uploadsession'),
    ]

    operations = [
        migrations.CreateModel(
            name='Conversation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('title', models.CharField(max_length=120)),
                ('panes', models.TextField()),
                ('revision', models.PositiveIntegerField(default=1)),
                ('shared_as', models.UUIDField(null=True, unique=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('updated_at', models.DateTimeField(auto_now_add=True)),
                ('member', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='conversations', to='tenants.membership')),
            ],
            options={
                'ordering': ['-updated_at', '-id'],
                'indexes': [models.Index(fields=['member', '-updated_at', '-id'], name='conversation_list')],
                'constraints': [models.CheckConstraint(condition=django.db.models.lookups.LessThanOrEqual(models.Func(models.F('panes'), function='octet_length', output_field=models.IntegerField()), 524288), name='conversation_within_bounds')],
            },
        ),
        migrations.RunSQL(AUDIT, NO_AUDIT),
    ]
