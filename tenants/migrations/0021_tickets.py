"""Sockets are opened by tickets, each taken once, and end with the rights or the session of their
holder: the gateways, which ask no session, are told (`tenants.directory.notices`)."""

from django.db import migrations

# Unlogged: after a crash of the database a ticket might be taken again, for a minute.
USED = """
CREATE UNLOGGED TABLE tenants_usedticket (
    id text PRIMARY KEY,
    used_at timestamptz NOT NULL DEFAULT now()
);
"""

SESSIONS = """
CREATE FUNCTION tenants_notify_session() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object(
        'kind', 'session',
        'session', encode(sha256(convert_to(OLD.session_key, 'UTF8')), 'hex')));
    RETURN NULL;
END $$;
CREATE TRIGGER notify_ended AFTER DELETE ON django_session FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_session();
"""

USERS = """
CREATE FUNCTION tenants_notify_user() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object(
        'kind', 'user', 'user_id', OLD.id,
        'ended', TG_OP = 'DELETE' OR NOT NEW.is_active));
    RETURN NULL;
END $$;
CREATE TRIGGER notify_changed AFTER UPDATE ON tenants_user FOR EACH ROW
    WHEN ((OLD.is_active, OLD.is_staff, OLD.password)
          IS DISTINCT FROM (NEW.is_active, NEW.is_staff, NEW.password))
    EXECUTE FUNCTION tenants_notify_user();
CREATE TRIGGER notify_deleted AFTER DELETE ON tenants_user FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_user();
"""

MEMBERS = """
CREATE FUNCTION tenants_notify_member() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object(
        'kind', 'member', 'user_id', OLD.user_id, 'tenant_id', OLD.tenant_id,
        'ended', TG_OP = 'DELETE'));
    RETURN NULL;
END $$;
CREATE TRIGGER notify_changed AFTER UPDATE ON tenants_membership FOR EACH ROW
    WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION tenants_notify_member();
CREATE TRIGGER notify_deleted AFTER DELETE ON tenants_membership FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_member();
"""


def notices(create, function):
    return migrations.RunSQL(create, f"DROP FUNCTION {function} CASCADE;")


class Migration(migrations.Migration):
    dependencies = [("tenants", "0018_key_origins"), ("sessions", "0001_initial")]
    operations = [
        migrations.RunSQL(USED, "DROP TABLE tenants_usedticket;"),
        notices(SESSIONS, "tenants_notify_session()"),
        notices(USERS, "tenants_notify_user()"),
        notices(MEMBERS, "tenants_notify_member()"),
    ]
