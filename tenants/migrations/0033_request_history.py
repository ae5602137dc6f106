"""What became of requests, by minute and by hour, and those that were refused, one by one."""


import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0032_rollout_notices'),
    ]

    operations = [
        migrations.CreateModel(
            name='RefusedRequest',
            fields=[
                ('id', models.CharField(max_length=64, primary_key=True, serialize=False)),
                ('started_at', models.DateTimeField()),
                ('adapter', models.CharField(max_length=63)),
                ('base_model', models.CharField(max_length=255)),
                ('model', models.CharField(max_length=128)),
                ('surface', models.CharField(max_length=16)),
                ('outcome', models.CharField(choices=[('refused', 'Refused'), ('failed', 'Failed')], max_length=16)),
                ('status', models.PositiveSmallIntegerField()),
                ('code', models.CharField(max_length=64)),
                ('message', models.CharField(max_length=400)),
                ('limit_kind', models.CharField(max_length=64)),
                ('limit_scope', models.CharField(max_length=16)),
                ('total_s', models.FloatField()),
                ('key', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.apikey')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='refused', to='tenants.tenant')),
                ('version', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.adapterversion')),
            ],
            options={
                'ordering': ['-started_at'],
                'indexes': [models.Index(fields=['tenant', 'started_at'], name='refused_by_tenant'), models.Index(fields=['started_at'], name='refused_by_start')],
            },
        ),
        migrations.CreateModel(
            name='RequestHour',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField()),
                ('outcome', models.CharField(max_length=16)),
                ('code', models.CharField(max_length=64)),
                ('limit_kind', models.CharField(max_length=64)),
                ('limit_scope', models.CharField(max_length=16)),
                ('requests', models.BigIntegerField()),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('output_tokens', models.BigIntegerField()),
                ('cost', models.DecimalField(decimal_places=0, max_digits=38)),
                ('decode_tokens', models.BigIntegerField()),
                ('decode_s', models.FloatField()),
                ('first_tokens', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), size=None)),
                ('totals', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), size=None)),
                ('adapter', models.CharField(max_length=63)),
                ('base_model', models.CharField(max_length=255)),
                ('key', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.apikey')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
                ('version', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.adapterversion')),
            ],
            options={
                'ordering': ['tenant', 'at'],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'at', 'key', 'version', 'adapter', 'base_model', 'outcome', 'code', 'limit_kind', 'limit_scope'), name='request_hour_unique', nulls_distinct=False)],
            },
        ),
        migrations.CreateModel(
            name='RequestMinute',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField()),
                ('outcome', models.CharField(max_length=16)),
                ('code', models.CharField(max_length=64)),
                ('limit_kind', models.CharField(max_length=64)),
                ('limit_scope', models.CharField(max_length=16)),
                ('requests', models.BigIntegerField()),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('output_tokens', models.BigIntegerField()),
                ('cost', models.DecimalField(decimal_places=0, max_digits=38)),
                ('decode_tokens', models.BigIntegerField()),
                ('decode_s', models.FloatField()),
                ('first_tokens', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), size=None)),
                ('totals', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), size=None)),
                ('adapter', models.CharField(max_length=63)),
                ('base_model', models.CharField(max_length=255)),
                ('key', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.apikey')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
                ('version', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.adapterversion')),
            ],
            options={
                'ordering': ['tenant', 'at'],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'at', 'key', 'version', 'adapter', 'base_model', 'outcome', 'code', 'limit_kind', 'limit_scope'), name='request_minute_unique', nulls_distinct=False)],
            },
        ),
        migrations.CreateModel(
            name='TotalHour',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField()),
                ('outcome', models.CharField(max_length=16)),
                ('code', models.CharField(max_length=64)),
                ('limit_kind', models.CharField(max_length=64)),
                ('limit_scope', models.CharField(max_length=16)),
                ('requests', models.BigIntegerField()),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('output_tokens', models.BigIntegerField()),
                ('cost', models.DecimalField(decimal_places=0, max_digits=38)),
                ('decode_tokens', models.BigIntegerField()),
                ('decode_s', models.FloatField()),
                ('first_tokens', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), size=None)),
                ('totals', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), size=None)),
                ('tenant', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
            ],
            options={
                'ordering': ['tenant', 'at'],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'at', 'outcome', 'code', 'limit_kind', 'limit_scope'), name='total_hour_unique', nulls_distinct=False)],
            },
        ),
        migrations.CreateModel(
            name='TotalMinute',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField()),
                ('outcome', models.CharField(max_length=16)),
                ('code', models.CharField(max_length=64)),
                ('limit_kind', models.CharField(max_length=64)),
                ('limit_scope', models.CharField(max_length=16)),
                ('requests', models.BigIntegerField()),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('output_tokens', models.BigIntegerField()),
                ('cost', models.DecimalField(decimal_places=0, max_digits=38)),
                ('decode_tokens', models.BigIntegerField()),
                ('decode_s', models.FloatField()),
                ('first_tokens', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), size=None)),
                ('totals', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), size=None)),
                ('tenant', models.ForeignKey(db_index=False, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
            ],
            options={
                'ordering': ['tenant', 'at'],
                'constraints': [models.UniqueConstraint(fields=('tenant', 'at', 'outcome', 'code', 'limit_kind', 'limit_scope'), name='total_minute_unique', nulls_distinct=False)],
            },
        ),
    ]
