"""Finds the hourly sums of all tenants by their time."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0011_isolation")]
    operations = [
        migrations.AddIndex(
            model_name="usagerollup",
            index=models.Index(fields=["hour"], name="rollup_by_hour"),
        ),
    ]
