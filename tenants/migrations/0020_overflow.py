from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0019_estimated_usage")]

    operations = [
        migrations.AddField(
            "tenant", "overflow", models.BooleanField(db_default=False, default=False, editable=False)
        ),
        migrations.AddField(
            "usageevent", "overflow", models.BooleanField(db_default=False, default=False)
        ),
        migrations.AddIndex(
            "usageevent",
            models.Index(
                condition=models.Q(overflow=True), fields=["started_at"], name="usage_overflowed"
            ),
        ),
    ]
