from pathlib import Path

from django.db import migrations, models

SQL = Path(__file__).parents[1] / "sql"


class Migration(migrations.Migration):
    dependencies = [("tenants", "0013_training_prices")]

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
    ]
