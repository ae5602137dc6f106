from pathlib import Path

import django.contrib.postgres.fields
import django.core.validators
import django.db.models.deletion
import django.utils.timezone
from django.conf import settings
from django.db import migrations, models

SQL = Path(__file__).parents[1] / "sql"
NAME = "^[a-z0-9][a-z0-9._-]{0,62}$"


class Migration(migrations.Migration):
    dependencies = [("tenants", "0020_overflow")]

    operations = [
        migrations.AddField(
            "usageevent", "route", models.CharField(db_default="", default="", max_length=63)
        ),
        migrations.CreateModel(
            name="Route",
            fields=[
                ("id", models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name="ID")),
                ("name", models.CharField(help_text="What requests name as their model.", max_length=63, validators=[django.core.validators.RegexValidator(NAME, "Lower-case letters, digits, dots, underscores and hyphens, up to 63.")])),
                ("options", django.contrib.postgres.fields.ArrayField(base_field=models.CharField(max_length=300), help_text="2 to 4 base models or adapters, from the cheapest on.", size=None)),
                ("margin", models.FloatField(default=0.03, help_text="How much smaller the share of good answers may be than that of the best single option, from 0 to 0.2.", validators=[django.core.validators.MinValueValidator(0.0), django.core.validators.MaxValueValidator(0.2)])),
                ("best", models.PositiveSmallIntegerField(default=0, editable=False)),
                ("is_on", models.BooleanField(default=False, editable=False)),
                ("reason", models.CharField(blank=True, editable=False, max_length=500)),
                ("fitting_since", models.DateTimeField(editable=False, null=True)),
                ("fit", models.PositiveIntegerField(default=0, editable=False)),
                ("fitted_at", models.DateTimeField(editable=False, null=True)),
                ("packed", models.BinaryField(default=b"", editable=False)),
                ("threshold", models.FloatField(default=0.0, editable=False)),
                ("report", models.JSONField(editable=False, null=True)),
                ("gains", models.BooleanField(default=False, editable=False)),
                ("created_at", models.DateTimeField(default=django.utils.timezone.now, editable=False)),
                ("created_by", models.ForeignKey(editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to=settings.AUTH_USER_MODEL)),
                ("eval", models.ForeignKey(blank=True, editable=False, null=True, on_delete=django.db.models.deletion.SET_NULL, related_name="+", to="tenants.eval")),
                ("tenant", models.ForeignKey(on_delete=django.db.models.deletion.CASCADE, related_name="routes", to="tenants.tenant")),
            ],
            options={"ordering": ["name"]},
        ),
        migrations.AddConstraint(
            "route",
            models.UniqueConstraint(fields=("tenant", "name"), name="route_name_unique"),
        ),
        migrations.AddConstraint(
            "route",
            models.CheckConstraint(condition=models.Q(name__regex=NAME), name="route_name_form"),
        ),
        migrations.AddConstraint(
            "route",
            models.CheckConstraint(
                condition=models.Q(is_on=False) | models.Q(gains=True), name="route_on_gains"
            ),
        ),
        migrations.RunSQL((SQL / "audit.sql").read_text()),
        migrations.RunSQL((SQL / "routes.sql").read_text()),
    ]
