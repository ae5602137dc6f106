"""What a tenant may keep, what an adapter's configuration names as its base model, and who knows."""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0025_expired_sessions'),
    ]

    operations = [
        migrations.AddField(
            model_name='tenant',
            name='max_stored_bytes',
            field=models.PositiveBigIntegerField(blank=True, help_text="Bytes of adapter files that the tenant may store; empty: the installation's default.", null=True),
        ),
        migrations.AddField(
            model_name='tenant',
            name='max_versions',
            field=models.PositiveIntegerField(blank=True, help_text="Adapter versions that the tenant may store; empty: the installation's default.", null=True),
        ),
        migrations.AddField(
            model_name='adapterversion',
            name='trained_on',
            field=models.CharField(blank=True, default='', max_length=255),
            preserve_default=False,
        ),
        migrations.AddField(
            model_name='uploadsession',
            name='base_confirmed',
            field=models.BooleanField(default=False),
        ),
    ]
