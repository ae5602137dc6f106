"""Revisions have a standing, adapters are tried on each of them, and tenants move by rollouts.

Versions that are ready were tried on the kinds of engine that there are: they were served there."""

import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import django.db.models.functions.datetime
from django.conf import settings
from django.db import migrations, models

import tenants.models.adapters
import tenants.models.fleet.rollouts

# A rollout's revision is one of its own base model.
OF_ITS_MODEL = """
ALTER TABLE tenants_poolrevision ADD CONSTRAINT pool_revision_of UNIQUE (id, base_model_id);
ALTER TABLE tenants_rollout ADD CONSTRAINT rollout_of_its_model
    FOREIGN KEY (revision_id, base_model_id) REFERENCES tenants_poolrevision (id, base_model_id)
    DEFERRABLE INITIALLY DEFERRED;
"""
NOT_OF_ITS_MODEL = """
ALTER TABLE tenants_rollout DROP CONSTRAINT rollout_of_its_model;
ALTER TABLE tenants_poolrevision DROP CONSTRAINT pool_revision_of;
"""
TRIED = """
INSERT INTO tenants_trial (version_id, revision_id, passed, report)
SELECT v.id, r.id, true, '{}'
FROM tenants_adapterversion v
JOIN tenants_adapter a ON a.id = v.adapter_id
JOIN tenants_poolrevision r ON r.base_model_id = a.base_model_id
WHERE v.state IN ('ready', 'archived');
"""


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0030_answers_taken_over'),
    ]

    operations = [
        migrations.AddField(
            model_name='basemodel',
            name='defaults',
            field=models.JSONField(blank=True, db_default={}, default=dict, help_text='Sampling parameters for requests that lack them, such as `temperature` and `max_tokens`.', validators=[tenants.models.adapters.check_defaults]),
        ),
        migrations.AddField(
            model_name='basemodel',
            name='serves_new',
            field=models.BooleanField(db_default=False, default=False, help_text='A new revision serves at once, beside the others, without a rollout.'),
        ),
        migrations.AddField(
            model_name='gatewayprocess',
            name='engines',
            field=models.JSONField(db_default={}, default=dict),
        ),
        migrations.AddField(
            model_name='isolationcheck',
            name='revision',
            field=models.CharField(blank=True, db_default='', max_length=64),
        ),
        migrations.AddField(
            model_name='poolrevision',
            name='standing',
            field=models.CharField(choices=[('serving', 'Serving'), ('waiting', 'Waiting'), ('withdrawn', 'Withdrawn')], db_default='serving', default='serving', help_text='`serving`: serves tenants. `waiting`: waits for a rollout, and takes over if no engine of a serving revision is connected. `withdrawn`: receives no requests.', max_length=16),
        ),
        migrations.AddConstraint(
            model_name='poolrevision',
            constraint=models.CheckConstraint(condition=models.Q(('standing__in', ['serving', 'waiting', 'withdrawn'])), name='pool_revision_standing_known'),
        ),
        migrations.CreateModel(
            name='Rollout',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(editable=False, max_length=300)),
                ('state', models.CharField(choices=[('running', 'Running'), ('paused', 'Paused'), ('finished', 'Finished'), ('aborted', 'Aborted'), ('rolled back', 'Rolled Back')], default='running', editable=False, max_length=16)),
                ('weight', models.PositiveSmallIntegerField(default=0, editable=False, help_text='Share of tenants on the new revision, in percent.')),
                ('steps', django.contrib.postgres.fields.ArrayField(base_field=models.PositiveSmallIntegerField(), default=tenants.models.fleet.rollouts.default_steps, help_text='Weights in percent, in increasing order; the last is 100.', size=None, validators=[tenants.models.fleet.rollouts.check_steps])),
                ('step_s', models.PositiveIntegerField(default=600, help_text='Minimum time at each weight, in seconds.', validators=[django.core.validators.MinValueValidator(1), django.core.validators.MaxValueValidator(604800)])),
                ('min_requests', models.PositiveIntegerField(default=20, help_text='Requests that the new revision must answer at each weight before the next step.', validators=[django.core.validators.MaxValueValidator(1000000)])),
                ('max_error_percent', models.FloatField(default=2.0, help_text='By how many percentage points its error rate may exceed that of the present revisions.', validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(100.0)])),
                ('max_ttft_ratio', models.FloatField(blank=True, default=1.5, help_text='Maximum ratio of its time to first token (p95) to that of the present revisions; empty: no limit.', null=True, validators=[django.core.validators.MinValueValidator(1.0), django.core.validators.MaxValueValidator(1000.0)])),
                ('needs_isolation', models.BooleanField(default=True, help_text='Each step requires a passed isolation check.')),
                ('reason', models.CharField(blank=True, editable=False, help_text='Why the rollout ended or was paused.', max_length=1000)),
                ('report', models.JSONField(default=dict, editable=False)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('stepped_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now(), editable=False)),
                ('ended_at', models.DateTimeField(editable=False, null=True)),
                ('base_model', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='rollouts', to='tenants.basemodel')),
                ('created_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('revision', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='rollouts', to='tenants.poolrevision')),
            ],
            options={
                'ordering': ['-id'],
                'constraints': [
                    models.UniqueConstraint(condition=models.Q(('state__in', ['running', 'paused'])), fields=('base_model',), name='rollout_one_open'),
                    models.CheckConstraint(condition=models.Q(('weight__gte', 0), ('weight__lte', 100)), name='rollout_weight'),
                    models.CheckConstraint(condition=models.Q(('state__in', ['running', 'paused', 'finished', 'aborted', 'rolled back'])), name='rollout_state_known'),
                    models.CheckConstraint(condition=models.Q(models.Q(('ended_at', None), ('state__in', ['running', 'paused'])), models.Q(('ended_at__isnull', False), ('state__in', ['finished', 'aborted', 'rolled back'])), _connector='OR'), name='rollout_ended'),
                ],
            },
        ),
        migrations.CreateModel(
            name='RolloutTenant',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('turn', models.CharField(choices=[('first', 'First'), ('last', 'Last')], max_length=8)),
                ('rollout', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='tenants', to='tenants.rollout')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
            ],
            options={
                'ordering': ['tenant__slug'],
                'constraints': [
                    models.UniqueConstraint(fields=('rollout', 'tenant'), name='rollout_tenant_unique'),
                    models.CheckConstraint(condition=models.Q(('turn__in', ['first', 'last'])), name='rollout_turn_known'),
                ],
            },
        ),
        migrations.CreateModel(
            name='Trial',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('passed', models.BooleanField()),
                ('report', models.JSONField(default=dict)),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('revision', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='trials', to='tenants.poolrevision')),
                ('version', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='trials', to='tenants.adapterversion')),
            ],
            options={
                'ordering': ['-at'],
                'constraints': [models.UniqueConstraint(fields=('version', 'revision'), name='trial_unique')],
            },
        ),
        migrations.CreateModel(
            name='RevisionMinute',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('minute', models.DateTimeField()),
                ('requests', models.PositiveBigIntegerField(default=0)),
                ('errors', models.PositiveBigIntegerField(default=0)),
                ('first_tokens', django.contrib.postgres.fields.ArrayField(base_field=models.BigIntegerField(), size=None)),
                ('revision', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='minutes', to='tenants.poolrevision')),
            ],
            options={
                'ordering': ['minute'],
                'constraints': [models.UniqueConstraint(fields=('revision', 'minute'), name='revision_minute_unique')],
            },
        ),
        migrations.RunSQL(OF_ITS_MODEL, NOT_OF_ITS_MODEL),
        migrations.RunSQL(TRIED, migrations.RunSQL.noop),
    ]
