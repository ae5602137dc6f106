-- Splits of aliases. The first migration does not run this file: its table is younger.

-- Each act, with the figures at that time. What only adds requests to the figures is no act.
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR DELETE ON tenants_split FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('split', 'adapter_id', 'alias');
CREATE OR REPLACE TRIGGER zz_audit_changed AFTER UPDATE ON tenants_split FOR EACH ROW
    WHEN ((OLD.state, OLD.weight) IS DISTINCT FROM (NEW.state, NEW.weight))
    EXECUTE FUNCTION tenants_audit('split', 'adapter_id', 'alias');

CREATE OR REPLACE TRIGGER notify_made AFTER INSERT OR DELETE ON tenants_split FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_adapters();
CREATE OR REPLACE TRIGGER notify_changed AFTER UPDATE ON tenants_split FOR EACH ROW
    WHEN ((OLD.state, OLD.weight) IS DISTINCT FROM (NEW.state, NEW.weight))
    EXECUTE FUNCTION tenants_notify_adapters();

-- What it compares is gone once its alias points elsewhere, whoever changed that. A split that is
-- promoted ends before its alias changes.
CREATE OR REPLACE FUNCTION tenants_end_split() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    UPDATE tenants_split
        SET state = 'stopped', weight = 0, ended_at = now(), reason = 'The alias was changed.'
        WHERE adapter_id = OLD.adapter_id AND alias = OLD.name AND ended_at IS NULL;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER end_split AFTER UPDATE ON tenants_alias FOR EACH ROW
    WHEN ((OLD.version_id, OLD.name) IS DISTINCT FROM (NEW.version_id, NEW.name))
    EXECUTE FUNCTION tenants_end_split();
CREATE OR REPLACE TRIGGER end_split_deleted AFTER DELETE ON tenants_alias FOR EACH ROW
    EXECUTE FUNCTION tenants_end_split();

CREATE OR REPLACE FUNCTION tenants_keep_candidate() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM tenants_split WHERE candidate_id = OLD.id AND ended_at IS NULL) THEN
        RAISE EXCEPTION 'a split uses version %', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'version_in_use';
    END IF;
    RETURN NEW;
END $$;
CREATE OR REPLACE TRIGGER keep_candidate BEFORE UPDATE ON tenants_adapterversion FOR EACH ROW
    WHEN (OLD.state = 'ready' AND NEW.state <> 'ready') EXECUTE FUNCTION tenants_keep_candidate();
