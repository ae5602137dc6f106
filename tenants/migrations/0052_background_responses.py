"""Responses that run in the background."""

import django.db.models.deletion
from django.db import migrations, models


WITH_ITS_CONTENT = """
ALTER TABLE tenants_backgroundresponse ADD CONSTRAINT background_of_content
    FOREIGN KEY (content_id) REFERENCES tenants_storedcontent (id) ON DELETE CASCADE;
"""
ALONE = "ALTER TABLE tenants_backgroundresponse DROP CONSTRAINT background_of_content;"


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0051_version_sizes'),
    ]

    operations = [
        migrations.CreateModel(
            name='BackgroundResponse',
            fields=[
                ('id', models.CharField(editable=False, max_length=40, primary_key=True, serialize=False)),
                ('status', models.CharField(choices=[('queued', 'queued'), ('in_progress', 'in_progress'), ('completed', 'completed'), ('incomplete', 'incomplete'), ('failed', 'failed'), ('cancelled', 'cancelled')], default='queued', max_length=16)),
                ('code', models.CharField(db_default='', default='', max_length=64)),
                ('size_bytes', models.PositiveIntegerField()),
                ('seal', models.CharField(max_length=64)),
                ('once', models.CharField(default='', max_length=64)),
                ('run', models.PositiveIntegerField(db_default=0, default=0)),
                ('turn', models.BigIntegerField(db_default=0, default=0)),
                ('leased_until', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField()),
                ('expires_at', models.DateTimeField()),
                ('content', models.OneToOneField(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='background', to='tenants.storedcontent')),
                ('key', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.apikey')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
            ],
            options={
                'indexes': [models.Index(condition=models.Q(('status__in', ('queued', 'in_progress'))), fields=['tenant', 'created_at'], name='background_to_run'), models.Index(condition=models.Q(('once', ''), _negated=True), fields=['key', 'once'], name='background_once')],
                'constraints': [models.CheckConstraint(condition=models.Q(('status__in', ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled'))), name='background_status_known')],
            },
        ),
        migrations.RunSQL(WITH_ITS_CONTENT, ALONE),
    ]
