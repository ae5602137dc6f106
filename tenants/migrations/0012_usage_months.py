"""Adds the sums of months: always what the hours add up to, whoever writes those.

`manage.py migrate` comes before a release, so gateways of the one before still write when this is
done: triggers on the hours, rather than the gateway's statement, keep the months.
"""

import django.db.models.deletion
from django.db import migrations, models

GROUP = "tenant_id, key_id, adapter, model, base_model"
FIGURES = ("requests", "prompt_tokens", "cached_tokens", "completion_tokens", "reasoning_tokens", "cost")


def add_up(hours):
    """Adds these hours to their months."""
    sums = ", ".join(f"sum({name})" for name in FIGURES)
    added = ", ".join(f"{name} = kept.{name} + excluded.{name}" for name in FIGURES)
    return f"""
    INSERT INTO tenants_usagemonth AS kept (tenant_id, month, key_id, adapter, model, base_model,
                                            {", ".join(FIGURES)})
    SELECT tenant_id, date_trunc('month', hour, 'UTC'), key_id, adapter, model, base_model, {sums}
    FROM {hours} GROUP BY 1, 2, 3, 4, 5, 6 ORDER BY 1, 2, 3, 4, 5, 6
    ON CONFLICT (tenant_id, month, key_id, adapter, model, base_model) DO UPDATE SET {added};
    """


TAKEN = f"SELECT hour, {GROUP}, {', '.join(f'-{name} AS {name}' for name in FIGURES)} FROM taken"
GIVEN = f"SELECT hour, {GROUP}, {', '.join(FIGURES)} FROM given"
CHANGES = [
    ("insert", "NEW TABLE AS given", "given"),
    ("update", "NEW TABLE AS given OLD TABLE AS taken", f"({GIVEN} UNION ALL {TAKEN}) AS changed"),
    ("delete", "OLD TABLE AS taken", f"({TAKEN}) AS changed"),
]


def keep(change, tables, hours):
    # An upsert is an insert and an update, each with a trigger. Two statements which have the same
    # months the other way round in these two would wait for each other, hence the lock. Whoever
    # holds it has everything else that it needs: triggers run last.
    return migrations.RunSQL(
        f"""
        CREATE FUNCTION tenants_usagemonth_{change}() RETURNS trigger LANGUAGE plpgsql AS $$
        BEGIN
            PERFORM pg_advisory_xact_lock(hashtext('tenants_usagemonth'));
            {add_up(hours)}
            RETURN NULL;
        END $$;
        CREATE TRIGGER month_{change} AFTER {change} ON tenants_usagerollup REFERENCING {tables}
            FOR EACH STATEMENT EXECUTE FUNCTION tenants_usagemonth_{change}();
        """,
        f"""
        DROP TRIGGER month_{change} ON tenants_usagerollup;
        DROP FUNCTION tenants_usagemonth_{change}();
        """,
    )


# Tens of thousands of rows are added up before helpers have started: the planner thinks otherwise,
# and a year of a tenant with 15 % of all usage takes twice as long with them (22 ms against 12).
ALONE = "ALTER TABLE tenants_usagemonth SET (parallel_workers = 0);"
# Ids of months are negative: Django wants each but once.
VIEW = f"""
CREATE VIEW tenants_usagesum AS
SELECT id, 'hour' AS span, hour AS start, {GROUP}, {", ".join(FIGURES)} FROM tenants_usagerollup
UNION ALL
SELECT -id, 'month', month, {GROUP}, {", ".join(FIGURES)} FROM tenants_usagemonth;
"""


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0011_isolation'),
    ]

    operations = [
        migrations.CreateModel(
            name='UsageSum',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('adapter', models.CharField(max_length=63)),
                ('model', models.CharField(max_length=255)),
                ('base_model', models.CharField(max_length=255)),
                ('requests', models.BigIntegerField()),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('completion_tokens', models.BigIntegerField()),
                ('reasoning_tokens', models.BigIntegerField()),
                ('cost', models.DecimalField(decimal_places=0, max_digits=38)),
                ('span', models.CharField(choices=[('hour', 'Hour'), ('month', 'Month')], max_length=5)),
                ('start', models.DateTimeField()),
            ],
            options={
                'ordering': ['tenant', 'start'],
                'managed': False,
            },
        ),
        migrations.AlterField(
            model_name='usagerollup',
            name='tenant',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.tenant'),
        ),
        migrations.CreateModel(
            name='UsageMonth',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('adapter', models.CharField(max_length=63)),
                ('model', models.CharField(max_length=255)),
                ('base_model', models.CharField(max_length=255)),
                ('requests', models.BigIntegerField()),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('completion_tokens', models.BigIntegerField()),
                ('reasoning_tokens', models.BigIntegerField()),
                ('cost', models.DecimalField(decimal_places=0, max_digits=38)),
                ('month', models.DateTimeField()),
                ('key', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.apikey')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.tenant')),
            ],
            options={
                'ordering': ['tenant', 'month'],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'month', 'key', 'adapter', 'model', 'base_model'), name='month_unique')],
            },
        ),
        migrations.RunSQL(ALONE, migrations.RunSQL.noop),
        *(keep(*change) for change in CHANGES),
        # After the triggers, whose making waits for writers and keeps them off: nothing is missed.
        migrations.RunSQL(add_up("tenants_usagerollup"), migrations.RunSQL.noop),
        migrations.RunSQL(VIEW, "DROP VIEW tenants_usagesum;"),
    ]
