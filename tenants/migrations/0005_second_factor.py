from pathlib import Path

from django.db import migrations, models

SQL = Path(__file__).parents[1] / "sql"


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0004_chunks'),
    ]

    operations = [
        migrations.AddField(
            model_name='tenant',
            name='second_factor_required',
            field=models.BooleanField(db_default=False, default=False, help_text='Whether members open the tenant only with a second factor, or single sign-on.'),
        ),
        migrations.RunSQL((SQL / "notices.sql").read_text()),
    ]
