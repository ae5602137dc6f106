"""Times of each attempt of a request, and its trace."""

from django.db import migrations, models

# With defaults of the database's: gateways of the release before write rows without them.
TIME = models.FloatField(default=0.0, db_default=0.0)
TRACE = models.CharField(default="", db_default="", max_length=32)


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0045_content'),
    ]

    operations = [
        migrations.AddField('usageevent', 'given_s', TIME),
        migrations.AddField('usageevent', 'trace_id', TRACE),
        migrations.AddField('refusedrequest', 'trace_id', TRACE),
        *(
            migrations.AddField('supersededattempt', name, TIME)
            for name in ('given_s', 'queue_s', 'load_s', 'total_s')
        ),
        migrations.AddField('supersededattempt', 'ttft_s', models.FloatField(null=True)),
    ]
