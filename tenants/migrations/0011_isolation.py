"""Keeps what the checks of isolation found; lists the ledger of all tenants in order."""

import django.db.models.functions.datetime
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0010_conversations'),
    ]

    operations = [
        migrations.CreateModel(
            name='IsolationCheck',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('base_model', models.CharField(max_length=255)),
                ('passed', models.BooleanField(null=True)),
                ('findings', models.JSONField(default=list)),
                ('engines', models.JSONField(default=list)),
            ],
            options={
                'ordering': ['-at'],
                'indexes': [models.Index(fields=['base_model', '-at'], name='isolation_by_model')],
            },
        ),
        migrations.AddIndex(
            model_name='usageevent',
            index=models.Index(fields=['started_at'], name='usage_by_start'),
        ),
    ]
