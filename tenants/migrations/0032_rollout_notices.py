"""Gateways hear of every step of a rollout and of every trial, and the audit log has the steps.
That a revision was seen, and what a look at a rollout found, is no change."""

from django.db import migrations

CHANGED = "(to_jsonb(OLD) - '{0}') IS DISTINCT FROM (to_jsonb(NEW) - '{0}')"
NOTICES = f"""
CREATE TRIGGER notify_made AFTER INSERT OR DELETE ON tenants_poolrevision FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_base_models();
CREATE TRIGGER notify_changed AFTER UPDATE ON tenants_poolrevision FOR EACH ROW
    WHEN ({CHANGED.format("seen_at")}) EXECUTE FUNCTION tenants_notify_base_models();
CREATE TRIGGER notify_made AFTER INSERT OR DELETE ON tenants_rollout FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_base_models();
CREATE TRIGGER notify_changed AFTER UPDATE ON tenants_rollout FOR EACH ROW
    WHEN ({CHANGED.format("report")}) EXECUTE FUNCTION tenants_notify_base_models();
CREATE TRIGGER notify_changed AFTER INSERT OR UPDATE OR DELETE ON tenants_rollouttenant FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_base_models();

CREATE FUNCTION tenants_notify_trial() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    whose bigint;
BEGIN
    SELECT a.tenant_id INTO whose FROM tenants_adapterversion v
        JOIN tenants_adapter a ON a.id = v.adapter_id
        WHERE v.id = coalesce(NEW.version_id, OLD.version_id);
    IF whose IS NOT NULL THEN -- else the version went with it, and that was said
        PERFORM tenants_notify(jsonb_build_object('kind', 'adapters', 'tenant_id', whose));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER notify_changed AFTER INSERT OR UPDATE OR DELETE ON tenants_trial FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_trial();
"""
NO_NOTICES = """
DROP TRIGGER notify_made ON tenants_poolrevision;
DROP TRIGGER notify_changed ON tenants_poolrevision;
DROP TRIGGER notify_made ON tenants_rollout;
DROP TRIGGER notify_changed ON tenants_rollout;
DROP TRIGGER notify_changed ON tenants_rollouttenant;
DROP FUNCTION tenants_notify_trial() CASCADE;
"""

AUDIT = f"""
CREATE TRIGGER zz_audit AFTER INSERT OR DELETE ON tenants_rollout FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('rollout', '', 'name');
CREATE TRIGGER zz_audit_changed AFTER UPDATE ON tenants_rollout FOR EACH ROW
    WHEN ({CHANGED.format("report")}) EXECUTE FUNCTION tenants_audit('rollout', '', 'name');
CREATE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_rollouttenant FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('turn', 'tenant_id', 'turn');
CREATE TRIGGER zz_audit_changed AFTER UPDATE ON tenants_poolrevision FOR EACH ROW
    WHEN (OLD.standing <> NEW.standing) EXECUTE FUNCTION tenants_audit('revision', '', 'digest');
CREATE TRIGGER zz_audit_changed AFTER UPDATE ON tenants_basemodel FOR EACH ROW
    WHEN ((OLD.defaults, OLD.serves_new) IS DISTINCT FROM (NEW.defaults, NEW.serves_new))
    EXECUTE FUNCTION tenants_audit('base model', '', 'name');
"""
NO_AUDIT = """
DROP TRIGGER zz_audit ON tenants_rollout;
DROP TRIGGER zz_audit_changed ON tenants_rollout;
DROP TRIGGER zz_audit ON tenants_rollouttenant;
DROP TRIGGER zz_audit_changed ON tenants_poolrevision;
DROP TRIGGER zz_audit_changed ON tenants_basemodel;
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0031_rollouts")]

    operations = [
        migrations.RunSQL(NOTICES, NO_NOTICES),
        migrations.RunSQL(AUDIT, NO_AUDIT),
    ]
