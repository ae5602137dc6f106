"""Each member has a key of the playground of their own, so that their use of it is told as theirs."""

from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0033_request_history")]
    operations = [
        migrations.AddConstraint(
            "apikey",
            models.UniqueConstraint(
                fields=["tenant", "created_by"],
                condition=models.Q(prefix__startswith="play-"),
                name="apikey_one_playground_each",
            ),
        ),
    ]
