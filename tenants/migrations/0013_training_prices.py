import django.db.models.deletion
from django.db import migrations, models

# Jobs made before they named a key: the tenant's first key pays.
NAME_KEYS = """
UPDATE tenants_finetuningjob AS job
SET key_id = (SELECT min(id) FROM tenants_apikey AS key WHERE key.tenant_id = job.tenant_id)
"""


class Migration(migrations.Migration):
    dependencies = [("tenants", "0012_splits")]

    operations = [
        migrations.AddField(
            "finetuningjob",
            "key",
            models.ForeignKey(
                null=True,
                on_delete=django.db.models.deletion.CASCADE,
                related_name="+",
                to="tenants.apikey",
            ),
        ),
        migrations.RunSQL(NAME_KEYS, ""),
        migrations.RunSQL("SET CONSTRAINTS ALL IMMEDIATE", ""),
        migrations.AlterField(
            "finetuningjob",
            "key",
            models.ForeignKey(
                on_delete=django.db.models.deletion.CASCADE, related_name="+", to="tenants.apikey"
            ),
        ),
        migrations.AddField(
            "finetuningjob",
            "method",
            models.CharField(
                choices=[("supervised", "supervised"), ("dpo", "dpo")],
                default="supervised",
                max_length=16,
            ),
        ),
        migrations.AddField(
            "finetuningjob", "idempotency_key", models.CharField(default="", max_length=255)
        ),
        migrations.AddField(
            "finetuningjob", "body_sha256", models.CharField(default="", max_length=64)
        ),
        migrations.AddConstraint(
            "finetuningjob",
            models.UniqueConstraint(
                condition=~models.Q(idempotency_key=""),
                fields=["key", "idempotency_key"],
                name="tuning_made_once",
            ),
        ),
        migrations.AlterField(
            "price",
            "tier",
            models.CharField(
                choices=[("standard", "Standard"), ("batch", "Batch"), ("training", "Training")],
                db_default="standard",
                default="standard",
                help_text="`batch`: for requests of batches, which otherwise cost the standard price. `training`: for the tokens that fine-tuning jobs on a base model train on, by `prompt`; the other two are 0.",
                max_length=8,
            ),
        ),
        migrations.RemoveConstraint("price", "price_tier_known"),
        migrations.AddConstraint(
            "price",
            models.CheckConstraint(
                condition=models.Q(tier__in=["standard", "batch", "training"]),
                name="price_tier_known",
            ),
        ),
        migrations.AddConstraint(
            "price",
            models.CheckConstraint(
                condition=~models.Q(tier="training")
                | models.Q(base_model__isnull=False, cached_prompt=0, output=0),
                name="price_of_training",
            ),
        ),
    ]
