"""Tells gateways apart that go on with one request of an idempotency key."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0029_gateway_demand")]

    operations = [
        migrations.AddField(
            model_name="idempotentanswer",
            name="turn",
            field=models.IntegerField(default=1, db_default=1),
        ),
    ]
