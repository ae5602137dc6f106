"""Drift that was looked into counts no more."""

from django.db import migrations, models

COLUMNS = ("accepted_requests", "accepted_tokens")


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0016_attached_partitions'),
    ]

    # With a default of the database's: gateways of the release before write journals without them.
    operations = [
        migrations.AddField('enginejournal', name, models.BigIntegerField(default=0, db_default=0))
        for name in COLUMNS
    ]
