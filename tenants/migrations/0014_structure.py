from django.db import migrations, models

FIGURES = ("requestminute", "requesthour", "totalminute", "totalhour")


class Migration(migrations.Migration):
    dependencies = [("tenants", "0013_training_prices")]

    operations = [
        *(
            migrations.AddField(model, name, models.BigIntegerField(db_default=0, default=0))
            for model in FIGURES
            for name in ("conformed", "malformed", "unchecked")
        ),
        migrations.AddField("splitrequest", "conforms", models.BooleanField(null=True)),
    ]
