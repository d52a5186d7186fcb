from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inference', '0023_index_of_owners'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='key_start',
            field=models.CharField(default=None, editable=False, help_text='The first characters of the API key that it came with, kept when that is deleted.', max_length=12, null=True),
        ),
    ]
