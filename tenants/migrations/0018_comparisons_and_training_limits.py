import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0017_shadows")]

    operations = [
        migrations.AddField(
            "evalitem",
            "scores",
            django.contrib.postgres.fields.ArrayField(
                models.FloatField(null=True), db_default=[], default=list, size=None
            ),
        ),
        migrations.AddField(
            "finetuningjob",
            "comparison",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="tenants.eval",
            ),
        ),
        migrations.AddField(
            "split",
            "eval_run",
            models.ForeignKey(
                editable=False,
                null=True,
                on_delete=django.db.models.deletion.SET_NULL,
                related_name="+",
                to="tenants.evalrun",
            ),
        ),
        migrations.AddField(
            "finetuningjob", "expected_tokens", models.BigIntegerField(db_default=0, default=0)
        ),
        migrations.AddField("finetuningjob", "waits_until", models.DateTimeField(null=True)),
        migrations.AddField(
            "limitset",
            "trained_tokens_per_day",
            models.BigIntegerField(
                blank=True,
                help_text="Tokens that fine-tuning jobs train on, in any 24 hours.",
                null=True,
                validators=[
                    django.core.validators.MinValueValidator(0),
                    django.core.validators.MaxValueValidator(10**12),
                ],
            ),
        ),
        migrations.AddConstraint(
            "limitset",
            models.CheckConstraint(
                condition=models.Q(trained_tokens_per_day__isnull=True)
                | models.Q(
                    trained_tokens_per_day__gte=0,
                    trained_tokens_per_day__lte=10**12,
                    key=None,
                    adapter=None,
                ),
                name="limits_of_training",
            ),
        ),
    ]
