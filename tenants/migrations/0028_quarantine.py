"""What engines report and no gateway dispatched to them is kept apart; decisions are in the audit
log, and the engines' own reports are not."""

import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0027_engine_credentials'),
    ]

    operations = [
        migrations.CreateModel(
            name='QuarantinedEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('received_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('engine_id', models.CharField(max_length=255)),
                ('journal', models.CharField(max_length=64)),
                ('key', models.CharField(max_length=64)),
                ('request_id', models.CharField(max_length=64)),
                ('attempt', models.BigIntegerField()),
                ('reason', models.CharField(max_length=32)),
                ('detail', models.TextField(blank=True)),
                ('prompt_tokens', models.BigIntegerField()),
                ('completion_tokens', models.BigIntegerField()),
                ('entry', models.TextField()),
                ('status', models.CharField(choices=[('open', 'Open'), ('billed', 'Billed'), ('dismissed', 'Dismissed')], db_default='open', max_length=16)),
                ('decided_at', models.DateTimeField(null=True)),
                ('credential', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='quarantined', to='tenants.enginecredential')),
                ('decided_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'verbose_name_plural': 'quarantined entries',
                'ordering': ['-id'],
                'indexes': [
                    models.Index(condition=Q(('status', 'open')), fields=['credential'], name='quarantine_open'),
                    models.Index(fields=['journal'], name='quarantine_by_journal'),
                ],
                'constraints': [
                    models.UniqueConstraint(fields=('credential', 'key'), name='quarantined_once', nulls_distinct=False),
                    models.CheckConstraint(
                        condition=Q(('decided_at__isnull', True), ('status', 'open'))
                        | Q(('decided_at__isnull', False), ('status__in', ['billed', 'dismissed'])),
                        name='quarantine_decided',
                    ),
                ],
            },
        ),
        migrations.RunSQL(
            "CREATE TRIGGER zz_audit AFTER UPDATE OR DELETE ON tenants_quarantinedentry "
            "FOR EACH ROW EXECUTE FUNCTION tenants_audit('quarantined', '', 'request_id');",
            "DROP TRIGGER zz_audit ON tenants_quarantinedentry;",
        ),
    ]
