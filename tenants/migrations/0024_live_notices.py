"""What open pages show besides what the token path keeps in memory is told to gateways as well:
new keys, new versions of adapters, and how a version's checks go."""

from django.db import migrations

KEYS = """
CREATE FUNCTION tenants_notify_key_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object(
        'kind', 'key', 'key_id', NEW.id, 'tenant_id', NEW.tenant_id));
    RETURN NULL;
END $$;
CREATE TRIGGER notify_made AFTER INSERT ON tenants_apikey FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_key_made();
"""

VERSIONS = """
CREATE TRIGGER notify_made AFTER INSERT ON tenants_adapterversion FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_adapters();
CREATE TRIGGER notify_reported AFTER UPDATE ON tenants_adapterversion FOR EACH ROW
    WHEN (OLD.report IS DISTINCT FROM NEW.report)
    EXECUTE FUNCTION tenants_notify_adapters();
"""
NO_VERSIONS = """
DROP TRIGGER notify_made ON tenants_adapterversion;
DROP TRIGGER notify_reported ON tenants_adapterversion;
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0021_tickets")]
    operations = [
        migrations.RunSQL(KEYS, "DROP FUNCTION tenants_notify_key_made() CASCADE;"),
        migrations.RunSQL(VERSIONS, NO_VERSIONS),
    ]
