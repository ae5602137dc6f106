from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0028_quarantine")]

    operations = [
        migrations.AddField(
            model_name="gatewayprocess",
            name="demand",
            field=models.JSONField(db_default={}, default=dict),
        ),
    ]
