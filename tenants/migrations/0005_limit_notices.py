"""Limits and prices are told to every gateway when they change; limits stay within one tenant."""

from django.core.validators import MaxValueValidator, MinValueValidator
from django.db import migrations, models

LIMITS = {
    "requests_per_minute": 'Requests in any 60 seconds.',
    "tokens_per_minute": 'Prompt and output tokens in any 60 seconds.',
    "prompt_tokens_per_minute": 'Prompt tokens that were not in the cache, in any 60 seconds.',
    "output_tokens_per_minute": 'Output tokens in any 60 seconds.',
    "concurrent_streams": 'Requests running or waiting at the same time.',
    "tokens_per_day": 'Prompt and output tokens in a UTC day.',
    "tokens_per_month": 'Prompt and output tokens in a UTC month.',
    "cost_per_day": 'Micro-units of the currency in a UTC day.',
    "cost_per_month": 'Micro-units of the currency in a UTC month.',
}

NOTIFY_LIMITS = """
-- Without a tenant it is the platform's default that changed: everybody's limits.
CREATE FUNCTION tenants_notify_limits() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN
        PERFORM tenants_notify(jsonb_build_object('kind', 'limits', 'tenant_id', OLD.tenant_id));
    END IF;
    IF TG_OP <> 'DELETE' THEN
        PERFORM tenants_notify(jsonb_build_object('kind', 'limits', 'tenant_id', NEW.tenant_id));
    END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER notify_set AFTER INSERT OR DELETE ON tenants_limitset FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_limits();
CREATE TRIGGER notify_changed AFTER UPDATE ON tenants_limitset FOR EACH ROW
    WHEN ((to_jsonb(OLD) - 'updated_at') IS DISTINCT FROM (to_jsonb(NEW) - 'updated_at'))
    EXECUTE FUNCTION tenants_notify_limits();
"""

TELL_PRICE = """
-- A price lies in memory beside what it is for.
CREATE FUNCTION tenants_tell_price(of_adapter bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    IF of_adapter IS NULL THEN
        PERFORM tenants_notify('{"kind": "base_models"}'::jsonb);
    ELSE
        PERFORM tenants_notify(jsonb_build_object('kind', 'adapters', 'tenant_id', tenant_id))
            FROM tenants_adapter WHERE id = of_adapter;
    END IF;
END $$;
"""

NOTIFY_PRICES = """
CREATE FUNCTION tenants_notify_prices() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
    IF TG_OP <> 'INSERT' THEN PERFORM tenants_tell_price(OLD.adapter_id); END IF;
    IF TG_OP <> 'DELETE' THEN PERFORM tenants_tell_price(NEW.adapter_id); END IF;
    RETURN NULL;
END $$;
CREATE TRIGGER notify_changed AFTER INSERT OR UPDATE OR DELETE ON tenants_price FOR EACH ROW
    EXECUTE FUNCTION tenants_notify_prices();
"""

ONE_TENANT = """
CREATE FUNCTION tenants_limits_of_one_tenant() RETURNS trigger LANGUAGE plpgsql AS $$
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
CREATE TRIGGER limits_of_one_tenant BEFORE INSERT OR UPDATE OF tenant_id, key_id, adapter_id
    ON tenants_limitset FOR EACH ROW EXECUTE FUNCTION tenants_limits_of_one_tenant();
"""


def bounded(name: str) -> migrations.AlterField:
    """The database has these bounds already (`limits_in_bounds`); forms now say them by field."""
    validators = [MinValueValidator(0), MaxValueValidator(10**12)]
    field = models.BigIntegerField(
        null=True, blank=True, validators=validators, help_text=LIMITS[name]
    )
    return migrations.AlterField("limitset", name, field)


def function(create: str, signature: str) -> migrations.RunSQL:
    return migrations.RunSQL(create, f"DROP FUNCTION {signature} CASCADE;")


class Migration(migrations.Migration):
    dependencies = [("tenants", "0004_ledger_and_limits")]
    operations = [
        *map(bounded, LIMITS),
        migrations.AddIndex(
            "adapter",
            models.Index(
                fields=["id"], condition=models.Q(("pinned", True)), name="adapter_pinned"
            ),
        ),
        function(ONE_TENANT, "tenants_limits_of_one_tenant()"),
        function(NOTIFY_LIMITS, "tenants_notify_limits()"),
        function(TELL_PRICE, "tenants_tell_price(bigint)"),
        function(NOTIFY_PRICES, "tenants_notify_prices()"),
    ]
