"""What the token path keeps in memory is told to every gateway when it changes.

The notice leaves with the commit of the transaction that made the change, whoever made it.
`tenants.directory.notices` reads them.
"""

from django.db import migrations

NOTIFY = """
CREATE FUNCTION tenants_notify(notice jsonb) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('lorikeet', jsonb_strip_nulls(notice)::text);
$$;
"""

KEYS = """
CREATE FUNCTION tenants_notify_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object(
        'kind', 'key', 'key_id', OLD.id, 'tenant_id', OLD.tenant_id));
    RETURN NULL;
END $$;
-- A key that was used is not a key that changed.
CREATE TRIGGER notify_changed AFTER UPDATE ON tenants_apikey FOR EACH ROW
    WHEN ((to_jsonb(OLD) - 'last_used_at') IS DISTINCT FROM (to_jsonb(NEW) - 'last_used_at'))
    EXECUTE FUNCTION tenants_notify_key();
CREATE TRIGGER notify_deleted AFTER DELETE ON tenants_apikey FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_key();
"""

TENANTS = """
CREATE FUNCTION tenants_notify_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object('kind', 'tenant', 'tenant_id', OLD.id));
    RETURN NULL;
END $$;
CREATE TRIGGER notify_changed AFTER UPDATE ON tenants_tenant FOR EACH ROW
    WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION tenants_notify_tenant();
CREATE TRIGGER notify_deleted AFTER DELETE ON tenants_tenant FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_tenant();
"""

ADAPTERS = """
CREATE FUNCTION tenants_notify_adapters() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed record;
BEGIN
    IF TG_OP = 'DELETE' THEN changed := OLD; ELSE changed := NEW; END IF;
    IF TG_TABLE_NAME <> 'tenants_adapter' THEN
        SELECT * INTO changed FROM tenants_adapter WHERE id = changed.adapter_id;
    END IF;
    PERFORM tenants_notify(jsonb_build_object('kind', 'adapters', 'tenant_id', changed.tenant_id));
    RETURN NULL;
END $$;
CREATE TRIGGER notify_changed AFTER INSERT OR UPDATE OR DELETE ON tenants_adapter FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_adapters();
CREATE TRIGGER notify_changed AFTER INSERT OR UPDATE OR DELETE ON tenants_alias FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_adapters();
CREATE TRIGGER notify_changed AFTER UPDATE ON tenants_adapterversion FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION tenants_notify_adapters();
CREATE TRIGGER notify_deleted AFTER DELETE ON tenants_adapterversion FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_adapters();
"""

ARCHIVED = """
-- Rejected as well: the probe had loaded it on an engine.
CREATE FUNCTION tenants_notify_archived() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object('kind', 'archived', 'digest', OLD.digest));
    RETURN NULL;
END $$;
CREATE TRIGGER notify_archived AFTER UPDATE ON tenants_adapterversion FOR EACH ROW
    WHEN (NEW.state IN ('archived', 'rejected') AND OLD.state <> NEW.state)
    EXECUTE FUNCTION tenants_notify_archived();
CREATE TRIGGER notify_archived_deleted AFTER DELETE ON tenants_adapterversion FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_archived();
"""

BASE_MODELS = """
CREATE FUNCTION tenants_notify_base_models() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify('{"kind": "base_models"}'::jsonb);
    RETURN NULL;
END $$;
CREATE TRIGGER notify_changed AFTER INSERT OR UPDATE OR DELETE ON tenants_basemodel
    FOR EACH ROW EXECUTE FUNCTION tenants_notify_base_models();
"""


def notices(create: str, function: str) -> migrations.RunSQL:
    return migrations.RunSQL(create, f"DROP FUNCTION {function} CASCADE;")


class Migration(migrations.Migration):
    dependencies = [("tenants", "0002_guards")]
    operations = [
        notices(NOTIFY, "tenants_notify(jsonb)"),
        notices(KEYS, "tenants_notify_key()"),
        notices(TENANTS, "tenants_notify_tenant()"),
        notices(ADAPTERS, "tenants_notify_adapters()"),
        notices(ARCHIVED, "tenants_notify_archived()"),
        notices(BASE_MODELS, "tenants_notify_base_models()"),
    ]
