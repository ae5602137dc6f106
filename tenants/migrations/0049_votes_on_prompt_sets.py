"""Votes of members on the answers to prompt sets."""

import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0048_prompt_sets'),
    ]

    operations = [
        migrations.CreateModel(
            name='SetRun',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('key', models.UUIDField()),
                ('compared', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=200), size=None)),
                ('choices', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(blank=True, max_length=3), size=None)),
                ('at', models.DateTimeField()),
                ('member', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.membership')),
                ('prompt_set', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='runs', to='tenants.promptset')),
            ],
            options={
                'ordering': ['-at'],
                'constraints': [models.UniqueConstraint(fields=('prompt_set', 'member', 'key'), name='set_run_once_per_key')],
            },
        ),
    ]
