"""Adds the sums of tenants by day and by month: always what the hours add up to, whoever writes those.

The functions that keep the months (`0012_usage_months`) keep these too: their lock, under which two
statements can't wait for each other, is taken once.
"""

import importlib

import django.db.models.deletion
from django.db import migrations, models

before = importlib.import_module("tenants.migrations.0012_usage_months")
FIGURES = before.FIGURES
LENGTHS = "(VALUES ('day'), ('month')) AS length (span)"


def add_up(hours):
    """Adds these hours to their tenants' days and months."""
    sums = ", ".join(f"sum({name})" for name in FIGURES)
    added = ", ".join(f"{name} = kept.{name} + excluded.{name}" for name in FIGURES)
    return f"""
    INSERT INTO tenants_usagetotal AS kept (span, start, tenant_id, base_model, {", ".join(FIGURES)})
    SELECT span, date_trunc(span, hour, 'UTC'), tenant_id, base_model, {sums}
    FROM {hours} CROSS JOIN {LENGTHS} GROUP BY 1, 2, 3, 4 ORDER BY 1, 2, 3, 4
    ON CONFLICT (span, start, tenant_id, base_model) DO UPDATE SET {added};
    """


def function(change, *statements):
    body = "".join(statements)
    return f"""
    CREATE OR REPLACE FUNCTION tenants_usagemonth_{change}() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
        PERFORM pg_advisory_xact_lock(hashtext('tenants_usagemonth'));
        {body}
        RETURN NULL;
    END $$;
    """


def keep(change, tables, hours):
    return migrations.RunSQL(
        function(change, before.add_up(hours), add_up(hours)),
        function(change, before.add_up(hours)),
    )


# No hour is written between the functions and what they begin with: nothing is missed or counted twice.
ALONE = """
LOCK TABLE tenants_usagerollup IN SHARE ROW EXCLUSIVE MODE;
ALTER TABLE tenants_usagetotal SET (parallel_workers = 0);
"""
# Ids of totals are negative: Django wants each but once.
VIEW = f"""
CREATE VIEW tenants_tenantsum AS
SELECT id, 'hour' AS span, hour AS start, tenant_id, base_model, {", ".join(FIGURES)}
FROM tenants_usagerollup
UNION ALL
SELECT -id, span, start, tenant_id, base_model, {", ".join(FIGURES)} FROM tenants_usagetotal;
"""
SPANS = [('hour', 'Hour'), ('day', 'Day'), ('month', 'Month')]


def fields():
    return [
        ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
        ('base_model', models.CharField(max_length=255)),
        ('span', models.CharField(choices=SPANS, max_length=5)),
        ('start', models.DateTimeField()),
        ('requests', models.BigIntegerField()),
        ('prompt_tokens', models.BigIntegerField()),
        ('cached_tokens', models.BigIntegerField()),
        ('completion_tokens', models.BigIntegerField()),
        ('reasoning_tokens', models.BigIntegerField()),
        ('cost', models.DecimalField(decimal_places=0, max_digits=38)),
        ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.tenant')),
    ]


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0049_votes_on_prompt_sets'),
    ]

    operations = [
        migrations.CreateModel(
            name='UsageTotal',
            fields=fields(),
            options={
                'ordering': ['span', 'start'],
                'constraints': [models.UniqueConstraint(fields=('span', 'start', 'tenant', 'base_model'), name='total_unique')],
            },
        ),
        migrations.CreateModel(
            name='TenantSum',
            fields=fields(),
            options={'ordering': ['tenant', 'start'], 'managed': False},
        ),
        migrations.RunSQL(ALONE, migrations.RunSQL.noop),
        *(keep(*change) for change in before.CHANGES),
        migrations.RunSQL(add_up("tenants_usagerollup"), migrations.RunSQL.noop),
        migrations.RunSQL(VIEW, "DROP VIEW tenants_tenantsum;"),
    ]
