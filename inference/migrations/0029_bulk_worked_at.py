from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inference', '0028_bulk_is_open'),
    ]

    operations = [
        migrations.AddField(
            model_name='bulk',
            name='worked_at',
            field=models.DateTimeField(default=None, help_text='When the program that works on open bulks was last seen.', null=True),
        ),
    ]
