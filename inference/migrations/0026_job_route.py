
from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inference', '0025_index_of_keys'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='route',
            field=models.CharField(default=None, editable=False, help_text='The address that it came by.', max_length=60, null=True),
        ),
    ]
