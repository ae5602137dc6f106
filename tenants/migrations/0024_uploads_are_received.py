"""Every upload has a row until a worker made it a version; it is noted when all of it was there."""

from django.db import migrations, models
from django.db.models import Q


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0023_live_notices'),
    ]

    operations = [
        # A form may send two empty files, and is told so.
        migrations.RemoveConstraint(model_name='uploadsession', name='upload_not_empty'),
        migrations.AddField(
            model_name='uploadsession',
            name='received_at',
            field=models.DateTimeField(null=True),
        ),
        migrations.AddField(
            model_name='uploadsession',
            name='actor',
            field=models.JSONField(null=True),
        ),
        migrations.AddConstraint(
            model_name='uploadsession',
            constraint=models.CheckConstraint(
                condition=Q(received_at__isnull=True, actor__isnull=True)
                | Q(received_at__isnull=False, actor__isnull=False),
                name='upload_received_for_somebody',
            ),
        ),
    ]
