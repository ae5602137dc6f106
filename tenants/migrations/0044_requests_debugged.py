"""Lists the requests that failed from indexes of their own; views of that list and prompts that
members keep; how long engines were there."""

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
        ('tenants', '0043_uploads_in_parts'),
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
        migrations.CreateModel(
            name='SavedPrompt',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=80)),
                ('text', models.TextField(max_length=20000)),
                ('system', models.TextField(blank=True, max_length=20000)),
                ('shared', models.BooleanField(default=False)),
                ('member', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='saved_prompts', to='tenants.membership')),
            ],
            options={
                'ordering': ['name', 'id'],
                'constraints': [models.UniqueConstraint(fields=('member', 'name'), name='saved_prompt_once_per_name')],
            },
        ),
        migrations.CreateModel(
            name='EngineHour',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('hour', models.DateTimeField()),
                ('engine_id', models.CharField(max_length=255)),
                ('base_model', models.CharField(max_length=255)),
                ('slots', models.IntegerField()),
            ],
            options={
                'ordering': ['hour', 'engine_id'],
                'constraints': [models.UniqueConstraint(fields=('hour', 'engine_id', 'base_model'), name='engine_hour_unique')],
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
