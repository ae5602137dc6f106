-- Routes. The first migration does not run this file: its table is younger.

-- Each act, with its reason; also a fit that failed.
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR DELETE ON tenants_route FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('route', 'tenant_id', 'name');
CREATE OR REPLACE TRIGGER zz_audit_changed AFTER UPDATE ON tenants_route FOR EACH ROW
    WHEN ((OLD.is_on, OLD.reason, OLD.fit) IS DISTINCT FROM (NEW.is_on, NEW.reason, NEW.fit))
    EXECUTE FUNCTION tenants_audit('route', 'tenant_id', 'name');

CREATE OR REPLACE FUNCTION tenants_notify_routes() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object(
        'kind', 'adapters', 'tenant_id', CASE TG_OP WHEN 'DELETE' THEN OLD.tenant_id ELSE NEW.tenant_id END));
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_made AFTER INSERT OR DELETE ON tenants_route FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_routes();
CREATE OR REPLACE TRIGGER notify_changed AFTER UPDATE ON tenants_route FOR EACH ROW
    WHEN ((OLD.is_on, OLD.fit, OLD.best, OLD.options, OLD.fitting_since)
          IS DISTINCT FROM (NEW.is_on, NEW.fit, NEW.best, NEW.options, NEW.fitting_since))
    EXECUTE FUNCTION tenants_notify_routes();
