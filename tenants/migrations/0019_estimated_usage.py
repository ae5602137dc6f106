from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0018_comparisons_and_training_limits")]

    operations = [
        migrations.AddField(
            "usageevent",
            "is_estimated",
            models.BooleanField(db_default=False, default=False),
        ),
    ]
