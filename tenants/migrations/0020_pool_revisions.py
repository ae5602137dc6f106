"""What each kind of engine of a base model can do, so that none overwrites what another said."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0019_no_admin_log'),
    ]

    operations = [
        migrations.CreateModel(
            name='PoolRevision',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('digest', models.CharField(max_length=64)),
                ('revision', models.CharField(blank=True, max_length=64)),
                ('engine', models.CharField(max_length=32)),
                ('engine_version', models.CharField(blank=True, max_length=64)),
                ('max_model_len', models.PositiveIntegerField()),
                ('max_lora_rank', models.PositiveIntegerField()),
                ('modules', models.JSONField(default=dict)),
                ('operations', models.JSONField(default=list)),
                ('parsers', models.JSONField(default=dict)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('seen_at', models.DateTimeField()),
                ('base_model', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='revisions', to='tenants.basemodel')),
            ],
            options={
                'ordering': ['-seen_at'],
                'constraints': [models.UniqueConstraint(fields=('base_model', 'digest'), name='pool_revision_unique')],
            },
        ),
    ]
