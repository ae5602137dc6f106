from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0016_tuning_held")]

    operations = [
        migrations.AddField(
            "split",
            "shadow_key",
            models.ForeignKey(
                blank=True,
                help_text="The key to which copies are billed; empty if it is no shadow.",
                null=True,
                on_delete=models.CASCADE,
                related_name="+",
                to="tenants.apikey",
            ),
        ),
    ]
