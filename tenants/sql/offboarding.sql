-- Deletions of tenants. The first migration does not run this file: its table is younger.

-- Whether a tenant's deletion has begun: its row stays, for the ledger.
CREATE OR REPLACE FUNCTION tenants_is_deleted(whose bigint) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM tenants_tenantdeletion WHERE tenant_id = whose AND started_at IS NOT NULL
    );
$$;

-- A tenant that is to be deleted stays suspended. Whoever asks for it has locked the tenant's row.
CREATE OR REPLACE FUNCTION tenants_stay_suspended() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tenants_tenantdeletion WHERE tenant_id = NEW.id) THEN
        RAISE EXCEPTION 'tenant % is to be deleted', NEW.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'tenant_stays_suspended';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER tenant_stays_suspended BEFORE UPDATE OF status ON tenants_tenant
    FOR EACH ROW WHEN (NEW.status = 'active') EXECUTE FUNCTION tenants_stay_suspended();

CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR DELETE ON tenants_tenantdeletion FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('deletion', 'tenant_id', 'due_at');
