-- The audit log of what aliases require.

CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_promotiongate
    FOR EACH ROW EXECUTE FUNCTION tenants_audit('gate', 'adapter_id', 'alias');
CREATE OR REPLACE TRIGGER notify_changed AFTER INSERT OR UPDATE OR DELETE ON tenants_promotiongate
    FOR EACH ROW EXECUTE FUNCTION tenants_notify_adapters();
