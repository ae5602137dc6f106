import django.contrib.postgres.fields
import django.db.models.deletion
from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0016_tuning_held")]

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
    ]
