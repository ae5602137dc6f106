"""Rules over several rows, which hold whoever writes: the API, the admin or psql."""

from django.db import migrations

LAST_OWNER = """
-- Deferred to the commit, so that an owner can hand over in one transaction in any order. The
-- tenant's row is the lock: two owners who leave at once take turns, and the second one fails.
CREATE FUNCTION tenants_keep_an_owner() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.role = 'owner' AND NEW.tenant_id = OLD.tenant_id THEN
        RETURN NULL;
    END IF;
    PERFORM 1 FROM tenants_tenant WHERE id = OLD.tenant_id FOR UPDATE;
    IF FOUND AND NOT EXISTS (
        SELECT 1 FROM tenants_membership WHERE tenant_id = OLD.tenant_id AND role = 'owner'
    ) THEN
        RAISE EXCEPTION 'tenant % would have no owner', OLD.tenant_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'membership_last_owner';
    END IF;
    RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER membership_last_owner AFTER UPDATE OR DELETE ON tenants_membership
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (OLD.role = 'owner') EXECUTE FUNCTION tenants_keep_an_owner();
"""

ALIAS_POINTS_AT_READY = """
-- FOR SHARE waits for whoever is changing the version's state and then reads the new state.
CREATE FUNCTION tenants_alias_points_at_ready() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM tenants_adapterversion
        WHERE id = NEW.version_id AND adapter_id = NEW.adapter_id AND state = 'ready' FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'alias % cannot point at version %', NEW.name, NEW.version_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'alias_points_at_ready';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER alias_points_at_ready BEFORE INSERT OR UPDATE OF version_id, adapter_id
    ON tenants_alias FOR EACH ROW EXECUTE FUNCTION tenants_alias_points_at_ready();
"""

VERSION_IS_IMMUTABLE = """
CREATE FUNCTION tenants_version_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF (NEW.adapter_id, NEW.number, NEW.digest) <> (OLD.adapter_id, OLD.number, OLD.digest) THEN
        RAISE EXCEPTION 'the content of version % never changes', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'version_is_immutable';
    END IF;
    IF OLD.state = 'ready' AND NEW.state <> 'ready' AND EXISTS (
        SELECT 1 FROM tenants_alias WHERE version_id = OLD.id
    ) THEN
        RAISE EXCEPTION 'an alias points at version %', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'version_in_use';
    END IF;
    RETURN NEW;
END $$;
CREATE TRIGGER version_is_immutable BEFORE UPDATE
    ON tenants_adapterversion FOR EACH ROW EXECUTE FUNCTION tenants_version_is_immutable();
"""


def guard(create: str, function: str, trigger: str, table: str) -> migrations.RunSQL:
    return migrations.RunSQL(
        create, f"DROP TRIGGER {trigger} ON {table}; DROP FUNCTION {function}();"
    )


class Migration(migrations.Migration):
    dependencies = [("tenants", "0001_initial")]
    operations = [
        guard(LAST_OWNER, "tenants_keep_an_owner", "membership_last_owner", "tenants_membership"),
        guard(
            ALIAS_POINTS_AT_READY,
            "tenants_alias_points_at_ready",
            "alias_points_at_ready",
            "tenants_alias",
        ),
        guard(
            VERSION_IS_IMMUTABLE,
            "tenants_version_is_immutable",
            "version_is_immutable",
            "tenants_adapterversion",
        ),
    ]
