-- The audit log: every change of what it covers, whoever made it. Its triggers are named so that they
-- run last: what another trigger refuses or changes is not written.

-- Arguments: what kind of thing the row is; how its tenant is found (id, tenant_id, adapter_id, or
-- nothing); the column that names it for people.
CREATE OR REPLACE FUNCTION tenants_audit() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    quiet constant text[] := ARRAY['secret_hmac', 'cache_secret', 'token_digest', 'password', 'last_login',
                                   'last_used_at', 'updated_at', 'changed_at', 'config', 'report', 'tests', 'packed'];
    old_row jsonb := CASE WHEN TG_OP = 'INSERT' THEN NULL ELSE to_jsonb(OLD) - quiet END;
    new_row jsonb := CASE WHEN TG_OP = 'DELETE' THEN NULL ELSE to_jsonb(NEW) - quiet END;
    any_row jsonb := coalesce(new_row, old_row);
    actor jsonb := nullif(current_setting('lorikeet.actor', true), '')::jsonb;
    whose bigint;
    called text := any_row ->> TG_ARGV[2];
BEGIN
    -- Training loops load thousands: of each, its creation and the alias that moves are enough.
    IF TG_ARGV[0] = 'version' AND TG_OP <> 'INSERT' AND any_row ->> 'expires_at' IS NOT NULL THEN
        RETURN NULL;
    END IF;
    IF TG_OP = 'UPDATE' THEN
        SELECT jsonb_object_agg(key, value), jsonb_object_agg(key, old_row -> key)
            INTO new_row, old_row
            FROM jsonb_each(new_row) WHERE old_row -> key IS DISTINCT FROM value;
        IF new_row IS NULL THEN RETURN NULL; END IF;
    END IF;
    IF TG_ARGV[1] = 'adapter_id' THEN
        SELECT tenant_id, name || '@' || called INTO whose, called
            FROM tenants_adapter WHERE id = (any_row ->> 'adapter_id')::bigint;
        called := coalesce(called, any_row ->> TG_ARGV[2]);  -- the price of a base model
    ELSE
        whose := (any_row ->> nullif(TG_ARGV[1], ''))::bigint;
    END IF;
    IF TG_ARGV[0] = 'member' THEN
        called := (SELECT username FROM tenants_user WHERE id = (any_row ->> 'user_id')::bigint);
    END IF;
    INSERT INTO tenants_auditentry (tenant_id, actor_kind, actor_id, actor_name, address, request_id,
                                    action, kind, name, object_id, before, after)
    VALUES (whose, coalesce(actor ->> 'kind', 'system'), (actor ->> 'id')::bigint,
            coalesce(actor ->> 'name', ''), coalesce(actor ->> 'address', ''),
            coalesce(actor ->> 'request_id', ''),
            CASE TG_OP WHEN 'INSERT' THEN 'created' WHEN 'UPDATE' THEN 'changed' ELSE 'deleted' END,
            TG_ARGV[0], left(coalesce(called, ''), 255), (any_row ->> 'id')::bigint,
            old_row, new_row);
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_tenant FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('tenant', 'id', 'slug');
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_membership FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('member', 'tenant_id', '');
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_apikey FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('key', 'tenant_id', 'name');
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_limitset FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('limits', 'tenant_id', 'author');
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_adapter FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('adapter', 'tenant_id', 'name');
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_adapterversion FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('version', 'adapter_id', 'number');
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_alias FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('alias', 'adapter_id', 'name');
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_price FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('price', 'adapter_id', 'starts_at');
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_user FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('user', '', 'username');
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_invitation FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('invitation', 'tenant_id', 'note');
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR DELETE ON tenants_enginecredential FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('credential', '', 'name');
CREATE OR REPLACE TRIGGER zz_audit_changed AFTER UPDATE ON tenants_enginecredential FOR EACH ROW
    WHEN ((to_jsonb(OLD) - ARRAY['last_seen_at', 'stopped_at'])
          IS DISTINCT FROM (to_jsonb(NEW) - ARRAY['last_seen_at', 'stopped_at']))
    EXECUTE FUNCTION tenants_audit('credential', '', 'name');
CREATE OR REPLACE TRIGGER zz_audit AFTER UPDATE OR DELETE ON tenants_quarantinedentry FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('quarantined', '', 'request_id');
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR DELETE ON tenants_rollout FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('rollout', '', 'name');
CREATE OR REPLACE TRIGGER zz_audit_changed AFTER UPDATE ON tenants_rollout FOR EACH ROW
    WHEN ((to_jsonb(OLD) - 'report') IS DISTINCT FROM (to_jsonb(NEW) - 'report'))
    EXECUTE FUNCTION tenants_audit('rollout', '', 'name');
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_rollouttenant FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('turn', 'tenant_id', 'turn');
CREATE OR REPLACE TRIGGER zz_audit_changed AFTER UPDATE ON tenants_poolrevision FOR EACH ROW
    WHEN (OLD.standing <> NEW.standing) EXECUTE FUNCTION tenants_audit('revision', '', 'digest');
CREATE OR REPLACE TRIGGER zz_audit_changed AFTER UPDATE ON tenants_basemodel FOR EACH ROW
    WHEN ((OLD.defaults, OLD.serves_new) IS DISTINCT FROM (NEW.defaults, NEW.serves_new))
    EXECUTE FUNCTION tenants_audit('base model', '', 'name');
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_target FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('webhook', 'tenant_id', 'url');
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_contentkey FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('content key', 'tenant_id', 'id');

-- As tenants_audit, but of a conversation the log says only who made, shared and deleted it.
CREATE OR REPLACE FUNCTION tenants_audit_conversation() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    actor jsonb := nullif(current_setting('lorikeet.actor', true), '')::jsonb;
    about tenants_conversation := CASE TG_OP WHEN 'DELETE' THEN OLD ELSE NEW END;
BEGIN
    INSERT INTO tenants_auditentry (tenant_id, actor_kind, actor_id, actor_name, address, request_id,
                                    action, kind, object_id, name, before, after)
    VALUES ((SELECT tenant_id FROM tenants_membership WHERE id = about.member_id),
            coalesce(actor ->> 'kind', 'system'), (actor ->> 'id')::bigint,
            coalesce(actor ->> 'name', ''), coalesce(actor ->> 'address', ''),
            coalesce(actor ->> 'request_id', ''),
            CASE TG_OP WHEN 'INSERT' THEN 'created' WHEN 'UPDATE' THEN 'changed' ELSE 'deleted' END,
            'conversation', about.id, about.id::text,
            CASE WHEN TG_OP <> 'INSERT' THEN jsonb_build_object('shared', OLD.shared_as IS NOT NULL) END,
            CASE WHEN TG_OP <> 'DELETE' THEN jsonb_build_object('shared', NEW.shared_as IS NOT NULL) END);
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER zz_audit AFTER INSERT OR DELETE ON tenants_conversation
    FOR EACH ROW EXECUTE FUNCTION tenants_audit_conversation();
CREATE OR REPLACE TRIGGER zz_audit_shared AFTER UPDATE OF shared_as ON tenants_conversation
    FOR EACH ROW WHEN (OLD.shared_as IS DISTINCT FROM NEW.shared_as)
    EXECUTE FUNCTION tenants_audit_conversation();

CREATE OR REPLACE FUNCTION tenants_audit_is_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    details constant text[] := ARRAY['name', 'address', 'before', 'after'];
BEGIN
    -- Of a deleted tenant's entries only the details may go.
    IF TG_OP = 'UPDATE' AND OLD.kind <> 'deletion' AND tenants_is_deleted(OLD.tenant_id)
        AND NEW.name = '' AND NEW.address = '' AND NEW.before IS NULL AND NEW.after IS NULL
        AND to_jsonb(NEW) - details = to_jsonb(OLD) - details
    THEN
        RETURN NEW;
    END IF;
    RAISE EXCEPTION 'the audit log is never changed'
        USING ERRCODE = 'check_violation', CONSTRAINT = 'audit_is_append_only';
END $$;
CREATE OR REPLACE TRIGGER audit_is_append_only BEFORE UPDATE OR DELETE ON tenants_auditentry
    FOR EACH ROW EXECUTE FUNCTION tenants_audit_is_append_only();

CREATE OR REPLACE FUNCTION tenants_audit_actors() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    INSERT INTO tenants_auditactor (name)
    SELECT DISTINCT actor_name FROM added WHERE actor_name <> '' ORDER BY 1
    ON CONFLICT DO NOTHING;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER audit_actors AFTER INSERT ON tenants_auditentry REFERENCING NEW TABLE AS added
    FOR EACH STATEMENT EXECUTE FUNCTION tenants_audit_actors();
