from pathlib import Path

import django.core.validators
import django.db.models.deletion
import django.utils.timezone
from django.db import migrations, models

SQL = Path(__file__).parents[1] / "sql"


class Migration(migrations.Migration):
    dependencies = [("tenants", "0014_structure")]

    operations = [
        migrations.AddField(
            "adapter",
            "short_lived",
            models.BooleanField(
                db_default=False,
                default=False,
                editable=False,
                help_text="All its versions expire: a training loop loads them.",
            ),
        ),
        migrations.AddField(
            "adapterversion", "expires_at", models.DateTimeField(editable=False, null=True)
        ),
        migrations.AddField(
            "uploadsession",
            "short_lived",
            models.BooleanField(db_default=False, default=False, editable=False),
        ),
        migrations.AddField(
            "uploadsession",
            "source_file",
            models.CharField(
                blank=True, db_default="", default="", editable=False, max_length=32
            ),
        ),
        migrations.AddIndex(
            "adapterversion",
            models.Index(
                condition=models.Q(expires_at__isnull=False),
                fields=["expires_at"],
                name="version_by_expiry",
            ),
        ),
        migrations.RunSQL((SQL / "notifications.sql").read_text()),
        migrations.RunSQL((SQL / "audit.sql").read_text()),
        migrations.CreateModel(
            name="PromotionGate",
            fields=[
                (
                    "id",
                    models.BigAutoField(
                        auto_created=True, primary_key=True, serialize=False, verbose_name="ID"
                    ),
                ),
                ("alias", models.CharField(max_length=63)),
                (
                    "min_pass_rate",
                    models.FloatField(
                        help_text="The share of rows that must pass, above 0 and at most 1.",
                        validators=[django.core.validators.MaxValueValidator(1.0)],
                    ),
                ),
                (
                    "created_at",
                    models.DateTimeField(default=django.utils.timezone.now, editable=False),
                ),
                (
                    "adapter",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.CASCADE,
                        related_name="gates",
                        to="tenants.adapter",
                    ),
                ),
                (
                    "eval",
                    models.ForeignKey(
                        on_delete=django.db.models.deletion.RESTRICT,
                        related_name="gates",
                        to="tenants.eval",
                    ),
                ),
            ],
            options={"ordering": ["alias"]},
        ),
        migrations.AddConstraint(
            "promotiongate",
            models.UniqueConstraint(fields=["adapter", "alias"], name="gate_once"),
        ),
        migrations.AddConstraint(
            "promotiongate",
            models.CheckConstraint(
                condition=models.Q(min_pass_rate__gt=0, min_pass_rate__lte=1), name="gate_rate"
            ),
        ),
        migrations.RunSQL((SQL / "gates.sql").read_text()),
    ]
