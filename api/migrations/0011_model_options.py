
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('api', '0010_groups_see_file_batches'),
    ]

    operations = [
        migrations.AddField(
            model_name='filebatch',
            name='model_options',
            field=models.JSONField(default=None, null=True, help_text='By model, the options of its entry that the answers depend on.'),
        ),
    ]
