from django.db import migrations, models


class Migration(migrations.Migration):
    dependencies = [("tenants", "0021_routes")]

    operations = [
        migrations.AlterField(
            "price",
            "tier",
            models.CharField(
                choices=[
                    ("standard", "Standard"),
                    ("batch", "Batch"),
                    ("training", "Training"),
                    ("overflow", "Overflow"),
                ],
                db_default="standard",
                default="standard",
                help_text="`batch`: for requests of batches, which otherwise cost the standard price. `training`: for the tokens that fine-tuning jobs on a base model train on, by `prompt`; the other two are 0. `overflow`: for requests for a base model that overflow engines answer, which otherwise cost the standard price.",
                max_length=8,
            ),
        ),
        migrations.RemoveConstraint("price", "price_tier_known"),
        migrations.AddConstraint(
            "price",
            models.CheckConstraint(
                condition=models.Q(tier__in=["standard", "batch", "training", "overflow"]),
                name="price_tier_known",
            ),
        ),
        migrations.AddConstraint(
            "price",
            models.CheckConstraint(
                condition=~models.Q(tier="overflow") | models.Q(base_model__isnull=False),
                name="price_of_overflow",
            ),
        ),
    ]
