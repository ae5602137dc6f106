"""A price stays when its adapter goes: what is still to be billed costs it."""

import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0014_hours_alone'),
    ]

    operations = [
        migrations.AlterField(
            model_name='price',
            name='adapter',
            field=models.ForeignKey(blank=True, db_constraint=False, null=True, on_delete=django.db.models.deletion.DO_NOTHING, related_name='prices', to='tenants.adapter'),
        ),
    ]
