"""Lists the requests that failed from indexes of their own; views of the list that members keep."""

import django.db.models.deletion
from django.db import migrations, models

FAILED = models.Q(
    (
        'finish_reason__in',
        ['stop', 'tool_calls', 'function_call', 'length', 'cancelled', 'api_key_revoked'],
    ),
    _negated=True,
)


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0039_lfs_objects'),
    ]

    operations = [
        migrations.CreateModel(
            name='SavedView',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=60)),
                ('query', models.CharField(max_length=1000)),
                ('member', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='saved_views', to='tenants.membership')),
            ],
            options={
                'ordering': ['name'],
                'constraints': [models.UniqueConstraint(fields=('member', 'name'), name='saved_view_once_per_name')],
            },
        ),
        migrations.AddIndex(
            model_name='usageevent',
            index=models.Index(condition=FAILED, fields=['tenant', 'started_at'], name='usage_failed_by_tenant'),
        ),
        migrations.AddIndex(
            model_name='usageevent',
            index=models.Index(condition=FAILED, fields=['started_at'], name='usage_failed_by_start'),
        ),
    ]
