-- What gateways keep in memory, and what open pages show: they are told when it changes, with the
-- commit of the transaction that changed it, whoever made it. `tenants.directory.notices` reads this.

CREATE OR REPLACE FUNCTION tenants_notify(notice jsonb) RETURNS void LANGUAGE sql AS $$
    SELECT pg_notify('lorikeet', jsonb_strip_nulls(notice)::text);
$$;

CREATE OR REPLACE FUNCTION tenants_notify_key() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object(
        'kind', 'key', 'key_id', OLD.id, 'tenant_id', OLD.tenant_id));
    RETURN NULL;
END $$;
-- A key that was used is not a key that changed.
CREATE OR REPLACE TRIGGER notify_changed AFTER UPDATE ON tenants_apikey FOR EACH ROW
    WHEN ((to_jsonb(OLD) - 'last_used_at') IS DISTINCT FROM (to_jsonb(NEW) - 'last_used_at'))
    EXECUTE FUNCTION tenants_notify_key();
CREATE OR REPLACE TRIGGER notify_deleted AFTER DELETE ON tenants_apikey FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_key();

CREATE OR REPLACE FUNCTION tenants_notify_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object('kind', 'tenant', 'tenant_id', OLD.id));
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_changed AFTER UPDATE ON tenants_tenant FOR EACH ROW
    WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION tenants_notify_tenant();
CREATE OR REPLACE TRIGGER notify_deleted AFTER DELETE ON tenants_tenant FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_tenant();

-- Sockets that were opened without the second factor that the tenant now requires. As JSON, because
-- the first migration runs this file before the column exists.
CREATE OR REPLACE FUNCTION tenants_notify_second_factor() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object('kind', 'member', 'tenant_id', NEW.id));
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_second_factor AFTER UPDATE ON tenants_tenant FOR EACH ROW
    WHEN (NOT (to_jsonb(OLD) @> '{"second_factor_required": true}')
          AND to_jsonb(NEW) @> '{"second_factor_required": true}')
    EXECUTE FUNCTION tenants_notify_second_factor();

CREATE OR REPLACE FUNCTION tenants_notify_adapters() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    changed record;
BEGIN
    IF TG_OP = 'DELETE' THEN changed := OLD; ELSE changed := NEW; END IF;
    IF TG_TABLE_NAME <> 'tenants_adapter' THEN
        SELECT * INTO changed FROM tenants_adapter WHERE id = changed.adapter_id;
    END IF;
    PERFORM tenants_notify(jsonb_build_object('kind', 'adapters', 'tenant_id', changed.tenant_id));
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_changed AFTER INSERT OR UPDATE OR DELETE ON tenants_adapter FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_adapters();
CREATE OR REPLACE TRIGGER notify_changed AFTER INSERT OR UPDATE OR DELETE ON tenants_alias FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_adapters();
CREATE OR REPLACE TRIGGER notify_changed AFTER UPDATE ON tenants_adapterversion FOR EACH ROW
    WHEN (OLD.state IS DISTINCT FROM NEW.state) EXECUTE FUNCTION tenants_notify_adapters();
CREATE OR REPLACE TRIGGER notify_deleted AFTER DELETE ON tenants_adapterversion FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_adapters();
CREATE OR REPLACE TRIGGER notify_made AFTER INSERT ON tenants_adapterversion FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_adapters();
CREATE OR REPLACE TRIGGER notify_reported AFTER UPDATE ON tenants_adapterversion FOR EACH ROW
    WHEN (OLD.report IS DISTINCT FROM NEW.report)
    EXECUTE FUNCTION tenants_notify_adapters();

-- Rejected as well: the probe had loaded it on an engine.
CREATE OR REPLACE FUNCTION tenants_notify_archived() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object('kind', 'archived', 'digest', OLD.digest));
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_archived AFTER UPDATE ON tenants_adapterversion FOR EACH ROW
    WHEN (NEW.state IN ('archived', 'rejected') AND OLD.state <> NEW.state)
    EXECUTE FUNCTION tenants_notify_archived();
CREATE OR REPLACE TRIGGER notify_archived_deleted AFTER DELETE ON tenants_adapterversion FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_archived();

CREATE OR REPLACE FUNCTION tenants_notify_base_models() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify('{"kind": "base_models"}'::jsonb);
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_changed AFTER INSERT OR UPDATE OR DELETE ON tenants_basemodel
    FOR EACH ROW EXECUTE FUNCTION tenants_notify_base_models();
CREATE OR REPLACE TRIGGER notify_made AFTER INSERT OR DELETE ON tenants_poolrevision FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_base_models();
CREATE OR REPLACE TRIGGER notify_changed AFTER UPDATE ON tenants_poolrevision FOR EACH ROW
    WHEN ((to_jsonb(OLD) - 'seen_at') IS DISTINCT FROM (to_jsonb(NEW) - 'seen_at'))
    EXECUTE FUNCTION tenants_notify_base_models();
CREATE OR REPLACE TRIGGER notify_made AFTER INSERT OR DELETE ON tenants_rollout FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_base_models();
CREATE OR REPLACE TRIGGER notify_changed AFTER UPDATE ON tenants_rollout FOR EACH ROW
    WHEN ((to_jsonb(OLD) - 'report') IS DISTINCT FROM (to_jsonb(NEW) - 'report'))
    EXECUTE FUNCTION tenants_notify_base_models();
CREATE OR REPLACE TRIGGER notify_changed AFTER INSERT OR UPDATE OR DELETE ON tenants_rollouttenant FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_base_models();

-- Without a tenant it is the platform's default that changed: everybody's limits.
CREATE OR REPLACE FUNCTION tenants_notify_limits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM tenants_notify(jsonb_build_object('kind', 'limits', 'tenant_id', OLD.tenant_id));
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM tenants_notify(jsonb_build_object('kind', 'limits', 'tenant_id', NEW.tenant_id));
    END IF;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_set AFTER INSERT OR DELETE ON tenants_limitset FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_limits();
CREATE OR REPLACE TRIGGER notify_changed AFTER UPDATE ON tenants_limitset FOR EACH ROW
    WHEN ((to_jsonb(OLD) - 'updated_at') IS DISTINCT FROM (to_jsonb(NEW) - 'updated_at'))
    EXECUTE FUNCTION tenants_notify_limits();

-- A price lies in memory beside what it is for.
CREATE OR REPLACE FUNCTION tenants_tell_price(of_adapter bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF of_adapter IS NULL THEN
        PERFORM tenants_notify('{"kind": "base_models"}'::jsonb);
    ELSE
        PERFORM tenants_notify(jsonb_build_object('kind', 'adapters', 'tenant_id', tenant_id))
            FROM tenants_adapter WHERE id = of_adapter;
    END IF;
END $$;

CREATE OR REPLACE FUNCTION tenants_notify_prices() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN PERFORM tenants_tell_price(OLD.adapter_id); END IF;
    IF TG_OP <> 'DELETE' THEN PERFORM tenants_tell_price(NEW.adapter_id); END IF;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_changed AFTER INSERT OR UPDATE OR DELETE ON tenants_price FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_prices();

CREATE OR REPLACE FUNCTION tenants_notify_session() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object(
        'kind', 'session',
        'session', encode(sha256(convert_to(OLD.session_key, 'UTF8')), 'hex')));
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_ended AFTER DELETE ON django_session FOR EACH ROW
    WHEN (OLD.expire_date > now()) EXECUTE FUNCTION tenants_notify_session();

CREATE OR REPLACE FUNCTION tenants_notify_user() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object(
        'kind', 'user', 'user_id', OLD.id,
        'ended', TG_OP = 'DELETE' OR NOT NEW.is_active));
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_changed AFTER UPDATE ON tenants_user FOR EACH ROW
    WHEN ((OLD.is_active, OLD.is_staff, OLD.password)
          IS DISTINCT FROM (NEW.is_active, NEW.is_staff, NEW.password))
    EXECUTE FUNCTION tenants_notify_user();
CREATE OR REPLACE TRIGGER notify_deleted AFTER DELETE ON tenants_user FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_user();

CREATE OR REPLACE FUNCTION tenants_notify_member() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object(
        'kind', 'member', 'user_id', OLD.user_id, 'tenant_id', OLD.tenant_id,
        'ended', TG_OP = 'DELETE'));
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_changed AFTER UPDATE ON tenants_membership FOR EACH ROW
    WHEN (OLD.* IS DISTINCT FROM NEW.*) EXECUTE FUNCTION tenants_notify_member();
CREATE OR REPLACE TRIGGER notify_deleted AFTER DELETE ON tenants_membership FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_member();

CREATE OR REPLACE FUNCTION tenants_notify_key_made() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify(jsonb_build_object(
        'kind', 'key', 'key_id', NEW.id, 'tenant_id', NEW.tenant_id));
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_made AFTER INSERT ON tenants_apikey FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_key_made();

CREATE OR REPLACE FUNCTION tenants_notify_engine() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    PERFORM tenants_notify('{"kind": "engine"}'::jsonb);
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_made AFTER INSERT OR DELETE ON tenants_enginecredential FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_engine();
CREATE OR REPLACE TRIGGER notify_changed AFTER UPDATE ON tenants_enginecredential FOR EACH ROW
    WHEN ((to_jsonb(OLD) - ARRAY['last_seen_at', 'stopped_at'])
          IS DISTINCT FROM (to_jsonb(NEW) - ARRAY['last_seen_at', 'stopped_at']))
    EXECUTE FUNCTION tenants_notify_engine();

CREATE OR REPLACE FUNCTION tenants_notify_trial() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE
    whose bigint;
BEGIN
    SELECT a.tenant_id INTO whose FROM tenants_adapterversion v
        JOIN tenants_adapter a ON a.id = v.adapter_id
        WHERE v.id = coalesce(NEW.version_id, OLD.version_id);
    IF whose IS NOT NULL THEN -- else the version went with it, and that was said
        PERFORM tenants_notify(jsonb_build_object('kind', 'adapters', 'tenant_id', whose));
    END IF;
    RETURN NULL;
END $$;
CREATE OR REPLACE TRIGGER notify_changed AFTER INSERT OR UPDATE OR DELETE ON tenants_trial FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_trial();
