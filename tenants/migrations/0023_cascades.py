from pathlib import Path

from django.db import migrations, models

SQL = Path(__file__).parents[1] / "sql"


class Migration(migrations.Migration):
    dependencies = [("tenants", "0022_overflow_prices")]

    operations = [
        migrations.AddField(
            "route",
            "method",
            models.CharField(
                choices=[
                    ("classifier", "by the words of the question"),
                    ("cascade", "the second model if the first one is unsure"),
                ],
                db_default="classifier",
                default="classifier",
                help_text="`classifier`: the words of the question choose. `cascade`: of two models the first one answers, and the second one instead if that answer is unsure.",
                max_length=10,
            ),
        ),
        migrations.AddConstraint(
            "route",
            models.CheckConstraint(
                condition=models.Q(method__in=["classifier", "cascade"]), name="route_method_known"
            ),
        ),
        migrations.RunSQL((SQL / "routes.sql").read_text()),
    ]
