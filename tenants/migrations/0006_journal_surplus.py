"""Remembers what the ledger has of an engine beyond its journal."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0005_limit_notices'),
    ]

    operations = [
        migrations.AddField(
            model_name='enginejournal',
            name='surplus_requests',
            field=models.BigIntegerField(null=True),
        ),
        migrations.AddField(
            model_name='enginejournal',
            name='surplus_tokens',
            field=models.BigIntegerField(null=True),
        ),
    ]
