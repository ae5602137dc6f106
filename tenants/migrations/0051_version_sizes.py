"""An index by which what a tenant stores is added up."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0050_usage_totals'),
    ]

    operations = [
        migrations.AddIndex(
            model_name='adapterversion',
            index=models.Index(
                condition=models.Q(('folder', ''), _negated=True),
                fields=['adapter'],
                include=('size_bytes',),
                name='version_sizes',
            ),
        ),
    ]
