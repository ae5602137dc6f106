-- Events that tenants are notified of, by mail or webhook: queued in the transaction that causes them.

-- Writes a notification and its deliveries, unless one of this kind was written with the same `once`.
CREATE OR REPLACE FUNCTION tenants_notify_of(what text, whose bigint, told jsonb, once_for text)
RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
    made uuid;
BEGIN
    INSERT INTO tenants_notification (tenant_id, kind, data, once)
    VALUES (whose, what, told, once_for)
    ON CONFLICT (tenant_id, kind, once) WHERE NOT (once = '') DO NOTHING
    RETURNING id INTO made;
    IF made IS NULL THEN RETURN false; END IF;
    INSERT INTO tenants_delivery (notification_id, target_id)
    SELECT made, id FROM tenants_target
    WHERE tenant_id IS NOT DISTINCT FROM whose AND what = ANY(kinds) AND ended_at IS NULL;
    RETURN true;
END $$;

CREATE OR REPLACE FUNCTION tenants_notify_version() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    adapter record;
BEGIN
    IF NEW.expires_at IS NOT NULL THEN -- loaded by a program, which has the answer
        RETURN NULL;
    END IF;
    SELECT tenant_id, name INTO adapter FROM tenants_adapter WHERE id = NEW.adapter_id;
    PERFORM tenants_notify_of('adapter.' || NEW.state, adapter.tenant_id, jsonb_strip_nulls(
        jsonb_build_object('adapter', adapter.name, 'version', NEW.number, 'digest', NEW.digest,
                           'reason', NEW.report -> 'findings' -> 0 ->> 'message')), '');
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_judged AFTER UPDATE ON tenants_adapterversion FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND NEW.state IN ('ready', 'rejected'))
    EXECUTE FUNCTION tenants_notify_version();

CREATE OR REPLACE FUNCTION tenants_notify_isolation() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify_of('isolation.failed', NULL, jsonb_build_object(
        'base_model', NEW.base_model, 'findings', NEW.findings), '');
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_failed AFTER INSERT ON tenants_isolationcheck FOR EACH ROW
    WHEN (NEW.passed = false) EXECUTE FUNCTION tenants_notify_isolation();

CREATE OR REPLACE FUNCTION tenants_notify_rollout() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify_of('rollout.stopped', NULL, jsonb_build_object(
        'rollout', NEW.name, 'state', NEW.state, 'reason', NEW.reason), '');
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_stopped AFTER UPDATE ON tenants_rollout FOR EACH ROW
    WHEN (OLD.state <> NEW.state AND NEW.state IN ('aborted', 'rolled back'))
    EXECUTE FUNCTION tenants_notify_rollout();
