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
        migrations.AddField(
            "tenant",
            "repair",
            models.CharField(
                choices=[("never", "Never"), ("once", "Once")],
                db_default="never",
                default="never",
                help_text="`once`: a whole answer that does not follow the JSON schema or the tools of its request is asked for again, once, and both are billed.",
                max_length=8,
            ),
        ),
        migrations.AddConstraint(
            "tenant",
            models.CheckConstraint(
                condition=models.Q(repair__in=["never", "once"]), name="tenant_repair_known"
            ),
        ),
        migrations.AddField("batchline", "first_token_ms", models.FloatField(null=True)),
        migrations.AddField("batchline", "total_ms", models.FloatField(null=True)),
        migrations.AddField("splitrequest", "conforms", models.BooleanField(null=True)),
    ]
