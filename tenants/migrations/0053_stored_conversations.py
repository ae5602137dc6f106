"""Conversations that responses go on from are stored as well."""

from django.db import migrations, models

KINDS = [('request', 'Request'), ('response', 'Response'), ('conversation', 'Conversation')]


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0052_background_responses'),
    ]

    operations = [
        migrations.AlterField('storedcontent', 'kind', models.CharField(choices=KINDS, max_length=16)),
    ]
