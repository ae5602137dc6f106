"""Large files of commits that are pushed to the hub, until their commit comes."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0037_playground_of_members'),
    ]

    operations = [
        migrations.AddField(
            model_name='uploadsession',
            name='oid',
            field=models.CharField(blank=True, db_default='', default='', editable=False, max_length=64),
        ),
    ]
