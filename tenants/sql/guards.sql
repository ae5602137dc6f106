-- Rules over several rows, which hold whoever writes: the API, the console or psql.

-- Deferred to the commit, so that an owner can hand over in one transaction in any order. The
-- tenant's row is the lock: two owners who leave at once take turns, and the second one fails.
CREATE OR REPLACE FUNCTION tenants_keep_an_owner() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP = 'UPDATE' AND NEW.role = 'owner' AND NEW.tenant_id = OLD.tenant_id THEN
        RETURN NULL;
    END IF;
    IF tenants_is_deleted(OLD.tenant_id) THEN RETURN NULL; END IF;
    PERFORM 1 FROM tenants_tenant WHERE id = OLD.tenant_id FOR UPDATE;
    IF FOUND AND NOT EXISTS (
        SELECT 1 FROM tenants_membership WHERE tenant_id = OLD.tenant_id AND role = 'owner'
    ) THEN
        RAISE EXCEPTION 'tenant % would have no owner', OLD.tenant_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'membership_last_owner';
    END IF;
    RETURN NULL;
END $$;
DROP TRIGGER IF EXISTS membership_last_owner ON tenants_membership;
CREATE CONSTRAINT TRIGGER membership_last_owner AFTER UPDATE OR DELETE ON tenants_membership
    DEFERRABLE INITIALLY DEFERRED
    FOR EACH ROW WHEN (OLD.role = 'owner') EXECUTE FUNCTION tenants_keep_an_owner();

-- FOR SHARE waits for whoever is changing the version's state and then reads the new state.
CREATE OR REPLACE FUNCTION tenants_alias_points_at_ready() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM 1 FROM tenants_adapterversion
        WHERE id = NEW.version_id AND adapter_id = NEW.adapter_id AND state = 'ready' FOR SHARE;
    IF NOT FOUND THEN
        RAISE EXCEPTION 'alias % cannot point at version %', NEW.name, NEW.version_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'alias_points_at_ready';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER alias_points_at_ready BEFORE INSERT OR UPDATE OF version_id, adapter_id
    ON tenants_alias FOR EACH ROW EXECUTE FUNCTION tenants_alias_points_at_ready();

CREATE OR REPLACE FUNCTION tenants_version_is_immutable() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE OR REPLACE TRIGGER version_is_immutable BEFORE UPDATE
    ON tenants_adapterversion FOR EACH ROW EXECUTE FUNCTION tenants_version_is_immutable();

CREATE OR REPLACE FUNCTION tenants_limits_of_one_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF NEW.key_id IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM tenants_apikey WHERE id = NEW.key_id AND tenant_id = NEW.tenant_id
    ) OR NEW.adapter_id IS NOT NULL AND NOT EXISTS (
        SELECT 1 FROM tenants_adapter WHERE id = NEW.adapter_id AND tenant_id = NEW.tenant_id
    ) THEN
        RAISE EXCEPTION 'the limits % are for what is not of tenant %', NEW.id, NEW.tenant_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'limits_of_one_tenant';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER limits_of_one_tenant BEFORE INSERT OR UPDATE OF tenant_id, key_id, adapter_id
    ON tenants_limitset FOR EACH ROW EXECUTE FUNCTION tenants_limits_of_one_tenant();
