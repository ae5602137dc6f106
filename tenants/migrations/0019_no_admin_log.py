"""Drops the log of the stock Django admin, which is gone: its rows would keep users from being deleted."""

from django.db import migrations


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0018_key_origins'),
    ]

    operations = [
        migrations.RunSQL("DROP TABLE IF EXISTS django_admin_log", migrations.RunSQL.noop),
    ]
