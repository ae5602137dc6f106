-- Changes of alert rules in the audit log. The first migration does not run this file: its table is younger.

CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR DELETE ON tenants_alertrule FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('alert rule', 'tenant_id', 'name');
-- An alert that is raised or resolved is not a rule that changed.
CREATE OR REPLACE TRIGGER zz_audit_changed AFTER UPDATE ON tenants_alertrule FOR EACH ROW
    WHEN ((to_jsonb(OLD) - ARRAY['raised_at', 'exceeded_at'])
          IS DISTINCT FROM (to_jsonb(NEW) - ARRAY['raised_at', 'exceeded_at']))
    EXECUTE FUNCTION tenants_audit('alert rule', 'tenant_id', 'name');
