"""All tables, and the SQL beside them, which is in `tenants/sql`."""

from pathlib import Path

import django.contrib.auth.models
import django.contrib.auth.validators
import django.contrib.postgres.fields
import django.contrib.postgres.functions
import django.core.validators
import django.db.models.deletion
import django.db.models.expressions
import django.db.models.functions.datetime
import django.db.models.lookups
import django.utils.timezone
import inference.gateway.lines.seals
import tenants.batch_states
import tenants.models.accounts
import tenants.models.adapters
import tenants.models.files
import tenants.models.fleet.rollouts
import tenants.models.notifications
import tenants.models.uploads
import uuid
from django.conf import settings
from django.db import migrations, models


SQL = Path(__file__).parents[1] / "sql"


def partition(apps, editor):
    """Partition the ledger by month, which models cannot declare: the key has to contain the time."""
    editor.execute(
        "CREATE TABLE partitioned (LIKE tenants_usageevent INCLUDING DEFAULTS) "
        "PARTITION BY RANGE (started_at)"
    )
    editor.delete_model(apps.get_model("tenants", "UsageEvent"))
    editor.execute("ALTER TABLE partitioned RENAME TO tenants_usageevent")
    editor.execute("ALTER TABLE tenants_usageevent ADD PRIMARY KEY (id, started_at)")



class Migration(migrations.Migration):

    initial = True

    dependencies = [
        ('auth', '0012_alter_user_first_name_max_length'),
        ('sessions', '0001_initial'),
    ]

    operations = [
        migrations.CreateModel(
            name='TenantSum',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('base_model', models.CharField(max_length=255)),
                ('requests', models.BigIntegerField()),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('completion_tokens', models.BigIntegerField()),
                ('reasoning_tokens', models.BigIntegerField()),
                ('cost', models.DecimalField(decimal_places=0, max_digits=38)),
                ('span', models.CharField(choices=[('hour', 'Hour'), ('day', 'Day'), ('month', 'Month')], max_length=5)),
                ('start', models.DateTimeField()),
            ],
            options={
                'ordering': ['tenant', 'start'],
                'managed': False,
            },
        ),
        migrations.CreateModel(
            name='UsageSum',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('base_model', models.CharField(max_length=255)),
                ('requests', models.BigIntegerField()),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('completion_tokens', models.BigIntegerField()),
                ('reasoning_tokens', models.BigIntegerField()),
                ('cost', models.DecimalField(decimal_places=0, max_digits=38)),
                ('adapter', models.CharField(max_length=63)),
                ('model', models.CharField(max_length=255)),
                ('span', models.CharField(choices=[('hour', 'Hour'), ('day', 'Day'), ('month', 'Month')], max_length=5)),
                ('start', models.DateTimeField()),
            ],
            options={
                'ordering': ['tenant', 'start'],
                'managed': False,
            },
        ),
        migrations.CreateModel(
            name='AuditActor',
            fields=[
                ('name', models.CharField(max_length=255, primary_key=True, serialize=False)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='BaseModel',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=255, unique=True)),
                ('max_model_len', models.PositiveIntegerField()),
                ('max_lora_rank', models.PositiveIntegerField()),
                ('modules', models.JSONField(default=dict)),
                ('engine', models.CharField(max_length=32)),
                ('defaults', models.JSONField(blank=True, db_default={}, default=dict, help_text='Sampling parameters for requests that lack them, such as `temperature` and `max_tokens`.', validators=[tenants.models.adapters.check_defaults])),
                ('serves_new', models.BooleanField(db_default=False, default=False, help_text='A new revision serves at once, beside the others, without a rollout.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('updated_at', models.DateTimeField(auto_now=True)),
            ],
            options={
                'ordering': ['name'],
            },
        ),
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
            name='GatewayProcess',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('url', models.CharField(max_length=255, unique=True)),
                ('heartbeat_at', models.DateTimeField()),
                ('demand', models.JSONField(db_default={}, default=dict)),
                ('engines', models.JSONField(db_default={}, default=dict)),
            ],
            options={
                'verbose_name_plural': 'gateway processes',
                'ordering': ['url'],
            },
        ),
        migrations.CreateModel(
            name='Notification',
            fields=[
                ('id', models.UUIDField(db_default=django.contrib.postgres.functions.RandomUUID(), primary_key=True, serialize=False)),
                ('kind', models.CharField(choices=[('adapter.ready', 'Adapter ready'), ('adapter.rejected', 'Adapter rejected'), ('budget.reached', 'Budget 80% or 100% used'), ('key.expiring', 'API key expires within a week'), ('engine.lost', 'Engine lost'), ('ledger.drift', 'Ledger differs from an engine'), ('isolation.failed', 'Isolation check failed'), ('rollout.stopped', 'Rollout rolled back or aborted')], max_length=32)),
                ('data', models.JSONField()),
                ('once', models.CharField(max_length=200)),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('mailed', models.BooleanField(db_default=False)),
            ],
            options={
                'ordering': ['-at'],
            },
        ),
        migrations.CreateModel(
            name='StoredFile',
            fields=[
                ('id', models.CharField(default=tenants.models.files.new_file_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('purpose', models.CharField(choices=[('batch', 'Batch'), ('fine-tune', 'Fine Tune'), ('evals', 'Evals'), ('user_data', 'User Data'), ('batch_output', 'Batch Output')], max_length=16)),
                ('filename', models.CharField(max_length=255)),
                ('size_bytes', models.PositiveBigIntegerField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('expires_at', models.DateTimeField(db_index=True, null=True)),
            ],
            options={
                'ordering': ['-created_at', '-id'],
            },
        ),
        migrations.CreateModel(
            name='SupersededAttempt',
            fields=[
                ('pk', models.CompositePrimaryKey('request_id', 'started_at', 'attempt', blank=True, editable=False, primary_key=True, serialize=False)),
                ('request_id', models.CharField(max_length=64)),
                ('started_at', models.DateTimeField()),
                ('attempt', models.IntegerField()),
                ('engine_id', models.CharField(max_length=255)),
                ('journal', models.CharField(max_length=64)),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('completion_tokens', models.BigIntegerField()),
                ('reasoning_tokens', models.BigIntegerField()),
                ('inherited_tokens', models.BigIntegerField()),
                ('finish_reason', models.CharField(max_length=64)),
                ('given_s', models.FloatField(db_default=0.0, default=0.0)),
                ('queue_s', models.FloatField(db_default=0.0, default=0.0)),
                ('load_s', models.FloatField(db_default=0.0, default=0.0)),
                ('ttft_s', models.FloatField(null=True)),
                ('total_s', models.FloatField(db_default=0.0, default=0.0)),
            ],
        ),
        migrations.CreateModel(
            name='User',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('password', models.CharField(max_length=128, verbose_name='password')),
                ('last_login', models.DateTimeField(blank=True, null=True, verbose_name='last login')),
                ('is_superuser', models.BooleanField(default=False, help_text='Designates that this user has all permissions without explicitly assigning them.', verbose_name='superuser status')),
                ('username', models.CharField(error_messages={'unique': 'A user with that username already exists.'}, help_text='Required. 150 characters or fewer. Letters, digits and @/./+/-/_ only.', max_length=150, unique=True, validators=[django.contrib.auth.validators.UnicodeUsernameValidator()], verbose_name='username')),
                ('first_name', models.CharField(blank=True, max_length=150, verbose_name='first name')),
                ('last_name', models.CharField(blank=True, max_length=150, verbose_name='last name')),
                ('email', models.EmailField(blank=True, max_length=254, verbose_name='email address')),
                ('is_staff', models.BooleanField(default=False, help_text='Designates whether the user can log into this admin site.', verbose_name='staff status')),
                ('is_active', models.BooleanField(default=True, help_text='Designates whether this user should be treated as active. Unselect this instead of deleting accounts.', verbose_name='active')),
                ('date_joined', models.DateTimeField(default=django.utils.timezone.now, verbose_name='date joined')),
                ('groups', models.ManyToManyField(blank=True, help_text='The groups this user belongs to. A user will get all permissions granted to each of their groups.', related_name='user_set', related_query_name='user', to='auth.group', verbose_name='groups')),
                ('user_permissions', models.ManyToManyField(blank=True, help_text='Specific permissions for this user.', related_name='user_set', related_query_name='user', to='auth.permission', verbose_name='user permissions')),
            ],
            options={
                'verbose_name': 'user',
                'verbose_name_plural': 'users',
                'abstract': False,
            },
            managers=[
                ('objects', django.contrib.auth.models.UserManager()),
            ],
        ),
        migrations.CreateModel(
            name='Adapter',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63, validators=[django.core.validators.RegexValidator('^[a-z0-9][a-z0-9._-]{0,62}$', 'Lower-case letters, digits, dots, underscores and hyphens, up to 63.')])),
                ('pinned', models.BooleanField(default=False, help_text='Engines keep its live version loaded. Only operators can set this.')),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('created_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('base_model', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='adapters', to='tenants.basemodel')),
            ],
            options={
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='AdapterVersion',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('number', models.PositiveIntegerField()),
                ('digest', models.CharField(max_length=64)),
                ('state', models.CharField(choices=[('uploading', 'Uploading'), ('validating', 'Validating'), ('probing', 'Probing'), ('ready', 'Ready'), ('rejected', 'Rejected'), ('archived', 'Archived')], default='uploading', max_length=16)),
                ('size_bytes', models.PositiveBigIntegerField(default=0)),
                ('folder', models.CharField(blank=True, max_length=255)),
                ('trained_on', models.CharField(blank=True, max_length=255)),
                ('converted', models.JSONField(blank=True, default=dict)),
                ('left_out', models.JSONField(blank=True, default=list)),
                ('config', models.JSONField(blank=True, default=dict)),
                ('report', models.JSONField(blank=True, default=dict)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('adapter', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='versions', to='tenants.adapter')),
                ('created_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-number'],
            },
        ),
        migrations.CreateModel(
            name='Alias',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=63, validators=[django.core.validators.RegexValidator('^[a-z0-9][a-z0-9._-]{0,62}$', 'Lower-case letters, digits, dots, underscores and hyphens, up to 63.'), django.core.validators.RegexValidator('^([0-9]+|[0-9a-f]{8,64})$', 'The name must not look like a version number or a digest.', inverse_match=True)])),
                ('changed_at', models.DateTimeField(auto_now=True)),
                ('adapter', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='aliases', to='tenants.adapter')),
                ('previous', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='tenants.adapterversion')),
                ('version', models.ForeignKey(on_delete=django.db.models.deletion.RESTRICT, related_name='aliases', to='tenants.adapterversion')),
            ],
            options={
                'verbose_name_plural': 'aliases',
                'ordering': ['name'],
            },
        ),
        migrations.CreateModel(
            name='ApiKey',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('prefix', models.CharField(editable=False, max_length=12, unique=True)),
                ('secret_hmac', models.BinaryField(max_length=32)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('revoked_at', models.DateTimeField(editable=False, null=True)),
                ('name', models.CharField(max_length=200)),
                ('scopes', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(choices=[('inference', 'Inference'), ('adapters:write', 'Write Adapters'), ('usage:read', 'Read Usage'), ('admin', 'Admin')], max_length=32), size=None)),
                ('allowed_models', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=255), blank=True, help_text='Model names, without versions, that this key may use; empty: all.', null=True, size=None)),
                ('lane', models.CharField(choices=[('interactive', 'Interactive'), ('batch', 'Batch')], default='interactive', help_text='Requests of a batch key wait behind interactive ones.', max_length=16)),
                ('keeps_nothing', models.BooleanField(db_default=False, default=False, help_text="Prompts and answers of this key are never stored, whatever the tenant's setting.")),
                ('expires_at', models.DateTimeField(blank=True, null=True)),
                ('last_used_at', models.DateTimeField(editable=False, null=True)),
                ('created_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('origin', models.ForeignKey(editable=False, help_text='The first of the keys that were rotated into this one.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='tenants.apikey')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='Batch',
            fields=[
                ('id', models.CharField(default=inference.gateway.lines.seals.new_batch_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('operation', models.CharField(max_length=32)),
                ('endpoint', models.CharField(max_length=64)),
                ('metadata', models.JSONField(null=True)),
                ('output_seconds', models.PositiveIntegerField(null=True)),
                ('seal', models.CharField(max_length=64)),
                ('idempotency_key', models.CharField(default='', max_length=255)),
                ('status', models.CharField(choices=[('validating', 'validating'), ('failed', 'failed'), ('in_progress', 'in_progress'), ('finalizing', 'finalizing'), ('completed', 'completed'), ('expired', 'expired'), ('cancelling', 'cancelling'), ('cancelled', 'cancelled')], default=tenants.batch_states.Status['VALIDATING'], max_length=16)),
                ('ending', models.CharField(choices=[('validating', 'validating'), ('failed', 'failed'), ('in_progress', 'in_progress'), ('finalizing', 'finalizing'), ('completed', 'completed'), ('expired', 'expired'), ('cancelling', 'cancelling'), ('cancelled', 'cancelled')], default=tenants.batch_states.Status['COMPLETED'], max_length=16)),
                ('errors', models.JSONField(default=list)),
                ('total', models.PositiveIntegerField(default=0)),
                ('completed', models.PositiveIntegerField(default=0)),
                ('failed', models.PositiveIntegerField(default=0)),
                ('prompt_tokens', models.BigIntegerField(default=0)),
                ('cached_tokens', models.BigIntegerField(default=0)),
                ('completion_tokens', models.BigIntegerField(default=0)),
                ('reasoning_tokens', models.BigIntegerField(default=0)),
                ('run', models.PositiveIntegerField(default=0)),
                ('leased_until', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('expires_at', models.DateTimeField()),
                ('in_progress_at', models.DateTimeField(null=True)),
                ('cancelling_at', models.DateTimeField(null=True)),
                ('finalizing_at', models.DateTimeField(null=True)),
                ('ended_at', models.DateTimeField(null=True)),
                ('key', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.apikey')),
                ('error_file', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.storedfile')),
                ('input_file', models.ForeignKey(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='batches', to='tenants.storedfile')),
                ('output_file', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.storedfile')),
            ],
            options={
                'ordering': ['-created_at', '-id'],
            },
        ),
        migrations.CreateModel(
            name='BatchLine',
            fields=[
                ('pk', models.CompositePrimaryKey('batch_id', 'number', blank=True, editable=False, primary_key=True, serialize=False)),
                ('number', models.PositiveIntegerField()),
                ('status_code', models.PositiveSmallIntegerField()),
                ('body', models.BinaryField()),
                ('batch', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='lines', to='tenants.batch')),
            ],
            options={
                'ordering': ['number'],
            },
        ),
        migrations.CreateModel(
            name='EngineCredential',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('prefix', models.CharField(editable=False, max_length=12, unique=True)),
                ('secret_hmac', models.BinaryField(max_length=32)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('revoked_at', models.DateTimeField(editable=False, null=True)),
                ('name', models.CharField(help_text='For example the machine that the engine runs on.', max_length=200)),
                ('pools', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=255), blank=True, help_text='Base models that the engine may serve; empty: all.', null=True, size=None)),
                ('last_seen_at', models.DateTimeField(editable=False, null=True)),
                ('stopped_at', models.DateTimeField(editable=False, null=True)),
                ('created_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['-id'],
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
        migrations.CreateModel(
            name='EngineJournal',
            fields=[
                ('journal', models.CharField(max_length=64, primary_key=True, serialize=False)),
                ('engine_id', models.CharField(max_length=255)),
                ('ledger_requests', models.BigIntegerField(default=0)),
                ('ledger_prompt_tokens', models.BigIntegerField(default=0)),
                ('ledger_cached_tokens', models.BigIntegerField(default=0)),
                ('ledger_completion_tokens', models.BigIntegerField(default=0)),
                ('counted_requests', models.BigIntegerField(default=0)),
                ('counted_prompt_tokens', models.BigIntegerField(default=0)),
                ('counted_cached_tokens', models.BigIntegerField(default=0)),
                ('counted_completion_tokens', models.BigIntegerField(default=0)),
                ('unjournaled_tokens', models.BigIntegerField(default=0)),
                ('waiting_requests', models.BigIntegerField(default=0)),
                ('surplus_requests', models.BigIntegerField(null=True)),
                ('surplus_tokens', models.BigIntegerField(null=True)),
                ('accepted_requests', models.BigIntegerField(db_default=0, default=0)),
                ('accepted_tokens', models.BigIntegerField(db_default=0, default=0)),
                ('reported_at', models.DateTimeField(null=True)),
            ],
            options={
                'ordering': ['engine_id'],
                'indexes': [models.Index(fields=['reported_at'], name='journal_by_report')],
            },
        ),
        migrations.CreateModel(
            name='IdempotentAnswer',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(help_text='The Idempotency-Key header.', max_length=255)),
                ('body_digest', models.BinaryField(help_text='SHA-256 of path and body.', max_length=32)),
                ('request_id', models.CharField(max_length=64)),
                ('turn', models.IntegerField(db_default=1, default=1)),
                ('claimed_until', models.DateTimeField()),
                ('content_type', models.CharField(blank=True, max_length=100)),
                ('answer', models.BinaryField(null=True)),
                ('created_at', models.DateTimeField()),
                ('key', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='answers', to='tenants.apikey')),
            ],
            options={
                'ordering': ['-created_at'],
            },
        ),
        migrations.CreateModel(
            name='IsolationCheck',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('base_model', models.CharField(max_length=255)),
                ('passed', models.BooleanField(null=True)),
                ('findings', models.JSONField(default=list)),
                ('engines', models.JSONField(default=list)),
                ('revision', models.CharField(blank=True, db_default='', max_length=64)),
            ],
            options={
                'ordering': ['-at'],
                'indexes': [models.Index(fields=['base_model', '-at'], name='isolation_by_model')],
            },
        ),
        migrations.CreateModel(
            name='Membership',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('role', models.CharField(choices=[('owner', 'Owner'), ('admin', 'Admin'), ('developer', 'Developer'), ('viewer', 'Viewer')], max_length=16)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.PROTECT, related_name='memberships', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='Conversation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('title', models.CharField(max_length=120)),
                ('panes', models.TextField()),
                ('revision', models.PositiveIntegerField(default=1)),
                ('shared_as', models.UUIDField(null=True, unique=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('updated_at', models.DateTimeField(auto_now_add=True)),
                ('member', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='conversations', to='tenants.membership')),
            ],
            options={
                'ordering': ['-updated_at', '-id'],
            },
        ),
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
                ('standing', models.CharField(choices=[('serving', 'Serving'), ('waiting', 'Waiting'), ('withdrawn', 'Withdrawn')], db_default='serving', default='serving', help_text='`serving`: serves tenants. `waiting`: waits for a rollout, and takes over if no engine of a serving revision is connected. `withdrawn`: receives no requests.', max_length=16)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('seen_at', models.DateTimeField()),
                ('base_model', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='revisions', to='tenants.basemodel')),
            ],
            options={
                'ordering': ['-seen_at'],
            },
        ),
        migrations.CreateModel(
            name='Price',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('tier', models.CharField(choices=[('standard', 'Standard'), ('batch', 'Batch')], db_default='standard', default='standard', help_text='`batch`: for requests of batches, which otherwise cost the standard price.', max_length=8)),
                ('starts_at', models.DateTimeField()),
                ('prompt', models.BigIntegerField(help_text='Prompt tokens that were not in the cache.')),
                ('cached_prompt', models.BigIntegerField()),
                ('output', models.BigIntegerField()),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('adapter', models.ForeignKey(blank=True, db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='prices', to='tenants.adapter')),
                ('base_model', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='prices', to='tenants.basemodel')),
            ],
            options={
                'ordering': ['-starts_at'],
            },
        ),
        migrations.CreateModel(
            name='PromptSet',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=80)),
                ('shared', models.BooleanField(default=False)),
                ('prompts', models.JSONField()),
                ('member', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.membership')),
            ],
            options={
                'ordering': ['name', 'id'],
            },
        ),
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
            },
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
            },
        ),
        migrations.CreateModel(
            name='SavedPrompt',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=80)),
                ('shared', models.BooleanField(default=False)),
                ('text', models.TextField(max_length=20000)),
                ('system', models.TextField(blank=True, max_length=20000)),
                ('member', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.membership')),
            ],
            options={
                'ordering': ['name', 'id'],
            },
        ),
        migrations.CreateModel(
            name='SavedView',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=80)),
                ('query', models.CharField(max_length=1000)),
                ('member', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.membership')),
            ],
            options={
                'ordering': ['name'],
            },
        ),
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
            },
        ),
        migrations.CreateModel(
            name='Target',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('url', models.CharField(max_length=500)),
                ('kinds', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=32), size=None)),
                ('secrets', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=64), db_column='password', default=tenants.models.notifications.first_secrets, editable=False, size=None)),
                ('rotated_at', models.DateTimeField(null=True)),
                ('created_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('ended_at', models.DateTimeField(null=True)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='Delivery',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('state', models.CharField(choices=[('waiting', 'Waiting'), ('delivered', 'Delivered'), ('failed', 'Failed')], db_default='waiting', max_length=16)),
                ('attempts', models.PositiveSmallIntegerField(db_default=0)),
                ('due_at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('tried_at', models.DateTimeField(null=True)),
                ('status', models.PositiveSmallIntegerField(null=True)),
                ('error', models.CharField(db_default='', max_length=300)),
                ('user', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('notification', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='tenants.notification')),
                ('target', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='deliveries', to='tenants.target')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.CreateModel(
            name='Tenant',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('slug', models.CharField(max_length=63, unique=True, validators=[django.core.validators.RegexValidator('^[a-z0-9][a-z0-9-]{0,62}$', 'Lower-case letters, digits and hyphens, up to 63.')])),
                ('name', models.CharField(max_length=200)),
                ('status', models.CharField(choices=[('active', 'Active'), ('suspended', 'Suspended')], default='active', max_length=16)),
                ('weight', models.FloatField(default=1.0, help_text='Share of the engines, relative to the other tenants.', validators=[django.core.validators.MinValueValidator(0.001), django.core.validators.MaxValueValidator(1000.0)])),
                ('max_stored_bytes', models.PositiveBigIntegerField(blank=True, help_text="Bytes of adapter files that the tenant may store; empty: the installation's default.", null=True)),
                ('max_versions', models.PositiveIntegerField(blank=True, help_text="Adapter versions that the tenant may store; empty: the installation's default.", null=True)),
                ('cache_secret', models.BinaryField(default=tenants.models.accounts.new_cache_secret, max_length=32)),
                ('content_days', models.PositiveSmallIntegerField(db_default=0, default=0, editable=False)),
                ('internal', models.BooleanField(db_default=False, default=False, editable=False)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
            ],
            options={
                'ordering': ['slug'],
                'constraints': [models.CheckConstraint(condition=models.Q(('slug__regex', '^[a-z0-9][a-z0-9-]{0,62}$')), name='tenant_slug_form'), models.CheckConstraint(condition=models.Q(('status__in', ['active', 'suspended'])), name='tenant_status_known'), models.CheckConstraint(condition=models.Q(('weight__gte', 0.001), ('weight__lte', 1000.0)), name='tenant_weight_in_bounds'), models.CheckConstraint(condition=models.Q(('content_days__lte', 30)), name='tenant_content_days')],
            },
        ),
        migrations.AddField(
            model_name='target',
            name='tenant',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='targets', to='tenants.tenant'),
        ),
        migrations.AddField(
            model_name='storedfile',
            name='tenant',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='files', to='tenants.tenant'),
        ),
        migrations.CreateModel(
            name='StoredContent',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kind', models.CharField(choices=[('request', 'Request'), ('response', 'Response'), ('conversation', 'Conversation')], max_length=16)),
                ('name', models.CharField(max_length=64)),
                ('at', models.DateTimeField()),
                ('expires_at', models.DateTimeField()),
                ('data', models.BinaryField()),
                ('content_key', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='contents', to='tenants.contentkey')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
            ],
            options={
                'ordering': ['-at'],
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
                ('version', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.adapterversion')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
            ],
            options={
                'ordering': ['tenant', 'at'],
                'abstract': False,
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
                ('version', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.adapterversion')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
            ],
            options={
                'ordering': ['tenant', 'at'],
                'abstract': False,
            },
        ),
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
                ('trace_id', models.CharField(db_default='', default='', max_length=32)),
                ('key', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.apikey')),
                ('version', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.adapterversion')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='refused', to='tenants.tenant')),
            ],
            options={
                'ordering': ['-started_at'],
            },
        ),
        migrations.AddField(
            model_name='notification',
            name='tenant',
            field=models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant'),
        ),
        migrations.CreateModel(
            name='Muted',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('kinds', django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=32), size=None)),
                ('user', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('tenant', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.AddField(
            model_name='membership',
            name='tenant',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='memberships', to='tenants.tenant'),
        ),
        migrations.CreateModel(
            name='LimitSet',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('author', models.CharField(choices=[('operator', 'Operator'), ('tenant', 'Tenant')], max_length=16)),
                ('updated_at', models.DateTimeField(auto_now=True)),
                ('requests_per_minute', models.BigIntegerField(blank=True, help_text='Requests in any 60 seconds.', null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)])),
                ('tokens_per_minute', models.BigIntegerField(blank=True, help_text='Prompt and output tokens in any 60 seconds.', null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)])),
                ('prompt_tokens_per_minute', models.BigIntegerField(blank=True, help_text='Prompt tokens that were not in the cache, in any 60 seconds.', null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)])),
                ('output_tokens_per_minute', models.BigIntegerField(blank=True, help_text='Output tokens in any 60 seconds.', null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)])),
                ('concurrent_streams', models.BigIntegerField(blank=True, help_text='Requests running or waiting at the same time.', null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)])),
                ('tokens_per_day', models.BigIntegerField(blank=True, help_text='Prompt and output tokens in a UTC day.', null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)])),
                ('tokens_per_month', models.BigIntegerField(blank=True, help_text='Prompt and output tokens in a UTC month.', null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)])),
                ('cost_per_day', models.BigIntegerField(blank=True, help_text='Micro-units of the currency in a UTC day.', null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)])),
                ('cost_per_month', models.BigIntegerField(blank=True, help_text='Micro-units of the currency in a UTC month.', null=True, validators=[django.core.validators.MinValueValidator(0), django.core.validators.MaxValueValidator(1000000000000)])),
                ('adapter', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='limit_sets', to='tenants.adapter')),
                ('key', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='limit_sets', to='tenants.apikey')),
                ('tenant', models.ForeignKey(blank=True, null=True, on_delete=django.db.models.deletion.CASCADE, related_name='limit_sets', to='tenants.tenant')),
            ],
            options={
                'ordering': ['id'],
            },
        ),
        migrations.CreateModel(
            name='Invitation',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('role', models.CharField(choices=[('owner', 'Owner'), ('admin', 'Admin'), ('developer', 'Developer'), ('viewer', 'Viewer')], max_length=16)),
                ('note', models.CharField(blank=True, help_text='Who the invitation is for.', max_length=200)),
                ('token_digest', models.BinaryField(max_length=32, unique=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField()),
                ('accepted_at', models.DateTimeField(null=True)),
                ('withdrawn_at', models.DateTimeField(null=True)),
                ('accepted_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('created_by', models.ForeignKey(null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='invitations', to='tenants.tenant')),
            ],
            options={
                'ordering': ['-id'],
            },
        ),
        migrations.AddField(
            model_name='contentkey',
            name='tenant',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='content_keys', to='tenants.tenant'),
        ),
        migrations.AddField(
            model_name='batch',
            name='tenant',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='batches', to='tenants.tenant'),
        ),
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
                ('key', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.apikey')),
                ('content', models.OneToOneField(db_constraint=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='background', to='tenants.storedcontent')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.tenant')),
            ],
        ),
        migrations.CreateModel(
            name='AuditEntry',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('at', models.DateTimeField(db_default=django.db.models.functions.datetime.Now())),
                ('actor_kind', models.CharField(max_length=16)),
                ('actor_id', models.BigIntegerField(null=True)),
                ('actor_name', models.CharField(blank=True, max_length=255)),
                ('address', models.CharField(blank=True, max_length=64)),
                ('request_id', models.CharField(blank=True, max_length=64)),
                ('action', models.CharField(max_length=32)),
                ('kind', models.CharField(max_length=32)),
                ('name', models.CharField(blank=True, max_length=255)),
                ('object_id', models.BigIntegerField(null=True)),
                ('before', models.JSONField(null=True)),
                ('after', models.JSONField(null=True)),
                ('tenant', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='audit', to='tenants.tenant')),
            ],
            options={
                'verbose_name_plural': 'audit entries',
                'ordering': ['-id'],
            },
        ),
        migrations.AddField(
            model_name='apikey',
            name='tenant',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='keys', to='tenants.tenant'),
        ),
        migrations.AddField(
            model_name='adapter',
            name='tenant',
            field=models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='adapters', to='tenants.tenant'),
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
                'abstract': False,
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
                'abstract': False,
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
            },
        ),
        migrations.CreateModel(
            name='Upload',
            fields=[
                ('id', models.CharField(default=tenants.models.files.new_upload_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('purpose', models.CharField(choices=[('batch', 'Batch'), ('fine-tune', 'Fine Tune'), ('evals', 'Evals'), ('user_data', 'User Data'), ('batch_output', 'Batch Output')], max_length=16)),
                ('filename', models.CharField(max_length=255)),
                ('size_bytes', models.PositiveBigIntegerField()),
                ('kept_seconds', models.PositiveIntegerField(null=True)),
                ('status', models.CharField(choices=[('pending', 'Pending'), ('completed', 'Completed'), ('cancelled', 'Cancelled'), ('expired', 'Expired')], default='pending', max_length=16)),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('expires_at', models.DateTimeField(db_index=True)),
                ('file', models.ForeignKey(db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.storedfile')),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='file_uploads', to='tenants.tenant')),
            ],
            options={
                'ordering': ['-created_at', '-id'],
            },
        ),
        migrations.CreateModel(
            name='UploadPart',
            fields=[
                ('id', models.CharField(default=tenants.models.files.new_part_id, editable=False, max_length=32, primary_key=True, serialize=False)),
                ('size_bytes', models.PositiveBigIntegerField()),
                ('created_at', models.DateTimeField(default=django.utils.timezone.now)),
                ('upload', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='parts', to='tenants.upload')),
            ],
            options={
                'ordering': ['created_at', 'id'],
            },
        ),
        migrations.CreateModel(
            name='UploadSession',
            fields=[
                ('id', models.UUIDField(default=uuid.uuid4, editable=False, primary_key=True, serialize=False)),
                ('adapter_name', models.CharField(max_length=63)),
                ('file_name', models.CharField(max_length=255)),
                ('base_model_name', models.CharField(blank=True, max_length=255)),
                ('base_confirmed', models.BooleanField(default=False)),
                ('metadata', models.TextField()),
                ('oid', models.CharField(blank=True, db_default='', default='', editable=False, max_length=64)),
                ('length_bytes', models.PositiveBigIntegerField()),
                ('left_out', models.JSONField(default=list)),
                ('known', models.BooleanField(default=False)),
                ('refusal', models.JSONField(null=True)),
                ('received_at', models.DateTimeField(null=True)),
                ('actor', models.JSONField(null=True)),
                ('created_at', models.DateTimeField(auto_now_add=True)),
                ('expires_at', models.DateTimeField(db_index=True, default=tenants.models.uploads.expiry)),
                ('created_by', models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to=settings.AUTH_USER_MODEL)),
                ('tenant', models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name='uploads', to='tenants.tenant')),
                ('version', models.ForeignKey(null=True, on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.adapterversion')),
            ],
            options={
                'ordering': ['created_at'],
            },
        ),
        migrations.CreateModel(
            name='UsageEvent',
            fields=[
                ('id', models.CharField(max_length=64, primary_key=True, serialize=False)),
                ('started_at', models.DateTimeField()),
                ('adapter', models.CharField(max_length=63)),
                ('model', models.CharField(max_length=255)),
                ('base_model', models.CharField(max_length=255)),
                ('engine_id', models.CharField(max_length=255)),
                ('journal', models.CharField(max_length=64)),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('completion_tokens', models.BigIntegerField()),
                ('reasoning_tokens', models.BigIntegerField()),
                ('prompt_price', models.BigIntegerField()),
                ('cached_prompt_price', models.BigIntegerField()),
                ('output_price', models.BigIntegerField()),
                ('cost', models.BigIntegerField()),
                ('finish_reason', models.CharField(max_length=64)),
                ('queue_s', models.FloatField()),
                ('load_s', models.FloatField()),
                ('ttft_s', models.FloatField(null=True)),
                ('total_s', models.FloatField()),
                ('attempt', models.IntegerField(db_default=1, default=1)),
                ('inherited_tokens', models.BigIntegerField(db_default=0, default=0)),
                ('regenerated_tokens', models.BigIntegerField(db_default=0, default=0)),
                ('given_s', models.FloatField(db_default=0.0, default=0.0)),
                ('trace_id', models.CharField(db_default='', default='', max_length=32)),
                ('key', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.apikey')),
                ('tenant', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='usage', to='tenants.tenant')),
                ('version', models.ForeignKey(db_constraint=False, db_index=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.adapterversion')),
            ],
            options={
                'ordering': ['-started_at'],
            },
        ),
        migrations.RunPython(partition),
        migrations.CreateModel(
            name='UsageMonth',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('base_model', models.CharField(max_length=255)),
                ('requests', models.BigIntegerField()),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('completion_tokens', models.BigIntegerField()),
                ('reasoning_tokens', models.BigIntegerField()),
                ('cost', models.DecimalField(decimal_places=0, max_digits=38)),
                ('adapter', models.CharField(max_length=63)),
                ('model', models.CharField(max_length=255)),
                ('month', models.DateTimeField()),
                ('key', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.apikey')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.tenant')),
            ],
            options={
                'ordering': ['tenant', 'month'],
            },
        ),
        migrations.CreateModel(
            name='UsageRollup',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('base_model', models.CharField(max_length=255)),
                ('requests', models.BigIntegerField()),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('completion_tokens', models.BigIntegerField()),
                ('reasoning_tokens', models.BigIntegerField()),
                ('cost', models.DecimalField(decimal_places=0, max_digits=38)),
                ('adapter', models.CharField(max_length=63)),
                ('model', models.CharField(max_length=255)),
                ('hour', models.DateTimeField()),
                ('key', models.ForeignKey(db_constraint=False, db_index=False, on_delete=django.db.models.deletion.DO_NOTHING, related_name='+', to='tenants.apikey')),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.tenant')),
            ],
            options={
                'ordering': ['tenant', 'hour'],
            },
        ),
        migrations.CreateModel(
            name='UsageTotal',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('base_model', models.CharField(max_length=255)),
                ('requests', models.BigIntegerField()),
                ('prompt_tokens', models.BigIntegerField()),
                ('cached_tokens', models.BigIntegerField()),
                ('completion_tokens', models.BigIntegerField()),
                ('reasoning_tokens', models.BigIntegerField()),
                ('cost', models.DecimalField(decimal_places=0, max_digits=38)),
                ('span', models.CharField(choices=[('hour', 'Hour'), ('day', 'Day'), ('month', 'Month')], max_length=5)),
                ('start', models.DateTimeField()),
                ('tenant', models.ForeignKey(db_index=False, on_delete=django.db.models.deletion.PROTECT, related_name='+', to='tenants.tenant')),
            ],
            options={
                'ordering': ['span', 'start'],
            },
        ),
        migrations.AddIndex(
            model_name='adapterversion',
            index=models.Index(fields=['digest'], name='version_by_digest'),
        ),
        migrations.AddIndex(
            model_name='adapterversion',
            index=models.Index(condition=models.Q(('folder', ''), _negated=True), fields=['adapter'], include=('size_bytes',), name='version_sizes'),
        ),
        migrations.AddIndex(
            model_name='adapterversion',
            index=models.Index(fields=['adapter', 'state'], include=('number', 'created_at'), name='version_by_state'),
        ),
        migrations.AddConstraint(
            model_name='adapterversion',
            constraint=models.UniqueConstraint(fields=('adapter', 'number'), name='version_number_unique'),
        ),
        migrations.AddConstraint(
            model_name='adapterversion',
            constraint=models.UniqueConstraint(fields=('adapter', 'digest'), name='version_digest_unique'),
        ),
        migrations.AddConstraint(
            model_name='adapterversion',
            constraint=models.CheckConstraint(condition=models.Q(('number__gte', 1)), name='version_number_positive'),
        ),
        migrations.AddConstraint(
            model_name='adapterversion',
            constraint=models.CheckConstraint(condition=models.Q(('digest__regex', '^[0-9a-f]{64}$')), name='version_digest_form'),
        ),
        migrations.AddConstraint(
            model_name='adapterversion',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['uploading', 'validating', 'probing', 'ready', 'rejected', 'archived'])), name='version_state_known'),
        ),
        migrations.AddConstraint(
            model_name='alias',
            constraint=models.UniqueConstraint(fields=('adapter', 'name'), name='alias_name_unique'),
        ),
        migrations.AddConstraint(
            model_name='alias',
            constraint=models.CheckConstraint(condition=models.Q(('name__regex', '^[a-z0-9][a-z0-9._-]{0,62}$')), name='alias_name_form'),
        ),
        migrations.AddConstraint(
            model_name='alias',
            constraint=models.CheckConstraint(condition=models.Q(('name__regex', '^([0-9]+|[0-9a-f]{8,64})$'), _negated=True), name='alias_name_no_version'),
        ),
        migrations.AddConstraint(
            model_name='enginecredential',
            constraint=models.UniqueConstraint(condition=models.Q(('revoked_at__isnull', True)), fields=('name',), name='engine_credential_name_unique'),
        ),
        migrations.AddConstraint(
            model_name='enginecredential',
            constraint=models.CheckConstraint(condition=models.Q(('name', ''), _negated=True), name='engine_credential_named'),
        ),
        migrations.AddIndex(
            model_name='idempotentanswer',
            index=models.Index(fields=['created_at'], name='answer_by_age'),
        ),
        migrations.AddConstraint(
            model_name='idempotentanswer',
            constraint=models.UniqueConstraint(fields=('key', 'name'), name='answer_unique'),
        ),
        migrations.AddIndex(
            model_name='conversation',
            index=models.Index(fields=['member', '-updated_at', '-id'], name='conversation_list'),
        ),
        migrations.AddConstraint(
            model_name='conversation',
            constraint=models.CheckConstraint(condition=django.db.models.lookups.LessThanOrEqual(models.Func(models.F('panes'), function='octet_length', output_field=models.IntegerField()), 524288), name='conversation_within_bounds'),
        ),
        migrations.AddConstraint(
            model_name='poolrevision',
            constraint=models.UniqueConstraint(fields=('base_model', 'digest'), name='pool_revision_unique'),
        ),
        migrations.AddConstraint(
            model_name='poolrevision',
            constraint=models.CheckConstraint(condition=models.Q(('standing__in', ['serving', 'waiting', 'withdrawn'])), name='pool_revision_standing_known'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.UniqueConstraint(fields=('base_model', 'adapter', 'tier', 'starts_at'), name='price_unique', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(('tier__in', ['standard', 'batch'])), name='price_tier_known'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('adapter__isnull', True), ('base_model__isnull', False)), models.Q(('adapter__isnull', False), ('base_model__isnull', True)), _connector='OR'), name='price_of_one_thing'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(('cached_prompt__gte', 0), ('output__gte', 0), ('prompt__gte', 0), ('cached_prompt__lte', 1000000000000), ('output__lte', 1000000000000), ('prompt__lte', 1000000000000)), name='price_in_bounds'),
        ),
        migrations.AddConstraint(
            model_name='price',
            constraint=models.CheckConstraint(condition=models.Q(('cached_prompt__lte', models.F('prompt'))), name='price_cached_not_dearer'),
        ),
        migrations.AddConstraint(
            model_name='promptset',
            constraint=models.UniqueConstraint(fields=('member', 'name'), name='prompt_set_once_per_name'),
        ),
        migrations.AddIndex(
            model_name='quarantinedentry',
            index=models.Index(condition=models.Q(('status', 'open')), fields=['credential'], name='quarantine_open'),
        ),
        migrations.AddIndex(
            model_name='quarantinedentry',
            index=models.Index(fields=['journal'], name='quarantine_by_journal'),
        ),
        migrations.AddConstraint(
            model_name='quarantinedentry',
            constraint=models.UniqueConstraint(fields=('credential', 'key'), name='quarantined_once', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='quarantinedentry',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('decided_at__isnull', True), ('status', 'open')), models.Q(('decided_at__isnull', False), ('status__in', ['billed', 'dismissed'])), _connector='OR'), name='quarantine_decided'),
        ),
        migrations.AddConstraint(
            model_name='revisionminute',
            constraint=models.UniqueConstraint(fields=('revision', 'minute'), name='revision_minute_unique'),
        ),
        migrations.AddConstraint(
            model_name='rollout',
            constraint=models.UniqueConstraint(condition=models.Q(('state__in', ['running', 'paused'])), fields=('base_model',), name='rollout_one_open'),
        ),
        migrations.AddConstraint(
            model_name='rollout',
            constraint=models.CheckConstraint(condition=models.Q(('weight__gte', 0), ('weight__lte', 100)), name='rollout_weight'),
        ),
        migrations.AddConstraint(
            model_name='rollout',
            constraint=models.CheckConstraint(condition=models.Q(('state__in', ['running', 'paused', 'finished', 'aborted', 'rolled back'])), name='rollout_state_known'),
        ),
        migrations.AddConstraint(
            model_name='rollout',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('ended_at', None), ('state__in', ['running', 'paused'])), models.Q(('ended_at__isnull', False), ('state__in', ['finished', 'aborted', 'rolled back'])), _connector='OR'), name='rollout_ended'),
        ),
        migrations.AddConstraint(
            model_name='savedprompt',
            constraint=models.UniqueConstraint(fields=('member', 'name'), name='saved_prompt_once_per_name'),
        ),
        migrations.AddConstraint(
            model_name='savedview',
            constraint=models.UniqueConstraint(fields=('member', 'name'), name='saved_view_once_per_name'),
        ),
        migrations.AddConstraint(
            model_name='setrun',
            constraint=models.UniqueConstraint(fields=('prompt_set', 'member', 'key'), name='set_run_once_per_key'),
        ),
        migrations.AddIndex(
            model_name='delivery',
            index=models.Index(condition=models.Q(('state', 'waiting')), fields=['due_at'], name='delivery_due'),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.UniqueConstraint(fields=('notification', 'target', 'user'), name='delivery_once', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='delivery',
            constraint=models.CheckConstraint(condition=models.Q(('target__isnull', True), ('user__isnull', True), _connector='XOR'), name='delivery_to_one'),
        ),
        migrations.AddIndex(
            model_name='storedfile',
            index=models.Index(fields=['tenant', '-created_at', '-id'], name='files_of_tenant'),
        ),
        migrations.AddIndex(
            model_name='storedcontent',
            index=models.Index(fields=['expires_at'], name='content_by_end'),
        ),
        migrations.AddConstraint(
            model_name='storedcontent',
            constraint=models.UniqueConstraint(fields=('tenant', 'kind', 'name'), name='content_unique'),
        ),
        migrations.AddConstraint(
            model_name='rollouttenant',
            constraint=models.UniqueConstraint(fields=('rollout', 'tenant'), name='rollout_tenant_unique'),
        ),
        migrations.AddConstraint(
            model_name='rollouttenant',
            constraint=models.CheckConstraint(condition=models.Q(('turn__in', ['first', 'last'])), name='rollout_turn_known'),
        ),
        migrations.AddConstraint(
            model_name='requestminute',
            constraint=models.UniqueConstraint(fields=('tenant', 'at', 'key', 'version', 'adapter', 'base_model', 'outcome', 'code', 'limit_kind', 'limit_scope'), name='request_minute_unique', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='requesthour',
            constraint=models.UniqueConstraint(fields=('tenant', 'at', 'key', 'version', 'adapter', 'base_model', 'outcome', 'code', 'limit_kind', 'limit_scope'), name='request_hour_unique', nulls_distinct=False),
        ),
        migrations.AddIndex(
            model_name='refusedrequest',
            index=models.Index(fields=['tenant', 'started_at'], name='refused_by_tenant'),
        ),
        migrations.AddIndex(
            model_name='refusedrequest',
            index=models.Index(fields=['started_at'], name='refused_by_start'),
        ),
        migrations.AddIndex(
            model_name='notification',
            index=models.Index(fields=['at'], name='notification_by_time'),
        ),
        migrations.AddConstraint(
            model_name='notification',
            constraint=models.UniqueConstraint(condition=models.Q(('once', ''), _negated=True), fields=('tenant', 'kind', 'once'), name='notification_once', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='muted',
            constraint=models.UniqueConstraint(fields=('user', 'tenant'), name='muted_once', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='membership',
            constraint=models.UniqueConstraint(fields=('user', 'tenant'), name='membership_once_per_user'),
        ),
        migrations.AddConstraint(
            model_name='membership',
            constraint=models.CheckConstraint(condition=models.Q(('role__in', ['owner', 'admin', 'developer', 'viewer'])), name='membership_role_known'),
        ),
        migrations.AddConstraint(
            model_name='limitset',
            constraint=models.UniqueConstraint(fields=('tenant', 'key', 'adapter', 'author'), name='limits_once_per_author', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='limitset',
            constraint=models.CheckConstraint(condition=models.Q(('author__in', ['operator', 'tenant'])), name='limits_author_known'),
        ),
        migrations.AddConstraint(
            model_name='limitset',
            constraint=models.CheckConstraint(condition=models.Q(('key__isnull', True), ('adapter__isnull', True), _connector='OR'), name='limits_of_one_scope'),
        ),
        migrations.AddConstraint(
            model_name='limitset',
            constraint=models.CheckConstraint(condition=models.Q(('tenant__isnull', False), models.Q(('adapter__isnull', True), ('author', 'operator'), ('key__isnull', True)), _connector='OR'), name='limits_default_is_the_operators'),
        ),
        migrations.AddConstraint(
            model_name='limitset',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('requests_per_minute__isnull', True), models.Q(('requests_per_minute__gte', 0), ('requests_per_minute__lte', 1000000000000)), _connector='OR'), models.Q(('tokens_per_minute__isnull', True), models.Q(('tokens_per_minute__gte', 0), ('tokens_per_minute__lte', 1000000000000)), _connector='OR'), models.Q(('prompt_tokens_per_minute__isnull', True), models.Q(('prompt_tokens_per_minute__gte', 0), ('prompt_tokens_per_minute__lte', 1000000000000)), _connector='OR'), models.Q(('output_tokens_per_minute__isnull', True), models.Q(('output_tokens_per_minute__gte', 0), ('output_tokens_per_minute__lte', 1000000000000)), _connector='OR'), models.Q(('concurrent_streams__isnull', True), models.Q(('concurrent_streams__gte', 0), ('concurrent_streams__lte', 1000000000000)), _connector='OR'), models.Q(('tokens_per_day__isnull', True), models.Q(('tokens_per_day__gte', 0), ('tokens_per_day__lte', 1000000000000)), _connector='OR'), models.Q(('tokens_per_month__isnull', True), models.Q(('tokens_per_month__gte', 0), ('tokens_per_month__lte', 1000000000000)), _connector='OR'), models.Q(('cost_per_day__isnull', True), models.Q(('cost_per_day__gte', 0), ('cost_per_day__lte', 1000000000000)), _connector='OR'), models.Q(('cost_per_month__isnull', True), models.Q(('cost_per_month__gte', 0), ('cost_per_month__lte', 1000000000000)), _connector='OR')), name='limits_in_bounds'),
        ),
        migrations.AddConstraint(
            model_name='invitation',
            constraint=models.CheckConstraint(condition=models.Q(('role__in', ['owner', 'admin', 'developer', 'viewer'])), name='invitation_role_known'),
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
            model_name='batch',
            index=models.Index(fields=['tenant', '-created_at', '-id'], name='batches_of_tenant'),
        ),
        migrations.AddIndex(
            model_name='batch',
            index=models.Index(condition=models.Q(('ended_at', None)), fields=['leased_until'], name='batches_to_run'),
        ),
        migrations.AddConstraint(
            model_name='batch',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('ended_at__isnull', False), ('status__in', ['cancelled', 'completed', 'expired', 'failed'])), models.Q(models.Q(('status__in', ['cancelled', 'completed', 'expired', 'failed']), _negated=True), ('ended_at__isnull', True)), _connector='OR'), name='batch_ended_at_its_end'),
        ),
        migrations.AddConstraint(
            model_name='batch',
            constraint=models.UniqueConstraint(condition=models.Q(('idempotency_key', ''), _negated=True), fields=('key', 'idempotency_key'), name='batch_made_once'),
        ),
        migrations.AddConstraint(
            model_name='batch',
            constraint=models.CheckConstraint(condition=models.Q(('completed__lte', django.db.models.expressions.CombinedExpression(models.F('total'), '-', models.F('failed')))), name='batch_counts_its_lines'),
        ),
        migrations.AddIndex(
            model_name='backgroundresponse',
            index=models.Index(condition=models.Q(('status__in', ('queued', 'in_progress'))), fields=['tenant', 'created_at'], name='background_to_run'),
        ),
        migrations.AddIndex(
            model_name='backgroundresponse',
            index=models.Index(condition=models.Q(('once', ''), _negated=True), fields=['key', 'once'], name='background_once'),
        ),
        migrations.AddConstraint(
            model_name='backgroundresponse',
            constraint=models.CheckConstraint(condition=models.Q(('status__in', ('queued', 'in_progress', 'completed', 'incomplete', 'failed', 'cancelled'))), name='background_status_known'),
        ),
        migrations.AddIndex(
            model_name='auditentry',
            index=models.Index(fields=['tenant', '-id'], name='audit_by_tenant'),
        ),
        migrations.AddIndex(
            model_name='auditentry',
            index=models.Index(fields=['actor_name', '-id'], name='audit_by_actor'),
        ),
        migrations.AddConstraint(
            model_name='apikey',
            constraint=models.CheckConstraint(condition=models.Q(('scopes__len__gt', 0), ('scopes__contained_by', ['inference', 'adapters:write', 'usage:read', 'admin'])), name='apikey_scopes_known'),
        ),
        migrations.AddConstraint(
            model_name='apikey',
            constraint=models.CheckConstraint(condition=models.Q(('lane__in', ['interactive', 'batch'])), name='apikey_lane_known'),
        ),
        migrations.AddConstraint(
            model_name='apikey',
            constraint=models.UniqueConstraint(condition=models.Q(('prefix__startswith', 'play-')), fields=('tenant', 'created_by'), name='apikey_one_playground_each'),
        ),
        migrations.AddIndex(
            model_name='adapter',
            index=models.Index(condition=models.Q(('pinned', True)), fields=['id'], name='adapter_pinned'),
        ),
        migrations.AddConstraint(
            model_name='adapter',
            constraint=models.UniqueConstraint(fields=('tenant', 'name'), name='adapter_name_unique'),
        ),
        migrations.AddConstraint(
            model_name='adapter',
            constraint=models.CheckConstraint(condition=models.Q(('name__regex', '^[a-z0-9][a-z0-9._-]{0,62}$')), name='adapter_name_form'),
        ),
        migrations.AddConstraint(
            model_name='totalhour',
            constraint=models.UniqueConstraint(fields=('tenant', 'at', 'outcome', 'code', 'limit_kind', 'limit_scope'), name='total_hour_unique', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='totalminute',
            constraint=models.UniqueConstraint(fields=('tenant', 'at', 'outcome', 'code', 'limit_kind', 'limit_scope'), name='total_minute_unique', nulls_distinct=False),
        ),
        migrations.AddConstraint(
            model_name='trial',
            constraint=models.UniqueConstraint(fields=('version', 'revision'), name='trial_unique'),
        ),
        migrations.AddConstraint(
            model_name='uploadsession',
            constraint=models.CheckConstraint(condition=models.Q(('version', None), ('refusal__isnull', True), _connector='OR'), name='upload_ends_one_way'),
        ),
        migrations.AddConstraint(
            model_name='uploadsession',
            constraint=models.CheckConstraint(condition=models.Q(models.Q(('actor__isnull', True), ('received_at__isnull', True)), models.Q(('actor__isnull', False), ('received_at__isnull', False)), _connector='OR'), name='upload_received_for_somebody'),
        ),
        migrations.AddIndex(
            model_name='usageevent',
            index=models.Index(fields=['tenant', 'started_at'], name='usage_by_tenant'),
        ),
        migrations.AddIndex(
            model_name='usageevent',
            index=models.Index(fields=['started_at'], name='usage_by_start'),
        ),
        migrations.AddIndex(
            model_name='usageevent',
            index=models.Index(condition=models.Q(('finish_reason__in', ['stop', 'tool_calls', 'function_call', 'length', 'cancelled', 'api_key_revoked']), _negated=True), fields=['tenant', 'started_at'], name='usage_failed_by_tenant'),
        ),
        migrations.AddIndex(
            model_name='usageevent',
            index=models.Index(condition=models.Q(('finish_reason__in', ['stop', 'tool_calls', 'function_call', 'length', 'cancelled', 'api_key_revoked']), _negated=True), fields=['started_at'], name='usage_failed_by_start'),
        ),
        migrations.AddIndex(
            model_name='usagemonth',
            index=models.Index(fields=['tenant', 'adapter', 'month'], name='month_by_adapter'),
        ),
        migrations.AddConstraint(
            model_name='usagemonth',
            constraint=models.UniqueConstraint(fields=('tenant', 'month', 'key', 'adapter', 'model', 'base_model'), name='month_unique'),
        ),
        migrations.AddConstraint(
            model_name='usagerollup',
            constraint=models.UniqueConstraint(fields=('tenant', 'hour', 'key', 'adapter', 'model', 'base_model'), name='rollup_unique'),
        ),
        migrations.AddConstraint(
            model_name='usagetotal',
            constraint=models.UniqueConstraint(fields=('span', 'start', 'tenant', 'base_model'), name='total_unique'),
        ),
        *(
            migrations.RunSQL((SQL / f"{name}.sql").read_text())
            for name in ("tables", "guards", "usage", "notices", "notifications", "audit")
        ),
    ]
