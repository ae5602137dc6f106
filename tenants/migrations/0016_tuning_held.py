from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0013_training_prices")]

    operations = [
        migrations.AddField("finetuningjob", "held", models.JSONField(null=True)),
    ]
