"""Tells the attempts of a request apart: the highest is its event, the others are kept beside it."""

from django.db import migrations, models

# With defaults of the database's: gateways of the release before write events without them.
COLUMNS = {
    "attempt": models.IntegerField(default=1, db_default=1),
    "inherited_tokens": models.BigIntegerField(default=0, db_default=0),
    "regenerated_tokens": models.BigIntegerField(default=0, db_default=0),
}


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0020_pool_revisions'),
    ]

    operations = [
        *(migrations.AddField('usageevent', name, field) for name, field in COLUMNS.items()),
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
            ],
        ),
    ]
