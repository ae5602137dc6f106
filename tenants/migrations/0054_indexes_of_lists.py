"""A tenant's versions in one state, and the last month of an adapter, are found by indexes.

The index by `adapter` alone goes: two others begin with it.
"""

from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0053_stored_conversations'),
    ]

    operations = [
        migrations.AlterField(
            'adapterversion',
            'adapter',
            models.ForeignKey(
                'tenants.adapter', models.CASCADE, db_index=False, related_name='versions'
            ),
        ),
        migrations.AddIndex(
            'adapterversion',
            models.Index(
                fields=['adapter', 'state'],
                include=['number', 'created_at'],
                name='version_by_state',
            ),
        ),
        migrations.AddIndex(
            'usagemonth',
            models.Index(fields=['tenant', 'adapter', 'month'], name='month_by_adapter'),
        ),
    ]
