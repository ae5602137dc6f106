"""A rotated key is counted as the one that it began as."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0017_accepted_drift'),
    ]

    operations = [
        migrations.AddField(
            model_name='apikey',
            name='origin',
            field=models.ForeignKey(editable=False, help_text='The first of the keys that were rotated into this one.', null=True, on_delete=django.db.models.deletion.SET_NULL, related_name='+', to='tenants.apikey'),
        ),
    ]
