"""The label of one kind of notification."""

from django.db import migrations, models

KINDS = [
    ('adapter.ready', 'Adapter ready'),
    ('adapter.rejected', 'Adapter rejected'),
    ('budget.reached', 'Budget 80% or 100% used'),
    ('key.expiring', 'API key expires within a week'),
    ('engine.lost', 'Engine lost'),
    ('ledger.drift', 'Ledger differs from an engine'),
    ('isolation.failed', 'Isolation check failed'),
    ('rollout.stopped', 'Rollout rolled back or aborted'),
]


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0054_indexes_of_lists'),
    ]

    operations = [
        migrations.AlterField(
            'notification', 'kind', models.CharField(choices=KINDS, max_length=32)
        ),
    ]
