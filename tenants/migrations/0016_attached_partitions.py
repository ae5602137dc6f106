"""Makes a month's table first and then a partition of it, which waits for no reader or writer.

Made as a partition at once, it waited for whoever had read the ledger in an open transaction, such
as a dump, and all of the ledger waited behind it.
"""

from django.db import migrations


def partition(create):
    return f"""
    CREATE OR REPLACE FUNCTION tenants_usage_partition(at timestamptz) RETURNS void
    LANGUAGE plpgsql AS $$
    DECLARE
        first timestamp := date_trunc('month', at AT TIME ZONE 'UTC');
        name text := 'tenants_usageevent_' || to_char(first, 'YYYY_MM');
        bounds text := format(
            'FOR VALUES FROM (%L) TO (%L)',
            first AT TIME ZONE 'UTC', (first + interval '1 month') AT TIME ZONE 'UTC');
    BEGIN
        IF to_regclass(name) IS NOT NULL THEN RETURN; END IF;
        {create}
    END $$;
    """


# The lock that attaching takes. Unlike an advisory one, it lets us see what its last holder made.
ATTACHED = """
        LOCK TABLE ONLY tenants_usageevent IN SHARE UPDATE EXCLUSIVE MODE;
        IF to_regclass(name) IS NOT NULL THEN RETURN; END IF;
        EXECUTE format('CREATE TABLE %I (LIKE tenants_usageevent)', name);
        EXECUTE format('ALTER TABLE tenants_usageevent ATTACH PARTITION %I %s', name, bounds);
"""
AT_ONCE = """
        PERFORM pg_advisory_xact_lock(hashtext('tenants_usage_partition'));
        EXECUTE format(
            'CREATE TABLE IF NOT EXISTS %I PARTITION OF tenants_usageevent %s', name, bounds);
"""


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0015_prices_outlive_adapters'),
    ]

    operations = [migrations.RunSQL(partition(ATTACHED), partition(AT_ONCE))]
