from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0015_loading_and_gates")]

    operations = [
        migrations.AddField("finetuningjob", "held", models.JSONField(null=True)),
    ]
