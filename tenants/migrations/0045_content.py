"""Prompts and answers that tenants keep, encrypted by keys of theirs."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.db import migrations, models

AUDIT = """
CREATE TRIGGER zz_audit AFTER INSERT OR UPDATE OR DELETE ON tenants_contentkey FOR EACH ROW
    EXECUTE FUNCTION tenants_audit('content key', 'tenant_id', 'id');
"""
NO_AUDIT = "DROP TRIGGER zz_audit ON tenants_contentkey;"


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0044_requests_debugged'),
    ]

    operations = [
        migrations.CreateModel(
            name='ContentKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('wrapped', models.BinaryField(db_column='password', null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('destroyed_at', models.DateTimeField(null=True)),
                ('confirmation', models.TextField(db_default='')),
            ],
            options={
                'ordering': ['-created_at'],
            },
        ),
        migrations.CreateModel(
            name='StoredContent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('request', 'Request'), ('response', 'Response')], max_length=16)),
                ('name', models.CharField(max_length=64)),
                ('at', models.DateTimeField()),
                ('expires_at', models.DateTimeField()),
                ('data', models.BinaryField()),
            ],
            options={
                'ordering': ['-at'],
            },
        ),
        migrations.AddField(
            model_name='apikey',
            name='keeps_nothing',
            field=models.BooleanField(db_default=False, default=False, help_text="Prompts and answers of this key are never stored, whatever the tenant's setting."),
        ),
        migrations.AddField(
            model_name='tenant',
            name='content_days',
            field=models.PositiveSmallIntegerField(db_default=0, default=0, editable=False),
        ),
        migrations.AddConstraint(
            model_name='tenant',
            constraint=models.CheckConstraint(condition=models.Q(('content_days__lte', 30)), name='tenant_content_days'),
        ),
        migrations.AddField(
            model_name='contentkey',
            name='tenant',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='content_keys', to='tenants.tenant'),
        ),
        migrations.AddField(
            model_name='storedcontent',
            name='content_key',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='contents', to='tenants.contentkey'),
        ),
        migrations.AddField(
            model_name='storedcontent',
            name='tenant',
            field=models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant'),
        ),
        migrations.AddConstraint(
            model_name='contentkey',
            constraint=models.UniqueConstraint(condition=models.Q(('destroyed_at', None)), fields=('tenant',), name='content_key_one_each'),
        ),
        migrations.AddConstraint(
            model_name='contentkey',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('destroyed_at__isnull', False), ('wrapped__isnull', True)), models.Q(('destroyed_at__isnull', True), ('wrapped__isnull', False)), _connector='OR'), name='content_key_destroyed'),
        ),
        migrations.AddIndex(
            model_name='storedcontent',
            index=models.Index(fields=['expires_at'], name='content_by_end'),
        ),
        migrations.AddConstraint(
            model_name='storedcontent',
            constraint=models.UniqueConstraint(fields=('tenant', 'kind', 'name'), name='content_unique'),
        ),
        migrations.RunSQL(AUDIT, NO_AUDIT),
    ]
