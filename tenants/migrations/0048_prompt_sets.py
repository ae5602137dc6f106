"""Sets of prompts that members keep and share."""

import django.db.models.deletion
from django.db import migrations, models

MEMBER = models.ForeignKey(
    on_delete=django.db.models.deletion.CASCADE, related_name='+', to='tenants.membership'
)


class Migration(migrations.Migration):

    dependencies = [
        ('tenants', '0047_times_of_attempts'),
    ]

    operations = [
        migrations.AlterField('savedprompt', 'member', MEMBER),
        migrations.AlterField('savedview', 'member', MEMBER),
        migrations.AlterField('savedview', 'name', models.CharField(max_length=80)),
        migrations.CreateModel(
            name='PromptSet',
            fields=[
                ('id', models.BigAutoField(auto_created=True, primary_key=True, serialize=False, verbose_name='ID')),
                ('name', models.CharField(max_length=80)),
                ('shared', models.BooleanField(default=False)),
                ('prompts', models.JSONField()),
                ('member', MEMBER),
            ],
            options={
                'ordering': ['name', 'id'],
                'constraints': [models.UniqueConstraint(fields=('member', 'name'), name='prompt_set_once_per_name')],
            },
        ),
    ]
