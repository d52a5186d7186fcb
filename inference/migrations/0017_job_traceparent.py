from django.db import migrations, models


class Migration(migrations.Migration):

    dependencies = [
        ('inference', '0016_indexes_of_workers_and_priorities'),
    ]

    operations = [
        migrations.AddField(
            model_name='job',
            name='traceparent',
            field=models.CharField(default=None, editable=False, help_text='The trace that it came with, where traces are on.', max_length=55, null=True),
        ),
    ]
